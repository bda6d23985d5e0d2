"""The process that a server runs in: its event loop and how that ends, what signals mean, what the collector looks at.

Knows a server only as something that can be stopped in order, and at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import sys
import threading
import types
from asyncio import tasks as asyncio_tasks
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

log = logging.getLogger("rpcstream.server")

LoopName = Literal["auto", "uvloop", "asyncio"]

#: Seconds that cancelled tasks have for their `finally` when a program ends. What takes longer is left as it is.
CLEAN_UP = 1.0

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Stoppable(Protocol):
    """A server, as its process sees it.

    Attributes:
        time_to_stop: seconds after `stop` in which its connections are closed, if the event loop runs.
        is_serving: it has begun to serve, and its connections are not all closed.
    """

    @property
    def time_to_stop(self) -> float: ...

    @property
    def is_serving(self) -> bool: ...

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


def run_to_end(
    main: Coroutine[Any, Any, None],
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
    executor: ThreadPoolExecutor,
    known: Callable[[], Collection[asyncio.Task[Any]]],
) -> None:
    """As `asyncio.run`, but what does not end when it is cancelled is left behind, and named in a warning.

    Only `main` itself, when it was interrupted, has all the time it wants, until it is interrupted again.

    Args:
        executor: the loop's default one. Its `shutdown` must not wait for ever.
        known: tasks that were named already.
    """
    first: set[asyncio.Task[Any] | None] = set()

    async def remembered() -> None:
        first.add(asyncio.current_task())
        await main

    with asyncio.Runner(loop_factory=factory) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(executor)
        try:
            runner.run(remembered())
        finally:
            _end_tasks(loop, first, known)


def _end_tasks(
    loop: asyncio.AbstractEventLoop,
    first: Collection[asyncio.Task[Any] | None],
    known: Callable[[], Collection[asyncio.Task[Any]]],
) -> None:
    """Cancel what still runs, and hide from the runner what does not end: it would wait for that for ever."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=CLEAN_UP))
        for task in tasks.intersection(first):
            loop.run_until_complete(asyncio.wait({task}))
        generators = loop.create_task(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.wait({generators}, timeout=CLEAN_UP))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            asyncio_tasks._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        names = sorted({name_of_task(task) for task in left.difference(known())})
        if names:
            log.warning("left behind, since they did not end when they were cancelled: %s", in_words(names))


def in_words(names: Collection[str], most: int = 10) -> str:
    """Some names for a warning."""
    shown = ", ".join(repr(name) for name in list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def name_of_task(task: asyncio.Task[Any]) -> str:
    """The function that a task is in: the outermost one that is not this package's."""
    step: Any = task.get_coro()
    name = getattr(step, "__qualname__", repr(step))
    while (code := getattr(step, "cr_code", None)) is not None:
        name = code.co_qualname
        if not code.co_filename.startswith(_PACKAGE):
            break
        step = step.cr_await
    return str(name)


class StopNow(KeyboardInterrupt):
    """Raised by the second signal. Of the one class that no handler's error handling and no event loop keeps."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def stop_on_signals(server: Stoppable) -> Iterator[list[int]]:
    """SIGINT and SIGTERM: the first asks the server to stop, the second ends the program's stay in the loop at once.

    When a handler keeps the loop for so long that the server cannot stop in time, that counts as the second; when it
    keeps that off, too, the process ends on the spot. Plain handlers rather than the loop's: they also run while a
    handler keeps the loop. Gives the signals so far.
    """
    seen: list[int] = []
    over = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: types.FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            log.info("%s: stopping", signal.Signals(number).name)
            loop.call_soon_threadsafe(server.stop)
            watch = functools.partial(_watch, server, number, seen, over)
            threading.Thread(target=watch, name="rpcstream-stop", daemon=True).start()
        else:
            server.abort()
            raise StopNow(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(server: Stoppable, number: int, seen: list[int], over: threading.Event) -> None:
    """In a thread: see that a server which was asked to stop does so, whatever keeps its event loop."""
    if over.wait(min(server.time_to_stop + CLEAN_UP, threading.TIMEOUT_MAX)) or not server.is_serving:
        return
    if len(seen) == 1:
        log.warning("stopping now: the event loop has been kept since the signal came, by %s", _place_of_main())
        if hasattr(signal, "pthread_kill"):  # so that a system call is interrupted
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:
            signal.raise_signal(number)
    if not over.wait(2 * CLEAN_UP) and server.is_serving:
        log.critical("the process ends on the spot: the event loop is still kept, by %s", _place_of_main())
        if "multiprocessing" in sys.modules:
            for child in sys.modules["multiprocessing"].active_children():
                child.kill()
        os._exit(128 + number)


def _place_of_main() -> str:
    """What the main thread does: the last function called by this package, and where it is."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        if not _is_ours(frame) and _is_ours(frame.f_back):
            break
        frame = frame.f_back
    if frame is None:
        return "something unknown"
    return f"{frame.f_code.co_qualname!r} in {frame.f_code.co_filename}, line {frame.f_lineno}"


def _is_ours(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)
