"""The memory that messages take, estimated before it is used, and counted for a server as a whole.

Owns the sums that are bounded: messages whose calls are at work, messages that wait or have come in part, and what the
peers leave unread. Knows no connection; what counts something takes it off again.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..wire.json_scan import values_roughly

#: Bytes of memory for each value of a parsed message (as `wire.json_scan` counts them): measured, a little more than
#: what short strings in objects take, which take most.
A_VALUE = 64

#: Bytes of a message from which on its memory is counted while its call is at work. `max_calls` bounds shorter ones.
COUNTED = 1024

#: Bytes of what has come of a message, from which on that counts for the server: more than most systems give at once.
PARTLY = 256 * 1024


class MessageMemory:
    """What the messages of all connections of one server take. One half is for calls at work, one for what waits.

    Args:
        limit: bytes in all.
        max_unread: bytes that peers may leave unread, all together.

    Attributes:
        at_work: bytes of messages whose calls are at work, parsed.
        waiting: bytes of messages that wait for room, or have come in part.
        unread: what was sent and waits to be read.
    """

    __slots__ = ("at_work", "half", "unread", "waiting")

    def __init__(self, limit: int, max_unread: int) -> None:
        self.half = limit // 2
        self.at_work = 0
        self.waiting = 0
        self.unread = UnreadBytes(max_unread)

    @property
    def is_full(self) -> bool:
        """No call of a long message is to begin. (One alone always may, however long its message is.)"""
        return self.at_work >= self.half

    def reserve(self, size: int, own: int) -> bool:
        """So many bytes more are to wait; false if there is no room for them.

        Args:
            own: bytes that whoever asks has waiting already. Who is alone has room in any case: its own limits hold.
        """
        if self.waiting + size > self.half and self.waiting > own:
            return False
        self.waiting += size
        return True

    def reserve_anyway(self, size: int) -> None:
        """So many bytes more (or less) wait, room or not."""
        self.waiting += size

    def release(self, size: int) -> None:
        """So many bytes wait no longer."""
        self.waiting -= size


class UnreadBytes:
    """What the peers of one server have not read of what they were sent; of those with much of it.

    Args:
        limit: bytes of all together.
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
        """The peer of a connection has so much to read now; nothing: it is not counted any more."""
        self.total += size - self._sizes.get(owner, 0)
        if size:
            self._sizes[owner] = size
        else:
            self._sizes.pop(owner, None)

    def owners(self) -> list[Hashable]:
        """Those that are counted."""
        return list(self._sizes)


class Reception:
    """What has come of the message that one connection is receiving."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self._size = 0

    @property
    def limit(self) -> int:
        """Bytes that may wait in all."""
        return self._memory.half

    def grow(self, size: int) -> bool:
        """So many bytes of it have come; false if there is no room for them: they are to be dropped."""
        if size < PARTLY:
            return True
        if not self._memory.reserve(size - self._size, self._size):
            return False
        self._size = size
        return True

    def over(self) -> None:
        """It is complete, or dropped."""
        if self._size:
            self._memory.release(self._size)
            self._size = 0


def memory_of(line: bytes | bytearray) -> int:
    """Bytes that a message takes at most while its call is at work: its values, its strings, and the line itself.

    Text that is not all ASCII may take four bytes a character.
    """
    size = len(line)
    a_byte = 2 if line.isascii() and b"\\u" not in line else 5
    return a_byte * size + A_VALUE * values_roughly(line)
