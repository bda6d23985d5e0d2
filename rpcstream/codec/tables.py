"""Tables of Arrow and frames of polars: `{"$type": "arrow" or "polars", "kind", "data"}`, data an Arrow IPC stream.

Owns both tags, their hints, and how a stream is written and read: looked through by `arrow_stream`, then read in place
and validated by pyarrow, also for polars, whose own reader ends the process over some wrong sizes. The memory of what
comes in is the received one. Imports a library with the first value of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import EncodeError
from . import base64
from .arrow_stream import FREE_VALUES, MEDIA_TYPE, Column, check_stream
from .encoding import Encoding
from .image_budget import ImageBudget, ImageLimits, reading
from .payloads import Attachment
from .rich_hint import TAG_KEY, base64_of, members, mismatch, optional_module, shortened, tagged_schema

ARROW, POLARS = "arrow", "polars"

#: What a table counts for, and how many bytes of its stream count as one column (`image_budget.MAX_TABLE_WORK`).
_TABLE, _BYTES = 64, 4096
_NO_IMAGES = ImageLimits(0, 0)
#: Batches that a table is sent in; more are joined first. (Each takes some hundred bytes for each column.)
_MOST_BATCHES = 64
#: What polars writes beside columns of categories, and the parts of it: their length, a semicolon, so many bytes.
_CATEGORICAL, _ENUM = b"_PL_CATEGORICAL2", b"_PL_ENUM_VALUES2"
_OLDER = (b"_PL_CATEGORICAL", b"_PL_ENUM_VALUES")


# -- streams ----------------------------------------------------------------------------------------------------------


def write_stream(value: Any) -> memoryview:
    """A `pyarrow.Table` or `RecordBatch` as an Arrow IPC stream.

    Raises:
        EncodeError: a receiver would not take it; the text says why.
    """
    import pyarrow as pa

    if isinstance(value, pa.Table):
        if max((column.num_chunks for column in value.columns), default=0) > _MOST_BATCHES:
            value = value.combine_chunks()
        _check_views(value, EncodeError)
    # Once for its size: a buffer that grows is copied again and again.
    size = pa.MockOutputStream()
    _write(size, value)
    buffer = pa.allocate_buffer(size.size())
    _write(pa.FixedSizeBufferWriter(buffer), value)
    data = memoryview(buffer).cast("B")
    try:
        check_stream(data)
    except ValueError as error:
        raise EncodeError(str(error)) from None
    return data


def _write(sink: Any, value: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, value.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write(value)


def read_stream(payload: object, budget: ImageBudget | None = None) -> tuple[Any, list[Column]]:
    """The `pyarrow.Table` of an Arrow IPC stream, over the memory of the stream, and its columns.

    Args:
        payload: base64, or what stands in its place.
        budget: of the message; None: that which has begun, if one has.

    Raises:
        ValueError: it is no such stream, or one that is not taken, or what is in it is not valid.
        DecodeElsewhere: not in this thread.
    """
    budget = budget or reading.get() or ImageBudget(_NO_IMAGES)
    budget.take_table(_TABLE + base64.decoded_size(payload) // _BYTES)
    # The memory of an attachment is taken last: it is given out once, and this may be the first of two attempts.
    data: Any = payload.view() if isinstance(payload, Attachment) else base64.decode_writable(payload)
    columns = check_stream(data)
    budget.take_table(len(columns))
    if isinstance(payload, Attachment):
        data = payload.take()
    pa = optional_module("pyarrow", "arrow")
    try:
        with pa.ipc.open_stream(pa.py_buffer(data), options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            table = reader.read_all()
        table.validate()
        _check_views(table, ValueError)
        table.validate(full=True)
    except Exception as error:
        raise ValueError(f"not a valid Arrow IPC stream: {shortened(str(error), 200)}") from None
    return table, columns


def _check_views(table: Any, refusal: type[Exception]) -> None:
    """Refuse views that show the same bytes again and again: to look at each text would take no end of time.

    Raises:
        Exception: of the given class.
    """
    seen = 0
    for column in table.columns:
        if "_view" in str(column.type):
            for chunk in column.chunks:
                seen += sum(map(_shown, _within(chunk)))
    if seen > FREE_VALUES + 16 * table.get_total_buffer_size():
        raise refusal("the views of a column show the same values again and again; cast it to string, binary or list")


def _within(array: Any) -> Iterator[Any]:
    """An array, and those inside of it."""
    import pyarrow as pa

    yield array
    kind = array.type
    inside: list[Any] = []
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        inside = [array.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_dictionary(kind):
        inside = [array.dictionary]
    elif isinstance(kind, pa.BaseExtensionType):
        inside = [array.storage]
    elif pa.types.is_map(kind):
        inside = [array.keys, array.items]
    elif hasattr(array, "values"):  # lists of all sorts, and run-end encoded
        inside = [array.values]
    for each in inside:
        yield from _within(each)


def _shown(array: Any) -> int:
    """Bytes, or items, that the views of an array show; 0 for an array of another type."""
    import pyarrow as pa

    kind, buffers, begin = array.type, array.buffers(), array.offset
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        sizes: Any = np.frombuffer(buffers[1], np.int32)[4 * begin :: 4][: len(array)]
    elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        wide = pa.types.is_large_list_view(kind)
        sizes = np.frombuffer(buffers[2], np.int64 if wide else np.int32)[begin : begin + len(array)]
    else:
        return 0
    return int(sizes.sum(dtype=np.float64))


# -- Arrow ------------------------------------------------------------------------------------------------------------


def encode_arrow(value: Any, encoding: Encoding) -> object:
    """The tagged object of a `pyarrow.Table` (its chunks need not be kept) or `RecordBatch`.

    Raises:
        EncodeError: a column has an extension type, or there are too many columns.
    """
    encoding.expect_payload()
    kind = "table" if type(value).__name__ == "Table" else "batch"
    return {TAG_KEY: ARROW, "kind": kind, "data": encoding.payload(write_stream(value))}


def decode_arrow(tagged: dict[str, Any], budget: ImageBudget | None = None) -> Any:
    """The table or batch of a tagged object. ValueError if it is not what the wire page says."""
    kind, data = members(tagged, "kind", "data")
    if kind not in ("table", "batch"):
        raise ValueError("arrow: kind must be 'table' or 'batch'")
    table, _ = read_stream(data, budget)
    return table if kind == "table" else _single_batch(table)


def _single_batch(table: Any) -> Any:
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        import pyarrow as pa

        return pa.RecordBatch.from_pylist([], schema=table.schema)
    raise ValueError(f"arrow: one batch is expected, there are {len(batches)}")


# -- polars -----------------------------------------------------------------------------------------------------------


def encode_polars(value: Any, encoding: Encoding) -> object:
    """The tagged object of a `polars.DataFrame`, or of a `polars.Series` as a frame of one column.

    Raises:
        EncodeError: a column has a dtype that Arrow has no form for.
    """
    import polars as pl

    optional_module("pyarrow", "polars")
    encoding.expect_payload()
    is_frame = isinstance(value, pl.DataFrame)
    frame = value if is_frame else value.to_frame()
    for name, dtype in frame.schema.items():
        _check_polars_dtype(name, dtype)
    # Not the newest level: its views of text may show the same bytes again and again, and not every reader knows them.
    # And not by polars' own writer, which takes many times as long.
    stream = write_stream(frame.to_arrow(compat_level=pl.CompatLevel.oldest()))
    return {TAG_KEY: POLARS, "kind": "frame" if is_frame else "series", "data": encoding.payload(stream)}


def _check_polars_dtype(name: str, dtype: Any) -> None:
    import polars as pl

    refused = [getattr(pl, each) for each in ("Object", "Int128", "UInt128", "BaseExtension") if hasattr(pl, each)]
    if isinstance(dtype, tuple(refused)) or (isinstance(dtype, pl.Array) and 0 in dtype.shape):
        raise EncodeError(f"column {shortened(name)!r} of dtype {dtype} has no form on the wire: cast it")
    if "\0" in name:  # where names end when they go from one library to the other
        raise EncodeError(f"the name {shortened(name)!r} with a NUL has no form on the wire")
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            _check_polars_dtype(field.name, field.dtype)
    elif (inner := getattr(dtype, "inner", None)) is not None:
        _check_polars_dtype(name, inner)


def decode_polars(tagged: dict[str, Any], budget: ImageBudget | None = None) -> Any:
    """The frame or series of a tagged object. ValueError if it is not what the wire page says."""
    kind, data = members(tagged, "kind", "data")
    if kind not in ("frame", "series"):
        raise ValueError("polars: kind must be 'frame' or 'series'")
    frame = _polars_frame(*read_stream(data, budget))
    if kind == "frame":
        return frame
    if frame.width != 1:
        raise ValueError(f"polars: a series is one column, there are {frame.width}")
    return frame.to_series()


def _polars_frame(table: Any, columns: list[Column]) -> Any:
    pl = optional_module("polars", "polars")
    for column in columns:
        _check_categories(column)
        if "\0" in column.path[-1]:
            raise ValueError(f"polars: the name {column.name} has a NUL")
    try:
        frame: Any = pl.from_arrow(table, rechunk=False)
        if "" in table.column_names:  # for which polars makes up a name
            frame.columns = table.column_names
        return frame
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"polars cannot read this Arrow IPC stream: {shortened(str(error), 200)}") from None


def _check_categories(column: Column) -> None:
    """Refuse what polars would not have written beside a column: it stops at that, and prints it."""
    metadata = column.metadata
    try:
        for each in (*metadata, *metadata.values()):
            each.decode()
        if any(key in metadata for key in _OLDER):
            raise ValueError
        if _ENUM in metadata:
            rest = metadata[_ENUM]
            while rest:
                rest = _text_cut_off(rest)
        if _CATEGORICAL in metadata and _text_cut_off(_text_cut_off(metadata[_CATEGORICAL])) not in _PHYSICAL:
            raise ValueError
    except ValueError:
        raise ValueError(f"polars: the metadata of column {column.name} is malformed") from None


_PHYSICAL = (b"u8;", b"u16;", b"u32;")


def _text_cut_off(data: bytes) -> bytes:
    """What stands behind `LENGTH;TEXT`. ValueError if it does not begin so."""
    size, semicolon, rest = data.partition(b";")
    if not semicolon or not size.isdigit() or len(size) > 10 or int(size) > len(rest):
        raise ValueError
    rest[: int(size)].decode()
    return rest[int(size) :]


# -- both -------------------------------------------------------------------------------------------------------------


def table_of(value: Any) -> Any:
    """The `pyarrow.Table` of what may stand for one: tagged objects of both tags, base64 of a stream, decoded values.

    Returns:
        None where the value is something else.

    Raises:
        ValueError: it should be one, and is wrong.
    """
    if isinstance(value, dict) and value.get(TAG_KEY) in (ARROW, POLARS):
        kind, data = members(value, "kind", "data")
        return read_stream(data)[0] if kind in ("table", "batch", "frame") else None
    if isinstance(value, str | Attachment):
        return read_stream(value)[0]
    name = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    if name == "polars.DataFrame":
        return value.to_arrow()
    if name == "pyarrow.RecordBatch":
        import pyarrow as pa

        return pa.Table.from_batches([value])
    return value if name == "pyarrow.Table" else None


# -- hints ------------------------------------------------------------------------------------------------------------


class TableHint:
    """The hints `pa.Table`, `pa.RecordBatch`, `pl.DataFrame` and `pl.Series`.

    Tables and frames take each other's tagged objects, and the plain base64 of an Arrow IPC stream.
    """

    takes_budget = True

    def __init__(self, cls: type) -> None:
        self._cls = cls
        package = cls.__module__.partition(".")[0]
        self._kind = {"Table": "table", "RecordBatch": "batch", "DataFrame": "frame", "Series": "series"}[cls.__name__]
        self._tag = ARROW if package == "pyarrow" else POLARS
        self.name = f"{package}.{cls.__name__}"
        self.component = f"{package}_{cls.__name__}"

    def decode(self, value: object) -> object:
        if isinstance(value, self._cls):
            return value
        if isinstance(value, dict) and value.get(TAG_KEY) == self._tag and value.get("kind") == self._kind:
            return decode_arrow(value) if self._tag == ARROW else decode_polars(value)
        if self._kind == "series":
            raise mismatch(self.name, value)
        if isinstance(value, dict) and value.get(TAG_KEY) in (ARROW, POLARS):
            kind, data = members(value, "kind", "data")
            if kind not in _CONVERTED.get(self._kind, ()):
                raise ValueError(f"Expected `{self.name}`, got `{value[TAG_KEY]} {shortened(str(kind))}`")
            return self._from_stream(data)
        if isinstance(value, str | Attachment):
            return self._from_stream(value)
        return self._converted(value)

    def accept(self, value: object) -> object:
        return value if isinstance(value, self._cls) else self._converted(value)

    def schema(self) -> dict[str, Any]:
        kind = {"const": self._kind}
        tagged = tagged_schema(self._tag, {"kind": kind, "data": base64_of(MEDIA_TYPE)})
        if self._kind == "series":
            return tagged
        return {"anyOf": [tagged, base64_of(MEDIA_TYPE, "an Arrow IPC stream")]}

    def _from_stream(self, payload: object) -> Any:
        table, columns = read_stream(payload)
        if self._kind == "frame":
            return _polars_frame(table, columns)
        return table if self._kind == "table" else _single_batch(table)

    def _converted(self, value: object) -> object:
        """A value of the other library that was decoded before, as a result at a client is."""
        name = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
        if self._kind == "frame" and name in ("pyarrow.Table", "pyarrow.RecordBatch"):
            import pyarrow as pa

            table: Any = value if isinstance(value, pa.Table) else pa.Table.from_batches([value])
            return _polars_frame(table, check_stream(write_stream(table.slice(0, 0))))
        if self._kind == "table" and name == "polars.DataFrame":
            frame: Any = value
            return frame.to_arrow()
        raise mismatch(self.name, value)


#: Kinds that a hint takes besides its own.
_CONVERTED = {"table": ("frame",), "frame": ("table", "batch")}
