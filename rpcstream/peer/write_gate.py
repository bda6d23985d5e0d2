"""Backpressure on what is sent over one connection: producers wait while the peer does not read.

Owns whether more may be sent now, and the producers that wait until it may. Does not know what is sent, nor by which
transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class WriteGate:
    """Open while the peer reads and not too much waits for the end of the turn.

    Those that wait go on one by one, in the order in which they came, and may send one message each, also if another
    has filled the connection again meanwhile: so none waits for ever.

    Args:
        max_unsent: bytes that may wait for the end of the turn.

    Attributes:
        stalled: the peer does not read what is sent.
        unsent: bytes that were sent in this turn of the loop and not yet handed to the transport.
        waiting: those that wait, in order; None until there was one.
    """

    __slots__ = ("_has_turn", "_max_unsent", "stalled", "unsent", "waiting")

    def __init__(self, max_unsent: int) -> None:
        self._max_unsent = max_unsent
        self.stalled = False
        self.unsent = 0
        self.waiting: deque[asyncio.Future[None]] | None = None
        #: One of those that waited goes on in this turn of the loop.
        self._has_turn = False

    @property
    def is_open(self) -> bool:
        """More may be sent now."""
        return not self.stalled and self.unsent <= self._max_unsent

    def set_stalled(self, stalled: bool) -> None:
        """The peer does not read (or reads again, or is gone)."""
        self.stalled = stalled
        self.admit_next()

    def add_unsent(self, size: int) -> None:
        """Count bytes that will be written at the end of this turn."""
        self.unsent += size

    def written(self) -> None:
        """All that was sent in this turn is handed to the transport, or will never be."""
        self.unsent = 0
        self.admit_next()

    async def wait(self) -> None:
        """Wait until the gate is open and it is this caller's turn; then one message may be sent."""
        waiter = self._waiter()
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                asyncio.get_running_loop().call_soon(self._end_turn)

    async def give_way(self) -> None:
        """Let all others have a turn of the loop: those that wait at the gate, too."""
        if self.waiting:
            await self.wait()
        else:
            await asyncio.sleep(0)

    def when_open(self, function: Callable[[], object]) -> None:
        """Call this once, as soon as `wait` would end. To be used while the gate is not open."""
        self._waiter().add_done_callback(lambda _: self._call(function))

    def _waiter(self) -> asyncio.Future[None]:
        """One more that waits, behind all others."""
        if self.waiting is None:
            self.waiting = deque()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        return waiter

    def _call(self, function: Callable[[], object]) -> None:
        try:
            function()
        finally:
            self._end_turn()

    def admit_next(self) -> None:
        """Let the next one go on, if the gate is open and no other is about to."""
        while self.waiting and self.is_open and not self._has_turn:
            waiter = self.waiting.popleft()
            if not waiter.done():
                self._has_turn = True
                waiter.set_result(None)

    def _end_turn(self) -> None:
        self._has_turn = False
        self.admit_next()
