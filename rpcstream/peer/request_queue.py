"""Requests that wait until there is room for them: in order, within bounds, each with the time it came.

Owns the lines and what is known of them before they are read: whether they were looked through already for what need
not wait, and which are about a stream that is not known yet. Pure: the time is passed in.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..errors import ServerBusy
from ..limits import Limits
from ..wire.framing import LONG, Message
from .memory import MessageMemory

#: Bytes that a message takes besides its own.
OVERHEAD = 64

#: Cancels that are noted at least, whatever `max_calls` is. Which calls wait here is not known, so most of them may be
#: about others, that are over; a client that gives up thousands of calls at once is not to be heard in part.
CANCELS = 4096

#: Characters of an id that are kept as they are.
NAME_MAX = 100

#: Messages that are taken up at a time: what is left of them is put back, which takes time for each.
AT_ONCE = 64

#: The reasons given with ServerBusy, by the name of the limit; of `max_calls` the limit alone says enough.
_REASONS = {
    "max_held_size": "the messages of this connection that are at work take too many bytes of memory (max_held_size)",
    "max_held_total": "the messages of all callers take too many bytes of memory (max_held_total)",
}


class EarlyMessage:
    """A word of the conversation that waits behind requests, one of which opens the stream that it is about, perhaps.

    Attributes:
        key: of that stream.
        line: the message; empty when it was handled before its turn came.
        chunk: where it waits.
    """

    __slots__ = ("chunk", "key", "line")

    def __init__(self, key: str, line: bytes) -> None:
        self.key = key
        self.line = line
        self.chunk: Chunk | None = None


class Chunk:
    """Messages that came with one read.

    Attributes:
        since: when they came (loop time, s).
        noted: how many cancels had been noted before the first of them was looked through; negative before that.
        fresh: those that were not looked through yet.
        kept: those before them that were, and wait.
        is_new: they have just come, and may be turned away; what was put back may not.
        drops: the conversation was over but for the words of it: no request among them is taken.
        count, size: how many they are, and their bytes.
    """

    __slots__ = ("count", "drops", "fresh", "is_new", "kept", "noted", "since", "size")

    def __init__(self, since: float, noted: int, *, is_new: bool, drops: bool) -> None:
        self.since = since
        self.noted = noted
        self.is_new = is_new
        self.drops = drops
        self.count = self.size = 0
        self.fresh: deque[Message] = deque()
        self.kept: deque[Message | EarlyMessage] = deque()


class RequestQueue:
    """A queue of messages, cut as they came from the connection.

    Attributes:
        noted: cancels that came before their request was read, all in all. Each means only requests that had come by
            then: a later one with the same id is another call.
        words: the words that wait, by the stream that they are about.
    """

    __slots__ = (
        "_cancelled",
        "_chunks",
        "_count",
        "_early_count",
        "_early_size",
        "_max_calls",
        "_max_kept",
        "_max_size",
        "_memory",
        "_new_count",
        "_new_size",
        "_reserved",
        "_size",
        "_taken",
        "_taken_is_sorted",
        "_unsorted",
        "early",
        "is_overtaken",
        "noted",
        "noted",
    )

    def __init__(self, limits: Limits, memory: MessageMemory) -> None:
        self._max_calls = limits.max_calls
        self._max_size = limits.write_buffer
        self._max_kept = limits.write_buffer + limits.max_message_size
        self._memory = memory
        self._chunks: deque[Chunk] = deque()
        #: Those of them that have messages which were not looked through yet, in the same order.
        self._unsorted: deque[Chunk] = deque()
        #: All messages; and those of new chunks, of which it is not decided yet whether they are kept.
        self._count = self._size = self._new_count = self._new_size = 0
        #: Bytes of long messages that were looked through: they count for the server.
        self._reserved = 0
        #: The same of words that were kept although it was over, since it was last empty.
        self._early_count = self._early_size = 0
        self.early: dict[str, dict[EarlyMessage, None]] = {}
        self.noted = 0
        self.is_overtaken = False
        #: The same number for what was taken last; and was that looked through?
        self._taken = 0
        self._taken_is_sorted = False
        #: Ids that were cancelled before their request was read, as text (peers choose ids, not our hashes), and the
        #: number of the cancel.
        self._cancelled: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def count(self) -> int:
        """The number of messages that wait."""
        return self._count

    @property
    def size(self) -> int:
        """The number of bytes of the messages that wait."""
        return self._size

    @property
    def is_full(self) -> bool:
        """As many messages wait as one connection may have calls, or they hold as many bytes as replies may."""
        return self._count >= self._max_calls or self._size > self._max_size

    @property
    def is_behind(self) -> bool:
        """There are messages that were not looked through yet."""
        return bool(self._unsorted)

    def is_over(self, *, stalled: bool) -> bool:
        """No more is to be kept, even if the connection has to be read.

        While the peer does not read (`stalled`), more is kept, up to one message of any size: two ends that send each
        other long messages come so far that each must hold some of the other's.
        """
        count, size = self._count - self._new_count, self._size - self._new_size
        if stalled:
            return size + OVERHEAD * count > self._max_kept
        return count >= self._max_calls or size > self._max_kept

    # -- in ---------------------------------------------------------------------------------------------------------

    def put(self, messages: list[Message], now: float, *, drops: bool = False) -> None:
        """Behind all others; they came at `now` (loop time, s), and were not looked through."""
        chunk = Chunk(now, -1, is_new=True, drops=drops)
        chunk.fresh.extend(messages)
        self._chunks.append(chunk)
        self._unsorted.append(chunk)
        self._change(chunk, len(messages), _size_of(messages))

    def put_back(self, messages: list[Message], since: float) -> None:
        """Before all others: the rest of what was taken, or of what has just come."""
        chunk = Chunk(since, self._taken, is_new=False, drops=False)
        self._chunks.appendleft(chunk)
        if self._taken_is_sorted:
            chunk.kept.extend(messages)
            self._reserve(messages, 1)
        else:
            chunk.fresh.extend(messages)
            self._unsorted.appendleft(chunk)
        self._change(chunk, len(messages), _size_of(messages))

    # -- out --------------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[Message], float]:
        """The messages that came first, all from one read and not too many, and when that was."""
        chunk = self._chunks[0]
        messages: list[Message] = []
        self._taken_is_sorted = bool(chunk.kept)
        if chunk.kept:
            while chunk.kept and len(messages) < AT_ONCE:
                each = chunk.kept.popleft()
                if type(each) is EarlyMessage:
                    if each.line:
                        messages.append(each.line)
                        self._forget(each)
                    self._taken_is_sorted = False  # should it be put back, it must be seen again what it is about
                else:
                    messages.append(each)  # type: ignore[arg-type]
            self._reserve(messages, -1)
        else:
            while chunk.fresh and len(messages) < AT_ONCE:
                messages.append(chunk.fresh.popleft())
        self._taken = chunk.noted if chunk.noted >= 0 else self.noted
        self._change(chunk, -len(messages), -_size_of(messages))
        if not (chunk.fresh or chunk.kept):
            self._chunks.popleft()
            if self._unsorted and self._unsorted[0] is chunk:
                self._unsorted.popleft()
        return messages, chunk.since

    def next_unsorted(self) -> tuple[Chunk, Message] | None:
        """The first message that was not looked through, taken out, and where it stood; None if there is none.

        What is left of it is kept by `keep` or `keep_early`.
        """
        while self._unsorted:
            chunk = self._unsorted[0]
            if chunk.fresh:
                if chunk.noted < 0:
                    chunk.noted = self.noted
                line = chunk.fresh.popleft()
                self._change(chunk, -1, -len(line))
                return chunk, line
            self._unsorted.popleft()
            if chunk.is_new:  # it is decided what becomes of them
                chunk.is_new = False
                self._new_count -= chunk.count
                self._new_size -= chunk.size
            if not chunk.kept and self._chunks[-1] is chunk:
                self._chunks.pop()
            elif not chunk.kept:
                self._chunks.remove(chunk)
        return None

    def put_in(self, chunk: Chunk, messages: list[bytes]) -> None:
        """Messages that stood in one that was just taken out to be looked through."""
        chunk.fresh.extendleft(reversed(messages))
        self._change(chunk, len(messages), _size_of(messages))

    # -- what was looked through ------------------------------------------------------------------------------------

    def keep(self, chunk: Chunk, line: Message) -> bool:
        """A request of this chunk waits; false if it is so long that the server has no memory for it."""
        size = len(line)
        if size >= LONG and type(line) is bytes:
            if not self._memory.reserve(size, self._reserved):
                return False
            self._reserved += size
        chunk.kept.append(line)
        self._change(chunk, 1, size)
        return True

    def keep_early(self, chunk: Chunk, early: EarlyMessage, *, is_over: bool) -> None:
        """A word of this chunk waits. Of those, too, there may be as many, or as large; who sends more loses them.

        Args:
            is_over: no more is to be kept.
        """
        size = len(early.line)
        if is_over:
            if self._early_count >= self._max_calls or self._early_size + size > self._max_kept:
                return
            self._early_count += 1
            self._early_size += size
        early.chunk = chunk
        self.early.setdefault(early.key, {})[early] = None
        chunk.kept.append(early)
        self._change(chunk, 1, size)

    def take_early(self, key: str) -> list[bytes]:
        """The words about a stream that is known now, in order."""
        lines = []
        for early in self.early.pop(key, ()):
            assert early.chunk is not None
            lines.append(early.line)
            self._change(early.chunk, -1, -len(early.line))
            early.line = b""
        return lines

    # -- cancels ----------------------------------------------------------------------------------------------------

    def cancel(self, call_id: Any) -> None:
        """The request with this id, which is perhaps one of these, is to be answered without being carried out."""
        if len(self._cancelled) < max(self._max_calls, CANCELS):
            self._cancelled[name_of_id(call_id)] = self.noted
            self.noted += 1

    def was_cancelled(self, message: dict[str, Any]) -> bool:
        """Was a request cancelled that was taken last? Asked once for each."""
        if not self._cancelled:
            return False
        name = name_of_id(message.get("id"))
        if self._cancelled.get(name, -1) < self._taken:
            return False
        del self._cancelled[name]
        return True

    def forget_cancelled(self) -> None:
        """All requests have been read: what is still noted was never among them."""
        self._cancelled.clear()
        self.noted = self._taken = 0
        self._taken_is_sorted = False
        self._early_count = self._early_size = 0

    def clear(self) -> None:
        for chunk in self._chunks:
            chunk.fresh.clear()
            chunk.kept.clear()
        self._chunks.clear()
        self._unsorted.clear()
        self.early.clear()
        self._count = self._size = self._new_count = self._new_size = 0
        self._memory.release(self._reserved)
        self._reserved = 0
        self.forget_cancelled()

    # -- counts -----------------------------------------------------------------------------------------------------

    def _change(self, chunk: Chunk, count: int, size: int) -> None:
        chunk.count += count
        chunk.size += size
        self._count += count
        self._size += size
        if chunk.is_new:
            self._new_count += count
            self._new_size += size

    def _forget(self, early: EarlyMessage) -> None:
        same = self.early[early.key]
        del same[early]
        if not same:
            del self.early[early.key]

    def _reserve(self, messages: Iterable[Message], sign: int) -> None:
        """Long messages that were looked through are taken out, or put back, where nothing is refused any more."""
        size = sum(len(line) for line in messages if len(line) >= LONG and type(line) is bytes)
        if size:
            self._reserved += sign * size
            self._memory.reserve_anyway(sign * size)


def busy(limit: int, name: str) -> ServerBusy:
    """The error for a request for which there is no room.

    Args:
        limit: the value of the limit that is reached.
        name: its name in `Limits`.
    """
    return ServerBusy(data={"limit": limit, "reason": _REASONS[name]} if name in _REASONS else {"limit": limit})


def _size_of(messages: Iterable[Message]) -> int:
    return sum(map(len, messages))


def name_of_id(call_id: Any) -> str:
    """An id as text: peers choose ids, not our hashes; nor how much is kept of each."""
    if type(call_id) is str and len(call_id) > NAME_MAX:
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()
    name = repr(call_id)
    return name if len(name) <= NAME_MAX else hashlib.sha256(name.encode()).hexdigest()
