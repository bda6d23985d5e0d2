"""Bytes to messages: lines, values without a line end, and lines that are too long (wire page, "Line stream").

Owns where one message ends and the next begins. Knows that a message may be a JSON array or object only as far as to
see where its outermost bracket closes (`wire.json_scan`); does not parse, and knows no socket and no clock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .buffers import ReceiveBuffer
from .json_scan import CLOSING, Balance, end_of_last_value, find_borders, may_end_value

#: Bytes; a message from here on is long: it may have payloads that are better cut out before it is parsed.
LONG = 16 * 1024

#: Bytes of a line from which on looking for its end is faster than splitting, which looks at each byte by itself.
_FOUND_FASTER = 512

#: How much of a message over the limit is kept, to find the id of the request in it.
HEAD_SIZE = 512

#: From so many bytes that were not yet looked at for the end of a value, the last few are looked at first.
_GLANCE_FIRST = 4 * 1024
_GLANCE = 512


@dataclass(frozen=True, slots=True)
class Oversize:
    """Stands in the list of messages where one over the limit was, so that the answer keeps its place.

    `size` is in bytes; of a message whose end has not come yet it is what has come so far. `head` is its beginning,
    `limit` the limit that it was over: of bytes, or of values where `values` says how many it has. Where it
    `is_refused`, it was over no limit of its own, but the server had no memory for it.
    """

    size: int
    head: bytes
    limit: int = field(default=0, compare=False)
    values: int = field(default=0, compare=False)
    is_refused: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return min(self.size, sys.maxsize)  # which a peer may say that it will send


#: What a framer gives: the bytes of a message, or what stands for a long one.
Message = bytes | Oversize


class Reception(Protocol):
    """Counts what has come of a message, with all others that are being received."""

    @property
    def limit(self) -> int:
        """Bytes that may be held in all."""

    def grow(self, size: int) -> bool:
        """So many bytes of it have come; false if they are to be dropped."""

    def over(self) -> None:
        """It is complete, or dropped."""


class LineFramer:
    """Cuts a stream of bytes into messages; one framer per connection and direction.

    `feed` until `ended` is true or the stream ends; then `finish` once.

    Args:
        delimiter: ends a message; one byte or more.
        max_size: bytes of a message, without the delimiter. A longer one is reported once, as `Oversize`, as soon as
            it is known to be longer; the rest up to the next delimiter is dropped as it comes.
        reception: told of messages that come in several pieces; what it does not allow is dropped likewise.
    """

    __slots__ = (
        "_after_value",
        "_at_start",
        "_balance",
        "_delimiter",
        "_held",
        "_max_size",
        "_reception",
        "_skipping",
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
        self._held = _Held()
        self._balance: _Look | None = None
        self._skipping = False
        self._after_value = False
        #: None of the other states: the next byte begins a message.
        self._at_start = True
        #: An empty line has come: the peer sends no more requests.
        self.ended = False

    @property
    def partial(self) -> bool:
        """A message has begun and its end has not come."""
        return self._skipping or bool(self._held.mark)

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
        held = self._held
        is_begun = held.size or self._skipping
        messages = self._feed_rest(data) if is_begun or self.ended else self._feed_lines(data)
        self._at_start = not (held.size or self._skipping or self.ended or self._after_value)
        return messages

    def finish(self) -> list[Message]:
        """The stream has ended: the last message, if one stands there without its delimiter."""
        last = self._held.take()
        self._received()
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
            self._hold(lines, tail)
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
            self._hold(messages, data)
            return messages
        held.append(data[: max(end, 0)])
        line = held.take(without=max(-end, 0))
        self._received()
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

    def _hold(self, messages: list[Message], piece: bytes) -> None:
        """What is held has no delimiter: keep it, unless it is a complete value, too long, or nothing but blanks.

        Args:
            messages: complete ones are added to it.
            piece: what has come last of what is held.
        """
        held = self._held
        if not self._skipping and (borders := find_borders(piece)):
            self._cut(messages, piece, borders)
        if self._skipping or not held.mark:
            held.drop(self._width - 1)  # a delimiter may have begun in it
        elif held.mark in CLOSING and self._is_closed(held):
            messages.append(self._sized(held.take()))
            self._received()
            self._balance, self._after_value = None, True
        elif held.size > self._max_size + self._width:
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._max_size))
            self._skip(held)
        elif self._reception is not None and not self._reception.grow(held.size):
            messages.append(Oversize(held.size, held.first(HEAD_SIZE), self._reception.limit, is_refused=True))
            self._skip(held)

    def _cut(self, messages: list[Message], piece: bytes, borders: Iterable[int]) -> None:
        """Values follow each other in a piece, it seems: take those that are complete from what is held.

        The one that had begun before the piece is a message. Those that begin in the piece are one together, which its
        reader takes apart: so much of it at a time as others allow.
        """
        held = self._held
        look = self._look()
        if not look.is_value:
            return
        begun = held.size - len(piece)
        fresh = piece
        if begun:
            end = next((end for end in borders if look.closes_at(held, begun + end)), 0)
            if not end:
                return
            fresh = piece[end:]
            self._cut_at(messages, fresh)
        if end := end_of_last_value(fresh):
            self._cut_at(messages, fresh[end:])

    def _cut_at(self, messages: list[Message], rest: bytes) -> None:
        """A message ends where this rest of what is held begins."""
        held = self._held
        messages.append(self._sized(held.take(without=len(rest))))
        self._received()
        self._balance = None
        held.append(rest)

    def _skip(self, held: _Held) -> None:
        """Drop the message that is held, as far as it has come and as it comes."""
        self._skipping, self._balance = True, None
        held.drop(self._width - 1)
        self._received()

    def _received(self) -> None:
        if self._reception is not None:
            self._reception.over()

    def _is_closed(self, held: _Held) -> bool:
        """Do the held bytes, which end with a bracket, end where the outermost bracket closes?

        So that a long message in pieces costs nothing, unless a piece happens to end in a bracket: then the last bytes
        tell most often that it is one inside another. Else it costs no more than one look at each byte.
        """
        look = self._look()
        if not look.is_value:
            return False
        if held.size - look.seen > _GLANCE_FIRST and not may_end_value(held.last(_GLANCE).rstrip()):
            return False
        return look.closes_at(held, held.size)

    def _look(self) -> _Look:
        """What is known of the value that is held."""
        if self._balance is None:
            self._balance = _Look(self._held.first_mark())
        return self._balance

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


class _Held(ReceiveBuffer):
    """Bytes of a message whose end has not come: copied once, when it has.

    Attributes:
        mark: the last byte that is no blank; 0 if there is none.
    """

    __slots__ = ("mark",)

    def __init__(self) -> None:
        super().__init__()
        self.mark = 0

    def append(self, data: bytes) -> None:
        super().append(data)
        if marks := data.rstrip():
            self.mark = marks[-1]

    def take(self, without: int = 0) -> bytes:
        """All of them but the last so many, which nobody needs; then nothing is held."""
        whole = super().take()
        self.mark = 0
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


class _Look(Balance):
    """What a look at the held bytes for the end of their value has shown.

    Attributes:
        is_value: they begin with an array or an object.
        seen: bytes that were looked at.
    """

    __slots__ = ("is_value", "seen")

    def __init__(self, first: bytes) -> None:
        super().__init__()
        self.is_value = first in (b"[", b"{")
        self.seen = 0

    def closes_at(self, held: _Held, end: int) -> bool:
        """Is nothing open in what is held up to this place, which is not before the last one that was asked for?"""
        self.add(held.last(held.size - self.seen)[: end - self.seen])
        self.seen = end
        return self.is_closed
