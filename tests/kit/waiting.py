"""Waits for a condition: `until` in an event loop, `until_in_thread` in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: Seconds of real time after which a condition should have come true, also on a busy machine.
PATIENCE = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Turn the event loop until the condition holds. Fake time stands still meanwhile."""
    end = time.monotonic() + PATIENCE
    turns = 0
    while not condition():
        await asyncio.sleep(0)
        turns += 1
        if turns > 50:
            time.sleep(0.0005)  # leave the processor to the threads and processes that may be waited for
        assert time.monotonic() < end, "waited for something that did not happen"


def until_in_thread(condition: Callable[[], object]) -> None:
    """Sleep until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        time.sleep(0.001)
        assert time.monotonic() < end, "waited for something that did not happen"
