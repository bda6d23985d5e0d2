"""The process that a server runs in: which event loop it has, what its signals mean, and what its collector looks at.

Knows a server only as something that can be stopped in order, and at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

log = logging.getLogger("rpcstream.server")

LoopName = Literal["auto", "uvloop", "asyncio"]


class Stoppable(Protocol):
    def stop(self) -> None: ...

    def abort(self) -> None: ...


def loop_factory(name: LoopName) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """`RPCSTREAM_LOOP` in the environment decides for "auto", so that a whole test run can be put on plain asyncio."""
    if name == "auto":
        name = os.environ.get("RPCSTREAM_LOOP", "auto")  # type: ignore[assignment]
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise
        return None
    return uvloop.new_event_loop


def freeze_memory() -> None:
    """Have the garbage collector leave alone what there is once a program serves: modules, classes, signatures, models.

    It would look at all of that again and again, and find that it is still needed; with many calls at work that takes a
    tenth of the time. Only for a program that does nothing but serve: nothing where others have the main thread.
    """
    if threading.current_thread() is threading.main_thread():
        gc.collect()
        gc.freeze()


class StopNow(KeyboardInterrupt):
    """Raised by the second signal. Of the one class that no handler's error handling and no event loop keeps."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def stop_on_signals(server: Stoppable) -> Iterator[list[int]]:
    """SIGINT and SIGTERM: the first asks the server to stop, the second ends the program's stay in the loop at once.

    Plain handlers rather than the loop's: they also run while a handler keeps the loop. Gives the signals so far.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: types.FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            log.info("%s: stopping", signal.Signals(number).name)
            loop.call_soon_threadsafe(server.stop)
        else:
            server.abort()
            raise StopNow(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
