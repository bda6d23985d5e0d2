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
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from ..errors import RegistrationError, RpcError, ServerBusy
from .registry import Method


class Invoker:
    """Runs async and offloaded handlers.

    Args:
        threads: handlers that run in threads at the same time.
        processes: worker processes, each running one handler at a time.
        max_queue: calls that may wait for a thread or a process; one more is answered with -32002.

    Both pools are started with their first call; `close` ends them.
    """

    def __init__(self, *, threads: int, processes: int, max_queue: int) -> None:
        if threads < 1 or processes < 1:
            raise ValueError(f"threads and processes must be at least 1, got {threads} and {processes}")
        self._threads = DaemonThreads(threads)
        self._max_queue = max_queue
        self._process_count = processes
        self._process_slots = asyncio.Semaphore(processes)
        self._processes_waiting = 0
        self._processes: ProcessPoolExecutor | None = None

    def start(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What gives the handler's result, or raises its exception, when it is awaited.

        Or the result itself: a wrapper around an async function may be a plain one.
        """
        return method.function(*args, **kwargs) if method.is_async else self._offloaded(method, args, kwargs)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run something in a thread of the pool.

        Raises:
            ServerBusy: too much waits for a thread or a process already.
        """
        if self._threads.waiting + self._processes_waiting >= self._max_queue:
            raise ServerBusy(data={"limit": self._max_queue})
        return self._threads.submit(call)

    async def _offloaded(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method.offload == "thread":
            return await asyncio.wrap_future(self.submit(functools.partial(method.function, *args, **kwargs)))
        if self._threads.waiting + self._processes_waiting >= self._max_queue:
            raise ServerBusy(data={"limit": self._max_queue})
        return await self._in_process(pickle.dumps((method.function, args, kwargs)))

    async def _in_process(self, packed: bytes) -> Any:
        """Run a pickled call in a worker. It waits here, not in the pool: if it is cancelled, nothing stays behind."""
        self._processes_waiting += 1
        try:
            await self._process_slots.acquire()
        finally:
            self._processes_waiting -= 1
        release = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, self._process_slots.release)
        try:
            future = self._pool().submit(run_packed, packed)
        except BaseException:
            release()
            raise
        future.add_done_callback(lambda _: _quietly(release))
        try:
            return unpacked(*await asyncio.wrap_future(future))
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


class HandlerFailed(Exception):
    """What a handler raised where it ran, in words: the exception itself does not travel."""


def run_packed(packed: bytes) -> tuple[str, bytes]:
    """In a worker: run a pickled call, and pickle what came of it here, where a failure is this call's alone."""
    try:
        function, args, kwargs = pickle.loads(packed)
        return "result", pickle.dumps(function(*args, **kwargs))
    except RpcError as error:
        try:
            return "error", pickle.dumps((error.code, error.message, error.data))
        except Exception as unfit:
            return "failed", pickle.dumps(f"the data of an error cannot be sent between processes: {unfit}")
    except BaseException as error:
        return "failed", pickle.dumps("".join(traceback.format_exception(error)))


def unpacked(kind: str, packed: bytes) -> Any:
    """The result of `run_packed`, or its error raised."""
    outcome = pickle.loads(packed)
    if kind == "error":
        raise RpcError(*outcome)
    if kind == "failed":
        raise HandlerFailed(outcome)
    return outcome


def _quietly(release: Callable[[], object]) -> None:
    try:
        release()
    except RuntimeError:  # the loop is closed, nobody waits any more
        pass


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
        self._calls: dict[Future[Any], Callable[[], Any]] = {}
        self._tickets: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` in a thread, with the context variables of here. Called from one thread only."""
        future: Future[Any] = Future()
        self._calls[future] = functools.partial(contextvars.copy_context().run, call)
        # A call that is cancelled lets go of its arguments at once, not when a thread comes to it.
        future.add_done_callback(lambda done: self._calls.pop(done, None))
        self._tickets.put(future)
        if not self._idle.acquire(blocking=False) and self._started < self._size:
            self._started += 1
            threading.Thread(target=self._work, name=f"rpcstream-{self._started}", daemon=True).start()
        return future

    @property
    def waiting(self) -> int:
        """Calls that no thread has taken yet."""
        return len(self._calls)

    def close(self) -> None:
        """Each thread ends after the call it runs now; calls that wait are cancelled."""
        for future in list(self._calls):
            future.cancel()
        for _ in range(self._started):
            self._tickets.put(None)
        self._started = 0
        self._idle = threading.Semaphore(0)

    def _work(self) -> None:
        while (future := self._tickets.get()) is not None:
            call = self._calls.pop(future, None)
            if call is not None and future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except (StopIteration, KeyboardInterrupt, SystemExit) as error:
                    # A future cannot carry the first, and in a thread the others are no wish to end the program.
                    future.set_exception(HandlerFailed(f"{type(error).__name__}: {error}"))
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # keep neither arguments nor result alive while waiting
            self._idle.release()
