"""One connection of the async client: its session, the calls made on it, and how it is closed.

Owns what only a client needs to know of a connection: whether the server may have closed it unseen, and when it is
closed for good. Knows neither values nor sockets; `connect` opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..errors import ConnectionLost
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.session import Session
from .callbacks import ClientDispatcher
from .options import Settings
from .sockets import Wait

if TYPE_CHECKING:
    from ..methods.dispatch import Dispatcher

#: Seconds between two checks whether a server that has stopped sending still reads.
PROBE_INTERVAL = 2.0

#: Gives the dispatcher of the methods that the server may call; None while there are none.
GetDispatcher = Callable[[], "Dispatcher | None"]


class ClientConnection:
    """A connection to the server: being opened, open, or closed.

    `connect` sets those attributes that depend on the transport.

    Attributes:
        loop: its event loop.
        session: handles the messages on it.
        calls: the calls made on it.
        poll: waits up to so many milliseconds until the socket is readable; None where the socket is not known.
        has_received: tells whether bytes have arrived since it was last called.
        reason: gives the reason why the transport was closed, if it knows one.
        refresh: for HTTP: makes sure that there is an open connection, or ends the session.
        closed: done when the transport is closed, which may be later than the end of the session.
        force_close: closes the transport at once, with a reason.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, get_dispatcher: GetDispatcher) -> None:
        limits = settings.limits
        self.loop = asyncio.get_running_loop()
        dispatch = ClientDispatcher(settle=self._settle, close=self.abort, get_dispatcher=get_dispatcher)
        self.session = Session(
            dispatch, codec=settings.codec, limits=limits, side="client", on_slow=dispatch.report_slow
        )
        self.use(OutgoingCalls(self.session, marshaller))
        self.poll: Wait | None = None
        self.has_received: Callable[[], bool] = lambda: True
        self.reason: Callable[[], str | None] = lambda: None
        self.refresh: Callable[[], Awaitable[object]] | None = None
        self._address = marshaller.address
        self._session_lost: asyncio.Future[None] = self.loop.create_future()
        self.closed: asyncio.Future[None] = self._session_lost
        self.force_close: Callable[[str], object] = self.abort
        self.session.add_lost_callback(self._set_lost)

    def use(self, calls: OutgoingCalls) -> None:
        """Make the calls on this connection in this way, before the first of them."""
        self.calls = calls
        self.session.use(calls)

    @property
    def is_open(self) -> bool:
        """Calls can be made."""
        return self.session.is_open

    def has_unread(self) -> bool:
        """Tell whether the event loop has not yet read bytes, or the end, that arrived while no call waited.

        This happens when the loop was blocked, or did not run between two calls.
        """
        return self.poll is not None and not self.session.pending and bool(self.poll(0))

    def close(self, reason: str) -> None:
        """Fail the waiting calls, cancel them at the server, send what was written, then close.

        `wait_closed` waits for the end of that.
        """
        pending = self.session.pending
        self.calls.cancel([call_id for call_id, _ in pending.items()])
        pending.fail_all(lambda method: ConnectionLost(reason, method=method, address=self._address))
        self.session.running.abandon(lambda message: False)
        self.session.end(lambda method: ConnectionLost(reason, method=method, address=self._address))

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the connection is closed; after so many seconds close it without sending the rest."""
        await asyncio.wait([self._session_lost, self.closed], timeout=seconds)
        if not (self._session_lost.done() and self.closed.done()):
            self.force_close("the server did not take what was sent before the client was closed")
            await asyncio.wait([self._session_lost, self.closed])

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self.session.abort(reason)

    def probe_until_closed(self) -> None:
        """Check again and again whether a server that sends nothing more still reads; if not, the connection is lost.

        Handlers that still run for the server are cancelled then.
        """
        channel = self.session.channel
        if channel is not None and not self.loop.is_closed():
            channel.probe()
            self.loop.call_later(PROBE_INTERVAL, self.probe_until_closed)

    def _set_lost(self) -> None:
        if not self._session_lost.done():
            self._session_lost.set_result(None)

    def _settle(self, reply: dict[str, object], line: bytes | bytearray) -> None:
        self.session.pending.settle(reply, line)
