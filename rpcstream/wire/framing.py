"""Bytes to messages: lines, values without a line end, and lines that are too long (wire page, "Line stream").

Owns where one message ends and the next begins. Knows that a message may be a JSON array or object only as far as to
see where its outermost bracket closes; does not parse, and knows no socket and no clock.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from .gathered import Gathered

#: Bytes; a message from here on is long: it may have payloads that are better cut out before it is parsed.
LONG = 16 * 1024

#: Bytes of a line from which on looking for its end is faster than splitting, which looks at each byte by itself.
_FOUND_FASTER = 512

#: How much of a message over the limit is kept, to find the id of the request in it.
HEAD_SIZE = 512


@dataclass(frozen=True, slots=True)
class Oversize:
    """Stands in the list of messages where one over the limit was, so that the answer keeps its place.

    `size` is in bytes; of a message whose end has not come yet it is what has come so far. `head` is its beginning,
    `limit` the limit that it was over.
    """

    size: int
    head: bytes
    limit: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return min(self.size, sys.maxsize)  # which a peer may say that it will send


#: What a framer gives: the bytes of a message, or what stands for a long one.
Message = bytes | Oversize


class LineFramer:
    """Cuts a stream of bytes into messages; one framer per connection and direction.

    `feed` until `ended` is true or the stream ends; then `finish` once.

    Args:
        delimiter: ends a message; one byte or more.
        max_size: bytes of a message, without the delimiter. A longer one is reported once, as `Oversize`, as soon as
            it is known to be longer; the rest up to the next delimiter is dropped as it comes.
    """

    __slots__ = (
        "_after_value",
        "_at_start",
        "_balance",
        "_delimiter",
        "_held",
        "_max_size",
        "_skipping",
        "_width",
        "ended",
    )

    def __init__(self, *, max_size: int, delimiter: bytes = b"\n") -> None:
        if not delimiter:
            raise ValueError("the delimiter must have at least one byte")
        self._delimiter = delimiter
        self._width = len(delimiter)
        self._max_size = max_size
        self._held = _Held()
        self._balance: _Balance | None = None
        self._skipping = False
        self._after_value = False
        #: None of the other states: the next byte begins a message.
        self._at_start = True
        #: An empty line has come: the peer sends no more requests.
        self.ended = False

    @property
    def partial(self) -> bool:
        """A message has begun and its end has not come."""
        return self._skipping or bool(self._held.size)

    def limit(self, max_size: int) -> None:
        """Another limit from now on, also for a message that has begun."""
        self._max_size = max_size

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete with these bytes, in order. After an empty line: none, ever."""
        if self._at_start:
            end = data.find(self._delimiter)
            if end + self._width == len(data) and 0 < end <= self._max_size and data[0] > _BLANK:
                # One message, whole, and not blank: nearly every read from a peer that waits for its answers.
                return [data[:end]]
        messages = self._feed_rest(data) if self.partial or self.ended else self._feed_lines(data)
        self._at_start = not (self.partial or self.ended or self._after_value)
        return messages

    def finish(self) -> list[Message]:
        """The stream has ended: the last message, if one stands there without its delimiter."""
        last = self._held.take()
        if self.ended or self._skipping or not last.strip():
            return []
        return [last]

    def _feed_lines(self, data: bytes, start: int = 0) -> list[Message]:
        """Nothing is held: a new message begins at `start`."""
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
            self._hold(lines)
        return lines

    def _feed_rest(self, data: bytes) -> list[Message]:
        """A message is held or being dropped: first find its end."""
        if self.ended:
            return []
        held, delimiter = self._held, self._delimiter
        messages: list[Message] = []
        # A delimiter of several bytes may have begun in what is held.
        begun = held.last(self._width - 1)
        end = (begun + data if begun else data).find(delimiter) - len(begun)
        if end < -len(begun):
            held.append(data)
            self._hold(messages)
            return messages
        held.append(data[: max(end, 0)])
        line = held.take(without=max(-end, 0))
        start = end + self._width
        self._balance = None
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

    def _hold(self, messages: list[Message]) -> None:
        """What is held has no delimiter: keep it, unless it is a complete value or too long."""
        held = self._held
        if self._skipping:
            held.drop(self._width - 1)
        elif self._is_value(held):
            messages.append(self._sized(held.take()))
            self._balance, self._after_value = None, True
        elif held.size > self._max_size + self._width:
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._max_size))
            self._skipping, self._balance = True, None
            held.drop(self._width - 1)

    def _is_value(self, held: _Held) -> bool:
        """Do the held bytes end where the outermost bracket closes?

        Looks at the bytes only when the last one could be that bracket, and at each byte once, so that a long
        message in pieces costs nothing unless a piece happens to end in a bracket, and then no more than a look.
        """
        last = held.last(8).rstrip()
        if not last.endswith((b"}", b"]")):
            return False
        if self._balance is None:
            self._balance = _Balance(held.first_mark())
        return self._balance.closed(held, last[-1:])

    def _sized(self, message: Message) -> Message:
        size = len(message)
        if size <= self._max_size:
            return message
        return Oversize(size, bytes(message[:HEAD_SIZE]), self._max_size)  # type: ignore[index]

    def _end(self, lines: list[Message]) -> list[Message]:
        """An empty line is among them: what stands before it counts."""
        self.ended = True
        before = []
        for line in lines:
            if not line.strip():  # type: ignore[union-attr]
                break
            before.append(self._sized(line))
        return before


_BLANK = 0x20
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'"{}[]')


class _Held(Gathered):
    """Bytes of a message whose end has not come: copied once, when it has."""

    __slots__ = ()

    def take(self, without: int = 0) -> bytes:
        """All of them but the last so many, which nobody needs; then nothing is held."""
        whole = super().take()
        return whole[: len(whole) - without] if without else whole

    def drop(self, but: int) -> None:
        """All of them but the last so many (a few)."""
        rest = self.last(but)
        self._pieces = [rest] if rest else []
        self.size = len(rest)

    def first(self, count: int) -> bytes:
        found = b""
        for piece in self._pieces:
            if len(found) >= count:
                break
            found += piece[: count - len(found)]
        return found

    def last(self, count: int) -> bytes:
        found: list[bytes | bytearray] = []
        for piece in reversed(self._pieces):
            if count <= 0:
                break
            found.append(piece[-count:])
            count -= len(found[-1])
        return b"".join(reversed(found))

    def first_mark(self) -> bytes:
        """The first byte that is no blank; empty if there is none."""
        return next((bytes(mark[:1]) for piece in self._pieces if (mark := piece.lstrip())), b"")


class _Balance:
    """How many brackets are open at the end of what is held; brackets inside strings do not count."""

    __slots__ = ("_closing", "_depth", "_escaped", "_in_string", "_seen")

    def __init__(self, first: bytes) -> None:
        #: What closes the value that the buffer begins with; nothing, if it is neither array nor object.
        self._closing = {b"{": b"}", b"[": b"]"}.get(first, b"")
        self._depth = 0
        self._in_string = 0
        self._escaped = False
        self._seen = 0

    def closed(self, held: _Held, last: bytes) -> bool:
        """Is no bracket open at the end of what is held, whose last byte that is no blank is this one?"""
        if last != self._closing:
            return False
        piece = held.last(held.size - self._seen)
        self._seen = held.size
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
