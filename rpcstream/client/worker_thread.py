"""Threads that run code of users which may block, for an event loop that must not: iterators, greetings, callbacks.

Each thread is a daemon, and there only while it has something to run. Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..peer.blocking import Bridge
from ..peer.remote import BlockingPeer, Peer
from ..peer.uploads import holds_streams, is_stream
from ..text import get_logger

T = TypeVar("T")

log = get_logger("rpcstream.client")

#: A thread that had nothing to do for so long (s) ends.
IDLE = 5.0

#: Types of most arguments, which need no closer look.
_NO_ITERATORS = frozenset((int, float, str, bool, type(None), list, dict, tuple, bytes))

#: Run on each new connection, before anything else is sent on it; a coroutine function, or one that may block.
Hello = Callable[[Any], object]


class WorkerThread:
    """A thread that runs functions one after the other; started with the first one, ends when it is idle."""

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


async def in_thread(thread: WorkerThread, function: Callable[[], T]) -> T:
    """Run a function in the thread, and give its result. If this is cancelled, the function still runs to its end."""
    future: Future[T] = Future()
    thread.run(partial(_run, future, function))
    return await asyncio.wrap_future(future)


def _run(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except (KeyboardInterrupt, SystemExit) as error:  # in a thread they are no wish to end the program
        future.set_exception(RuntimeError(f"{type(error).__name__} in a thread: {error}"))
    except BaseException as error:
        future.set_exception(error)


# -- iterators as arguments -----------------------------------------------------------------------------------------


class ThreadedIterator:
    """A plain iterator as an async one: each step runs in a thread, and may block."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._thread = WorkerThread("rpcstream-upload")

    def __aiter__(self) -> ThreadedIterator:
        return self

    async def __anext__(self) -> Any:
        is_over, item = await in_thread(self._thread, self._step)
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
    values = params.values() if isinstance(params, dict) else params or ()
    if _NO_ITERATORS.issuperset(map(type, values)) or not holds_streams(params):
        return params
    if isinstance(params, dict):
        return {name: _threaded(value) for name, value in params.items()}
    return [_threaded(value) for value in params]


def _threaded(value: Any) -> Any:
    return ThreadedIterator(value) if is_stream(value) and not hasattr(type(value), "__aiter__") else value


# -- greetings ------------------------------------------------------------------------------------------------------


def threaded_greeting(hello: Hello, bridge: Bridge) -> Callable[[Peer], Awaitable[object]]:
    """A function for `on_connect` as an AsyncClient runs it; a plain function gets a peer whose calls block."""

    async def greet(peer: Peer) -> None:
        if inspect.iscoroutinefunction(hello):
            await hello(peer)
        else:
            thread = WorkerThread("rpcstream-greeting")
            try:
                await in_thread(thread, partial(hello, BlockingPeer(peer, bridge)))
            finally:
                thread.stop()

    return greet
