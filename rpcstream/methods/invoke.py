"""Where a handler that is not run inline is run: as a coroutine, in a thread, in another process.

Owns the pools and their bounds. Knows neither messages nor replies.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from ..errors import RegistrationError
from .registry import Method


class Invoker:
    """Runs async and offloaded handlers.

    Args:
        threads: handlers that run in threads at the same time.
        processes: worker processes, each running one handler at a time.

    Both pools are started with their first call; `close` ends them.
    """

    def __init__(self, *, threads: int, processes: int) -> None:
        if threads < 1 or processes < 1:
            raise ValueError(f"threads and processes must be at least 1, got {threads} and {processes}")
        self._threads = DaemonThreads(threads)
        self._process_count = processes
        self._processes: ProcessPoolExecutor | None = None

    async def run(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the handler returns, or the exception it raised."""
        if method.is_async:
            return await method.function(*args, **kwargs)
        call = functools.partial(method.function, *args, **kwargs)
        if method.offload == "thread":
            return await asyncio.wrap_future(self._threads.submit(call))
        try:
            return await asyncio.wrap_future(self._pool().submit(call))
        except BrokenProcessPool:
            # A worker died (killed, or crashed in C code). The next call finds a new pool.
            self._end_processes()
            raise

    def close(self) -> None:
        """End the pools without waiting: threads end with what they run now, processes at once."""
        self._threads.close()
        self._end_processes()

    def _pool(self) -> ProcessPoolExecutor:
        if self._processes is None:
            # Forking a process that has threads and an event loop is not safe: start each worker afresh.
            self._processes = ProcessPoolExecutor(
                self._process_count, mp_context=get_context("spawn"), initializer=_ignore_interrupt
            )
        return self._processes

    def _end_processes(self) -> None:
        pool, self._processes = self._processes, None
        if pool is not None:
            for worker in list((pool._processes or {}).values()):
                worker.terminate()
            # With its workers gone the pool is down at once; left to itself it would race with the program's end.
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C goes to the whole group of processes; the server alone decides when its workers end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def check_picklable(method: Method) -> None:
    """Raises RegistrationError unless another process can import the function. Only true once its module is loaded."""
    try:
        pickle.dumps(method.function)
    except Exception as error:
        raise RegistrationError(
            f"{method.name}: offload='process' needs a function that another process can import: {error}"
        ) from error


def default_threads() -> int:
    """As many as the standard library's pool: enough for handlers that wait for disks and networks."""
    return min(32, (os.cpu_count() or 1) + 4)


def default_processes() -> int:
    """One for each processor."""
    return os.cpu_count() or 1


class DaemonThreads:
    """A bounded pool of threads that does not keep the program from ending.

    The standard library's pool joins its threads when the program ends, so one handler that hangs would keep a stopped
    server alive for ever. A call that is cancelled before a thread takes it is not run.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` in a thread, with the context variables of here. Called from one thread only."""
        future: Future[Any] = Future()
        self._calls.put((future, functools.partial(contextvars.copy_context().run, call)))
        if not self._idle.acquire(blocking=False) and self._started < self._size:
            self._started += 1
            threading.Thread(target=self._work, name=f"rpcstream-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Each thread ends after the call it runs now; calls that wait are cancelled."""
        while True:
            try:
                waiting = self._calls.get_nowait()
            except queue.Empty:
                break
            if waiting is not None:
                waiting[0].cancel()
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0
        self._idle = threading.Semaphore(0)

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del taken, future, call  # keep neither arguments nor result alive while waiting
            self._idle.release()
