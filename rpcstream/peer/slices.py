"""Time slices of the event loop for work that takes long: connections take turns, so that none blocks the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from time import perf_counter

#: Seconds that one connection may keep the loop before the others have their turn.
TURN = 0.02

#: Seconds that a generator in the event loop may go on before others have their turn.
SLICE = 0.005


@dataclass(slots=True, eq=False)
class TimeSlices:
    """Grants slices of one event loop: one in each turn of the loop, however many pieces of work wait.

    So all else that the loop has to do (messages, timers) waits for one slice at most. Owners, which are connections,
    take turns; the work of one owner goes on in the order in which it asked.
    """

    _waiting: dict[Hashable, deque[asyncio.Future[None]]] = field(default_factory=dict)
    #: When the first piece of work began in this turn of the loop (s).
    _since: float | None = None

    def is_crowded(self) -> bool:
        """Whether the work that asks this has kept the loop for `TURN` since the first time in this turn of the loop.

        To be asked before more work begins that need not begin now.
        """
        now = perf_counter()
        if self._since is None:
            self._since = now
            asyncio.get_running_loop().call_soon(setattr, self, "_since", None)
        return now - self._since > TURN

    async def come(self, owner: Hashable) -> None:
        """Wait for the next slice, when one is used up.

        Args:
            owner: the connection that the work is done for.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._grant)
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        await waiter

    def _grant(self) -> None:
        owner = next(iter(self._waiting))
        waiters = self._waiting.pop(owner)
        waiter = waiters.popleft()
        if waiters:
            self._waiting[owner] = waiters  # behind the other owners
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._grant)
        if not waiter.done():
            waiter.set_result(None)
