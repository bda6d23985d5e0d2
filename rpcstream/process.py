"""Run a server as a process: choose the event loop, stop on signals, end tasks that do not stop, freeze memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
import types
from asyncio import tasks as asyncio_tasks
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

log = logging.getLogger("rpcstream.server")

LoopName = Literal["auto", "uvloop", "asyncio"]

#: Seconds that cancelled tasks have for their `finally` when a program ends. Tasks that take longer are left behind.
CLEAN_UP = 1.0

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_IMPORTLIB = os.path.dirname(importlib.__file__) + os.sep

#: Serves in place of `Server.run`, with the server and the arguments of that call.
ServeInstead = Callable[[Any, dict[str, Any]], None]

#: What serves in place of the next `Server.run`; see `replace_run`.
_replacement: ServeInstead | None = None


@contextlib.contextmanager
def replace_run(serve: ServeInstead) -> Iterator[None]:
    """Let the first `Server.run` within the block call this function instead.

    For a command that imports a module which may call `server.run()` at module level: the command's own options and
    banner apply, and the server runs once.
    """
    global _replacement
    before, _replacement = _replacement, serve
    try:
        yield
    finally:
        _replacement = before


def take_replacement() -> ServeInstead | None:
    """The function that serves in place of `Server.run`, for this one time; None if there is none."""
    global _replacement
    serve, _replacement = _replacement, None
    return serve


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


def loop_factory(name: LoopName) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The function that makes the event loop; None for asyncio's own.

    For "auto" the environment variable `RPCSTREAM_LOOP` decides, so that a whole test run can use plain asyncio.
    Without it uvloop is used where it is installed.
    """
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


def raise_descriptor_limit() -> None:
    """Let this process have as many open files, and so connections, as the system permits it (the hard limit)."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; a system without a hard limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_memory() -> None:
    """Exclude all present objects from garbage collection: modules, classes, signatures, models.

    The collector would visit all of them again and again, which takes a tenth of the time under many running calls. For
    a program that does nothing but serve: outside the main thread, nothing is done.
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
    """Run a coroutine as `asyncio.run` does, but leave behind tasks that do not end when cancelled, with a warning.

    `main` itself has unlimited time to end after an interrupt, until it is interrupted again.

    Args:
        main: the coroutine.
        factory: makes the event loop.
        executor: the loop's default one. Its `shutdown` must not wait for ever.
        known: tasks for which a warning was logged already.
    """
    with asyncio.Runner(loop_factory=factory) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(executor)
        try:
            runner.run(main)
        finally:
            _end_tasks(loop, main, known)


def _end_tasks(
    loop: asyncio.AbstractEventLoop, main: object, known: Callable[[], Collection[asyncio.Task[Any]]]
) -> None:
    """Cancel all tasks, and hide those that do not end from the runner, which would wait for them for ever."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=CLEAN_UP))
        for task in tasks:
            if task.get_coro() is main:
                loop.run_until_complete(asyncio.wait({task}))
        generators = loop.create_task(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.wait({generators}, timeout=CLEAN_UP))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            asyncio_tasks._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        names = sorted({task_name(task) for task in left.difference(known())})
        if names:
            log.warning("left behind, since they did not end when they were cancelled: %s", join_names(names))


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
        if not code.co_filename.startswith(_PACKAGE):
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


def without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the first frame on that is neither this package's nor of Python's import system."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(
        (_PACKAGE, "<frozen importlib", _IMPORTLIB)
    ):
        trace = trace.tb_next
    return trace
