"""The body of an HTTP request as it comes: so many bytes, or chunks.

Owns where a body ends. Strict about chunks (RFC 9112, 7.1): where two servers could read them differently, a request
may be hidden in another. Pure.
"""

from __future__ import annotations

import re
from typing import Protocol

from .gathered import PieceBuffer

#: Bytes of the line before a chunk: its size, and extensions, which nobody uses.
_SIZE_LINE_MAX = 256

#: Bytes of the fields behind the last chunk, and how many may stand there. They are checked and dropped.
_TRAILERS_MAX = 8 * 1024
_TRAILER_FIELDS_MAX = 100

_HEX = frozenset(b"0123456789abcdefABCDEF")

#: The line before a chunk that is not the last, of up to 64 KiB.
_SHORT_CHUNK = re.compile(rb"(0{0,11}[1-9a-fA-F][0-9a-fA-F]{0,3})(?:;[\t\x20-\x7e\xa1-\xac\xae-\xff]{0,200})?\r\n")

#: A field behind the last chunk (RFC 9110, 5.1 and 5.5): no blank in front of its name or colon, no control character.
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*")

#: What tells where a request ends or whom it is for, and must not stand there (RFC 9110, 6.5.1).
_NOT_IN_TRAILERS = frozenset(
    (b"content-length", b"transfer-encoding", b"host", b"connection", b"upgrade", b"te", b"trailer", b"expect")
)


class Body(Protocol):
    """Bytes go in, until it is complete."""

    #: Bytes of it that have come.
    size: int

    def feed(self, data: bytes) -> bytes | None:
        """Take these bytes; gives those that stand behind the body once it is complete, before that None.

        Raises:
            ValueError: it is malformed; the text says how.
        """

    def take(self) -> bytes:
        """The whole of it."""


class SizedBody(PieceBuffer):
    """A body whose length was said before."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def feed(self, data: bytes) -> bytes | None:
        missing = self._length - self.size
        if len(data) < missing:
            self.append(data)
            return None
        self.append(data[:missing])
        return data[missing:]


class TooLong(ValueError):
    """The body is over the limit."""


class ChunkedBody(PieceBuffer):
    """A body in chunks, of which none says how long the whole is.

    Args:
        max_size: bytes of the whole.
    """

    __slots__ = ("_fields", "_left", "_line", "_max_size", "_state", "_trailers")

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self._max_size = max_size
        self._state = "size"
        self._left = 0
        self._line = b""
        self._trailers = self._fields = 0

    def feed(self, data: bytes) -> bytes | None:
        """As `Body.feed`.

        Raises:
            TooLong: a chunk would bring it over the limit; said before that is read.
            ValueError: it is malformed.
        """
        place = 0
        while place < len(data):
            if self._state == "data":
                end = min(place + self._left, len(data))
                self.append(data[place:end])
                self._left -= end - place
                place = end
                if not self._left:
                    self._state = "end"
                continue
            if self._state == "size" and not self._line:
                place = self._whole_chunks(data, place)
            line, place = self._next_line(data, place)
            if line is None:
                return None
            if self._state == "end":
                if line:
                    raise ValueError("a chunk is longer than it says")
                self._state = "size"
            elif self._state == "size":
                self._begin(line)
            elif not line:
                return data[place:]
            else:
                self._check_trailer(line)
        return None

    def _whole_chunks(self, data: bytes, place: int) -> int:
        """Take the short chunks from here on that are there whole; gives the place behind them.

        As they would be taken without this, but several times as fast: a read may hold 40,000 of a byte each.
        """
        chunks: list[bytes] = []
        size = self.size
        while (found := _SHORT_CHUNK.match(data, place)) is not None:
            begin = found.end()
            end = begin + int(found[1], 16)
            if not data.startswith(b"\r\n", end) or size + end - begin > self._max_size:
                break
            chunks.append(data[begin:end])
            size += end - begin
            place = end + 2
        if chunks:
            self.append(b"".join(chunks))
        return place

    def _check_trailer(self, line: bytes) -> None:
        """A line behind the last chunk must be a field (RFC 9112, 7.1.2). Nothing here asks what it says."""
        self._trailers += len(line)
        self._fields += 1
        if self._trailers > _TRAILERS_MAX or self._fields > _TRAILER_FIELDS_MAX:
            raise ValueError(
                f"over {_TRAILER_FIELDS_MAX} fields, or {_TRAILERS_MAX} bytes of them, stand behind the last chunk"
            )
        found = _FIELD.fullmatch(line)
        if found is None:
            raise ValueError(f"not a field of HTTP, behind the last chunk: {line[:40]!r}")
        if found[1].lower() in _NOT_IN_TRAILERS:
            raise ValueError(f"the field {found[1].decode('ascii')} must not stand behind the last chunk")

    def _next_line(self, data: bytes, place: int) -> tuple[bytes | None, int]:
        """The next line, without its end, and where that ends; None if it is not complete."""
        limit = {"size": _SIZE_LINE_MAX, "end": 0}.get(self._state, _TRAILERS_MAX)
        end = data.find(b"\n", place)
        line = self._line + data[place : end + 1 if end >= 0 else place + limit + 3]
        if len(line) > limit + 2:
            raise ValueError("a chunk is longer than it says" if self._state == "end" else "a chunk's line is too long")
        # A line feed alone, or a carriage return alone, ends no line, and has no other place in one.
        if b"\r" in line[:-2] or (end >= 0 and line[-2:] != b"\r\n") or (end < 0 and b"\r" in line[:-1]):
            raise ValueError("the lines of chunks end with CR LF, and have neither in them")
        if end < 0:
            if self._state == "end" and line != b"\r":
                raise ValueError("a chunk is longer than it says")
            self._line = line
            return None, len(data)
        self._line = b""
        return line[:-2], end + 1

    def _begin(self, line: bytes) -> None:
        digits, _, extension = line.partition(b";")
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise ValueError(f"not the size of a chunk: {line[:40]!r}")
        if extension and not extension.decode("latin-1").replace("\t", " ").isprintable():
            raise ValueError("a control character in the extension of a chunk")
        self._left = int(digits, 16)
        if self.size + self._left > self._max_size:
            raise TooLong("the chunks together are longer than may be")
        self._state = "data" if self._left else "trailers"
