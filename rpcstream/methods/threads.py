"""A bounded pool of daemon threads, and the queue of calls in front of it.

Owns the queue of calls, which run in the order of submission, and the number of threads. Knows neither methods nor
processes, and not the event loop.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Any

log = logging.getLogger("rpcstream.server")

#: Wakes one thread, which then takes the first call of the queue.
_TICKET = None


class HandlerFailed(Exception):
    """A handler raised an exception that cannot be passed on as it is: the text has its traceback or type."""


class DaemonThreads:
    """A bounded pool of daemon threads, which does not keep the program from ending.

    The standard library's pool joins its threads when the program ends, so one handler that hangs would keep a stopped
    server alive for ever. A call that is cancelled before a thread takes it is not run, and nothing of it is kept: the
    memory of the queue is bounded by the calls that wait, however many come and are cancelled.

    Args:
        size: the largest number of threads. One is started when a call finds no idle thread.
        name: of the threads; a number is added.
    """

    def __init__(self, size: int, name: str = "rpcstream") -> None:
        self._size = size
        self._name = name
        #: The calls that no thread has taken yet. Adding, removing and taking the first are one step each.
        self._calls: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        #: Wakes threads. A cancelled call leaves its ticket to the next one: there are never more than calls waited at
        #: the same time.
        self._tickets: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: Guards the numbers below. Reentrant, since the garbage collector may run a `__del__` at any time.
        self._lock = threading.RLock()
        self._unused = 0  # tickets
        self._started = 0  # threads, and those of them that wait for a ticket
        self._idle = 0
        self._ever_started = 0
        self._is_closed = False

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` in a thread, with a copy of the present context variables."""
        future: Future[Any] = Future()
        with self._lock:
            self._calls[future] = functools.partial(contextvars.copy_context().run, call)
            if self._unused < len(self._calls):
                self._unused += 1
                self._tickets.put(_TICKET)
            is_short = self._idle < self._unused and self._started < self._size
            if is_short:
                self._started += 1
                self._ever_started += 1
                self._idle += 1
        # Without the lock, or the new thread would begin by waiting for it, and for its turn of some ms then.
        if is_short and not self._start():
            self._calls.pop(future, None)
            raise RuntimeError("the system lets this process start no thread")
        # A call that is cancelled lets go of its arguments at once, not when a thread comes to it.
        future.add_done_callback(self._leave)
        return future

    @property
    def waiting(self) -> int:
        """Calls that no thread has taken yet."""
        return len(self._calls)

    @property
    def busy(self) -> int:
        """Threads that carry out a call."""
        return self._started - self._idle

    @property
    def kept(self) -> int:
        """The number of objects in the queue: calls that wait, and tickets."""
        return len(self._calls) + self._tickets.qsize()

    def close(self) -> None:
        """Each thread ends after the call it runs now; calls that wait are cancelled."""
        for future in list(self._calls):
            future.cancel()
        with self._lock:
            self._is_closed = True
            for _ in range(self._started - self._unused):
                self._unused += 1
                self._tickets.put(_TICKET)

    def _start(self) -> bool:
        """Start a thread, which is counted already; false if that fails and the pool has no thread at all."""
        try:
            threading.Thread(target=self._work, name=f"{self._name}-{self._ever_started}", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            with self._lock:
                self._started -= 1
                self._idle -= 1
                return self._started > 0
        return True

    def _leave(self, future: Future[Any]) -> None:
        if self._calls.pop(future, None) is not None:
            future.set_running_or_notify_cancel()  # for those who wait for it by `concurrent.futures.wait`

    def _work(self) -> None:
        while True:
            self._tickets.get()
            with self._lock:
                self._unused -= 1
                self._idle -= 1
                try:
                    taken = self._calls.popitem(last=False)
                except KeyError:  # cancelled meanwhile
                    taken = None
            if taken is not None:
                _carry_out(*taken)
            del taken  # keep neither arguments nor result alive while waiting
            with self._lock:
                if self._is_closed and not self._calls:
                    self._started -= 1
                    return
                self._idle += 1


def _carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except (StopIteration, KeyboardInterrupt, SystemExit) as error:
        # A future cannot carry the first, and in a thread the others are no wish to end the program.
        future.set_exception(HandlerFailed(f"{type(error).__name__}: {error}"))
    except BaseException as error:
        future.set_exception(error)
    finally:
        # The traceback of what was raised has this frame: with these in it, what the handler held would be kept by a
        # circle until the garbage collector comes; a stream that it read, for one, is ended when it is let go.
        del future, call


class DaemonExecutor(ThreadPoolExecutor):
    """An executor for `loop.set_default_executor` whose threads do not keep the program from ending.

    That of the standard library is waited for without a limit, by the loop's end and by the program's: one function
    that `asyncio.to_thread` runs for ever would keep the process alive.

    Args:
        size: threads at the same time.
        patience: seconds that `shutdown` waits for what runs.
    """

    def __init__(self, size: int, patience: float) -> None:
        super().__init__(size)
        self._daemons = DaemonThreads(size, "rpcstream-default")
        self._patience = patience
        self._running: set[Future[Any]] = set()
        self._is_shut = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it in a thread. Raises RuntimeError after `shutdown`."""
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self._daemons.submit(functools.partial(function, *args, **kwargs))
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more, and wait for what runs, but not for long."""
        self._is_shut = True
        if cancel_futures:
            for future in list(self._running):
                future.cancel()
        if wait:
            running = wait_for_futures(list(self._running), self._patience).not_done
            if running:
                log.warning(
                    "threads of asyncio.to_thread or run_in_executor do not end, and are left: %d", len(running)
                )
        self._daemons.close()
