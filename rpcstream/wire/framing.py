"""Bytes to messages: lines, values without a line end, and lines that are too long (wire page, "Line stream").

Owns where one message ends and the next begins. Knows that a message may be a JSON array or object only as far as to
see where its outermost bracket closes; does not parse, and knows no socket and no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Bytes; a message from here on is long: it may have payloads that are better cut out before it is parsed.
LONG = 128 * 1024

#: How much of a message over the limit is kept, to find the id of the request in it.
HEAD_SIZE = 512


@dataclass(frozen=True, slots=True)
class Oversize:
    """Stands in the list of messages where one over the limit was, so that the answer keeps its place.

    `size` is in bytes; of a message whose end has not come yet it is what has come so far. `head` is its beginning.
    """

    size: int
    head: bytes

    def __len__(self) -> int:
        return self.size


#: What a framer gives: the bytes of a message (`bytearray` when it came in pieces), or what stands for a long one.
Message = bytes | bytearray | Oversize


class LineFramer:
    """Cuts a stream of bytes into messages; one framer per connection and direction.

    `feed` until `ended` is true or the stream ends; then `finish` once.

    Args:
        delimiter: ends a message; one byte or more.
        max_size: bytes of a message, without the delimiter. A longer one is reported once, as `Oversize`, as soon as
            it is known to be longer; the rest up to the next delimiter is dropped as it comes.
    """

    __slots__ = ("_after_value", "_balance", "_buffer", "_delimiter", "_max_size", "_skipping", "ended")

    def __init__(self, *, max_size: int, delimiter: bytes = b"\n") -> None:
        if not delimiter:
            raise ValueError("the delimiter must have at least one byte")
        self._delimiter = delimiter
        self._max_size = max_size
        self._buffer = bytearray()
        self._balance: _Balance | None = None
        self._skipping = False
        self._after_value = False
        #: An empty line has come: the peer sends no more requests.
        self.ended = False

    @property
    def partial(self) -> bool:
        """A message has begun and its end has not come."""
        return self._skipping or bool(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete with these bytes, in order. After an empty line: none, ever."""
        if self._buffer or self._skipping or self.ended:
            return self._feed_rest(data)
        return self._feed_lines(data)

    def finish(self) -> list[Message]:
        """The stream has ended: the last message, if one stands there without its delimiter."""
        last, self._buffer = self._buffer, bytearray()
        if self.ended or self._skipping or not last.strip():
            return []
        return [last]

    def _feed_lines(self, data: bytes) -> list[Message]:
        """Nothing is held: `data` begins with a new message."""
        lines: list[Message] = data.split(self._delimiter)  # type: ignore[assignment]
        tail: bytes = lines.pop()  # type: ignore[assignment]
        if len(lines) == 1 and not tail and lines[0] and data[0] > _BLANK and len(data) <= self._max_size:
            # One message, whole, and not blank: nearly every read from a peer that waits for its answers.
            self._after_value = False
            return lines
        if self._after_value and lines:
            self._after_value = False
            if not lines[0].strip():  # type: ignore[union-attr]
                del lines[0]
        if not all(map(bytes.strip, lines)):  # type: ignore[arg-type]
            return self._end(lines)
        if len(data) > self._max_size:
            lines = [self._sized(line) for line in lines]
        if tail:
            self._buffer += tail
            self._hold(lines)
        return lines

    def _feed_rest(self, data: bytes) -> list[Message]:
        """A message is held or being dropped: first find its end."""
        if self.ended:
            return []
        buffer, delimiter = self._buffer, self._delimiter
        start = max(0, len(buffer) - len(delimiter) + 1)
        buffer += data
        end = buffer.find(delimiter, start)
        messages: list[Message] = []
        if end < 0:
            self._hold(messages)
            return messages
        rest = bytes(buffer[end + len(delimiter) :])
        del buffer[end:]
        self._buffer, self._balance = bytearray(), None
        if self._skipping:
            self._skipping = False
        elif buffer and not buffer.isspace():
            self._after_value = False
            messages.append(self._sized(buffer))
        elif self._after_value:
            self._after_value = False
        else:
            self.ended = True
            return messages
        if rest:
            messages += self._feed_lines(rest)
        return messages

    def _hold(self, messages: list[Message]) -> None:
        """The buffer has no delimiter: keep it, unless it is a complete value or too long."""
        buffer = self._buffer
        if self._skipping:
            del buffer[: len(buffer) - len(self._delimiter) + 1]
        elif self._is_value(buffer):
            messages.append(self._sized(buffer))
            self._buffer, self._balance, self._after_value = bytearray(), None, True
        elif len(buffer) > self._max_size + len(self._delimiter):
            messages.append(Oversize(len(buffer), bytes(buffer[:HEAD_SIZE])))
            self._skipping, self._balance = True, None
            del buffer[: len(buffer) - len(self._delimiter) + 1]

    def _is_value(self, buffer: bytearray) -> bool:
        """Do the held bytes end where the outermost bracket closes?

        Looks at the bytes only when the last one could be that bracket, and at each byte once, so that a long
        message in pieces costs nothing unless a piece happens to end in a bracket, and then no more than a look.
        """
        last = buffer[-8:].rstrip()
        if not last.endswith((b"}", b"]")):
            return False
        if self._balance is None:
            first = _FIRST.match(buffer)
            self._balance = _Balance(first[1] if first is not None else b"")
        return self._balance.closed(buffer, last[-1:])

    def _sized(self, message: Message) -> Message:
        size = len(message)
        return message if size <= self._max_size else Oversize(size, bytes(message[:HEAD_SIZE]))  # type: ignore[index]

    def _end(self, lines: list[Message]) -> list[Message]:
        """An empty line is among them: what stands before it counts."""
        self.ended = True
        before = []
        for line in lines:
            if not line.strip():  # type: ignore[union-attr]
                break
            before.append(self._sized(line))
        return before


_FIRST = re.compile(rb"\s*(\S)")
_BLANK = 0x20
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'"{}[]')


class _Balance:
    """How many brackets are open at the end of a growing buffer; brackets inside strings do not count."""

    __slots__ = ("_closing", "_depth", "_escaped", "_in_string", "_seen")

    def __init__(self, first: bytes) -> None:
        #: What closes the value that the buffer begins with; nothing, if it is neither array nor object.
        self._closing = {b"{": b"}", b"[": b"]"}.get(bytes(first), b"")
        self._depth = 0
        self._in_string = 0
        self._escaped = False
        self._seen = 0

    def closed(self, buffer: bytearray, last: bytes | bytearray) -> bool:
        """Is no bracket open at the end of the buffer, whose last byte that is no blank is this one?"""
        if last != self._closing:
            return False
        piece = bytes(buffer[self._seen :])
        self._seen = len(buffer)
        if self._escaped:
            piece, self._escaped = piece[1:], False
        if b"\\" in piece:
            # Pairs first: what is left of a run of backslashes then escapes the byte behind it.
            piece = piece.replace(b"\\\\", b"")
            self._escaped = piece.endswith(b"\\")
            piece = piece.replace(b'\\"', b"")
        quoted = piece.translate(None, _NOT_MARKS).split(b'"')
        outside = b"".join(quoted[self._in_string :: 2])
        self._in_string = (self._in_string + len(quoted) - 1) % 2
        self._depth += sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))
        return self._depth <= 0 and not self._in_string
