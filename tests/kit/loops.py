"""The event loops of tests: the usual one, and one that is turned by hand, whose time passes only by calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from rpcstream.testing import FakeTimeLoop

#: Turns without any news after which nothing more will come by itself: timers and sockets add theirs behind ours.
CALM = 5

#: Turns after which callbacks must be scheduling each other without end.
TURNS_MAX = 5000


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where there is one, unless `RPCSTREAM_LOOP=asyncio`, as for a server."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if os.environ.get("RPCSTREAM_LOOP") != "asyncio":
        try:
            from uvloop import new_event_loop as make
        except ImportError:
            pass
    return make()


class SteppedLoop(FakeTimeLoop):
    """Turns and lets time pass only by calls of its methods."""

    def __init__(self) -> None:
        self._begun = 0
        #: Exceptions of callbacks, and of tasks whose outcome was never read.
        self.reports: list[str] = []
        super().__init__()
        self.autojump = False
        self.set_exception_handler(lambda _, context: self.reports.append(f"{context}"))
        self.turn()
        before = self._begun
        self.turn()
        #: Callbacks that a turn itself schedules.
        self._own = self._begun - before

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self._begun += 1
        return super().call_soon(callback, *args, context=context)

    def turn(self, count: int = 1) -> None:
        """Turn this many times."""
        self.run_until_complete(_turns(count))

    def settle(self) -> None:
        """Turn until nothing more happens without time passing or a thread ending."""
        calm = turns = 0
        while calm < CALM:
            before = self._begun
            self.turn()
            calm = calm + 1 if self._begun - before <= self._own else 0
            turns += 1
            assert turns < TURNS_MAX, "callbacks schedule each other without end"

    def dispose(self) -> None:
        """Close, whatever is still going on."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.turn(20)
        self.close()


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
