"""A session whose peer must authenticate before it may call anything.

Until then, `rpc.authenticate` and `rpc.ping` are the only methods, messages must be small, there is a deadline, and
wrong tokens are counted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from ..errors import NotAuthenticated, RpcError
from ..limits import KIB
from ..peer.credentials import Credentials
from ..peer.inflight import Channel, Dispatch, Hold, Later
from ..peer.intake import Phase
from ..peer.session import Session
from ..wire.buffers import Encoded
from .authenticator import MAX_WRONG, Authenticator

#: Bytes of one message before authentication. A token is a few KiB at most (a JWT with many claims), and 20,000
#: strangers stay within 1.3 GiB.
MAX_AUTH_MESSAGE = 64 * KIB

AUTHENTICATE, PING = "rpc.authenticate", "rpc.ping"

NOT_AUTHENTICATED = {"reason": "call rpc.authenticate first"}
WRONG_TOKEN = {"reason": "the token is not accepted"}


class GatedSession(Session):
    """A session of a server with authentication. It is its own `Dispatch` until the peer is admitted.

    Args:
        dispatcher: answers the peer once it is authenticated.
        authenticator: finds the identity of the peer.

    Attributes:
        refusal: the reason in the error of a request that comes before the peer is admitted.
        lookup: the call of an async `authenticate` function that runs at the moment; None: none does.
    """

    __slots__ = ("_authenticator", "_deadline", "_dispatcher", "_is_closed", "_mistakes", "lookup", "refusal", "refuse")

    def __init__(self, dispatcher: Dispatch, authenticator: Authenticator, **options: Any) -> None:
        super().__init__(self, **options)
        self.refuse = dispatcher.refuse
        self._dispatcher = dispatcher
        self._authenticator = authenticator
        self._deadline: asyncio.TimerHandle | None = None
        self.lookup: asyncio.Task[Any] | None = None
        self.refusal = NOT_AUTHENTICATED
        self._mistakes = 0
        #: The connection is lost or being closed: the peer is not admitted any more.
        self._is_closed = False

    # -- life of the connection --------------------------------------------------------------------------------------

    def connected(self, channel: Channel, *, is_lasting: bool = True, splits_values: bool = False) -> None:
        """As `Session.connected`: starts the deadline, or admits a peer at once if the connection shows who it is.

        If the transport has set `identity` to an awaitable, requests wait for it.
        """
        super().connected(channel, is_lasting=is_lasting, splits_values=splits_values)
        if inspect.isawaitable(self.identity):
            found, self.identity = self.identity, None
            self.on_lost.append(self._stop)
            self.lookup = self.loop.create_task(self._admit_or_end(found, Hold(self)))
            return
        if self.identity is not None:  # found by the transport, from the headers of HTTP or WebSocket
            self.admit(self.identity, self._dispatcher)
            return
        self._restrict(MAX_AUTH_MESSAGE)
        self.on_lost.append(self._stop)
        if self.limits.auth_timeout is not None:
            # Counted from the time of connecting, not from the first message.
            opened = getattr(channel, "opened", self.loop.time())
            self._deadline = self.loop.call_at(opened + self.limits.auth_timeout, self._too_late)
        if self._credentials.are_shown:
            found = self._authenticator.identify(self._credentials)
            if inspect.isawaitable(found):
                self.lookup = self.loop.create_task(self._admit_later(found, Hold(self)))
            else:
                self._admit(found)

    @property
    def _credentials(self) -> Credentials:
        """The credentials that the connection shows; only the address if it has no others."""
        address = "" if self.channel is None else self.channel.address
        return getattr(self.channel, "credentials", None) or Credentials(address=address)

    def _restrict(self, max_message_size: int | None) -> None:
        """Have the channel, if it can, take only messages of this size; None: as the server's limits say."""
        restrict = getattr(self.channel, "restrict", None)
        if restrict is not None:
            restrict(max_message_size)

    def _admit(self, identity: Any) -> None:
        """Hand the session to the dispatcher, without the limits of before, unless the peer is not accepted."""
        if identity is not None and not self._is_closed:
            if self._deadline is not None:
                self._deadline.cancel()
            self._restrict(None)
            self.admit(identity, self._dispatcher)

    def _too_late(self) -> None:
        reason = f"not authenticated after {self.limits.auth_timeout:g} s (auth_timeout)"
        self._close(reason)
        self.reply(self.refuse(None, NotAuthenticated(data={"reason": reason})))

    def _close(self, reason: str) -> None:
        """Close the connection, once the replies of this turn are written."""
        channel: Any = self.channel
        if channel is not None:
            channel.reason = reason
            channel.over_limit = True  # so that it is counted and logged
            self.loop.call_soon(self.drain)
        self._stop()

    def _stop(self) -> None:
        """The connection is lost or being closed."""
        self._is_closed = True
        for waiting in (self._deadline, self.lookup):
            if waiting is not None:
                waiting.cancel()

    # -- authentication ---------------------------------------------------------------------------------------------

    async def authenticate(self, token: str) -> None:
        """Admit the peer by a token, or give an authenticated peer another identity.

        Raises:
            NotAuthenticated: the token is not accepted; the identity stays as it was.
        """
        found = None
        self.lookup = asyncio.current_task()
        try:
            if not self._is_closed:
                found = self._authenticator.identify(replace(self._credentials, token=token))
                found = await found if inspect.isawaitable(found) else found
        finally:
            self.lookup = None
        if found is None or self._is_closed:
            self._authenticator.refused(self._credentials.address, has_shown=True)
            self._mistakes += 1
            if self._mistakes == MAX_WRONG:
                self._close(f"{MAX_WRONG} wrong tokens")
            raise NotAuthenticated(data=WRONG_TOKEN)
        self._admit(found)

    async def _admit_later(self, found: Awaitable[Any], hold: Hold) -> None:
        try:
            self._admit(await found)
        finally:
            hold.release()

    async def _admit_or_end(self, found: Awaitable[Any], hold: Hold) -> None:
        """Admit a peer that cannot show anything else later, or end the session when its requests are refused."""
        await self._admit_later(found, hold)
        self.lookup = None
        self.on_lost.remove(self._stop)
        if self.identity is None:
            self.drain(Phase.CLOSING)

    # -- Dispatch ---------------------------------------------------------------------------------------------------

    def answer(self, message: Any, line: bytes | bytearray, session: Session) -> Encoded | Later | None:
        """Refuse everything, and each member of a batch by itself, but pings and `rpc.authenticate`."""
        method = message.get("method") if type(message) is dict else None
        if method == PING:
            return self._dispatcher.answer(message, line, session)
        if method == AUTHENTICATE:
            return self._answer_authenticate(message, line, Hold(self))
        requests = len(message) if type(message) is list else 1
        has_shown = self.refusal is WRONG_TOKEN
        self._authenticator.refused(self._credentials.address, has_shown=has_shown, requests=requests)
        return self.refuse(message, NotAuthenticated(data=self.refusal))

    async def _answer_authenticate(self, message: Any, line: bytes | bytearray, hold: Hold) -> Any:
        """The reply to `rpc.authenticate`, which is a method. Requests that come meanwhile wait."""
        try:
            reply = self._dispatcher.answer(message, line, self)
            return await reply if isinstance(reply, Awaitable) else reply
        finally:
            hold.release()

    def refusal_of(self, message: dict[str, Any], session: Session) -> RpcError | None:
        """As `Dispatcher.refusal_of`."""
        return NotAuthenticated(data=self.refusal)

    def goes_on(self, message: Any) -> bool:
        """As `Dispatch.goes_on`."""
        return "id" not in message
