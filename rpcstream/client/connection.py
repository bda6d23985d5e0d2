"""One connection of the async client: its session, the calls made on it, and when it is over.

Owns what only a client asks of a connection: does it still stand, is there room to send, has it been closed. Knows
neither values nor sockets.
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
from .readiness import Wait

if TYPE_CHECKING:
    from ..methods.dispatch import Dispatcher

#: Seconds between two looks whether a server that has said its last word still listens.
PROBE = 2.0

#: Gives what answers the server's requests; None where the client offers nothing.
Methods = Callable[[], "Dispatcher | None"]


class ClientConnection:
    """A connection that is being made, stands, or is over.

    Attributes:
        session: the conversation.
        calls: the calls made on it.
        glance: waits for the socket to be readable, if it is known.
        has_received: have bytes come since this was asked last?
        closed: done when the connection is closed, which may be after the session is over.
        cut: ends the connection the hard way.
        reason: gives the reason why it is over, where more is known than that.
        renew: finds out whether what can be read is the end, where the loop would not know; the session is lost then.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, methods: Methods) -> None:
        limits = settings.limits
        self.loop = asyncio.get_running_loop()
        dispatch = ClientDispatcher(settle=self._settle, lose=self.lose, methods=methods)
        self.session = Session(
            dispatch, codec=settings.codec, limits=limits, side="client", on_slow=dispatch.report_slow
        )
        self.calls: OutgoingCalls = self.session.use(marshaller)
        self.glance: Wait | None = None
        self.has_received: Callable[[], bool] = lambda: True
        self.reason: Callable[[], str | None] = lambda: None
        self.renew: Callable[[], Awaitable[object]] | None = None
        self._address = marshaller.address
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self.closed: asyncio.Future[None] = self._gone
        self.cut: Callable[[str], object] = self.lose
        self.session.add_lost_callback(self._is_gone)

    @property
    def is_open(self) -> bool:
        """Calls can be made."""
        return self.session.is_open

    def has_unread(self) -> bool:
        """Did something come while nobody waited, that the loop has not read yet: perhaps the end?

        So it is when the loop was held up, or did not run between two calls.
        """
        return self.glance is not None and not self.session.pending and bool(self.glance(0))

    def close(self, reason: str) -> None:
        """Fail what waits, tell the server that nobody waits, send what was written, then close.

        `gone` tells when that is done.
        """
        pending = self.session.pending
        self.calls.cancel([call_id for call_id, _ in pending.items()])
        pending.fail_all(lambda method: ConnectionLost(reason, method=method, address=self._address))
        self.session.work.abandon(lambda message: False)
        self.session.end(lambda method: ConnectionLost(reason, method=method, address=self._address))

    async def gone(self, seconds: float) -> None:
        """Wait until the connection is closed; close it the hard way after so many seconds."""
        await asyncio.wait([self._gone, self.closed], timeout=seconds)
        if not (self._gone.done() and self.closed.done()):
            self.cut("the server did not take what was sent before the client was closed")
            await asyncio.wait([self._gone, self.closed])

    def lose(self, reason: str) -> None:
        """End the connection at once."""
        self.session.abort(reason)

    def see_off(self) -> None:
        """The server says nothing more. If it is gone altogether, what still runs for it is to be cancelled."""
        channel = self.session.channel
        if channel is not None and not self.loop.is_closed():
            channel.probe()
            self.loop.call_later(PROBE, self.see_off)

    def _is_gone(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def _settle(self, reply: dict[str, object], line: bytes | bytearray) -> None:
        self.session.pending.settle(reply, line)
