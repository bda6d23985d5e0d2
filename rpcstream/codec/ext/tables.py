"""Tables of pyarrow, frames of polars and pandas as `{"$type": "arrow" or "polars" or "pandas", "data"}`.

The data is an Arrow IPC stream, and pyarrow converts: `from_pandas` and `to_pandas`, and what these keep is kept. What
comes in is looked at before it is read, since buffers may be compressed and one value may stand for many, and then
validated by pyarrow as a whole. Its memory is the received one. A library is imported with its first value or hint.
"""

from __future__ import annotations

import struct
from typing import Any

from ...errors import EncodeError, MessageTooLarge
from ..attachments import Attachment
from ..binary import payload_size, writable_bytes
from ..codec import DecodeElsewhere, Encoding, Reading
from ..rich_hint import TAG_KEY, base64_of, members, mismatch, optional_module, shortened, tagged_schema

_TAGS = ("arrow", "polars", "pandas")
_MEDIA_TYPE = "application/vnd.apache.arrow.stream"

#: How many values a table counts for, besides its columns (`reading.MAX_CHECKED`); and for how much work a column does.
_TABLE, _COLUMN = 64, 256
#: Values of a column for which there need not be a byte each: nulls. There may be eight more for each byte.
_FREE_VALUES = 1_000_000
#: Bytes of a stream for each Python object that pandas makes of it.
_OBJECT_BYTES = 4


# -- to the wire ------------------------------------------------------------------------------------------------------


def encode_table(value: Any, encoding: Encoding) -> object:
    """The tagged object of a table or a frame.

    Raises:
        EncodeError: Arrow has no form for a column, or a receiver would not take it; the text says why.
    """
    tag = _tag_of(type(value))
    pa = optional_module("pyarrow", tag)
    try:
        table = _arrow_of(value)
        for field in table.schema:
            _check_column(field)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write(table)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise EncodeError(f"a table of {tag} could not be encoded: {shortened(str(error), 300)}") from error
    return {TAG_KEY: tag, "data": encoding.payload(memoryview(stream.getvalue()))}


def _arrow_of(value: Any) -> Any:
    """The `pyarrow.Table` of a value of any of the classes."""
    import pyarrow as pa

    tag = _tag_of(type(value))
    if tag == "polars":
        import polars as pl

        if pl.Object in value.dtypes:
            raise ValueError("a column of Python objects has no form in Arrow: cast it")
        # Not the newest level: its views of text may show the same bytes again and again.
        return value.to_arrow(compat_level=pl.CompatLevel.oldest())
    return pa.Table.from_pandas(value) if tag == "pandas" else value


def _tag_of(cls: type) -> str:
    package = cls.__module__.partition(".")[0]
    return "arrow" if package == "pyarrow" else package


# -- from the wire ----------------------------------------------------------------------------------------------------


def decode_table(tagged: dict[str, Any], reading: Reading) -> Any:
    """The value of a tagged object. ValueError if it is not what the wire page says."""
    (data,) = members(tagged, "data")
    return _made(tagged[TAG_KEY], _read_stream(data, reading))


def _read_stream(payload: object, reading: Reading) -> Any:
    """The `pyarrow.Table` of an Arrow IPC stream, over the memory of the stream.

    Raises:
        ValueError: it is no such stream, or one that is not accepted, or what is in it is not valid.
        DecodeElsewhere: not in this thread.
    """
    size = payload_size(payload)
    reading.take_values(_TABLE)
    reading.spend(_TABLE * _COLUMN + size, 0)
    pa = optional_module("pyarrow", "arrow")
    # The memory of an attachment is taken last: it is given out once, and this may be the first of two attempts.
    data: Any = payload.view() if isinstance(payload, Attachment) else writable_bytes(payload)
    try:
        for message in pa.ipc.MessageReader.open_stream(data):
            if message.type in _BATCHES and _is_compressed(message):
                raise ValueError("its buffers are compressed: send them uncompressed")
        with pa.ipc.open_stream(data) as reader:
            columns = sum(map(_check_column, reader.schema))
        reading.take_values(columns)
        reading.spend(columns * _COLUMN, 0)
        with pa.ipc.open_stream(payload.take() if isinstance(payload, Attachment) else data) as reader:
            table = reader.read_all()
        if table.num_rows * max(1, table.num_columns) > _FREE_VALUES + 8 * size:
            raise ValueError(f"{table.num_rows} rows are too many for its {size} bytes")
        table.validate(full=True)
    except (DecodeElsewhere, MessageTooLarge):
        raise
    except Exception as error:  # of many kinds
        raise ValueError(f"cannot read the Arrow IPC stream: {shortened(str(error), 200)}") from None
    return table


#: Where the record batch stands in the metadata of a message, as the fields that lead to it (Message.fbs).
_BATCHES = {"record batch": (2,), "dictionary batch": (2, 1)}


def _is_compressed(message: Any) -> bool:
    """Whether the buffers of a batch are compressed, and so may inflate without a bound (`BodyCompression`)."""
    data = message.metadata
    at = int.from_bytes(data[:4], "little")
    for slot in _BATCHES[message.type]:
        field = _field_at(data, at, slot)
        at = field + int(struct.unpack_from("<I", data, field)[0])
    return _field_at(data, at, 3) != 0


def _field_at(data: Any, table: int, slot: int) -> int:
    """Where a field of a table in a flatbuffer stands; 0 where it has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    (length,) = struct.unpack_from("<H", data, fields)
    if 4 + 2 * slot >= length:
        return 0
    (offset,) = struct.unpack_from("<H", data, fields + 4 + 2 * slot)
    return table + int(offset) if offset else 0


def _check_column(field: Any, depth: int = 0) -> int:
    """The number of columns in one. ValueError for types of which one value may stand for many, and for its name."""
    import pyarrow as pa

    kind = field.type
    text = f"{kind} {field.name}"  # UnicodeDecodeError if the name is no UTF-8
    is_refused = "_view" in text.partition("<")[0] or pa.types.is_run_end_encoded(kind) or pa.types.is_union(kind)
    if is_refused or (depth and (pa.types.is_dictionary(kind) or pa.types.is_null(kind))):
        where = " inside of another type" if depth else ""
        raise ValueError(f"a column of type {shortened(str(kind))} is not accepted{where}: cast it")
    storage = getattr(kind, "storage_type", kind)
    return 1 + sum(_check_column(storage.field(number), depth + 1) for number in range(storage.num_fields))


def _made(tag: str, table: Any) -> Any:
    """The value of a tag. ValueError if the table is none."""
    if tag == "arrow":
        return table
    optional_module(tag, tag)
    try:
        return _pandas(table) if tag == "pandas" else _polars(table)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of polars
            raise
        raise ValueError(f"{tag} cannot read this Arrow IPC stream: {shortened(str(error), 200)}") from None


def _polars(table: Any) -> Any:
    import polars as pl
    import pyarrow as pa

    # Without the metadata of its fields, by which polars ends the process where they are not its own.
    plain = table.cast(pa.schema([field.remove_metadata() for field in table.schema]))
    return pl.from_arrow(plain, rechunk=False)


def _pandas(table: Any) -> Any:
    objects = sum(_objects_in(chunk, is_outer=True) for column in table.columns for chunk in column.chunks)
    if objects > _FREE_VALUES // 100 + table.get_total_buffer_size() // _OBJECT_BYTES:
        raise ValueError(f"{objects} objects are too many for the bytes of the stream: use Arrow types")
    return table.to_pandas()


def _objects_in(array: Any, *, is_outer: bool = False) -> int:
    """The number of Python objects that pandas makes of a column, at most."""
    from pyarrow import types

    kind = array.type
    if is_outer and (types.is_primitive(kind) or types.is_dictionary(kind) or types.is_null(kind)):
        return 0
    inside: list[Any] = []
    if types.is_struct(kind):
        inside = array.flatten()
    elif types.is_map(kind):
        inside = [array.keys, array.items]
    elif hasattr(array, "values"):  # lists of all sorts
        inside = [array.values]
    return len(array) + sum(map(_objects_in, inside))


# -- hints ------------------------------------------------------------------------------------------------------------


class TableHint:
    """The hints for tables and frames, each of which takes those of the other libraries as well.

    The plain base64 of an Arrow IPC stream is taken too.
    """

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._tag = _tag_of(cls)
        package = cls.__module__.partition(".")[0]
        self.name = f"{package}.{cls.__name__}"
        self.component = f"{package}_{cls.__name__}"

    def decode(self, value: object, reading: Reading) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) in _TAGS:
            (value,) = members(value, "data")
        elif not isinstance(value, str | Attachment):
            return self.accept(value)
        return _made(self._tag, _read_stream(value, reading))

    def accept(self, value: object) -> object:
        if isinstance(value, self._cls):
            return value
        if _tag_of(type(value)) not in _TAGS or type(value).__name__ not in ("Table", "DataFrame"):
            raise mismatch(self.name, value)
        return _made(self._tag, _arrow_of(value))

    def schema(self) -> dict[str, Any]:
        data = base64_of(_MEDIA_TYPE)
        return {"anyOf": [tagged_schema(self._tag, {"data": data}), base64_of(_MEDIA_TYPE, "an Arrow IPC stream")]}
