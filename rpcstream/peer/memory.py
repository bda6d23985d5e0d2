"""The memory that messages take: estimated before it is used, and counted for a server as a whole.

Owns three sums, which are bounded: messages whose calls run, messages that wait or have come in part, and messages sent
that the peers have not read. Knows no connection: the code that counts something takes it off again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

from ..codec import payloads
from ..shared_memory import RingBudget
from ..wire.json_scan import values_roughly

#: Bytes of memory for each value of a parsed message (as `wire.json_scan` counts them): measured, a little more than
#: what short strings in objects take, which take most.
A_VALUE = 64

#: Bytes of a message from which on its memory is counted while its call runs. Shorter ones are bounded by `max_calls`.
COUNTED = 1024

#: Bytes that have come of a message from which on they are counted: more than most systems give with one read.
PARTLY = 256 * 1024

#: Seconds after which a message that others wait for must have come at `SLOW_RATE`: any slow start is over by then.
SLOW_AFTER = 5.0

#: Bytes a second. A link of 10 Mbit/s, for which `message_timeout` is made, gives 1.2 MB.
SLOW_RATE = 1024 * 1024

#: Seconds that a message waits for memory at most: its JSON takes some as well, and its caller may ask elsewhere.
WAIT_MAX = 60.0


class Receiving(Protocol):
    """A binary frame of which a part has come and is counted.

    Attributes:
        since: since when its bytes are counted (seconds).
    """

    since: float

    def received(self) -> int:
        """Bytes of it that have come since then."""

    def count_from(self, now: float) -> None:
        """Count them from `now` on."""

    def give_way(self) -> None:
        """Release the memory: the message is refused."""

    def try_again(self) -> None:
        """There may be memory for more of it."""


class MessageMemory:
    """Counts the memory of the messages of a whole server: one half is for calls that run, one for what waits.

    Args:
        limit: bytes in all.
        max_unread: bytes that peers may leave unread, all together.

    Attributes:
        at_work: bytes of messages whose calls run, parsed.
        receiving: binary frames of which a part is counted, the oldest first; this one never waits for memory, so that
            not all wait for each other.
        waiters: binary frames that wait for memory; first come, first served.
        waiting: bytes of messages that wait for room, or have come in part.
        unread: what was sent and not yet read by the peers.
        rings: the shared memory in which it stands, as much again at most.
    """

    __slots__ = ("at_work", "half", "receiving", "rings", "unread", "waiters", "waiting")

    def __init__(self, limit: int, max_unread: int) -> None:
        self.half = limit // 2
        self.at_work = 0
        self.waiting = 0
        self.receiving: OrderedDict[Receiving, None] = OrderedDict()
        self.waiters: OrderedDict[Receiving, None] = OrderedDict()
        self.unread = UnreadBytes(max_unread)
        self.rings = RingBudget(max_unread)

    @property
    def is_full(self) -> bool:
        """No call of a long message may begin; with nothing at work one always may, however long it is."""
        return self.at_work >= self.half

    def reserve(self, size: int, own: int) -> bool:
        """Count bytes that are to wait; False, and nothing is counted, if there is no room for them.

        Args:
            size: how many bytes.
            own: bytes of the same connection that wait already. If no others wait there is room in any case, since the
                connection has limits of its own.
        """
        if self.waiting + size > self.half and self.waiting > own:
            return False
        self.waiting += size
        return True

    def reserve_anyway(self, size: int) -> None:
        """Count bytes that wait, room or not; a negative number takes them off."""
        self.waiting += size

    def release(self, size: int) -> None:
        """Take bytes off that wait no longer."""
        self.waiting -= size
        if self.waiters and size > 0:
            self.wake()

    def wake(self) -> None:
        """Let the first of those that wait try again, and the oldest frame, if it waits."""
        for each in (next(iter(self.waiters), None), next(iter(self.receiving), None)):
            if each is not None and each in self.waiters:
                each.try_again()

    def is_first(self, waiter: Receiving) -> bool:
        """Whether none waits that came before this one."""
        return not self.waiters or next(iter(self.waiters)) is waiter

    def is_oldest(self, frame: Receiving) -> bool:
        """Whether no other frame is counted that came before this one."""
        return not self.receiving or next(iter(self.receiving)) is frame

    def refuse_slow(self, now: float) -> None:
        """Take memory away from frames that come too slowly at `now` (seconds); for when others wait for some."""
        for each in list(self.receiving):
            seconds = now - each.since
            if seconds < SLOW_AFTER or each in self.waiters:
                continue
            if each.received() < SLOW_RATE * seconds:
                each.give_way()
            else:
                each.count_from(now)


class UnreadBytes:
    """Counts what was sent by one server and not yet read by the peers, for those with much of it.

    Args:
        limit: bytes of all peers together.
    """

    __slots__ = ("_limit", "_sizes", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Hashable, int] = {}
        self.total = 0

    @property
    def is_over(self) -> bool:
        """More is unread than the limit: a connection must be closed."""
        return self.total > self._limit

    @property
    def largest(self) -> Hashable:
        """The connection whose peer has most to read."""
        return max(self._sizes, key=self._sizes.__getitem__)

    def update(self, owner: Hashable, size: int) -> None:
        """Set how many bytes the peer of a connection has to read now; with 0 it is not counted any more."""
        self.total += size - self._sizes.get(owner, 0)
        if size:
            self._sizes[owner] = size
        else:
            self._sizes.pop(owner, None)

    def owners(self) -> list[Hashable]:
        """The connections that are counted."""
        return list(self._sizes)


class Reception:
    """Counts the bytes that have come of the message that one connection is receiving."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self._size = 0

    @property
    def limit(self) -> int:
        """Bytes that may wait in all."""
        return self._memory.half

    def grow(self, size: int) -> bool:
        """Say how many bytes of it have come; False if there is no room for them: they are to be dropped."""
        if size < PARTLY:
            return True
        if not self._memory.reserve(size - self._size, self._size):
            return False
        self._size = size
        return True

    def over(self) -> None:
        """The message is complete, or was dropped."""
        if self._size:
            self._memory.release(self._size)
            self._size = 0


def memory_of(line: bytes | bytearray) -> int:
    """Bytes of memory that a message takes at most while its call runs: its values, its strings, and the line itself.

    Text that is not all ASCII may take four bytes a character.
    """
    size = len(line)
    a_byte = 2 if line.isascii() and b"\\u" not in line else 5
    return a_byte * size + A_VALUE * values_roughly(line) + payloads.size_with_payloads(line) - size
