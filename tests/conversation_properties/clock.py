"""An event loop whose time passes only when it is told so, and that knows when nothing is left to be done."""

from __future__ import annotations

import asyncio
from typing import Any

from rpcstream.testing import FakeTimeLoop

#: Turns without any news after which nothing more will come by itself: timers and sockets add theirs behind ours.
CALM = 5

#: Turns after which something is going round in circles.
TURNS_MAX = 5000


class SteppedLoop(FakeTimeLoop):
    """Stands still unless it is told to turn."""

    def __init__(self) -> None:
        self._begun = 0
        #: What was reported to nobody: exceptions of tasks that no one looked at, and of callbacks.
        self.reports: list[str] = []
        super().__init__()
        self.autojump = False
        self.set_exception_handler(lambda _, context: self.reports.append(f"{context}"))
        self.turn()
        before = self._begun
        self.turn()
        #: What a turn itself begins.
        self._own = self._begun - before

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self._begun += 1
        return super().call_soon(callback, *args, context=context)

    def turn(self, count: int = 1) -> None:
        """Go round so many times."""
        self.run_until_complete(_turns(count))

    def settle(self) -> None:
        """Go round until nothing is left to be done, unless time passes or a thread has done something."""
        calm = turns = 0
        while calm < CALM:
            before = self._begun
            self.turn()
            calm = calm + 1 if self._begun - before <= self._own else 0
            turns += 1
            assert turns < TURNS_MAX, "something goes round in circles"

    def dispose(self) -> None:
        """Close, whatever is still going on."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.turn(20)
        self.close()


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
