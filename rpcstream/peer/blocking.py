"""Waiting in a thread for what runs in an event loop: for handlers in threads and the sync client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from ..errors import AT_CALLER

T = TypeVar("T")

_END: Any = object()


class Bridge:
    """Runs coroutines in an event loop for threads that wait for them.

    Args:
        loop: runs in another thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: set[Future[Any]] = set()
        self._cancel_is_due = False

    @property
    def is_here(self) -> bool:
        """The current thread runs the event loop."""
        return asyncio._get_running_loop() is self.loop

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that `make` gives, and wait for its result. An interrupt (Ctrl-C) cancels it.

        Raises:
            RuntimeError: the current thread runs the event loop, which would wait for itself for ever.
            concurrent.futures.CancelledError: the coroutine was cancelled, or `cancel` was called.
        """
        future = self.submit(make)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run the coroutine that `make` gives; gives its future, which can be cancelled."""
        if self.is_here:
            raise RuntimeError(
                "a blocking call in the event loop would wait for itself: make the handler async, or offload it"
            )
        coroutine = make()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        if self._cancel_is_due:
            self._cancel_is_due = False
            future.cancel()
        return future

    def cancel(self) -> None:
        """Cancel all that threads wait for now; if that is nothing, what one waits for next."""
        waiting = list(self._waiting)
        self._cancel_is_due = not waiting
        for future in waiting:
            future.cancel()


class BlockingStream(Iterator[Any]):
    """A stream of items for a thread: `for item in …`; leaving the loop early stops the generator at the other end.

    Args:
        bridge: to the event loop of the connection.
        make: makes the stream; called in the event loop, when the first item is wanted.
    """

    def __init__(self, bridge: Bridge, make: Callable[[], AsyncIterator[Any]]) -> None:
        self._bridge = bridge
        self._make = make
        self._stream: Any = None
        self._has_ended = False

    @property
    def result(self) -> Any:
        """What the generator returned; None until the stream has ended."""
        return None if self._stream is None else self._stream.result

    def __iter__(self) -> BlockingStream:
        return self

    def __next__(self) -> Any:
        if self._has_ended:
            raise StopIteration
        with AT_CALLER:
            item = self._bridge.run(self._next)
        if item is _END:
            self._has_ended = True
            raise StopIteration
        return item

    def close(self) -> None:
        """Stop the generator at the other end, unless it has ended."""
        if not self._has_ended:
            self._has_ended = True
            if self._stream is not None:
                self._bridge.run(self._stream.aclose)

    def __enter__(self) -> BlockingStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _next(self) -> Any:
        if self._stream is None:
            self._stream = self._make()
        return await anext(self._stream, _END)
