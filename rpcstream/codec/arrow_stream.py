"""Arrow IPC streams from outside, looked through before a library reads them (Arrow columnar format, "IPC Streaming").

Libraries trust sizes in a stream further than may be: polars ends the process when it cannot take the memory,
compressed buffers inflate without a bound, and many buffers may stand for the same bytes. Owns these checks:
framing, number and depth of columns, buffers inside their message, at most eight values for a byte, no compression, no
deltas of dictionaries, no types that run code of a library's when they are read. What is in the buffers (offsets, text)
is then for pyarrow to validate. Knows no tagged object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .rich_hint import shortened

#: The media type of an Arrow IPC stream.
MEDIA_TYPE = "application/vnd.apache.arrow.stream"

#: Columns at any depth together: two for each list, one more for each member of a struct.
MAX_COLUMNS = 65_536
#: Columns inside of columns.
MAX_DEPTH = 32
#: Batches, and the dictionaries that stand before them. A sender with more joins them.
MAX_BATCHES = 4096
#: Columns and buffers of all batches together, as many as values in a message (`max_values`): each takes a microsecond.
MAX_PARTS = 1_000_000
#: Values that may stand there for no byte at all: nulls, lists of nothing. There may be eight more for each byte.
FREE_VALUES = 1_000_000

#: Extension types that are part of the format (Arrow, "Canonical Extension Types") and known to hold nothing but data.
EXTENSIONS = frozenset(
    {
        "arrow.bool8",
        "arrow.fixed_shape_tensor",
        "arrow.json",
        "arrow.opaque",
        "arrow.uuid",
        "arrow.variable_shape_tensor",
    }
)

_EXTENSION_NAME = b"ARROW:extension:name"
_CONTINUATION = b"\xff\xff\xff\xff"
#: What begins a file that is often mistaken for a stream.
_OTHERS = {b"ARROW1": "an Arrow file; send the stream format", b"PAR1": "a Parquet file; send an Arrow stream"}
#: `MessageHeader` in Message.fbs.
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
#: `Type` in Schema.fbs.
_TIMESTAMP = 10


class Column(NamedTuple):
    """A column of a schema, or a column inside of one.

    Attributes:
        path: the names that lead to it.
        metadata: that stands beside it.
    """

    path: tuple[str, ...]
    metadata: dict[bytes, bytes]

    @property
    def name(self) -> str:
        """For messages."""
        return repr(shortened(".".join(self.path)))


def check_stream(stream: Any) -> list[Column]:
    """Look through a whole stream.

    Args:
        stream: any contiguous bytes-like object.

    Returns:
        Its columns, those inside of others behind them.

    Raises:
        ValueError: it is no Arrow IPC stream, not a whole one, or one that is not taken; the text says why.
    """
    data = memoryview(stream).cast("B")
    for start, words in _OTHERS.items():
        if data[: len(start)] == start:
            raise ValueError(f"expected an Arrow IPC stream, this is {words}")
    try:
        return _Stream(data).check()
    except (struct.error, UnicodeDecodeError, OverflowError):
        raise ValueError("not an Arrow IPC stream: its metadata is malformed") from None


class _Stream:
    """The state of looking through one stream."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._parts = self._values = self._batches = 0
        self._most_values = FREE_VALUES + 8 * len(data)

    def check(self) -> list[Column]:
        columns: list[Column] | None = None
        at = 0
        while at < len(self._data):
            message, at = self._message(at)
            if message is None:
                break
            kind, body = message.byte(1), message.long(3)
            if body < 0 or body > len(self._data) - at:
                raise ValueError(f"not a whole Arrow IPC stream: {len(self._data) - at} bytes of a body of {body}")
            at += body
            header = message.table(2)
            if header is None or (kind == _SCHEMA) != (columns is None):
                raise ValueError("not an Arrow IPC stream: a schema, then batches are expected")
            if columns is None:
                columns = _Schema(header).columns()
            elif kind in (_BATCH, _DICTIONARY):
                self._check_batch(header, body, is_dictionary=kind == _DICTIONARY)
            else:
                raise ValueError(f"not an Arrow IPC stream: a message of kind {kind}")
        if columns is None or at != len(self._data):
            raise ValueError("not an Arrow IPC stream: it has no schema, or bytes behind its end")
        return columns

    def _message(self, at: int) -> tuple[_Table | None, int]:
        """The metadata of the message that begins there, and where its body begins; None at the end of the stream."""
        if self._data[at : at + 4] != _CONTINUATION:
            raise ValueError("not an Arrow IPC stream: a message does not begin as it should")
        (size,) = struct.unpack_from("<i", self._data, at + 4)
        at += 8
        if size == 0:
            return None, at
        if size < 0 or size > len(self._data) - at:
            raise ValueError(f"not a whole Arrow IPC stream: {len(self._data) - at} bytes of metadata of {size}")
        return _Flatbuffer(self._data[at : at + size]).root(), at + size

    def _check_batch(self, header: _Table, body: int, *, is_dictionary: bool) -> None:
        self._batches += 1
        if self._batches > MAX_BATCHES:
            raise ValueError(f"an Arrow IPC stream of more than {MAX_BATCHES} batches; join them")
        if is_dictionary:
            if header.byte(2):
                raise ValueError("an Arrow IPC stream with deltas of dictionaries is not taken")
            inner = header.table(1)
            if inner is None:
                raise ValueError("not an Arrow IPC stream: a dictionary without values")
            header = inner
        if header.table(3) is not None:
            raise ValueError("an Arrow IPC stream with compressed buffers is not taken")
        rows = header.long(0)
        nodes, buffers = header.pairs(1), header.pairs(2)
        self._parts += len(nodes) + len(buffers)
        if self._parts > MAX_PARTS:
            raise ValueError(f"an Arrow IPC stream of more than {MAX_PARTS} columns and buffers in all its batches")
        if (
            (nodes < 0).any()
            or (nodes[:, 1] > nodes[:, 0]).any()
            or (buffers < 0).any()
            or (buffers > body).any()
            or (buffers.sum(axis=1) > body).any()
            or buffers[:, 1].sum() > body
        ):
            raise ValueError("not an Arrow IPC stream: a column or a buffer of it is not inside its message")
        # One by one: these may be numbers whose sum is over 64 bits.
        self._values += max(rows, sum(nodes[:, 0].tolist()))
        if rows < 0 or self._values > self._most_values:
            raise ValueError(
                f"an Arrow IPC stream of {self._values} values is too many for its {len(self._data)} bytes"
            )


class _Schema:
    """The columns of a schema, collected."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._found: list[Column] = []

    def columns(self) -> list[Column]:
        if self._table.byte(0):
            raise ValueError("an Arrow IPC stream of big-endian numbers is not taken")
        self._metadata(self._table, 2)
        for field in self._table.tables(1):
            self._collect(field, ())
        return self._found

    def _collect(self, field: _Table, above: tuple[str, ...]) -> None:
        path = (*above, field.text(0).decode())
        column = Column(path, self._metadata(field, 6))
        self._found.append(column)
        if len(self._found) > MAX_COLUMNS:
            raise ValueError(f"an Arrow IPC stream of more than {MAX_COLUMNS} columns")
        if len(path) > MAX_DEPTH:
            raise ValueError(f"an Arrow IPC stream with columns more than {MAX_DEPTH} deep")
        extension = column.metadata.get(_EXTENSION_NAME, b"").decode()
        if extension and extension not in EXTENSIONS:
            raise ValueError(
                f"column {column.name} has the extension type {shortened(extension)!r}, which is not taken: "
                "send its storage"
            )
        if field.byte(2) == _TIMESTAMP and (kind := field.table(3)) is not None:
            kind.text(1).decode()  # the time zone, which libraries trust to be text
        for child in field.tables(5):
            self._collect(child, path)

    def _metadata(self, table: _Table, slot: int) -> dict[bytes, bytes]:
        return {pair.text(0): pair.text(1) for pair in table.tables(slot)}


class _Flatbuffer:
    """The metadata of one message, in which nothing is trusted. Its methods raise struct.error for what is outside.

    What is read of it is counted: many tables may name the same ones as their parts.
    """

    __slots__ = ("_left", "data")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._left = 1024 + 4 * len(data)

    def root(self) -> _Table:
        """The table that it is."""
        return _Table(self, self.number("<I", 0))

    def number(self, form: str, at: int) -> int:
        if at < 0:  # which would count from the end
            raise struct.error
        number: int = struct.unpack_from(form, self.data, at)[0]
        return number

    def take(self, size: int) -> None:
        """So many bytes are to be read."""
        self._left -= size
        if self._left < 0:
            raise ValueError("not an Arrow IPC stream: parts of its metadata are used again and again")


class _Table:
    """A table of a flatbuffer; `slot` counts its fields in the order of the .fbs files."""

    __slots__ = ("_at", "_buffer", "_slots")

    def __init__(self, buffer: _Flatbuffer, at: int) -> None:
        buffer.take(8)
        self._buffer = buffer
        self._at = at
        where = at - buffer.number("<i", at)
        self._slots = (where + 4, (buffer.number("<H", where) - 4) // 2)

    def byte(self, slot: int) -> int:
        """A byte, or the low one of a short; 0 if it is not there."""
        at = self._field(slot)
        return self._buffer.number("<B", at) if at else 0

    def long(self, slot: int) -> int:
        at = self._field(slot)
        return self._buffer.number("<q", at) if at else 0

    def text(self, slot: int) -> bytes:
        start, count = self._vector(slot, 1)
        return bytes(self._buffer.data[start : start + count])

    def table(self, slot: int) -> _Table | None:
        at = self._field(slot)
        return _Table(self._buffer, at + self._buffer.number("<I", at)) if at else None

    def tables(self, slot: int) -> Iterator[_Table]:
        start, count = self._vector(slot, 4)
        for place in range(start, start + 4 * count, 4):
            yield _Table(self._buffer, place + self._buffer.number("<I", place))

    def pairs(self, slot: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A vector of structs of two longs, as an array of two columns."""
        start, count = self._vector(slot, 16)
        return np.frombuffer(self._buffer.data[start : start + 16 * count], "<i8").reshape(count, 2)

    def _vector(self, slot: int, item: int) -> tuple[int, int]:
        """Where the items begin, and how many there are; all are inside the buffer."""
        at = self._field(slot)
        if not at:
            return 0, 0
        at += self._buffer.number("<I", at)
        count = self._buffer.number("<I", at)
        self._buffer.take(count * item)
        if count * item > len(self._buffer.data) - at - 4:
            raise struct.error
        return at + 4, count

    def _field(self, slot: int) -> int:
        """Where the value of a field stands; 0 if it is not there."""
        first, count = self._slots
        offset = self._buffer.number("<H", first + 2 * slot) if slot < count else 0
        return self._at + offset if offset else 0
