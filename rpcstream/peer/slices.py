"""Time slices of the event loop for work that takes long: connections take turns, so that none blocks the others.

Owns the order in which work goes on, and the lengths of a turn and of a slice. Does not know what is done in a slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from time import perf_counter

#: Seconds that one connection may keep the loop before the others have their turn.
TURN = 0.02

#: Seconds that a generator in the event loop may go on before others have their turn.
SLICE = 0.005


class TimeSlices:
    """Grants slices of one event loop: one in each turn of the loop, however many pieces of work wait.

    So all else that the loop has to do (messages, timers) waits for one slice at most. Owners, which are connections,
    take turns; the work of one owner goes on in the order in which it asked.
    """

    __slots__ = ("_is_due", "_since", "_used", "_waiting")

    def __init__(self) -> None:
        #: Slices that were used in this turn of the loop.
        self._used = 0
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._is_due = False
        #: When the first piece of work began in this turn of the loop (s).
        self._since: float | None = None

    @property
    def are_used(self) -> bool:
        """The slices used in this turn of the loop take `TURN` together. To be asked before another begins."""
        return self._used * SLICE >= TURN

    def is_crowded(self) -> bool:
        """Whether the work that asks this has kept the loop for `TURN` since the first time in this turn of the loop.

        For work that does not come in slices.
        """
        now = perf_counter()
        if self._since is None:
            self._since = now
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return now - self._since > TURN

    async def come(self, owner: Hashable) -> None:
        """Wait for the next slice, when one is used up.

        Args:
            owner: the connection that the work is done for.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        self._used += 1
        self._schedule()
        await waiter

    def _begin_turn(self) -> None:
        self._since = None

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._is_due = False
        self._used = 0
        while self._waiting:
            owner = next(iter(self._waiting))
            waiters = self._waiting.pop(owner)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[owner] = waiters  # behind the other owners
            if not waiter.done():
                waiter.set_result(None)
                break
        if self._waiting:
            self._schedule()
