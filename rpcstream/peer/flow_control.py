"""Flow control of streams: the receiver grants credit, and the sender sends no more items than it has credit for.

Owns how credit is counted (`CreditWindow`) and the two ends of one stream: a `StreamSender` where the items are made,
a `StreamReceiver` where they are used. Knows neither values (items stay as they came) nor how messages are written:
what makes a receiver says how credit is sent to the other end. (Wire page, "Members and methods of our own".)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..codec import payloads
from ..errors import CallCancelled, InvalidRequest
from .memory import COUNTED, MessageMemory
from .write_gate import WriteGate

#: The most credit that is counted; a grant beyond it is ignored. More items than any stream has under way.
CREDIT_MAX = 2**31

#: An item as it came: the params of its message, and the message.
Item = tuple[dict[str, Any], bytes | bytearray]


class CreditWindow:
    """Counts the items that one end of a stream may still send. Pure.

    The sender grants itself what the receiver's `$/credit` messages say. A receiver counts the same number, to refuse
    items without credit, and asks `next_grant` when to send the next such message.

    Args:
        size: items that may have credit or be held by the receiver at the same time.
        credit: items that may be sent at once.

    Attributes:
        credit: items that may be sent now.
        owed: items granted here, of which the sender is still to be told.
    """

    __slots__ = ("credit", "owed", "size")

    def __init__(self, size: int = CREDIT_MAX, credit: int = 0) -> None:
        self.size = size
        self.credit = min(credit, size)
        self.owed = 0

    def grant(self, n: int) -> None:
        """Allow `n` items more."""
        self.credit = min(self.credit + n, self.size)

    def spend(self) -> bool:
        """Count one item as sent; False if there is no credit for it."""
        if not self.credit:
            return False
        self.credit -= 1
        return True

    def next_grant(self, held: int = 0, limit: int = CREDIT_MAX) -> int:
        """Return how many items to grant now: all that there is room for, once half of the window is used, and else 0.

        So credit is sent in few messages, and early enough that the sender need not wait.

        Args:
            held: items that have come and are not used yet.
            limit: the most items that may be held or have credit, if that is less than the window.
        """
        taken = self.credit + held
        return 0 if taken * 2 > self.size else max(0, min(self.size, limit) - taken)

    def owe(self, n: int) -> None:
        """Note that the sender is still to be told of `n` granted items."""
        self.owed = min(self.owed + n, CREDIT_MAX)

    def take_owed(self) -> int:
        """Return how many granted items the sender is to be told of now."""
        owed, self.owed = self.owed, 0
        return owed


class CreditSink(Protocol):
    """The end of a stream that credit is for: it sends items."""

    def grant(self, n: int) -> None:
        """Allow `n` items more."""

    def close(self) -> None:
        """Note that no more credit will come."""


class ItemSink(Protocol):
    """The end of a stream that items are for."""

    def put(self, item: Item) -> None:
        """Take an item that has come; InvalidRequest if there was no credit for it."""

    def end(self, error: Exception | None = None) -> None:
        """Note that no more items come."""

    def clear(self) -> None:
        """Drop the items that wait."""


class StreamSender:
    """The end of a stream that sends items, and waits for credit.

    Args:
        write_gate: of the connection; items wait at it, too.
        credit: items that may be sent at once.
    """

    __slots__ = ("_closed", "_wake", "_window", "_write_gate")

    def __init__(self, write_gate: WriteGate, credit: int) -> None:
        self._window = CreditWindow(credit=credit)
        self._write_gate = write_gate
        self._closed = False
        self._wake: asyncio.Future[None] | None = None

    def grant(self, n: int) -> None:
        """Allow `n` items more."""
        self._window.grant(n)
        self._rouse()

    def close(self) -> None:
        """Note that no more credit will come; what there is may still be used."""
        self._closed = True
        self._rouse()

    async def wait_for_credit(self) -> None:
        """Wait until one item may be sent, and take the credit for it. For one producer at a time.

        Raises:
            CallCancelled: there is no credit, and none will come.
        """
        window = self._window
        while not window.credit:
            if self._closed:
                raise CallCancelled("Cancelled: the receiver of the stream grants no more credit")
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if not self._write_gate.is_open:
            await self._write_gate.wait()
        window.credit -= 1

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class StreamReceiver:
    """The end of a stream that receives items, and keeps them until they are used; never more than the window.

    Args:
        window: items that may be on their way or wait here.
        grant: tells the sender that it may send so many items more.
        is_granted: the sender has been told of the first window already.
        memory: where the bytes of items that wait are counted, small ones left out.
    """

    __slots__ = (
        "_error",
        "_grant",
        "_has_ended",
        "_held_size",
        "_items",
        "_memory",
        "_wake",
        "_window",
        "on_end",
    )

    def __init__(
        self, window: int, grant: Callable[[int], None], *, is_granted: bool, memory: MessageMemory | None = None
    ) -> None:
        if window < 1:
            raise ValueError(f"the window of a stream must be at least 1 item, got {window!r}")
        self._window = CreditWindow(window, window if is_granted else 0)
        self._grant = grant
        self._items: deque[Item] = deque()
        self._memory = memory
        #: Bytes of the items that wait, as far as they are counted.
        self._held_size = 0
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
        """Take an item that has come.

        Raises:
            InvalidRequest: there is no credit or no memory for it. The stream has ended with this error.
        """
        if self._has_ended:
            return
        size = payloads.size_with_payloads(item[1])
        if size >= COUNTED and self._memory is not None:
            if not self._memory.reserve(size, self._held_size):
                raise self._refused("the items of all streams that wait take too many bytes of memory (max_held_total)")
            self._held_size += size
        if not self._window.spend():
            raise self._refused("the stream had more items than were permitted (credit)")
        self._items.append(item)
        self._rouse()

    def end(self, error: Exception | None = None) -> None:
        """Note that no more items come; the error is raised behind those that wait. Only the first end counts."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._rouse()
            if self.on_end is not None:
                self.on_end()

    async def get(self) -> Item:
        """Return the next item, in the order in which they came. For one consumer at a time.

        Raises:
            StopAsyncIteration: there are no more.
            Exception: the error that the stream ended with.
        """
        if not self._has_ended and (n := self._window.next_grant(len(self._items))):
            self._window.grant(n)
            self._grant(n)
        while not self._items:
            if self._has_ended:
                raise self._error or StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        item = self._items.popleft()
        if self._held_size and (size := payloads.size_with_payloads(item[1])) >= COUNTED:
            self._release(size)
        return item

    def clear(self) -> None:
        """Drop the items that wait."""
        self._items.clear()
        self._release(self._held_size)

    def _refused(self, reason: str) -> InvalidRequest:
        """End the stream with the error for an item that cannot be taken."""
        error = InvalidRequest(data={"reason": reason})
        self.end(error)
        return error

    def _release(self, size: int) -> None:
        if size and self._memory is not None:
            self._held_size -= size
            self._memory.release(size)

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def credit_of(message: dict[str, Any]) -> int | None:
    """The items that the caller permits at first, by the member `stream` of its request; None if it wants no stream.

    Raises:
        InvalidRequest: the member is no number of items, or the id could not be named by items and credit.
    """
    credit = message.get("stream")
    if credit is not None and type(message.get("id")) not in (int, str, type(None)):
        raise InvalidRequest(data={"reason": "the id of a stream must be a string or an integer of 64 bits"})
    if credit is not None and (type(credit) is not int or credit < 0):
        raise InvalidRequest(data={"reason": "the member 'stream' must be a number of items, not negative"})
    return credit
