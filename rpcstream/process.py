"""A program: its signals, its file descriptors, and the names of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

log = logging.getLogger("rpcstream.server")

#: Seconds that cancelled tasks have for their `finally` when a program ends. Tasks that take longer are left behind.
CLEAN_UP = 1.0

#: The folder of this package.
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Stoppable(Protocol):
    """A server that can be stopped.

    Attributes:
        time_to_stop: seconds within which `stop` closes all connections, if the event loop runs.
        is_serving: the server has begun to serve, and some of its connections are open.
    """

    @property
    def time_to_stop(self) -> float: ...

    @property
    def is_serving(self) -> bool: ...

    def stop(self) -> None:
        """Stop gracefully: let running calls end."""

    def abort(self) -> None:
        """Close all connections at once."""


def raise_descriptor_limit() -> None:
    """Let this process have as many open files, and so connections, as the system permits it (the hard limit)."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; a system without a hard limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def join_names(names: Collection[str], most: int = 10) -> str:
    """Names for a log line: the first ones, and how many more there are."""
    shown = ", ".join(repr(name) for name in list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def task_name(task: asyncio.Task[Any]) -> str:
    """The name of the function that a task runs: the outermost one outside this package."""
    step: Any = task.get_coro()
    name = getattr(step, "__qualname__", repr(step))
    while (code := getattr(step, "cr_code", None)) is not None:
        name = code.co_qualname
        if not code.co_filename.startswith(PACKAGE):
            break
        step = step.cr_await
    return str(name)


class StopNow(KeyboardInterrupt):
    """Raised by the second signal, with its number.

    A KeyboardInterrupt, since neither the error handling of a handler nor an event loop swallows that.
    """


@contextlib.contextmanager
def stop_on_signals(
    server: Stoppable, loop: asyncio.AbstractEventLoop | None = None, *, raises: bool = True
) -> Iterator[list[int]]:
    """Handle SIGINT and SIGTERM: the first stops the server, the second leaves the event loop at once.

    If a handler blocks the loop for so long that the server cannot stop in time, the process exits. These are plain
    signal handlers and not the loop's, since they also run while a handler blocks the loop.

    Args:
        server: what is stopped.
        loop: where it runs; None: in the running loop of this thread.
        raises: the second signal raises StopNow in the main thread. Not where nothing could catch it, as in a coroutine
            of a loop that others run.

    Yields:
        The numbers of the signals so far.
    """
    seen: list[int] = []
    over = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    where = asyncio.get_running_loop() if loop is None else loop

    def on_signal(number: int, frame: types.FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            log.info("%s: stopping", signal.Signals(number).name)
            where.call_soon_threadsafe(server.stop)
            enforce = threading.Thread(target=_enforce_stop, args=(server, number, over), name="rpcstream-stop")
            enforce.daemon = True
            enforce.start()
        else:
            server.abort()
            if raises:
                raise StopNow(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def on_hangup(function: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Call a function with each SIGHUP within the block, unless the program has a handler of its own.

    Without a function it is ignored, while there is nothing to reload yet or any more; not by SIG_IGN, which child
    processes would inherit. Does nothing outside the main thread, and where the system has no such signal.
    """

    def handle(number: int, frame: types.FrameType | None) -> None:
        function()

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGHUP) if hasattr(signal, "SIGHUP") and is_main else None
    if before not in (signal.SIG_DFL, signal.SIG_IGN) and getattr(before, "__code__", None) is not handle.__code__:
        yield
        return
    signal.signal(signal.SIGHUP, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _enforce_stop(server: Stoppable, number: int, over: threading.Event) -> None:
    """Exit, from a thread, if a server that was told to stop has not done so: its event loop is blocked."""
    if over.wait(min(server.time_to_stop + CLEAN_UP, threading.TIMEOUT_MAX)) or not server.is_serving:
        return
    stack = traceback.format_stack(sys._current_frames().get(threading.main_thread().ident or 0))
    log.critical("exiting at once: the event loop has been blocked since the signal, by:\n%s", "".join(stack))
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()
    os._exit(128 + number)
