"""Who the callers of a service are: what their messages show, and which identity that is.

Owns the headers that are read, and the messages that wait while an async function looks an identity up. Whether what is
shown is accepted is decided in `auth.authenticator`; what happens to the message then, in `service`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from ..auth.authenticator import Authenticator
from ..errors import CallCancelled, NotAuthenticated, RpcError, ServerBusy
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.session import NOT_BEGUN
from .protocol import REQUEST_INFO

#: The header with a token, as in HTTP.
AUTHORIZATION = "Authorization"

#: The method that says who a connection is. There is no connection here.
AUTHENTICATE = "rpc.authenticate"

#: Characters of a token; as many as HTTP takes in a header.
_MAX_TOKEN = 64 * 1024

#: Messages that wait for an identity, at most: as many as a listener has room for connections that say who they are.
MAX_WAITING = 1000

NO_TOKEN = {"reason": "the message shows no token: it stands in the header Authorization"}
WRONG_TOKEN = {"reason": "the token is not accepted"}
NOT_ACCEPTED = {"reason": "this caller is not accepted"}
NO_LOGIN = {"reason": "rpc.authenticate is for connections: by NATS the header Authorization has the token"}


class Shown(NamedTuple):
    """What a message shows of its sender.

    Attributes:
        user, account: as NATS says; empty where that is not read, or NATS says nothing.
    """

    token: str | None
    user: str
    account: str


class Message(Protocol):
    """A message of NATS, as it is looked at here."""

    data: bytes

    @property
    def headers(self) -> Mapping[str, str] | None: ...


#: Seconds that looking up who has sent messages may take when the server stops; of all its time to stop (10 s by
#: default, after this) calls need the most.
FINISH_TIME = 5.0


class CallerIdentities:
    """Finds the identities of callers.

    Args:
        authenticator: of the server.
        limits: `max_held_total`: bytes of the messages that wait.
        trusts_nats: what NATS says of a caller in another account is read.
    """

    def __init__(self, authenticator: Authenticator, limits: Limits, *, trusts_nats: bool = False) -> None:
        self._authenticator = authenticator
        self._max_held = limits.max_held_total
        self._trusts_nats = trusts_nats
        #: What waits for the identity of one sender, by who it says it is; and how much that is.
        self._waiting: dict[Hashable, list[tuple[Message, Found]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = self._size = 0

    def shown_by(self, message: Message) -> Shown:
        """What a message shows of its sender."""
        headers = message.headers
        if headers is None:
            return _NOTHING
        text = headers.get(AUTHORIZATION, "")
        token = text[7:].strip() if text[:7].lower() == "bearer " and len(text) <= _MAX_TOKEN else ""
        user, account = _request_info(headers.get(REQUEST_INFO)) if self._trusts_nats else ("", "")
        return Shown(token or None, user, account)

    def find(self, message: Message, key: Hashable, shown: Shown, address: str, found: Found) -> None:
        """Find the identity of who has sent a message, now or later.

        Args:
            key: of the sender: its messages keep their order.
            address: of it, for logs.
            found: called with the message, the identity, and the error where there is none.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            credentials = Credentials(
                token=shown.token, nats_user=shown.user, nats_account=shown.account, address=address
            )
            identity = self._authenticator.identify(credentials)
            if not inspect.isawaitable(identity):
                self._tell(message, identity, shown, address, found)
                return
        if self._count >= MAX_WAITING or self._size + len(message.data) > self._max_held:
            if waiting is None:
                identity.close()
            found(message, None, ServerBusy(data={"executed": False, "reason": "too many callers say who they are"}))
            return
        self._count += 1
        self._size += len(message.data)
        if waiting is not None:
            waiting.append((message, found))
            return
        self._waiting[key] = [(message, found)]
        task = asyncio.get_running_loop().create_task(self._look_up(key, identity, shown, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(self, key: Hashable, later: Awaitable[Any], shown: Shown, address: str) -> None:
        identity: Any = None
        error: RpcError | None = None
        try:
            identity = await later
        except asyncio.CancelledError:
            error = CallCancelled(data={"executed": False, "reason": NOT_BEGUN})
        finally:
            waiting = self._waiting.pop(key)
            self._count -= len(waiting)
            self._size -= sum(len(message.data) for message, _ in waiting)
        for message, found in waiting:
            if error is None:
                self._tell(message, identity, shown, address, found)
            else:
                found(message, None, error)

    def _tell(self, message: Message, identity: Any, shown: Shown, address: str, found: Found) -> None:
        if identity is not None:
            found(message, identity, None)
            return
        self._authenticator.refused(address, has_shown=shown.token is not None)
        reason = WRONG_TOKEN if shown.token is not None else NOT_ACCEPTED if shown.user or shown.account else NO_TOKEN
        found(message, None, NotAuthenticated(data=reason))

    async def finish(self) -> None:
        """Wait for what is being looked up; what waits for longer is answered: it was not begun."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FINISH_TIME)
            self.close()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Look no more up; what waits is answered: it was not begun."""
        for task in self._tasks:
            task.cancel()


#: Called with a message, the identity of its sender, and the error where there is none.
Found = Callable[[Any, Any, RpcError | None], None]

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
