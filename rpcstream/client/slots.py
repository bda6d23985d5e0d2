"""The places for connections in the pool of an async client: what each has, and how it is to get it.

Owns, for one place, the present connection, the attempt to make one, and the pauses between attempts. Does not know how
a connection is made, nor which call takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ConnectFailed, RpcError
from ..peer.deadline import INFINITE
from .connection import ClientConnection
from .retry import WAITING

#: Seconds after the loss of a good connection for which its server is likely to be restarting; and the longest pause
#: between attempts meanwhile, so that a program that others wait for is back soon.
RESTART_TIME, RESTART_PAUSE = 15.0, 1.0


class Fault(NamedTuple):
    """Why there is no connection, and will be none before something is changed.

    Attributes:
        error: of the attempt to connect.
        loop: the event loop in which it was made.
        timer: of the next attempt.
    """

    error: ConnectFailed | RpcError
    loop: asyncio.AbstractEventLoop
    timer: asyncio.TimerHandle


class Slot:
    """One place for a connection in the pool; the connection may be missing, or still being made."""

    __slots__ = (
        "_wake",
        "connecting",
        "connection",
        "failures",
        "fault",
        "leaving",
        "lost_good",
        "next_attempt",
        "since",
        "wanted_until",
    )

    def __init__(self) -> None:
        self.connection: ClientConnection | None = None
        #: The task that makes it.
        self.connecting: asyncio.Task[ClientConnection] | None = None
        #: Attempts since the last good connection that failed, or whose connection was soon lost.
        self.failures = 0
        #: When the connection was made (loop time).
        self.since = 0.0
        #: When a connection was lost that had been a good one (loop time).
        self.lost_good = -INFINITE
        #: When calls that wait make the next attempt, all together (loop time).
        self.next_attempt = -INFINITE
        #: Until when calls wait for the connection (loop time); ends its pauses.
        self.wanted_until = -INFINITE
        self._wake: asyncio.Future[None] | None = None
        #: Connections before this one that the server is leaving, and has not closed yet.
        self.leaving: list[ClientConnection] = []
        #: While attempts are suspended: why.
        self.fault: Fault | None = None

    @property
    def load(self) -> int:
        """Calls that wait for their reply on this connection."""
        return 0 if self.connection is None else len(self.connection.session.pending)

    def forget_fault(self) -> None:
        """Connect at once when a connection is wanted."""
        if self.fault is not None:
            self.fault.timer.cancel()
            self.fault = None

    async def rest(self, seconds: float, least: float) -> None:
        """Pause before the next attempt; not for so long while a restart is likely, or calls wait for it (`hurry`).

        Args:
            seconds: the pause otherwise.
            least: no pause needs to be shorter, but for such calls.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        if loop.time() < self.lost_good + RESTART_TIME:
            end = min(end, loop.time() + max(RESTART_PAUSE, least))
        while (now := loop.time()) < end:
            if now < self.wanted_until:
                end = min(end, now + WAITING.pause(self.failures))
            self._wake = loop.create_future()
            await asyncio.wait([self._wake], timeout=end - now)

    def hurry(self, until: float) -> None:
        """Note that a call waits for the connection, until this loop time."""
        if until > self.wanted_until:
            self.wanted_until = until
            if self._wake is not None and not self._wake.done() and self._wake.get_loop() is asyncio.get_running_loop():
                self._wake.set_result(None)

    @property
    def is_open(self) -> bool:
        """The connection is there and open."""
        return self.connection is not None and self.connection.is_open


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The slot with the fewest waiting calls, an open one first: another connection is made when all are busy."""
    return min(slots, key=lambda slot: (slot.load, not slot.is_open))
