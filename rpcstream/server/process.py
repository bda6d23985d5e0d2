"""How a server's process runs: which event loop, which memory is frozen, and what happens to tasks that do not end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import threading
import types
from asyncio import tasks as asyncio_tasks
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from ..process import CLEAN_UP, PACKAGE, join_names, task_name

log = logging.getLogger("rpcstream.server")

LoopName = Literal["auto", "uvloop", "asyncio"]

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


def without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the first frame on that is neither this package's nor of Python's import system."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(
        (PACKAGE, "<frozen importlib", _IMPORTLIB)
    ):
        trace = trace.tb_next
    return trace
