"""Who the callers of a service are: what their messages show, and which identity that is.

Owns the headers that are read, and the messages that wait while an async function looks an identity up. Whether what is
shown is accepted is decided in `auth.authenticator`; what happens to the message then, in `service`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import orjson

from ..auth.authenticator import Authenticator
from ..errors import CallCancelled, NotAuthenticated, RpcError, ServerBusy
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.session import NOT_BEGUN
from .link import NatsMessage
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
        #: The look-ups that go on, by sender.
        self._tasks: dict[Hashable, asyncio.Future[Any]] = {}
        #: The messages that wait for them, and their bytes.
        self._count = self._size = 0

    def shown_by(self, message: NatsMessage) -> Shown:
        """What a message shows of its sender."""
        headers = message.headers
        if headers is None:
            return _NOTHING
        text = headers.get(AUTHORIZATION, "")
        token = text[7:].strip() if text[:7].lower() == "bearer " and len(text) <= _MAX_TOKEN else ""
        user, account = _request_info(headers.get(REQUEST_INFO)) if self._trusts_nats else ("", "")
        return Shown(token or None, user, account)

    def find(self, message: NatsMessage, key: Hashable, shown: Shown, found: Found) -> None:
        """Find the identity of who has sent a message, now or later.

        Args:
            key: of the sender: its messages keep their order.
            found: called with the identity, or with None and the error.
        """
        task = self._tasks.get(key)
        if task is None:
            address = f"nats:{message.reply}"
            credentials = Credentials(
                token=shown.token, nats_user=shown.user, nats_account=shown.account, address=address
            )
            identity = self._authenticator.identify(credentials)
            if not inspect.isawaitable(identity):
                self._tell(identity, shown, address, found)
                return
            task = self._tasks[key] = asyncio.ensure_future(identity)
            task.add_done_callback(lambda _: self._tasks.pop(key))
        size = len(message.data)
        if self._count >= MAX_WAITING or self._size + size > self._max_held:
            found(None, ServerBusy(data={"executed": False, "reason": "too many callers say who they are"}))
            return
        self._count += 1
        self._size += size

        def over(task: asyncio.Future[Any]) -> None:
            self._count -= 1
            self._size -= size
            if task.cancelled():
                found(None, CallCancelled(data={"executed": False, "reason": NOT_BEGUN}))
            else:
                self._tell(task.result(), shown, f"nats:{message.reply}", found)

        task.add_done_callback(over)

    def _tell(self, identity: Any, shown: Shown, address: str, found: Found) -> None:
        if identity is not None:
            found(identity, None)
            return
        self._authenticator.refused(address, has_shown=shown.token is not None)
        reason = WRONG_TOKEN if shown.token is not None else NOT_ACCEPTED if shown.user or shown.account else NO_TOKEN
        found(None, NotAuthenticated(data=reason))

    async def finish(self) -> None:
        """Wait for what is being looked up; what waits for longer is answered: it was not begun."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=FINISH_TIME)
            self.close()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def close(self) -> None:
        """Look no more up; what waits is answered: it was not begun."""
        for task in self._tasks.values():
            task.cancel()


#: Called with the identity of a sender, and the error where there is none.
Found = Callable[[Any, RpcError | None], None]

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
