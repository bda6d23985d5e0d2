"""Flow control of streams: the receiver grants credit, and the sender sends no more items than it has credit for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ..codec import payloads
from ..errors import CallCancelled, InvalidRequest
from .ledger import COUNTED, Account, Share, WriteGate

#: The most credit that is counted; a grant beyond it is ignored. More items than any stream has under way.
CREDIT_MAX = 2**31

#: Credit that is never used up.
ENDLESS = 2**62

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
    """

    __slots__ = ("credit", "size")

    def __init__(self, size: int = CREDIT_MAX, credit: int = 0) -> None:
        self.size = size
        self.credit = min(credit, size)

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


class StreamSender(CreditWindow):
    """The end of a stream that sends items, and waits for credit.

    Args:
        write_gate: of the connection; items wait at it, too.
        credit: items that may be sent at once.
    """

    __slots__ = ("_has_changed", "_is_closed", "_write_gate")

    def __init__(self, write_gate: WriteGate, credit: int) -> None:
        super().__init__(credit=credit)
        self._write_gate = write_gate
        self._is_closed = False
        self._has_changed = asyncio.Event()

    def grant(self, n: int) -> None:
        super().grant(n)
        self._has_changed.set()

    def close(self) -> None:
        """Note that no more credit will come; what there is may still be used."""
        self._is_closed = True
        self._has_changed.set()

    async def wait_for_credit(self) -> None:
        """Wait until one item may be sent, and take the credit for it. For one producer at a time.

        Raises:
            CallCancelled: there is no credit, and none will come.
        """
        while not self.credit:
            if self._is_closed:
                raise CallCancelled("Cancelled: the receiver of the stream grants no more credit")
            self._has_changed.clear()
            await self._has_changed.wait()
        if not self._write_gate.is_open:
            await self._write_gate.wait()
        self.credit -= 1


class StreamReceiver:
    """The end of a stream that receives items, and keeps them until they are used; never more than the window.

    Args:
        window: items that may be on their way or wait here.
        grant: tells the sender that it may send so many items more.
        account: where the bytes of items that wait are counted, small ones left out.
        is_granted: the sender has been told of the first window already.

    Attributes:
        has_ended: no more items will come; some may still wait.
        on_end: called once, when no more items will come.
    """

    __slots__ = ("_error", "_grant", "_has_changed", "_held", "_items", "_window", "has_ended", "on_end")

    def __init__(self, window: int, grant: Callable[[int], None], account: Account, *, is_granted: bool) -> None:
        if window < 1:
            raise ValueError(f"the window of a stream must be at least 1 item, got {window!r}")
        self._window = CreditWindow(window, window if is_granted else 0)
        self._grant = grant
        self._items: deque[Item] = deque()
        self._held = Share(account)
        self._error: Exception | None = None
        self._has_changed = asyncio.Event()
        self.has_ended = False
        self.on_end: Callable[[], object] | None = None

    def put(self, params: dict[str, Any], line: bytes | bytearray) -> None:
        """Take an item that has come.

        Raises:
            InvalidRequest: there is no credit or no memory for it. The stream has ended with this error.
        """
        if self.has_ended:
            return
        if not self._window.spend():
            raise self._refused("the stream had more items than were permitted (credit)")
        if not self._held.take(_counted(line)):
            raise self._refused("the items of all streams that wait take too many bytes of memory (max_held_total)")
        self._items.append((params, line))
        self._has_changed.set()

    def end(self, error: Exception | None = None) -> None:
        """Note that no more items come; the error is raised behind those that wait. Only the first end counts."""
        if not self.has_ended:
            self.has_ended, self._error = True, error
            self._has_changed.set()
            if self.on_end is not None:
                self.on_end()

    async def get(self) -> Item:
        """Return the next item, in the order in which they came. For one consumer at a time.

        Raises:
            StopAsyncIteration: there are no more.
            Exception: the error that the stream ended with.
        """
        if not self.has_ended and (n := self._window.next_grant(len(self._items))):
            self._window.grant(n)
            self._grant(n)
        while not self._items:
            if self.has_ended:
                raise self._error or StopAsyncIteration
            self._has_changed.clear()
            await self._has_changed.wait()
        item = self._items.popleft()
        self._held.give_back(_counted(item[1]))
        return item

    def drop(self, error: Exception | None = None) -> None:
        """Drop the items that wait, and those that still come."""
        self.end(error)
        self._items.clear()
        self._held.give_back(self._held.size)

    def _refused(self, reason: str) -> InvalidRequest:
        """End the stream with the error for an item that cannot be taken."""
        error = InvalidRequest(data={"reason": reason})
        self.end(error)
        return error


def _counted(line: bytes | bytearray) -> int:
    """Bytes of an item, 0 for a small one."""
    size = payloads.size_with_payloads(line)
    return size if size >= COUNTED else 0


def credit_of(message: dict[str, Any], streaming: bool | None) -> int | None:
    """The items that the caller permits at first, by the member `stream` of its request; None if it wants no stream.

    Args:
        streaming: of its session; True: a caller that says nothing wants a stream, without a limit.

    Raises:
        InvalidRequest: the member is no number of items, or the id could not be named by items and credit.
    """
    credit = message.get("stream", ENDLESS if streaming else None)
    if credit is None or streaming is False or "id" not in message:
        return None
    if streaming:
        return ENDLESS
    if type(message["id"]) not in (int, str, type(None)):
        raise InvalidRequest(data={"reason": "the id of a stream must be a string or an integer of 64 bits"})
    if type(credit) is not int or credit < 0:
        raise InvalidRequest(data={"reason": "the member 'stream' must be a number of items, not negative"})
    return credit
