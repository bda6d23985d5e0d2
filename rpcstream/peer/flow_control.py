"""Streams of items with credit: the consumer says how many items may come, so a slow reader slows the producer only.

Owns the two ends of one stream: an `Outflow` where the items are made, an `Inflow` where they are used. Knows neither
values (items stay as they came) nor messages; whoever makes one says how credit is told to the other end. (Wire page,
"Members and methods of our own".)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..errors import CallCancelled, InvalidRequest
from .memory import COUNTED, MessageMemory

#: More credit than anybody needs; what is given beyond it is forgotten.
CREDIT_MAX = 2**31

#: An item as it came: the params of its message, and the message.
Item = tuple[dict[str, Any], bytes | bytearray]


class Flow(Protocol):
    """What an outflow asks of its connection."""

    @property
    def is_free(self) -> bool: ...

    def flowing(self) -> Awaitable[None]: ...


class Source(Protocol):
    """What a connection's credit is for."""

    def permit(self, n: int) -> None:
        """The consumer takes `n` more."""

    def close(self) -> None:
        """No credit will come any more."""


class Sink(Protocol):
    """What the items that come are for."""

    def put(self, item: Item) -> None:
        """An item has come; InvalidRequest if it was not permitted."""

    def end(self, error: Exception | None = None) -> None:
        """No more items come."""

    def clear(self) -> None:
        """Nobody wants the items that wait."""


class Outflow:
    """The producer's end: what it may send, and when.

    Args:
        flow: the connection; while the peer does not read it, nothing is permitted.
        credit: items that may be sent at once.
    """

    __slots__ = ("_closed", "_flow", "_wake", "credit")

    def __init__(self, flow: Flow, credit: int) -> None:
        self.credit = min(credit, CREDIT_MAX)
        self._flow = flow
        self._closed = False
        self._wake: asyncio.Future[None] | None = None

    def permit(self, n: int) -> None:
        """The consumer takes `n` more."""
        self.credit = min(self.credit + n, CREDIT_MAX)
        self._rouse()

    def close(self) -> None:
        """No credit will come any more; what there is may still be used."""
        self._closed = True
        self._rouse()

    async def permitted(self) -> None:
        """Wait until one item may be sent, and take the credit for it. For one producer at a time.

        Raises:
            CallCancelled: that will never be.
        """
        while not self.credit:
            if self._closed:
                raise CallCancelled("Cancelled: whoever asked for the stream permits no more items")
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if not self._flow.is_free:
            await self._flow.flowing()
        self.credit -= 1

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Inflow:
    """The consumer's end: items that have come and wait to be used, never more than were permitted.

    Args:
        window: items that may be on their way or wait here.
        grant: tells the producer that it may send so many more.
        permitted: the producer was told of the first window already.
        memory: where the bytes of items that wait count, small ones left out.
    """

    __slots__ = (
        "_allowed",
        "_error",
        "_grant",
        "_has_ended",
        "_held",
        "_items",
        "_memory",
        "_taken",
        "_wake",
        "_window",
        "on_end",
    )

    def __init__(
        self, window: int, grant: Callable[[int], None], *, permitted: bool, memory: MessageMemory | None = None
    ) -> None:
        if window < 1:
            raise ValueError(f"the window of a stream must be at least 1 item, got {window!r}")
        self._window = window
        self._grant = grant
        self._items: deque[Item] = deque()
        self._memory = memory
        self._held = 0
        self._allowed = window if permitted else 0
        self._taken = 0 if permitted else window
        self._has_ended = False
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        #: Called once, when no more items will come.
        self.on_end: Callable[[], object] | None = None

    @property
    def has_ended(self) -> bool:
        """No more items will come; some may still wait."""
        return self._has_ended

    def put(self, item: Item) -> None:
        """An item has come.

        Raises:
            InvalidRequest: it was not permitted, or there is no memory for it. The stream has ended with this error.
        """
        if self._has_ended:
            return
        size = len(item[1])
        if size >= COUNTED and self._memory is not None:
            if not self._memory.reserve(size, self._held):
                reason = "the items of all streams that wait take too many bytes of memory (max_held_total)"
                told = InvalidRequest(data={"reason": reason})
                self.end(told)
                raise told
            self._held += size
        if not self._allowed:
            error = InvalidRequest(data={"reason": "the stream had more items than were permitted (credit)"})
            self.end(error)
            raise error
        self._allowed -= 1
        self._items.append(item)
        self._rouse()

    def end(self, error: Exception | None = None) -> None:
        """No more items come; the error is raised behind those that wait. Only the first end counts."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._rouse()
            if self.on_end is not None:
                self.on_end()

    async def get(self) -> Item:
        """The next item, in the order in which they came. For one consumer at a time.

        Raises:
            StopAsyncIteration: there are no more.
            Exception: what the stream ended with.
        """
        if not self._has_ended and self._taken * 2 >= self._window:
            # Half of the window is used: told in one message, and early enough that the producer need not wait.
            granted, self._taken = self._taken, 0
            self._allowed += granted
            self._grant(granted)
        while not self._items:
            if self._has_ended:
                raise self._error or StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        self._taken += 1
        item = self._items.popleft()
        if self._held and (size := len(item[1])) >= COUNTED:
            self._release(size)
        return item

    def clear(self) -> None:
        """Nobody wants the items that wait."""
        self._items.clear()
        self._release(self._held)

    def _release(self, size: int) -> None:
        if size and self._memory is not None:
            self._held -= size
            self._memory.release(size)

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
