"""The callers of a service, as one instance sees them: channels of sessions, and connections for the listener."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol

import orjson

from ..errors import MethodNotFound, NotAuthenticated, NotPermitted, RpcError, ServerBusy
from ..peer.credentials import Credentials
from ..peer.deadline import INFINITE
from ..peer.intake import Phase
from ..peer.ledger import Share
from ..peer.session import Session
from ..wire.buffers import Encoded, first_part, json_of
from ..wire.envelope import ITEM, PROGRESS, error_reply, id_in_head, is_reply_head, oversize
from ..wire.messages import HEAD_SIZE
from .channel import NOTIFICATION, Home, NatsChannel
from .direct import DirectListener, Grant, Output, digest_of
from .identity import Shown
from .link import NO_RESPONDERS
from .payloads import direct_message, ids_in, ids_of, no_way

#: Seconds after which an instance acknowledges a call that it has not answered: so the caller knows where to send a
#: cancel, and which instance to watch. Nearly all calls are answered sooner, and need no such message.
TELL_AFTER = 0.02

#: Seconds without a message after which a caller of which nothing is kept is forgotten.
FORGET_AFTER = 60.0

#: Seconds between two looks whether a caller is there for whom something runs.
PROBE_EVERY = 1.0

#: Seconds that looking up a caller may still take when the server stops; another instance can take its calls then.
LOOKUP_TIME = 5.0

#: Errors that a call gets before it is sent by a direct connection.
_REFUSALS = (MethodNotFound, NotPermitted, NotAuthenticated)


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
    """The channel to a caller of any kind, as far as the listener sees them all alike.

    Args:
        callers: all callers of the instance.
        identity: who it is, or an awaitable of that; None where callers are not authenticated.
        shown: what its messages show of it.
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
        """What the caller shows, without its token; for handlers."""
        if self.shown is None:
            return Credentials(address=self.address)
        return Credentials(nats_user=self.shown.user, nats_account=self.shown.account, address=self.address)

    @property
    def lookup(self) -> asyncio.Task[Any] | None:
        """Looks up who the caller is; its requests wait for that."""
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
        identity: who it is; None where callers are not authenticated.
        shown: what its messages show of it.
    """

    gathers = True

    def __init__(self, callers: Callers, inbox: str, own: str, identity: Any, shown: Shown | None) -> None:
        super().__init__(callers, identity, shown, target=f"{inbox}.m", own=own, address=f"nats:{inbox}")
        self.inbox = inbox
        self.number = own.rpartition(".")[2]
        #: The ids of calls that have come in this turn of the loop; and of those that were not answered at once.
        self._arrived: list[Any] = []
        self._untold: list[Any] = []
        self.telling: asyncio.TimerHandle | None = None
        #: How many streams the session has had.
        self._streams = 0
        #: What goes by direct connections, by the id of the call.
        self._outputs: dict[Any, Output] = {}
        self._waiting = Share(self.session.server_ledger.waiting)
        self._is_closing = False
        self.secrets: set[bytes] = set()
        # The form of the inbox says so.
        self.session.sends_binary = self.session.takes_binary
        self.session.offers_binary = False

    def heard(self) -> None:
        """A message has come from the caller, if only to see whether this instance is there."""
        self.last_heard = self._loop.time()

    def call(self, data: bytes, call_ids: Any, question: dict[str, Any]) -> None:
        """Handle a message in which there are calls with these ids; or the question where a large one may be sent.

        Args:
            question: the members of the latter, as they were checked; none of any other message.
        """
        self.heard()
        if question:
            self._answer_when_known(question, len(data))
            return
        self._arrived += call_ids
        self.receive(data)

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """As `NatsChannel.hand_over`; then see which calls take longer."""
        super().hand_over()
        self._note_arrived()

    def _note_arrived(self) -> None:
        """See which of the calls that have come take longer, and acknowledge them.

        Those with streams before any item or credit: the caller answers credit with items, which it cannot send
        before it knows where the call is.
        """
        arrived, self._arrived = self._arrived, []
        session = self.session
        if arrived and (session.running or session.intake.queue):
            self._untold += [each for each in arrived if type(each) is int or type(each) is str]
        has_opened = session.streams.opened != self._streams
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
        payload = orjson.dumps(untold)
        # Ids may be long.
        is_long = len(payload) > self._link.max_payload
        for each in [orjson.dumps([call_id]) for call_id in untold] if is_long else [payload]:
            self._link.publish(f"{self.inbox}.ack", each, self.own)

    # -- direct connections -------------------------------------------------------------------------------------------

    def _answer_when_known(self, question: dict[str, Any], size: int) -> None:
        """Answer a question, once the identity of the caller is known.

        Args:
            size: bytes of the question.
        """
        if self.lookup is None:
            self._answer(question)
        elif not self._waiting.take(size):
            self._refuse_question(question, self.session.server_ledger.refusal())
        else:

            def is_known(_: Any) -> None:
                self._waiting.give_back(size)
                self._answer(question)

            self.lookup.add_done_callback(is_known)

    def _answer(self, question: dict[str, Any]) -> None:
        """Say where a call may be sent that NATS does not carry."""
        method, size = question.get("method"), question.get("size")
        error = self._refusal(method, size)
        if error is not None:
            self._refuse_question(question, error)
        elif not self.is_over:
            self._offer(question.get("ask"), (method,))

    def _refuse_question(self, question: dict[str, Any], error: RpcError) -> None:
        for call_id in ids_in(question.get("ids")):
            self._publish(orjson.dumps(error_reply(call_id, error)))

    def take_direct(self, params: dict[str, Any]) -> None:
        """As `NatsChannel.take_direct`: the client asks where it may send items of a call that is here."""
        if "ask" in params:
            self._offer(params["ask"], ())
        elif type(unused := params.get("unused")) is str and (digest := digest_of(unused)) in self.secrets:
            self.instance.direct.lapse(digest)

    def _offer(self, ask: Any, methods: tuple[str | None, ...]) -> None:
        direct = self.instance.direct
        reason = direct.reason
        if reason is None and not direct.has_room(self):
            reason = "too many messages wait for their connection"
        if reason is not None:
            self._publish(direct_message(ask=ask, reason=reason))
        else:
            self._publish(direct_message(ask=ask, **direct.offer(Grant(self, methods)).to_wire()))

    def _refusal(self, method: Any, size: Any) -> RpcError | None:
        """Why a call may not be sent."""
        limits, session = self.instance.limits, self.session
        if type(size) is not int or size > limits.max_message_size:
            return oversize(size, limits.max_message_size, side="server")
        if not self.instance.direct.has_room(self):
            return ServerBusy(data={"executed": False, "reason": "too many large calls wait for their connection"})
        if session.server_ledger.is_full:
            return session.server_ledger.refusal()
        if method is None:
            return None
        dispatch: Any = session.dispatch
        found = dispatch.refusal_of({"jsonrpc": "2.0", "method": method, "id": 0}, session)
        return found if isinstance(found, _REFUSALS) else None

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self.session.streams.opened != self._streams:
            self._note_arrived()
        if self._outputs:
            messages = [each for each in messages if not self._has_sent_directly(each)]
        if messages:
            super().send(messages)

    def _has_sent_directly(self, message: Encoded) -> bool:
        """Send a message of a call, of which all goes by a direct connection now."""
        call_ids = _calls_of(message)
        output = self._outputs.get(call_ids[0]) if call_ids else None
        if output is None:
            return False
        if output.session is None:
            self._keep(output, message, len(message))
            return True
        output.send(message)
        if output.is_whole:
            del self._outputs[call_ids[0]]
        return True

    def _send_large(self, message: Encoded, size: int) -> None:
        call_ids, reason = _calls_of(message), self.instance.direct.reason
        if not call_ids:
            reason = "calls of a server to its client, and their streams, go by NATS"
        if reason is not None:
            self.send_instead(message, no_way(size, self._link.max_payload, reason))
            return
        output = Output(on_over=partial(self._output_over, call_ids))
        if self._keep(output, message, size):
            self._outputs[call_ids[0]] = output
            offer = self.instance.direct.offer(Grant(self, output=output))
            self._publish(direct_message(ids=call_ids, **offer.to_wire()))

    def _keep(self, output: Output, message: Encoded, size: int) -> bool:
        """Keep a message until the client has connected; False where there is no room."""
        limits = self.instance.limits
        most = limits.max_message_size + 4 * limits.write_buffer
        if self._waiting.size + size > most or not self._waiting.take(size):
            reason = "too many bytes wait for a direct connection (max_message_size, max_held_total)"
            self.send_instead(message, ServerBusy(data={"limit": most, "reason": reason}))
            return False
        output.send(message)
        output.size += size
        return True

    def _output_over(self, call_ids: list[int | str], output: Output, is_sent: bool) -> None:
        """What waited was sent, or the client has not come for it."""
        self._waiting.give_back(output.size)
        if output.is_whole or not is_sent:
            self._outputs.pop(call_ids[0], None)
        if not is_sent and not self.is_over:
            error = no_way(output.size, self._link.max_payload, "the client did not connect")
            for call_id in call_ids:
                self._publish(orjson.dumps(error_reply(call_id, error)))
        if self._is_closing and not self._outputs:
            super().close()

    # -- for the listener (Connection) --------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Channel.close`; what waits for the client to connect is still sent."""
        self._is_closing = True
        if not self._waiting.size:
            super().close()

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self._publish(orjson.dumps(error_reply(None, error)))
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
        """Nothing is kept of it: should it call again, it is as if it had not called before."""
        return self.session.is_unused and not (self._gathered or self._outputs)

    def check(self, now: float) -> str | None:
        """As `Connection.check`: forget a silent caller of which nothing is kept, and look whether others are there."""
        silent = now - self.last_heard
        if silent > FORGET_AFTER and self.is_unused:
            self.end("nothing was heard for long")
        elif silent > PROBE_EVERY and not self.session.is_unused:
            self.probe()
        return None

    def end(self, reason: str) -> None:
        """As `NatsChannel.end`; the caller is told, so that it waits for nothing here."""
        if self.telling is not None:
            self.telling.cancel()
            self.telling = None
        if not self.is_over:
            self._link.publish(self.target, b"", self.own, NO_RESPONDERS)
        super().end(reason)
        for digest in list(self.secrets):
            self.instance.direct.lapse(digest)


def _calls_of(message: Encoded) -> list[int | str]:
    """The ids of the calls of the other end that a message belongs to: a reply, an item, or a progress report."""
    head = first_part(message)[:HEAD_SIZE]
    if is_reply_head(head):
        return ids_in([id_in_head(head)])
    if head.startswith(b"["):
        return ids_in(ids_of(orjson.loads(json_of(message))))
    if not head.startswith(NOTIFICATION):
        return []
    read = orjson.loads(json_of(message))
    params, method = read.get("params"), read.get("method")
    if type(params) is not dict or method not in (ITEM, PROGRESS):
        return []
    return ids_in([params.get("id" if method == ITEM else "token")])


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

    def call(self, data: bytes, call_ids: Any, question: dict[str, Any]) -> None:
        """Handle the message. The answer may be there when this returns."""
        self.receive(data)
        if not self.is_over:
            # Nothing more comes: it ends when this is answered.
            self.session.end(self._lost)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`: only the reply, since nothing else is understood."""
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
        """As `Channel.probe`. Whether such a caller still waits cannot be asked: each message is an answer to it."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`: how long its call may take is the server's time-out of calls."""
        return None
