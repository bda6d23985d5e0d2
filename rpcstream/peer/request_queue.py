"""Queue of the requests of one connection that wait until there is room for them.

Owns their order, their limits, the time each came, and the cancels that came before their requests were read. Does not
read messages; `incoming` sorts out those that need not wait. Pure: the time is passed in.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Any

import orjson

from ..errors import ServerBusy
from ..limits import Limits
from ..wire import envelope
from ..wire.messages import HEAD_SIZE, LONG, BinaryFrame, Message, Oversize
from .memory import MessageMemory

#: Bytes that a message takes besides its own.
OVERHEAD = 64

#: Cancels that are kept at least, whatever `max_calls` is. The ids that wait here are not known, so most cancels may be
#: of calls that are over; of a client that gives up thousands of calls at once none must be lost.
CANCELS = 4096

#: Characters of an id up to which it is kept as it is; of a longer one a hash is kept.
NAME_MAX = 100

#: Messages taken up at a time: those of them that are left are put back, which takes time for each.
AT_ONCE = 64

#: The reasons given with ServerBusy, by the name of the limit; of `max_calls` the limit alone says enough.
_REASONS = {
    "max_held_size": "the messages of this connection that are at work take too many bytes of memory (max_held_size)",
    "max_held_total": "the messages of all callers take too many bytes of memory (max_held_total)",
}


class EarlyMessage:
    """A control message about a stream that is not open yet: a request before it may open the stream.

    Attributes:
        key: of the stream, as `control_messages.early_key` gives it.
        line: the message; empty once it is handled, before its turn came.
        chunk: where it waits.
    """

    __slots__ = ("chunk", "key", "line")

    def __init__(self, key: str, line: bytes | BinaryFrame) -> None:
        self.key = key
        self.line = line
        self.chunk: Chunk | None = None


class Chunk:
    """Messages that came with one read.

    Attributes:
        since: when they came (loop time, s).
        cancels: how many cancels had come before the first of them was sorted; negative before that.
        unsorted: those that were not sorted yet.
        kept: those before them that were, and wait.
        is_new: they have just come, and may be refused; messages that were put back may not.
        drops: no more requests are taken: only what need not wait is handled.
        count, size: how many they are, and their bytes.
    """

    __slots__ = ("cancels", "count", "drops", "is_new", "kept", "since", "size", "unsorted")

    def __init__(self, since: float, cancels: int, *, is_new: bool, drops: bool) -> None:
        self.since = since
        self.cancels = cancels
        self.is_new = is_new
        self.drops = drops
        self.count = self.size = 0
        self.unsorted: deque[Message] = deque()
        self.kept: deque[Message | EarlyMessage] = deque()


class RequestQueue:
    """A queue of messages in the order in which they came; "sorted" are those that the `OverloadSorter` has seen.

    Args:
        limits: `max_calls`, `write_buffer` and `max_message_size` bound the queue.
        memory: of the server, where long messages count.

    Attributes:
        cancels: how many cancels came before their request was read. Each is for requests that had come by then: a
            later one with the same id is another call.
        early: the early messages that wait, by the key of their stream.
        is_overtaken: a message is being handled now that came behind requests that wait.
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
        "cancels",
        "early",
        "is_overtaken",
    )

    def __init__(self, limits: Limits, memory: MessageMemory) -> None:
        self._max_calls = limits.max_calls
        self._max_size = limits.write_buffer
        self._max_kept = limits.write_buffer + limits.max_message_size
        self._memory = memory
        self._chunks: deque[Chunk] = deque()
        #: Those of them that have unsorted messages, in the same order.
        self._unsorted: deque[Chunk] = deque()
        #: All messages; and those of new chunks, which may still be refused.
        self._count = self._size = self._new_count = self._new_size = 0
        #: Bytes of long messages that are sorted: they count for the server.
        self._reserved = 0
        #: Number and bytes of early messages that were kept although the queue was over its limits, since it was last
        #: empty.
        self._early_count = self._early_size = 0
        self.early: dict[str, dict[EarlyMessage, None]] = {}
        self.cancels = 0
        self.is_overtaken = False
        #: `Chunk.cancels` of the messages that were taken last; and whether they were sorted.
        self._taken = 0
        self._taken_is_sorted = False
        #: Ids that were cancelled before their request was read, as text (so that peers do not choose our hashes), each
        #: with the number of its cancel.
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
        """As many messages wait as one connection may have calls, or as many bytes as replies may have."""
        return self._count >= self._max_calls or self._size > self._max_size

    @property
    def is_behind(self) -> bool:
        """There are unsorted messages."""
        return bool(self._unsorted)

    def is_over(self, *, stalled: bool) -> bool:
        """No more requests may be kept, even if the connection has to be read.

        While the peer does not read (`stalled`), more is kept, up to one message of any size: two ends that send each
        other long messages come so far that each must hold some of the other's.
        """
        count, size = self._count - self._new_count, self._size - self._new_size
        if stalled:
            return size + OVERHEAD * count > self._max_kept
        return count >= self._max_calls or size > self._max_kept

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, messages: list[Message], now: float, *, drops: bool = False) -> None:
        """Add unsorted messages, behind all others; they came at `now` (loop time, s)."""
        chunk = Chunk(now, -1, is_new=True, drops=drops)
        chunk.unsorted.extend(messages)
        self._chunks.append(chunk)
        self._unsorted.append(chunk)
        self._change(chunk, len(messages), _size_of(messages))

    def put_back(self, messages: list[Message], since: float) -> None:
        """Add messages before all others: the rest of those that were taken, or of a read."""
        chunk = Chunk(since, self._taken, is_new=False, drops=False)
        self._chunks.appendleft(chunk)
        if self._taken_is_sorted:
            chunk.kept.extend(messages)
            self._reserve(messages, 1)
        else:
            chunk.unsorted.extend(messages)
            self._unsorted.appendleft(chunk)
        self._change(chunk, len(messages), _size_of(messages))

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[Message], float]:
        """Take the messages that came first, at most `AT_ONCE` and all from one read; also gives when they came."""
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
                    self._taken_is_sorted = False  # should they be put back, they must be sorted again
                else:
                    messages.append(each)  # type: ignore[arg-type]
            self._reserve(messages, -1)
        else:
            while chunk.unsorted and len(messages) < AT_ONCE:
                messages.append(chunk.unsorted.popleft())
        self._taken = chunk.cancels if chunk.cancels >= 0 else self.cancels
        self._change(chunk, -len(messages), -_size_of(messages))
        if not (chunk.unsorted or chunk.kept):
            self._chunks.popleft()
            if self._unsorted and self._unsorted[0] is chunk:
                self._unsorted.popleft()
        return messages, chunk.since

    def next_unsorted(self) -> tuple[Chunk, Message] | None:
        """Take out the first unsorted message; gives it and where it stood, None if there is none.

        The sorter puts back what must wait of it, by `keep` or `keep_early`.
        """
        while self._unsorted:
            chunk = self._unsorted[0]
            if chunk.unsorted:
                if chunk.cancels < 0:
                    chunk.cancels = self.cancels
                line = chunk.unsorted.popleft()
                self._change(chunk, -1, -len(line))
                return chunk, line
            self._unsorted.popleft()
            if chunk.is_new:  # all of them were kept or refused
                chunk.is_new = False
                self._new_count -= chunk.count
                self._new_size -= chunk.size
            if not chunk.kept and self._chunks[-1] is chunk:
                self._chunks.pop()
            elif not chunk.kept:
                self._chunks.remove(chunk)
        return None

    def put_in(self, chunk: Chunk, messages: list[bytes]) -> None:
        """Add unsorted messages that stood in the one taken out last."""
        chunk.unsorted.extendleft(reversed(messages))
        self._change(chunk, len(messages), _size_of(messages))

    def last_request(self) -> Any:
        """The request, or the batch, that came last among those that wait, as far as its id needs; None if none waits.

        One that cannot be read so gives an empty object.
        """
        for chunk in reversed(self._chunks):
            for lines in (chunk.unsorted, chunk.kept):
                for line in reversed(lines):
                    found = None if type(line) is EarlyMessage else _request_in(line)  # type: ignore[arg-type]
                    if found is not None:
                        return found
        return None

    # -- sorted messages ----------------------------------------------------------------------------------------------

    def keep(self, chunk: Chunk, line: Message) -> bool:
        """Have a request of this chunk wait; False if it is so long that the server has no memory for it."""
        size = len(line)
        if size >= LONG and not isinstance(line, Oversize):
            if not self._memory.reserve(size, self._reserved):
                return False
            self._reserved += size
        chunk.kept.append(line)
        self._change(chunk, 1, size)
        return True

    def keep_early(self, chunk: Chunk, early: EarlyMessage, *, is_over: bool) -> None:
        """Have an early message of this chunk wait; it is dropped if too many of them do.

        While the queue is over its limits (`is_over`), early messages have the same limits once more, for themselves.
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

    def take_early(self, key: str) -> list[bytes | BinaryFrame]:
        """Take the early messages about a stream that is open now, in order."""
        lines = []
        for early in self.early.pop(key, ()):
            assert early.chunk is not None
            lines.append(early.line)
            self._change(early.chunk, -1, -len(early.line))
            early.line = b""
        return lines

    # -- cancels ------------------------------------------------------------------------------------------------------

    def cancel(self, call_id: Any) -> None:
        """Do not carry out the request with this id, if it is one of these."""
        if len(self._cancelled) < max(self._max_calls, CANCELS):
            self._cancelled[name_of_id(call_id)] = self.cancels
            self.cancels += 1

    def was_cancelled(self, message: dict[str, Any]) -> bool:
        """Whether a request was cancelled that was among those taken last. To be asked once for each."""
        if not self._cancelled:
            return False
        name = name_of_id(message.get("id"))
        if self._cancelled.get(name, -1) < self._taken:
            return False
        del self._cancelled[name]
        return True

    def forget_cancelled(self) -> None:
        """Forget the cancels that are left, since no request waits any more."""
        self._cancelled.clear()
        self.cancels = self._taken = 0
        self._taken_is_sorted = False
        self._early_count = self._early_size = 0

    def clear(self) -> None:
        for chunk in self._chunks:
            chunk.unsorted.clear()
            chunk.kept.clear()
        self._chunks.clear()
        self._unsorted.clear()
        self.early.clear()
        self._count = self._size = self._new_count = self._new_size = 0
        self._memory.release(self._reserved)
        self._reserved = 0
        self.forget_cancelled()

    # -- counts -------------------------------------------------------------------------------------------------------

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
        """Count sorted long messages as put back (sign 1) or taken (-1); they are never refused any more."""
        size = sum(len(line) for line in messages if len(line) >= LONG and not isinstance(line, Oversize))
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


def _request_in(line: Message) -> Any:
    """The request or batch in this message, an empty object if it is not known; None if it asks for no reply."""
    if isinstance(line, BinaryFrame):
        return line.content[0] if envelope.asks_for_reply(line.content[0]) else None
    if isinstance(line, Oversize) or len(line) >= LONG:
        head = line.head if isinstance(line, Oversize) else line[:HEAD_SIZE]
        return {"id": None if envelope.is_batch_head(head) else envelope.id_in_head(head)}
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return message if envelope.asks_for_reply(message) else None


def name_of_id(call_id: Any) -> str:
    """An id as text of a bounded length, so that peers choose neither hashes nor the memory of ids."""
    if type(call_id) is str and len(call_id) > NAME_MAX:
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()
    name = repr(call_id)
    return name if len(name) <= NAME_MAX else hashlib.sha256(name.encode()).hexdigest()
