"""Tables of pyarrow, polars and pandas as `{"$type": "arrow" or "polars" or "pandas", "kind", "data"}`.

The data is an Arrow IPC stream, and pyarrow converts: `from_pandas` and `to_pandas`, and what these keep is kept. What
comes in is looked at before it is read, since buffers may be compressed and one value may stand for many, and then
validated by pyarrow as a whole. Its memory is the received one. A library is imported with its first value or hint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ...errors import EncodeError
from .. import base64
from ..encoding import Encoding
from ..image_budget import DecodeElsewhere, ImageBudget, ImageLimits, reading
from ..payloads import Attachment
from ..rich_hint import TAG_KEY, base64_of, members, mismatch, optional_module, shortened, tagged_schema

#: The kinds of each tag: class -> kind.
KINDS = {
    "arrow": {"Table": "table", "RecordBatch": "batch"},
    "polars": {"DataFrame": "frame", "Series": "series"},
    "pandas": {"DataFrame": "frame", "Series": "series"},
}
MEDIA_TYPE = "application/vnd.apache.arrow.stream"

#: What a table counts for, and how many bytes of its stream count as one column (`image_budget.MAX_TABLE_WORK`).
_TABLE, _BYTES = 64, 4096
_NO_IMAGES = ImageLimits(0, 0)
#: Values of a column for which there need not be a byte each: nulls. There may be eight more for each byte.
_FREE_VALUES = 1_000_000
#: Bytes of a stream for each Python object that pandas makes of it.
_OBJECT_BYTES = 4
#: The name of a series without one, as a column.
_UNNAMED = "\0"


# -- to the wire ------------------------------------------------------------------------------------------------------


def encode_table(value: Any, encoding: Encoding) -> object:
    """The tagged object of a table, record batch, frame or series.

    Raises:
        EncodeError: Arrow has no form for a column, or a receiver would not take it; the text says why.
    """
    encoding.expect_payload()
    tag = _tag_of(type(value))
    kind = KINDS[tag].get(type(value).__name__)
    if kind is None:
        raise EncodeError(f"a {tag} {type(value).__name__} has no form on the wire: send a DataFrame or a Series")
    pa = optional_module("pyarrow", tag)
    try:
        table = arrow_of(value)
        _check_schema(table.schema)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write(table)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise EncodeError(f"a {tag} {kind} could not be encoded: {shortened(str(error), 300)}") from error
    return {TAG_KEY: tag, "kind": kind, "data": encoding.payload(memoryview(stream.getvalue()))}


def arrow_of(value: Any) -> Any:
    """The `pyarrow.Table` of a value of any of the classes."""
    import pyarrow as pa

    tag, is_series = _tag_of(type(value)), type(value).__name__ == "Series"
    if tag == "polars":
        import polars as pl

        frame = value.to_frame() if is_series else value
        if pl.Object in frame.dtypes:
            raise ValueError("a column of Python objects has no form in Arrow: cast it")
        # Not the newest level: its views of text may show the same bytes again and again.
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    if tag == "pandas":
        return pa.Table.from_pandas(
            value.to_frame(_UNNAMED if value.name is None else value.name) if is_series else value
        )
    return value if isinstance(value, pa.Table) else pa.Table.from_batches([value])


def _tag_of(cls: type) -> str:
    package = cls.__module__.partition(".")[0]
    return "arrow" if package == "pyarrow" else package


# -- from the wire ----------------------------------------------------------------------------------------------------


def decode_table(tagged: dict[str, Any], budget: ImageBudget | None = None) -> Any:
    """The value of a tagged object. ValueError if it is not what the wire page says."""
    tag = tagged[TAG_KEY]
    kind, data = members(tagged, "kind", "data")
    if kind not in KINDS[tag].values():
        raise ValueError(f"{tag}: kind must be {' or '.join(map(repr, KINDS[tag].values()))}")
    return _made(tag, kind, read_stream(data, budget))


def read_stream(payload: object, budget: ImageBudget | None = None) -> Any:
    """The `pyarrow.Table` of an Arrow IPC stream, over the memory of the stream.

    Args:
        payload: base64, or what stands in its place.
        budget: of the message; None: that which has begun, if one has.

    Raises:
        ValueError: it is no such stream, or one that is not taken, or what is in it is not valid.
        DecodeElsewhere: not in this thread.
    """
    budget = budget or reading.get() or ImageBudget(_NO_IMAGES)
    size = base64.decoded_size(payload)
    budget.take_table(_TABLE + size // _BYTES)
    pa = optional_module("pyarrow", "arrow")
    # The memory of an attachment is taken last: it is given out once, and this may be the first of two attempts.
    data: Any = payload.view() if isinstance(payload, Attachment) else base64.decode_writable(payload)
    try:
        _check_buffers(data)
        with pa.ipc.open_stream(data) as reader:
            budget.take_table(_check_schema(reader.schema))
        with pa.ipc.open_stream(payload.take() if isinstance(payload, Attachment) else data) as reader:
            table = reader.read_all()
        if table.num_rows * max(1, table.num_columns) > _FREE_VALUES + 8 * size:
            raise ValueError(f"{table.num_rows} rows are too many for its {size} bytes")
        table.validate(full=True)
    except DecodeElsewhere:
        raise
    except Exception as error:  # of many kinds
        raise ValueError(f"not an Arrow IPC stream that is taken: {shortened(str(error), 200)}") from None
    return table


def _check_buffers(data: Any) -> None:
    """Refuse a stream with compressed buffers, which may inflate without a bound (Message.fbs, `BodyCompression`)."""
    import pyarrow as pa

    messages = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type == "dictionary batch":
            batch = _flatbuffer_field(message.metadata, (2, 1))
        elif message.type == "record batch":
            batch = _flatbuffer_field(message.metadata, (2,))
        else:
            continue
        if batch is not None and _field_at(message.metadata, batch, 3):
            raise ValueError("its buffers are compressed: send them as they are")


def _flatbuffer_field(data: Any, slots: tuple[int, ...]) -> int | None:
    """Where the table stands that these slots lead to, from the root of a flatbuffer; None where there is none."""
    at = int.from_bytes(data[:4], "little")
    for slot in slots:
        found = _field_at(data, at, slot)
        if not found:
            return None
        (offset,) = struct.unpack_from("<I", data, found)
        at = found + int(offset)
    return at


def _field_at(data: Any, table: int, slot: int) -> int:
    """Where a field of a table stands; 0 where it has none."""
    (back,) = struct.unpack_from("<i", data, table)
    (length,) = struct.unpack_from("<H", data, table - back)
    if 4 + 2 * slot >= length:
        return 0
    (offset,) = struct.unpack_from("<H", data, table - back + 4 + 2 * slot)
    return table + offset if offset else 0


def _check_schema(schema: Any) -> int:
    """The number of columns at any depth. ValueError for types of which one value may stand for many."""
    count, types = 0, _arrow().types
    for field in schema:
        for kind, depth in _types_in(field, 0):
            count += 1
            text = str(kind)
            if "_view" in text.partition("<")[0] or types.is_run_end_encoded(kind) or types.is_union(kind):
                raise ValueError(f"a column of type {shortened(text)} is not taken: cast it")
            if depth and (types.is_dictionary(kind) or types.is_null(kind)):
                raise ValueError(f"{shortened(text)} inside of another type is not taken: cast it")
    return count


def _types_in(field: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """The type of a field, and those inside of it, each with its depth. UnicodeDecodeError if a name is no UTF-8."""
    kind = field.type
    _ = field.name
    yield kind, depth
    storage = getattr(kind, "storage_type", kind)
    for number in range(storage.num_fields):
        yield from _types_in(storage.field(number), depth + 1)


def _made(tag: str, kind: str, table: Any) -> Any:
    """The value of a tag and a kind. ValueError if the table is none."""
    if kind == "table":
        return table
    if kind == "batch":
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else _empty_batch(table.schema)
    if kind == "series" and table.num_columns < 1:
        raise ValueError(f"{tag}: a series is one column")
    if tag == "pandas":
        return _pandas(table, kind)
    pl = optional_module("polars", "polars")
    try:
        # Without the metadata of its fields, by which polars ends the process where they are not its own.
        plain = table.cast(_arrow().schema([field.remove_metadata() for field in table.schema]))
        frame: Any = pl.from_arrow(plain, rechunk=False)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"polars cannot read this Arrow IPC stream: {shortened(str(error), 200)}") from None
    return frame if kind == "frame" else frame.to_series()


def _arrow() -> Any:
    import pyarrow

    return pyarrow


def _empty_batch(schema: Any) -> Any:
    return _arrow().RecordBatch.from_pylist([], schema=schema)


def _pandas(table: Any, kind: str) -> Any:
    optional_module("pandas", "pandas")
    objects = sum(_objects_in(chunk, is_outer=True) for column in table.columns for chunk in column.chunks)
    if objects > _FREE_VALUES // 100 + table.get_total_buffer_size() // _OBJECT_BYTES:
        raise ValueError(f"pandas: {objects} objects are too many for the bytes of the stream: use types of Arrow")
    try:
        frame = table.to_pandas()
    except Exception as error:  # of many kinds, for metadata that pandas has not written
        raise ValueError(f"pandas: {shortened(f'{type(error).__name__}: {error}', 200)}") from None
    if kind == "frame":
        return frame
    series = frame.iloc[:, 0]
    return series.rename(None) if series.name == _UNNAMED else series


def _objects_in(array: Any, *, is_outer: bool = False) -> int:
    """The number of Python objects that pandas makes of a column, at most."""
    types, kind = _arrow().types, array.type
    if is_outer and (types.is_primitive(kind) or types.is_dictionary(kind) or types.is_null(kind)):
        return 0
    inside = 0
    if types.is_struct(kind):
        inside = sum(map(_objects_in, array.flatten()))
    elif types.is_map(kind):
        inside = _objects_in(array.keys) + _objects_in(array.items)
    elif hasattr(array, "values"):  # lists of all sorts
        inside = _objects_in(array.values)
    return len(array) + inside


# -- hints ------------------------------------------------------------------------------------------------------------


class TableHint:
    """The hints for tables, record batches, frames and series. All but series take each other's tagged objects.

    The plain base64 of an Arrow IPC stream is taken too.
    """

    takes_budget = True

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._tag = _tag_of(cls)
        self._kind = KINDS[self._tag][cls.__name__]
        package = cls.__module__.partition(".")[0]
        self.name = f"{package}.{cls.__name__}"
        self.component = f"{package}_{cls.__name__}"

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and (tag := value.get(TAG_KEY)) in KINDS:
            kind, data = members(value, "kind", "data")
            if "series" in (kind, self._kind) and (kind, tag) != (self._kind, self._tag):
                raise ValueError(f"Expected `{self.name}`, got `{tag} {shortened(str(kind))}`")
            return _made(self._tag, self._kind, read_stream(data))
        if isinstance(value, str | Attachment) and self._kind != "series":
            return _made(self._tag, self._kind, read_stream(value))
        return self.accept(value)

    def accept(self, value: object) -> object:
        if isinstance(value, self._cls):
            return value
        tag = _tag_of(type(value))
        if self._kind != "series" and KINDS.get(tag, {}).get(type(value).__name__, "series") != "series":
            return _made(self._tag, self._kind, arrow_of(value))
        raise mismatch(self.name, value)

    def schema(self) -> dict[str, Any]:
        tagged = tagged_schema(self._tag, {"kind": {"const": self._kind}, "data": base64_of(MEDIA_TYPE)})
        if self._kind == "series":
            return tagged
        return {"anyOf": [tagged, base64_of(MEDIA_TYPE, "an Arrow IPC stream")]}
