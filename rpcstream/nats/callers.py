"""The callers of one instance of a service, and the table of them.

Each is the channel of a session, and a connection of the listener.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from typing import Any, NamedTuple, Protocol

import orjson

from ..auth.authenticator import Authenticator
from ..auth.gate import WRONG_TOKEN
from ..errors import MessageTooLarge, MethodNotFound, NotAuthenticated, NotPermitted, RpcError, ServerBusy
from ..observe.limited_log import LimitedLog
from ..peer.credentials import Credentials
from ..peer.deadline import INFINITE
from ..peer.intake import Phase
from ..peer.session import Session
from ..text import get_logger
from ..transports.listen import Listener
from ..wire.buffers import Encoded, first_part
from ..wire.envelope import BinaryFrame, Message, Oversize, error_reply, oversize
from .channel import NOTIFICATION, Home, NatsChannel
from .direct import CLAIM_TIME, LEAVE_TIME, CallerDetour, DirectListener
from .link import NO_RESPONDERS
from .messages import CLIENT, UNREADABLE, belongs_to_calls, no_way, read_payload, refusal_of, session_message
from .protocol import REQUEST_INFO, NatsMessage

#: Seconds after which an instance acknowledges a call that it has not answered. The caller then knows where to send a
#: cancel, and which instance to probe. Nearly all calls are answered sooner.
TELL_AFTER = 0.02

#: Seconds without a message after which an idle caller is forgotten.
FORGET_AFTER = 60.0

#: Seconds between two probes of a caller for which something runs.
PROBE_EVERY = 1.0

#: Seconds that the lookup of a caller's identity may still take when the server stops. Later, another instance can take
#: its calls.
LOOKUP_TIME = 5.0

#: Errors that a large call gets before it is sent.
_REFUSALS = (MethodNotFound, NotPermitted, NotAuthenticated)

#: Characters that are read of the reason why a client could not connect.
REASON_MAX = 500


NO_TOKEN = {"reason": "the message shows no token: it stands in the header Authorization"}
NOT_ACCEPTED = {"reason": "this caller is not accepted"}


class Shown(NamedTuple):
    """What a message shows of its sender.

    Attributes:
        user, account: as NATS says; empty where that is not read, or NATS says nothing.
    """

    token: str | None
    user: str
    account: str

    @property
    def refusal(self) -> dict[str, str]:
        """Why a sender that shows this is not accepted."""
        if self.token is not None:
            return WRONG_TOKEN
        return NOT_ACCEPTED if self.user or self.account else NO_TOKEN


class Instance(Home, Protocol):
    """An instance of a service, as its callers see it; see `service.NatsService`."""

    direct: DirectListener

    @property
    def is_draining(self) -> bool: ...


class Callers(Protocol):
    """All callers of an instance, as each of them sees them; see `caller_table.CallerTable`."""

    instance: Instance

    def new_session(self) -> Session: ...

    def closed(self, caller: Any) -> None: ...


class CallerChannel(NatsChannel):
    """The channel to a caller of any kind.

    Args:
        callers: all callers of the instance.
        identity: the identity of the caller, or an awaitable of it; None without authentication.
        shown: the credentials in its messages.
    """

    over_limit = False

    def __init__(
        self, callers: Callers, identity: Any, shown: Shown | None, *, target: str, own: str, address: str
    ) -> None:
        super().__init__(callers.instance, callers.new_session(), target=target, own=own, address=address)
        self.instance = callers.instance
        self.opened = self.last_heard
        self.shown = shown
        self.session.identity = identity
        if shown is not None:
            session: Any = self.session
            session.refusal = shown.refusal
        self._callers = callers

    def closed(self) -> None:
        """As `NatsChannel.closed`."""
        self._callers.closed(self)

    @property
    def credentials(self) -> Credentials:
        """The credentials of the caller for handlers, without its token."""
        if self.shown is None:
            return Credentials(address=self.address)
        return Credentials(nats_user=self.shown.user, nats_account=self.shown.account, address=self.address)

    @property
    def lookup(self) -> asyncio.Task[Any] | None:
        """The lookup of the caller's identity; its requests wait for that."""
        return getattr(self.session, "lookup", None)

    @property
    def is_known(self) -> bool:
        """As `Connection.is_known`."""
        return self.session.identity is not None


class Caller(CallerChannel):
    """A caller with an inbox: one of our clients, or a program that follows the same rules.

    Args:
        inbox: the subject below which it listens.
        own: the subject of this instance for its session.
        identity, shown: as for `CallerChannel`.
    """

    gathers = True

    def __init__(self, callers: Callers, inbox: str, own: str, identity: Any, shown: Shown | None) -> None:
        super().__init__(callers, identity, shown, target=f"{inbox}.m", own=own, address=f"nats:{inbox}")
        self.inbox = inbox
        self.number = own.rpartition(".")[2]
        #: The ids of calls that have arrived in this turn of the loop, and of calls that were not answered at once.
        self._arrived: list[Any] = []
        self._untold: list[Any] = []
        self.telling: asyncio.TimerHandle | None = None
        #: How many streams the session has had.
        self._streams = 0
        #: Until when calls of these methods may come by the direct connection (loop time, s; None: batches).
        self._permitted: dict[str | None, float] = {}
        self.is_closing = False
        # The form of the inbox says so.
        self.session.sends_binary = bool(self.session.takes_binary)
        self.session.offers_binary = False

    def heard(self) -> None:
        """A message from the caller has arrived, perhaps only a probe."""
        self.last_heard = self._loop.time()

    def call(self, data: bytes, call_ids: Any) -> None:
        """Handle a message with calls of these ids."""
        self.heard()
        self._arrived += call_ids
        self.receive(data)

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """As `NatsChannel.hand_over`; then acknowledge calls that take longer."""
        super().hand_over()
        self._note_arrived()

    def _note_arrived(self) -> None:
        """Acknowledge the new calls that take longer.

        Calls with streams are acknowledged before any item or credit: the caller answers credit with items, which it
        cannot send before it knows the instance.
        """
        arrived, self._arrived = self._arrived, []
        session = self.session
        has_opened = session.streams.opened != self._streams  # perhaps by a call that is only about to run
        if arrived and (has_opened or session.running or session.intake.queue):
            self._untold += [each for each in arrived if type(each) is int or type(each) is str]
        self._streams = session.streams.opened
        if not self._untold:
            return
        if has_opened:
            self.tell()
        elif self.telling is None:
            self.telling = self._loop.call_later(TELL_AFTER, self.tell)

    def tell(self) -> None:
        """Acknowledge the calls that were not answered at once."""
        if self.telling is not None:
            self.telling.cancel()
            self.telling = None
        untold, self._untold = self._untold, []
        if self.is_over or not untold:
            return
        # Ids may be long.
        is_long = len(session_message(has=untold)) > self._link.max_payload
        for call_ids in [[call_id] for call_id in untold] if is_long else [untold]:
            self._say(session_message(has=call_ids))

    def _say(self, message: bytes) -> None:
        """Send a control message behind all others."""
        if self.detour is None:
            self.publish(message)
        else:
            self.detour.add(message)

    # -- direct connections -------------------------------------------------------------------------------------------

    def answer_question(self, read: Any, params: dict[str, Any], data: bytes) -> None:
        """Answer a call of `rpc.direct`, behind all that the caller has sent before.

        Args:
            read: the request.
            params: the method and the size of a large call; empty to ask how to connect.
        """
        self.heard()
        self.hand_over()
        if self.lookup is None or not params:
            self.publish(self._answer(read["id"], params))
            return
        self._arrived.append(read["id"])
        self.session.reply(self.session.begin(self._answer_when_known(self.lookup, read["id"], params), read, data))
        self._note_arrived()

    async def _answer_when_known(self, lookup: asyncio.Task[Any], call_id: Any, params: dict[str, Any]) -> bytes:
        await asyncio.wait({lookup})
        return self._answer(call_id, params)

    def _answer(self, call_id: Any, params: dict[str, Any]) -> bytes:
        try:
            result = self._permit(params) if params else self._offer()
        except RpcError as error:
            return orjson.dumps(error_reply(call_id, error))
        return orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": result})

    def _permit(self, params: dict[str, Any]) -> dict[str, Any]:
        """Permit large calls of a method for a while; gives the session that they are sent to."""
        method, size, limit = params.get("method"), params.get("size"), self.instance.limits.max_message_size
        if type(size) is not int or size > limit:
            raise oversize(size if type(size) is int else 0, limit, side="server")
        if self.instance.direct.reason is not None:
            raise no_way(size, self._link.max_payload, self.instance.direct.reason)
        dispatch: Any = self.session.dispatch
        error = dispatch.refusal_of({"jsonrpc": "2.0", "method": method, "id": 0}, self.session)
        if isinstance(error, _REFUSALS):
            raise error
        self._permitted[method] = self._loop.time() + CLAIM_TIME
        return {"session": self.own}

    def _offer(self) -> dict[str, str]:
        """Say how the caller opens the direct connection: what this end sends waits for it from now on."""
        if self.lookup is not None:
            raise NotAuthenticated
        if self.instance.direct.reason is not None:
            raise MessageTooLarge(data={"reason": self.instance.direct.reason})
        if self.detour is None:
            self.detour = CallerDetour(self, self.instance.direct)
        assert isinstance(self.detour, CallerDetour)
        return self.detour.offer.to_wire()

    def take_control(self, params: dict[str, Any]) -> None:
        """As `NatsChannel.take_control`: the client cannot open a direct connection."""
        if "failed" in params and self.detour is not None and self.detour.stream is None:
            self.detour.fail(str(params["failed"])[:REASON_MAX])

    @property
    def is_expected(self) -> bool:
        """Calls may still come by a direct connection: clients send them soon after they are permitted."""
        latest = max(self._permitted.values(), default=0.0)
        return not self.is_over and latest - CLAIM_TIME + LEAVE_TIME > self._loop.time()

    def receive_directly(self, messages: list[Message]) -> None:
        """As `NatsChannel.receive_directly`: each call needs a permission, because NATS cannot check it here."""
        self.heard()
        super().receive_directly([each for each in messages if self._is_permitted(each)])

    def _is_permitted(self, message: Message) -> bool:
        """Whether a message may arrive by the direct connection; other calls are refused."""
        if isinstance(message, Oversize):
            return True  # it is refused anyway
        if isinstance(message, BinaryFrame):
            read = UNREADABLE if message.content is None else message.content[0]
        else:
            read, _ = read_payload(message, self.instance.limits)
        if read is UNREADABLE or belongs_to_calls(read):
            return True
        method = read.get("method") if type(read) is dict else None if type(read) is list else UNREADABLE
        if (type(method) is str or method is None) and self._permitted.get(method, 0.0) > self._loop.time():
            return True
        reason = "a call needs a permission, for which the client asks at the subject of its method"
        error = NotPermitted(data={"executed": False, "reason": reason})
        refusal = refusal_of(read, error, self.instance.limits.max_message_size)
        if refusal is not None:
            self.send([refusal])
        return False

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self.session.streams.opened != self._streams:
            self._note_arrived()
        super().send(messages)

    def _send_large(self, message: Encoded) -> None:
        reason = self.instance.direct.reason
        if reason is not None:
            self.refuse_large(message, reason)
        else:
            self.detour = CallerDetour(self, self.instance.direct)
            self.publish(session_message(wanted=True))
            self.detour.send([message])

    def say_alive(self) -> None:
        """Say that this instance is alive, after the acknowledgements and all other messages."""
        self.hand_over()  # what has come in this turn
        self.tell()
        self._say(session_message(alive=True))

    # -- for the listener (Connection) --------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Channel.close`; what waits for the client to connect is still sent."""
        self.is_closing = True
        if self.detour is None or self.detour.stream is not None:
            super().close()

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self.send([orjson.dumps(error_reply(None, error))])
        self.end(error.message)

    def drain(self) -> None:
        """As `Connection.drain`; not before NATS sends no more calls to the service here.

        Calls to this very instance are still taken: they belong to a call of this one to its caller, which waits.
        """
        if self.instance.is_draining and not self.is_over:
            self.hand_over()
            self.session.drain(Phase.CLOSING)
            if self.lookup is not None:
                self._loop.call_later(LOOKUP_TIME, self.session.refuse_waiting, INFINITE)

    @property
    def is_unused(self) -> bool:
        """The session has no state that the caller would miss."""
        return self.session.is_unused and not self._gathered

    def check(self, now: float) -> str | None:
        """As `Connection.check`: forget a silent, idle caller, and probe a silent caller with calls."""
        silent = now - self.last_heard
        if silent > FORGET_AFTER and self.is_unused:
            self.end("nothing was heard for long")
        elif silent > PROBE_EVERY and not self.session.is_unused:
            self.probe()
        return None

    def end(self, reason: str) -> None:
        """As `NatsChannel.end`; the caller is told, so that it does not wait."""
        if self.telling is not None:
            self.telling.cancel()
            self.telling = None
        if not (self.is_over or (self.detour is not None and self.detour.stream is not None)):
            self._link.publish(self.target, b"", self.own, NO_RESPONDERS)
        super().end(reason)


class MessageCaller(CallerChannel):
    """The caller of one message, which is answered with one: a program that knows NATS, and nothing of us.

    Args:
        reply: the subject for the answer; empty where none is wanted.
        identity, shown: as for `Caller`.
    """

    sends_lines = False

    def __init__(self, callers: Callers, reply: str, identity: Any, shown: Shown | None) -> None:
        address = f"nats:{reply}" if reply else "nats"
        super().__init__(callers, identity, shown, target=reply, own="", address=address)
        self.session.sends_binary = self.session.offers_binary = False

    def call(self, data: bytes, call_ids: Any) -> None:
        """Handle the message. The answer may be there when this returns."""
        self.receive(data)
        if not self.is_over:
            # No more messages arrive: the session ends with the reply.
            self.session.end(self._lost)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`: sends the reply only, because the caller understands nothing else."""
        replies = [each for each in messages if not first_part(each).startswith(NOTIFICATION)]
        if replies:
            super().send(replies)

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self.session.send(orjson.dumps(error_reply(None, error)))
        self.session.end(self._lost)

    def drain(self) -> None:
        """As `Connection.drain`: it takes no second message anyway."""

    def probe(self) -> None:
        """As `Channel.probe`. Such a caller cannot be probed: it would take the probe for its answer."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`: the server's call timeout limits its call."""
        return None


log = get_logger("rpcstream.nats")

#: Callers of one instance. They do not count as connections, because a NATS client is a new caller with each inbox.
#: Over the limit, idle callers are forgotten, which costs them nothing. Each caller takes about 12 KiB in 36 objects.
#: With 2,500 callers, one run of the garbage collector blocks the event loop for 0.1 s.
MAX_CALLERS = 2_500

#: Callers whose identity is being looked up, as many as connections in that state.
MAX_UNKNOWN = 1000

#: Callers that are checked to find one that can be forgotten: takes about 50 us.
LOOKED_AT = 100

#: The header with a token, as in HTTP.
AUTHORIZATION = "Authorization"

#: Characters of a token; as many as HTTP takes in a header.
_MAX_TOKEN = 64 * 1024

NO_LOGIN = {"reason": "rpc.authenticate is for connections: by NATS the header Authorization has the token"}

#: How an inbox of our form ends.
_CLIENT_END = f".{CLIENT}"

#: A caller with an inbox of our form, or any other.
AnyCaller = Caller | MessageCaller


class Sender(NamedTuple):
    """The sender of a message.

    Attributes:
        inbox: the subject below which the sender gets replies.
        shown: its credentials; None without authentication.
    """

    inbox: str
    shown: Shown | None

    @property
    def is_client(self) -> bool:
        """The inbox has our form, so all messages of this sender belong to one session."""
        return self.inbox.endswith(_CLIENT_END)


class CallerTable:
    """The callers of one instance.

    A sender with an inbox of our form is one caller for all its messages with the same credentials. So a program that
    uses the inbox of another program is not taken for it. Any other sender is a new caller with each message.

    Args:
        instance: the instance.
        own: the subject of the instance, to which the numbers of callers are appended.
        listener: makes the sessions, and counts them.

    Attributes:
        by_sender: callers with an inbox of our form.
        by_number: the same, by the number in the subject that they write to.
    """

    def __init__(self, instance: Instance, own: str, listener: Listener) -> None:
        self.instance = instance
        self._own = own
        self._listener: Any = listener  # a caller has all that it needs of a connection, but no socket
        self.new_session = listener.new_session
        self.by_sender: dict[Sender, Caller] = {}
        self.by_number: dict[str, Caller] = {}
        self._message_callers: set[MessageCaller] = set()
        #: Callers whose identity was looked up; it may be known by now.
        self._unknown: set[AnyCaller] = set()
        self._log = LimitedLog(log)

    def all(self) -> list[AnyCaller]:
        """All callers."""
        return [*self.by_sender.values(), *self._message_callers]

    def check_room(self) -> None:
        """Make room for one more caller.

        Raises:
            ServerBusy: there are too many callers with calls, or too many whose identity is not known yet.
        """
        limit, reason = MAX_CALLERS, "callers have something under way, no more are possible"
        has_room = len(self.by_sender) + len(self._message_callers) < limit or self._make_room()
        if has_room and len(self._unknown) >= MAX_UNKNOWN:
            self._unknown = {each for each in self._unknown if not (each.is_over or each.is_known)}
            limit, reason = MAX_UNKNOWN, "callers wait until it is known who they are"
            has_room = len(self._unknown) < limit
        if not has_room:
            self._log.warning(None, "refused a caller: %d %s", limit, reason)
            raise ServerBusy(data={"executed": False, "limit": limit, "reason": f"{limit} {reason}"})

    def add(self, sender: Sender, reply: str, identity: Any) -> AnyCaller | None:
        """Add a caller; None if the server ends its session at once.

        Args:
            reply: the reply subject of its message.
            identity: the identity of the caller, or an awaitable of it; None without authentication.
        """
        caller: AnyCaller
        if sender.is_client:
            number = secrets.token_hex(8)  # not to be guessed: what is sent there acts as this caller
            caller = Caller(self, sender.inbox, f"{self._own}{number}", identity, sender.shown)
            self.by_sender[sender] = self.by_number[number] = caller
        else:
            caller = MessageCaller(self, reply, identity, sender.shown)
            self._message_callers.add(caller)
        if inspect.isawaitable(identity):
            self._unknown.add(caller)
        caller.session.connected(caller, is_lasting=sender.is_client)
        self._listener.connections.opened(caller, is_apart=True)
        return None if caller.is_over else caller

    def _make_room(self) -> bool:
        """Forget an idle caller; return False if there is none among the first `LOOKED_AT`."""
        for _ in range(min(LOOKED_AT, len(self.by_sender))):
            sender, caller = next(iter(self.by_sender.items()))
            if caller.is_unused:
                caller.end("others have come")
                return True
            self.by_sender[sender] = self.by_sender.pop(sender)  # others are looked at next time
        return False

    def closed(self, caller: AnyCaller) -> None:
        """A caller is gone."""
        self._unknown.discard(caller)
        if isinstance(caller, Caller):
            self.by_sender.pop(Sender(caller.inbox, caller.shown), None)
            self.by_number.pop(caller.number, None)
        else:
            self._message_callers.discard(caller)
        self._listener.message_connection_closed(caller)


class CallerIdentities:
    """Finds the identities of callers.

    Args:
        authenticator: of the server.
        trusts_nats: what NATS says of a caller in another account is read.
    """

    def __init__(self, authenticator: Authenticator, *, trusts_nats: bool = False) -> None:
        self._authenticator = authenticator
        self._trusts_nats = trusts_nats

    def shown_by(self, message: NatsMessage) -> Shown:
        """What a message shows of its sender."""
        headers = message.headers
        if headers is None:
            return _NOTHING
        text = headers.get(AUTHORIZATION, "")
        token = text[7:].strip() if text[:7].lower() == "bearer " and len(text) <= _MAX_TOKEN else ""
        user, account = _request_info(headers.get(REQUEST_INFO)) if self._trusts_nats else ("", "")
        return Shown(token or None, user, account)

    def find(self, shown: Shown, reply: str) -> Any:
        """Find the identity of who has sent a message: gives it, or an awaitable of it.

        Args:
            shown: what the message shows.
            reply: the subject for its answer.

        Raises:
            NotAuthenticated: the sender is not accepted.
        """
        address = f"nats:{reply}"
        credentials = Credentials(token=shown.token, nats_user=shown.user, nats_account=shown.account, address=address)
        identity = self._authenticator.identify(credentials)
        if identity is None:
            self._authenticator.refused(address, has_shown=shown.token is not None)
            raise NotAuthenticated(data=shown.refusal)
        return identity


_NOTHING = Shown(None, "", "")


def _request_info(text: str | None) -> tuple[str, str]:
    """User and account in what NATS says of a caller; the user is known only where the import is shared."""
    if not text:
        return "", ""
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "", ""
    found = (told.get("user"), told.get("acc")) if type(told) is dict else ("", "")
    user, account = (each if type(each) is str else "" for each in found)
    return user, account
