"""Collects the items of a generator to one array, for a caller that wants no stream, within `max_message_size`.

Owns how items become the JSON of that array while they come: a few are kept as they are, the others only as JSON, whose
size is counted. So memory is bounded, however many items the generator gives. Knows no event loop: `take` is called
again and again, and other work is done between.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from sys import getsizeof
from time import monotonic, perf_counter
from typing import Any

import orjson

from ..codec import Codec
from ..errors import MessageTooLarge, RpcError, ServerBusy
from ..peer.slices import SLICE
from ..wire import envelope
from ..wire.buffers import Encoded, MessageParts
from .failures import NO_FORM, UnfitResult, checked

#: Items that are kept as they are, at most. Encoding so many together takes a tenth of the time of one by one.
HELD = 256

#: The same for items other than plain numbers, each of which may take long to encode. So many are encoded together, or
#: sent without being counted before.
FEW = 32

#: Items that are made between two looks at the clock, as long as they are made quickly.
STEP = 32

#: Bytes of JSON from which items are encoded one by one, and from which a part of the array is complete.
LARGE = 64 * 1024

_NUMBERS = frozenset((int, float, bool, type(None)))

#: What a worker process sends may be so many times `max_message_size`, since a number that takes 2 bytes on the wire
#: takes up to 9 there.
PACKED = 4


class CollectionBudget:
    """Counts the bytes of JSON that are being collected, and limits them. May be used from several threads at once.

    Args:
        of_one: bytes for one connection.
        of_all: bytes for all connections together.
    """

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one = of_one
        self._of_all = of_all
        self._lock = threading.Lock()
        self._held: dict[Hashable, int] = {}
        self._total = 0

    def take(self, owner: Hashable, size: int) -> None:
        """Count so many bytes more. Raises ServerBusy if that is over a limit."""
        with self._lock:
            held = self._held.get(owner, 0) + size
            if held > self._of_one or self._total + size > self._of_all:
                limit = self._of_one if held > self._of_one else self._of_all
                raise ServerBusy(data={"limit": limit, "reason": "too much is being collected from generators"})
            self._held[owner] = held
            self._total += size

    def give_back(self, owner: Hashable, size: int) -> None:
        with self._lock:
            self._total -= size
            held = self._held.pop(owner, 0) - size
            if held > 0:
                self._held[owner] = held


class CollectedItems:
    """Collects the items of one call.

    Args:
        check: checks and converts a list of items; None for no check.
        max_size: bytes of JSON.
        side: whose limit that is.
        keeps: False: the items are dropped as they come, since the call is a notification.
        budget: counts the bytes, for `owner`.
        owner: the connection of the call.
        held: items that were taken before.
    """

    def __init__(
        self,
        codec: Codec,
        check: Callable[[Any], Any] | None,
        max_size: int,
        *,
        side: str,
        keeps: bool,
        budget: CollectionBudget,
        owner: Hashable,
        held: list[Any],
    ) -> None:
        self.keeps = keeps
        #: Set to stop a thread in which `collect` runs.
        self.is_stopped = False
        self._serialize = codec.serialize
        self._check = check
        self._max_size = max_size
        self._side = side
        self._budget = budget
        self._owner = owner
        self._held = held
        self._parts: list[bytes] = []
        self._last = bytearray()
        #: Items to be encoded together next.
        self._count = 1
        #: Bytes of JSON; and how many of them the budget knows of.
        self._size = self._booked = 0

    def take(self, items: Iterator[Any], seconds: float = SLICE) -> bool:
        """Take items for so many seconds; true if the generator is at its end.

        Raises:
            MessageTooLarge: they have no room in one message.
            ServerBusy: too much is being collected already.
            Exception: what the generator raised; an item does not fit the hint, or has no form on the wire.
        """
        now = perf_counter()
        end = now + seconds
        if not self.keeps:
            return not any(perf_counter() > end for _ in items)
        held, step = self._held, 1
        while True:
            wanted = min(len(held) + step, HELD)
            held.extend(itertools.islice(items, wanted - len(held)))
            if len(held) < wanted:
                return True
            since, now = now, perf_counter()
            step = STEP if now - since < SLICE / STEP else 1
            if now > end:
                self._encode()
                return False
            if len(held) >= HELD:
                self._encode()

    async def take_async(self, items: AsyncIterator[Any], give_way: Callable[[], Awaitable[None]]) -> None:
        """Take all items, and give way after each slice. Raises as `take`."""
        held, mask = self._held, 0
        add = held.append if self.keeps else _drop
        since = perf_counter()
        end = since + SLICE
        size = 0
        async for item in items:
            add(item)
            if len(held) & mask:
                continue
            now = perf_counter()
            size += getsizeof(item) * (mask + 1)
            mask, since = (STEP - 1 if now - since < SLICE / STEP else 0), now
            if now > end:
                self._encode()
                await give_way()
                size, since = 0, perf_counter()
                end = since + SLICE
            elif size >= LARGE or len(held) >= HELD:
                # The generator may wait for long before it gives the next one.
                self._encode()
                size = 0

    @property
    def few(self) -> list[Any] | None:
        """All items as they are, if they are few; else None."""
        return self._held if self.keeps and not self._size and are_few(self._held) else None

    def finish(self) -> bool:
        """After the last item: encode items that are left, for the time of a slice; true if all are encoded."""
        self._encode()
        return not self._held

    def collect(self, items: Iterator[Any]) -> None:
        """Take all items, in a thread, until `is_stopped`."""
        try:
            while not self.is_stopped and not self.take(items):
                pass
            while not self.is_stopped and self.few is None and not self.finish():
                pass
        finally:
            close_generator(items)

    def reply(self, call_id: Any) -> Encoded:
        """The reply with the array."""
        empty = bytes(self._serialize({"jsonrpc": envelope.VERSION, "id": call_id, "result": []}))
        parts = [empty[:-2], *self._parts, bytes(self._last + b"]}")]
        reply: Encoded = MessageParts(parts) if self._parts else b"".join(parts)
        self._check_size(len(reply))
        return reply

    def release(self) -> None:
        """Stop counting the bytes, since the reply was sent or dropped."""
        if self._booked:
            self._budget.give_back(self._owner, self._booked)
            self._booked = 0

    def _encode(self) -> None:
        """Encode the items that are kept; if that takes long, for the time of a slice."""
        held = self._held
        if _NUMBERS.issuperset(map(type, held)):
            if held:
                self._add(held)
                held.clear()
                self._book()
            return
        end = perf_counter() + SLICE
        position, count = 0, self._count
        while position < len(held):
            size = self._add(held[position : position + count])
            position += count
            if perf_counter() > end:
                count = 1
                break
            count = min(2 * count, FEW) if size < LARGE else 1
        self._count = count
        del held[:position]
        self._book()

    def _book(self) -> None:
        """Tell the budget of the bytes that were added."""
        self._budget.take(self._owner, self._size - self._booked)
        self._booked = self._size

    def _add(self, items: list[Any]) -> int:
        """Encode some items together; gives their size in bytes."""
        if self._check is not None:
            items = checked(self._check, items, "an item")
        try:
            written = self._serialize(items)
        except RpcError:
            raise
        except Exception as error:
            raise UnfitResult(f"an item {NO_FORM}") from error
        size = len(written) - 1  # two brackets less, a comma more
        self._check_size(self._size + size)
        comma = b"," if self._size else b""
        self._size += size
        last = self._last
        last += comma
        if isinstance(written, MessageParts):
            last += written.parts[0][1:]
            self._parts += bytes(last), *written.parts[1:-1]
            last[:] = written.parts[-1][:-1]
        else:
            last += memoryview(written)[1:-1]  # copied: small results of orjson keep a large buffer alive
            if len(last) > LARGE:
                self._parts.append(bytes(last))
                last.clear()
        return size

    def _check_size(self, size: int) -> None:
        if size > self._max_size:
            raise envelope.oversize(size, self._max_size, side=self._side)


def _drop(item: Any) -> None:
    """Ignore an item."""


def are_few(items: list[Any]) -> bool:
    """True if so few items may be sent without counting their bytes before."""
    return len(items) <= FEW or (len(items) <= HELD and _NUMBERS.issuperset(map(type, items)))


def first_items(items: Iterator[Any]) -> tuple[list[Any], bool]:
    """Take items for a slice of time, `HELD` at most; gives them, and whether these are all."""
    found: list[Any] = []
    since = perf_counter()
    end = since + SLICE
    step = 4
    while len(found) < HELD:
        wanted = min(len(found) + step, HELD)
        found.extend(itertools.islice(items, wanted - len(found)))
        if len(found) < wanted:
            return found, True
        now = perf_counter()
        if now > end:
            break
        step = STEP if (now - since) * STEP < SLICE else 1
        since = now
    return found, False


def close_generator(items: Any) -> None:
    """Close a generator, so that its `finally` runs; any other iterator is left alone."""
    end = getattr(items, "close", None)
    if end is not None:
        end()


# -- in another process -----------------------------------------------------------------------------------------------


def collect_packed(
    function: Callable[..., Iterable[Any]],
    max_size: int,
    seconds: float | None,
    keeps: bool,
    /,
    *args: Any,
    **kwargs: Any,
) -> list[bytes]:
    """Collect the items of a generator in a worker process, pickled in groups.

    It cannot be stopped from outside, so it ends by itself when its limits are reached.

    Args:
        max_size: bytes of JSON that the items may take, as far as that can be told here: rich values are counted as
            they are pickled, with `PACKED` times as many bytes.
        seconds: how long the caller waits; None: no limit.
        keeps: False: the items are dropped as they come.

    Raises:
        MessageTooLarge: they take more.
    """
    end = None if seconds is None else monotonic() + seconds
    items = iter(function(*args, **kwargs))
    packed: list[bytes] = []
    size = packed_size = 0
    try:
        while end is None or monotonic() < end:
            some, is_over = first_items(items)
            if keeps and some:
                packed.append(pickle.dumps(some))
                size += _size_of_json(some)
                packed_size += len(packed[-1])
                if size > max_size or packed_size > PACKED * max_size:
                    error = envelope.oversize(max(size, packed_size // PACKED), max_size, side="server")
                    raise MessageTooLarge(error.message, error.data)
            if is_over:
                break
    finally:
        close_generator(items)
    return packed


def unpacked(packed: list[bytes]) -> Iterator[Any]:
    """The items of `collect_packed`."""
    for some in packed:
        yield from pickle.loads(some)


def _size_of_json(items: list[Any]) -> int:
    try:
        return len(orjson.dumps(items, lambda _: None, orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)) - 1
    except TypeError:
        return 2 * len(items)
