"""Split a byte stream into messages: lines, JSON values without line ends, too long lines (wire page, "Line stream").

Owns where one message ends and the next begins. Reads of JSON only where the outermost bracket closes
(`wire.json_scan`). Knows no socket and no clock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .buffers import ReceiveBuffer
from .json_scan import CLOSING, Balance, end_of_last_value, find_borders, may_end_value

#: Bytes from which on a message is long: it may have large payloads, which are cut out before it is parsed.
LONG = 16 * 1024

#: Bytes of a line from which on `find` is faster than `split`, which tests each byte by itself.
_FOUND_FASTER = 512

#: Bytes at the beginning of a message in which its id is looked for where the rest cannot be read; they are kept of a
#: message over the limit.
HEAD_SIZE = 512

#: From so many bytes on that were not yet scanned for the end of a value, the last few are checked first.
_CHECK_END_FIRST = 4 * 1024
_END = 512


@dataclass(frozen=True, slots=True)
class Oversize:
    """Stands in the list of messages for one that was refused, so that its error reply keeps its place.

    Attributes:
        size: bytes; of a message whose end has not been received, the bytes so far.
        head: the beginning of the message.
        limit: the limit that it was over, of bytes or of values.
        values: the number of its values, where these were over the limit; else 0.
        is_refused: the message was over no limit of its own, but the server had no memory for it.
    """

    size: int
    head: bytes
    limit: int = field(default=0, compare=False)
    values: int = field(default=0, compare=False)
    is_refused: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return min(self.size, sys.maxsize)  # a peer may announce any size


#: A result of the framer: the bytes of a message, or the mark of a refused one.
Message = bytes | Oversize


class Reception(Protocol):
    """Counts the received bytes of a message, together with those of all messages that are being received."""

    @property
    def limit(self) -> int:
        """Bytes that all messages may hold together."""

    def grow(self, size: int) -> bool:
        """Set the bytes received so far; False if the message must be dropped."""

    def over(self) -> None:
        """End the count: the message is complete, or was dropped."""


class LineFramer:
    """Splits a byte stream into messages; one framer for each connection and direction.

    Call `feed` until `ended` is true or the stream ends; then `finish` once.

    Args:
        max_size: bytes of a message, without the delimiter. A longer one is reported once, as `Oversize`, as soon as
            it is known to be longer; the rest up to the next delimiter is dropped.
        delimiter: ends a message; one byte or more.
        reception: counts messages that come in several pieces; one that it does not allow is dropped likewise.
    """

    __slots__ = (
        "_after_value",
        "_at_start",
        "_delimiter",
        "_held",
        "_max_size",
        "_reception",
        "_skipping",
        "_value_scan",
        "_width",
        "ended",
    )

    def __init__(self, *, max_size: int, delimiter: bytes = b"\n", reception: Reception | None = None) -> None:
        if not delimiter:
            raise ValueError("the delimiter must have at least one byte")
        self._delimiter = delimiter
        self._width = len(delimiter)
        self._max_size = max_size
        self._reception = reception
        self._held = _HeldBytes()
        self._value_scan: _ValueScan | None = None
        self._skipping = False
        self._after_value = False
        #: The next byte begins a message.
        self._at_start = True
        #: An empty line was received: the peer sends no more requests.
        self.ended = False

    @property
    def partial(self) -> bool:
        """Whether a message has begun and its end has not been received."""
        return self._skipping or bool(self._held.mark)

    def limit(self, max_size: int) -> None:
        """Set another limit, also for a message that has begun."""
        self._max_size = max_size

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete, in order; none after an empty line."""
        if self._at_start:
            end = data.find(self._delimiter)
            if end + self._width == len(data) and 0 < end <= self._max_size and data[0] > _BLANK:
                # One message, whole, and not blank: nearly every read from a peer that waits for its answers.
                return [data[:end]]
        held = self._held
        is_begun = held.size or self._skipping
        messages = self._feed_rest(data) if is_begun or self.ended else self._feed_lines(data)
        self._at_start = not (held.size or self._skipping or self.ended or self._after_value)
        return messages

    def finish(self) -> list[Message]:
        """End the stream. Returns the last message, if it has no delimiter."""
        last = self._held.take()
        self._received()
        if self.ended or self._skipping or not last.strip():
            return []
        return [last]

    def _feed_lines(self, data: bytes, start: int = 0) -> list[Message]:
        """Split bytes while nothing is held: a new message begins at `start`."""
        lines: list[Message] = []
        while (end := data.find(self._delimiter, start)) - start >= _FOUND_FASTER:
            lines.append(data[start:end])
            start = end + self._width
        tail = data[start:]
        if end >= 0:
            *short, tail = tail.split(self._delimiter)
            lines += short
        if self._after_value and lines:
            self._after_value = False
            if not lines[0].strip():  # type: ignore[union-attr]
                del lines[0]
        if not all(map(bytes.strip, lines)):  # type: ignore[arg-type]
            return self._end(lines)
        if len(data) > self._max_size:
            lines = [self._sized(line) for line in lines]
        if tail:
            self._held.append(tail)
            self._hold(lines, tail)
        return lines

    def _feed_rest(self, data: bytes) -> list[Message]:
        """Split bytes while a message is held or being dropped: first find its end."""
        if self.ended:
            return []
        held, delimiter = self._held, self._delimiter
        messages: list[Message] = []
        # A delimiter of several bytes may have begun in the held ones.
        begun = held.last(self._width - 1)
        end = (begun + data if begun else data).find(delimiter) - len(begun)
        if end < -len(begun):
            held.append(data)
            self._hold(messages, data)
            return messages
        held.append(data[: max(end, 0)])
        line = held.take(without=max(-end, 0))
        self._received()
        start = end + self._width
        self._value_scan = None
        if self._skipping:
            self._skipping = False
        elif line and not line.isspace():
            self._after_value = False
            messages.append(self._sized(line))
        elif self._after_value:
            self._after_value = False
        else:
            self.ended = True
            return messages
        if start < len(data):
            messages += self._feed_lines(data, start)
        return messages

    def _hold(self, messages: list[Message], piece: bytes) -> None:
        """Keep bytes without a delimiter, unless they are a complete value, too long, or only blanks.

        Args:
            messages: complete ones are added to it.
            piece: the last received of the held bytes.
        """
        held = self._held
        if not self._skipping and (borders := find_borders(piece)):
            self._cut(messages, piece, borders)
        if self._skipping or not held.mark:
            held.drop(self._width - 1)  # a delimiter may have begun in it
        elif held.mark in CLOSING and self._is_closed(held):
            messages.append(self._sized(held.take()))
            self._received()
            self._value_scan, self._after_value = None, True
        elif held.size > self._max_size + self._width:
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._max_size))
            self._skip(held)
        elif self._reception is not None and not self._reception.grow(held.size):
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._reception.limit, is_refused=True))
            self._skip(held)

    def _cut(self, messages: list[Message], piece: bytes, borders: Iterable[int]) -> None:
        """Take complete values from the held bytes where values seem to follow each other in a piece.

        The value that had begun before the piece becomes a message. Those that begin in the piece become one message
        together, which its reader splits into shares, so that other connections get their turn.
        """
        held = self._held
        scan = self._scan()
        if not scan.is_value:
            return
        begun = held.size - len(piece)
        fresh = piece
        if begun:
            end = next((end for end in borders if scan.closes_at(held, begun + end)), 0)
            if not end:
                return
            fresh = piece[end:]
            self._cut_at(messages, fresh)
        if end := end_of_last_value(fresh):
            self._cut_at(messages, fresh[end:])

    def _cut_at(self, messages: list[Message], rest: bytes) -> None:
        """End a message where this rest of the held bytes begins."""
        held = self._held
        messages.append(self._sized(held.take(without=len(rest))))
        self._received()
        self._value_scan = None
        held.append(rest)

    def _skip(self, held: _HeldBytes) -> None:
        """Drop the held message, and the bytes of it that are received later."""
        self._skipping, self._value_scan = True, None
        held.drop(self._width - 1)
        self._received()

    def _received(self) -> None:
        if self._reception is not None:
            self._reception.over()

    def _is_closed(self, held: _HeldBytes) -> bool:
        """Tell whether the held bytes, which end with a bracket, end where the outermost bracket closes.

        A long message in pieces costs nothing, unless a piece happens to end with a bracket: then the last bytes show
        most often that it is an inner one. Otherwise each byte is scanned once.
        """
        scan = self._scan()
        if not scan.is_value:
            return False
        if held.size - scan.seen > _CHECK_END_FIRST and not may_end_value(held.last(_END).rstrip()):
            return False
        return scan.closes_at(held, held.size)

    def _scan(self) -> _ValueScan:
        """The scan of the held value, begun where there is none."""
        if self._value_scan is None:
            self._value_scan = _ValueScan(self._held.first_mark())
        return self._value_scan

    def _sized(self, message: Message) -> Message:
        size = len(message)
        if size <= self._max_size:
            return message
        return Oversize(size, bytes(message[:HEAD_SIZE]), self._max_size)  # type: ignore[index]

    def _end(self, lines: list[Message]) -> list[Message]:
        """End the stream at the empty line among these; the lines before it are messages."""
        self.ended = True
        before = []
        for line in lines:
            if not line.strip():  # type: ignore[union-attr]
                break
            before.append(self._sized(line))
        return before


_BLANK = 0x20


class _HeldBytes(ReceiveBuffer):
    """The bytes of a message whose end has not been received.

    Attributes:
        mark: the last byte that is no blank; 0 if there is none.
    """

    __slots__ = ("mark",)

    def __init__(self) -> None:
        super().__init__()
        self.mark = 0

    def append(self, data: bytes) -> None:
        """Add the bytes that came next."""
        super().append(data)
        if marks := data.rstrip():
            self.mark = marks[-1]

    def take(self, without: int = 0) -> bytes:
        """Return all bytes but the last `without`, and leave the buffer empty."""
        whole = super().take()
        self.mark = 0
        return whole[: len(whole) - without] if without else whole

    def drop(self, but: int) -> None:
        """Drop all bytes but the last few."""
        rest = self.last(but)
        self._pieces = [rest] if rest else []
        self.size = len(rest)

    def first(self, count: int) -> bytes:
        """The first bytes, at most `count`."""
        found = b""
        for piece in self._pieces:
            if len(found) >= count:
                break
            found += piece[: count - len(found)]
        return found

    def last(self, count: int) -> bytes:
        """The last bytes, at most `count`."""
        found: list[bytes | bytearray] = []
        for piece in reversed(self._pieces):
            if count <= 0:
                break
            found.append(piece[-count:])
            count -= len(found[-1])
        return b"".join(reversed(found))

    def first_mark(self) -> bytes:
        """The first byte that is no blank; empty where there is none."""
        return next((bytes(mark[:1]) for piece in self._pieces if (mark := piece.lstrip())), b"")


class _ValueScan(Balance):
    """The scan of the held bytes for the end of their value.

    Attributes:
        is_value: the bytes begin with an array or an object.
        seen: bytes scanned so far.
    """

    __slots__ = ("is_value", "seen")

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.is_value = first in (b"[", b"{")
        self.seen = 0

    def closes_at(self, held: _HeldBytes, end: int) -> bool:
        """Tell whether no bracket is open in the held bytes up to `end`, not before the last place given."""
        self.add(held.last(held.size - self.seen)[: end - self.seen])
        self.seen = end
        return self.is_closed
