"""Collects the items of a generator to one array, for a caller that wants no stream: a list with a limit of its size.

A few items are kept as they are. More are kept as JSON only, whose size is counted, so that memory is bounded however
many items the generator gives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from sys import getsizeof
from time import perf_counter
from typing import Any

from ..errors import ServerBusy
from ..peer.ledger import Account, ConnectionLedger
from ..peer.slices import SLICE
from ..wire import envelope
from ..wire.buffers import Encoded, MessageParts
from .replies import NO_FORM, ReplyWriter, checked

#: Items that are kept as they are, at most, and encoded together: that takes a tenth of the time of one by one.
GROUP = 32

#: Bytes of an item that is encoded at once, since the generator may wait for long before it gives the next one.
LARGE = 64 * 1024


@dataclass(eq=False)
class CollectedItems:
    """Collects the items of one call.

    Attributes:
        check: checks and converts a list of items; None for no check.
        keeps: False: the items are dropped as they come, since the call is a notification.
        ledger: counts the bytes of the connection.
        account: counts those of all connections.
    """

    replies: ReplyWriter
    check: Callable[[Any], Any] | None
    keeps: bool
    ledger: ConnectionLedger
    account: Account
    _held: list[Any] = field(default_factory=list)
    _json: bytearray = field(default_factory=bytearray)
    _counted: int = 0

    def take(self, items: Iterator[Any], seconds: float = SLICE) -> bool:
        """Take items for some seconds, in any thread; True if the generator is at its end.

        Raises:
            MessageTooLarge: they have no room in one message.
            Exception: what the generator raised; an item does not fit the hint, or has no form on the wire.
        """
        held, end = self._held, perf_counter() + seconds
        for item in items:
            held.append(item)
            if perf_counter() > end:
                self.finish()
                return False
            if len(held) > GROUP:
                self.finish()
        return True

    async def take_async(self, items: AsyncIterator[Any], give_way: Callable[[], Awaitable[None]]) -> None:
        """Take all items, and give way after each slice. Raises as `take` and `count`."""
        end = perf_counter() + SLICE
        async for item in items:
            self._held.append(item)
            is_over = perf_counter() > end
            if is_over or len(self._held) > GROUP or getsizeof(item) > LARGE:
                self.finish()
                self.count()
            if is_over:
                await give_way()
                end = perf_counter() + SLICE

    def count(self) -> None:
        """Count the bytes that were added, in the event loop. Raises ServerBusy if they are over a limit."""
        size = len(self._json) - self._counted
        self._counted += size
        self.ledger.collected += size
        self.account.used += size
        of_one = 2 * self.replies.limits.max_message_size
        for used, limit in ((self.ledger.collected, of_one), (self.account.used, self.account.limit)):
            if used > limit:
                raise ServerBusy(data={"limit": limit, "reason": "too much is being collected from generators"})

    def release(self) -> None:
        """Count the bytes no more, since the reply was sent or dropped."""
        self.ledger.collected -= self._counted
        self.account.used -= self._counted
        self._counted = 0

    @property
    def few(self) -> list[Any] | None:
        """All items as they are, if they are few; else None."""
        return None if self._json else self._held

    def finish(self) -> None:
        """Encode the items that are kept as they are."""
        if self._held and self.keeps:
            items = self._held if self.check is None else checked(self.check, self._held, "an item")
            written = bytes(checked(self.replies.codec.serialize, items, "an item", NO_FORM))
            self._json += b"," if self._json else b""
            self._json += memoryview(written)[1:-1]
            self._limit(len(self._json))
        self._held.clear()

    def reply(self, call_id: Any) -> Encoded:
        """The reply with the array."""
        empty = bytes(self.replies.codec.serialize({"jsonrpc": envelope.VERSION, "id": call_id, "result": []}))
        self._limit(len(empty) + len(self._json))
        return MessageParts([empty[:-2], bytes(self._json), b"]}"])

    def _limit(self, size: int) -> None:
        limit = self.replies.limits.max_message_size
        if size > limit:
            raise envelope.oversize(size, limit, side=self.replies.side)


def close_generator(items: Any) -> None:
    """Close a generator, so that its `finally` runs; any other iterator is left alone."""
    end = getattr(items, "close", None)
    if end is not None:
        end()
