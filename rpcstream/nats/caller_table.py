"""The callers of one instance: who they are, how they are found, how many there may be, and when they are forgotten."""

from __future__ import annotations

import inspect
import secrets
from typing import Any, NamedTuple

import orjson

from ..auth.authenticator import Authenticator
from ..errors import NotAuthenticated, ServerBusy
from ..observe.limited_log import LimitedLog
from ..peer.credentials import Credentials
from ..text import get_logger
from ..transports.listen import Listener
from .callers import Caller, Instance, MessageCaller, Shown
from .messages import CLIENT
from .protocol import REQUEST_INFO, NatsMessage

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
