"""Code of users that may block, run for an event loop that must not: iterators as arguments, and greetings.

Each has a thread of its own for as long as it needs one. Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ..peer.blocking import Bridge
from ..peer.remote import BlockingPeer, Peer
from ..peer.uploads import holds_streams, is_stream
from .futures import Worker

T = TypeVar("T")

#: Run on each new connection, before anything else is sent on it; a coroutine function, or one that may block.
Hello = Callable[[Any], object]


class Stepped:
    """A plain iterator as an async one: each step may wait for a camera, or for a person."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._thread = Worker("rpcstream-upload")

    def __aiter__(self) -> Stepped:
        return self

    async def __anext__(self) -> Any:
        is_over, item = await in_thread(self._thread, self._step)
        if is_over:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Close it behind the step that it may be in, which cannot be interrupted; does not wait for that."""
        close = getattr(self._items, "close", None)
        if close is not None:
            self._thread.run(close)
        self._thread.stop()

    def _step(self) -> tuple[bool, Any]:
        try:
            return False, next(self._items)
        except StopIteration:
            return True, None


def stepped_in_threads(params: Any) -> Any:
    """The params of a call, plain iterators among them as async ones."""
    if not holds_streams(params):
        return params
    if isinstance(params, dict):
        return {name: _stepped(value) for name, value in params.items()}
    return [_stepped(value) for value in params]


def _stepped(value: Any) -> Any:
    return Stepped(value) if is_stream(value) and not hasattr(type(value), "__aiter__") else value


def greeting(hello: Hello, bridge: Bridge) -> Callable[[Peer], Awaitable[object]]:
    """A user's function for an AsyncClient; a plain one gets a peer whose calls wait."""

    async def greet(peer: Peer) -> None:
        if inspect.iscoroutinefunction(hello):
            await hello(peer)
        else:
            thread = Worker("rpcstream-greeting")
            try:
                await in_thread(thread, partial(hello, BlockingPeer(peer, bridge)))
            finally:
                thread.stop()

    return greet


async def in_thread(thread: Worker, function: Callable[[], T]) -> T:
    """Run it in the thread, and give what it gives. If this is cancelled, it goes on to its end all the same."""
    future: Future[T] = Future()
    thread.run(partial(_settle, future, function))
    return await asyncio.wrap_future(future)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except (KeyboardInterrupt, SystemExit) as error:  # in a thread they are no wish to end the program
        future.set_exception(RuntimeError(f"{type(error).__name__} in a thread: {error}"))
    except BaseException as error:
        future.set_exception(error)
