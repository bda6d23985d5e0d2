"""The places for connections in the pool of an async client: what each has, and the pauses between attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import ConnectFailed, RpcError
from ..peer.deadline import INFINITE
from .address import Address
from .attempts import WAITING
from .connection import ClientConnection

#: Seconds after the loss of a good connection for which its server is likely to be restarting; and the longest pause
#: between attempts meanwhile, so that a program that others wait for is back soon.
RESTART_TIME, RESTART_PAUSE = 15.0, 1.0


class Slot:
    """One place for a connection in the pool; the connection may be missing, or still being made.

    Attributes:
        address: the only server it connects to; None for the first one that can be reached.
        connecting: the task of the present attempt to make it, which begins with the pause before it.
        failures: attempts since the last good connection that failed, or whose connection was soon lost.
        error: why the last attempt failed.
        is_suspended: the next attempt is made after a long pause, since it would fail as well; calls fail meanwhile.
        since: when the connection was made (loop time).
        lost_good: when a connection was lost that had been a good one (loop time).
        waiting: how many calls wait for the connection for a limited time; its pauses are short meanwhile.
    """

    def __init__(self, address: Address | None = None) -> None:
        self.address = address
        self.connection: ClientConnection | None = None
        self.connecting: asyncio.Task[ClientConnection] | None = None
        self.failures = 0
        self.error: ConnectFailed | RpcError | None = None
        self.is_suspended = False
        self.since = 0.0
        self.lost_good = -INFINITE
        self.waiting = 0

    @property
    def load(self) -> int:
        """Calls that wait for their reply on this connection."""
        return 0 if self.connection is None else len(self.connection.session.pending)

    async def rest(self, seconds: float, least: float) -> None:
        """Pause before the next attempt; not for so long while a restart is likely, or calls wait (`waiting`).

        Args:
            seconds: the pause otherwise.
            least: no pause needs to be shorter, unless calls wait.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + seconds
        if now < self.lost_good + RESTART_TIME:
            end = min(end, now + max(RESTART_PAUSE, least))
        is_over = False
        while not is_over:
            await asyncio.sleep(min(WAITING.pause(self.failures), end - loop.time()))
            is_over = self.waiting > 0 or loop.time() >= end

    @property
    def is_open(self) -> bool:
        """The connection is there and open."""
        return self.connection is not None and self.connection.is_open


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The slot with the fewest waiting calls, an open one first: another connection is made when all are busy.

    Where each slot has its own server, a call never waits for a server that is not there while another one is.
    """
    return min(slots, key=lambda slot: (slot.address is not None and not slot.is_open, slot.load, not slot.is_open))
