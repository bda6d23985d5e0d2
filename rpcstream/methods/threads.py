"""Bounded pools of daemon threads, which never keep a stopped program alive."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("rpcstream.server")

#: As many threads as the standard library's pool has: enough for handlers that wait for disks and networks.
DEFAULT_SIZE = min(32, (os.cpu_count() or 1) + 4)

#: Seconds that the end of a program waits for threads of `asyncio.to_thread`.
PATIENCE = 1.0


class HandlerFailed(RuntimeError):
    """A function in a thread or process raised what cannot be passed on; the text has its traceback or type."""


class DaemonThreads(ThreadPoolExecutor):
    """A bounded pool of daemon threads. Calls run in the order of submission.

    The standard library's pool joins its threads when the program ends, so one handler that hangs would keep a stopped
    server alive for ever. This class is an executor only so that `loop.set_default_executor` takes it. A call that is
    cancelled before a thread takes it leaves nothing in the queue.

    Args:
        size: the largest number of threads. A thread is started when a call finds no idle one.
        name: of the threads.

    Attributes:
        waiting: the calls that no thread has taken yet.
        running: the calls that threads carry out.
    """

    def __init__(self, size: int = DEFAULT_SIZE, name: str = "rpcstream") -> None:
        self.waiting: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        self.running: set[Future[Any]] = set()
        self._size = size
        self._name = name
        # Its lock is reentrant, since the garbage collector may run a `__del__` that submits or cancels at any time.
        self._changed = threading.Condition()
        self._started = self._idle = 0
        self._is_closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread, with a copy of the present context variables.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        future: Future[Any] = Future()
        run = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
        with self._changed:
            if self._idle <= len(self.waiting) and self._started < self._size:
                threading.Thread(target=self._work, name=f"{self._name}-{self._started + 1}", daemon=True).start()
                self._started += 1
            self.waiting[future] = run
            self._changed.notify()
        future.add_done_callback(lambda future: self.waiting.pop(future, None))
        return future

    def close(self) -> None:
        """Each thread ends after the call it runs now; calls that wait are cancelled."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for future in list(self.waiting):
            future.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `close`, but calls that wait are carried out; waits for them up to `PATIENCE` seconds."""
        if cancel_futures:
            self.close()
        if wait and (left := wait_for_futures({*self.waiting, *self.running}, PATIENCE).not_done):
            log.warning("threads of asyncio.to_thread or run_in_executor did not end and were abandoned: %d", len(left))
        self.close()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            future, run = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(run())
                except (StopIteration, KeyboardInterrupt, SystemExit) as error:
                    # A future cannot carry the first, and in a thread the others are no wish to end the program.
                    future.set_exception(HandlerFailed(f"{type(error).__name__}: {error}"))
                except BaseException as error:
                    future.set_exception(error)
            self.running.discard(future)
            # Neither arguments nor result are kept alive while waiting, nor in a circle by a traceback with this frame.
            del taken, future, run

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for the next call; None when the pool is closed."""
        with self._changed:
            while not self.waiting:
                if self._is_closed:
                    self._started -= 1
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            future, call = self.waiting.popitem(last=False)
            self.running.add(future)
            return future, call


async def until_done(future: Future[T]) -> T:
    """Await what runs in a thread; if this is cancelled, the thread all the same, which cannot be interrupted."""
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not future.cancel() and not waiting.done():
            await asyncio.wait({waiting})
        raise
