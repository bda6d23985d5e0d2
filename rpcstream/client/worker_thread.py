"""Threads for code of users that may block, which an event loop must not: iterators, callbacks, greetings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..peer.uploads import holds_streams, is_stream
from ..text import get_logger

T = TypeVar("T")

log = get_logger("rpcstream.client")

#: Seconds after which a thread ends that has nothing to do.
IDLE = 5.0


class WorkerThread:
    """A daemon thread that runs functions one after the other; started with the first one, ends when it is idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._functions: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_running = False

    def run(self, function: Callable[[], object]) -> None:
        """Run a function soon; functions run in the order in which they came."""
        with self._lock:
            self._functions.put(function)
            if not self._is_running:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._is_running = True

    def stop(self) -> None:
        """Let the thread end after what is queued, without waiting until it is idle."""
        with self._lock:
            if self._is_running:
                self._functions.put(None)

    async def result_of(self, function: Callable[[], T]) -> T:
        """Run a function, and give its result. If this is cancelled, the function still runs to its end."""
        future: Future[T] = Future()
        self.run(partial(_run_for, future, function))
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            try:
                function = self._functions.get(timeout=IDLE)
            except Empty:
                function = None
            if function is None:
                with self._lock:
                    if self._functions.empty():
                        self._is_running = False
                        return
                continue
            try:
                function()
            except BaseException:
                log.exception("an error in the thread %s", self._name)
            function = None  # what it refers to must not live until the next one


def _run_for(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except (KeyboardInterrupt, SystemExit) as error:  # in a thread they are no wish to end the program
        future.set_exception(RuntimeError(f"{type(error).__name__} in a thread: {error}"))
    except BaseException as error:
        future.set_exception(error)


class ThreadedIterator:
    """A plain iterator as an async one: each step runs in a thread, and may block."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._thread = WorkerThread("rpcstream-upload")

    def __aiter__(self) -> ThreadedIterator:
        return self

    async def __anext__(self) -> Any:
        is_over, item = await self._thread.result_of(self._step)
        if is_over:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Close the iterator after its present step, which cannot be interrupted; does not wait for that."""
        close = getattr(self._items, "close", None)
        if close is not None:
            self._thread.run(close)
        self._thread.stop()

    def _step(self) -> tuple[bool, Any]:
        try:
            return False, next(self._items)
        except StopIteration:
            return True, None


def with_threaded_iterators(params: Any) -> Any:
    """Give the params of a call, plain iterators among them as async ones."""
    if not isinstance(params, dict | list) or not holds_streams(params):
        return params
    if isinstance(params, dict):
        return {name: _threaded(value) for name, value in params.items()}
    return [_threaded(value) for value in params]


def _threaded(value: Any) -> Any:
    return ThreadedIterator(value) if is_stream(value) and not hasattr(type(value), "__aiter__") else value
