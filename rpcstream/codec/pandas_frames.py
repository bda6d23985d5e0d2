"""Frames, series and indexes of pandas as `{"$type": "pandas", "kind", ..., "data"}`, data being an Arrow IPC stream.

Its columns are the columns of the frame by position, then those of its index; labels, dtypes and what else Arrow has no
word for stand beside it in JSON. Tables of Arrow and polars are taken where a hint wants a frame. Owns the tag and the
hints; columns are `pandas_columns`'s. Imports pandas and pyarrow with the first value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import EncodeError
from . import base64
from .arrow_stream import FREE_VALUES, MEDIA_TYPE
from .encoding import Encoding
from .image_budget import DecodeElsewhere, ImageBudget, reading
from .pandas_columns import dictionary, frequency, from_arrow, from_dictionary, range_index, set_frequency, to_arrow
from .pandas_objects import OBJECT_BYTES, objects_in
from .rich_hint import TAG_KEY, base64_of, described, mismatch, optional_module, shortened, type_name
from .tables import read_stream, table_of, write_stream

TAG = "pandas"

#: So many objects count as one column (`image_budget.MAX_TABLE_WORK`).
_OBJECTS = 256
#: The members of a tagged object of each kind, besides `attrs`.
_MEMBERS: dict[str, tuple[str, ...]] = {
    "frame": ("columns", "dtypes", "index", "data"),
    "series": ("name", "dtype", "index", "data"),
    "index": ("index", "data"),
}


# -- to the wire ------------------------------------------------------------------------------------------------------


def encode_pandas(value: Any, encoding: Encoding) -> object:
    """The tagged object of a frame, a series or an index.

    Raises:
        EncodeError: a column, a label or the index has no form on the wire; the text says which and why. Or the value
            is of a subclass of another library's.
    """
    import pandas as pd

    optional_module("pyarrow", "pandas")
    encoding.expect_payload()
    columns = _Columns()
    if isinstance(value, pd.Index):
        tagged: dict[str, Any] = {"kind": "index", "index": columns.add_index(value)}
    elif type(value) is pd.Series:
        dtype = columns.add(value, value.name)
        tagged = {"kind": "series", "name": _name(value.name), "dtype": dtype, "index": columns.add_index(value.index)}
    elif type(value) is pd.DataFrame:
        dtypes = [columns.add(value.iloc[:, at], label) for at, label in enumerate(value.columns)]
        index = columns.add_index(value.index)
        tagged = {"kind": "frame", "columns": _labels(value.columns, encoding), "dtypes": dtypes, "index": index}
    else:
        raise EncodeError(f"a {type_name(type(value))} has no form on the wire: send a DataFrame, or register the type")
    if tagged["kind"] != "index" and value.attrs:
        if not _is_plain(value.attrs):
            raise EncodeError("its attrs are not plain JSON data")
        tagged["attrs"] = value.attrs
    stream = columns.stream(len(value))
    return {TAG_KEY: TAG, **tagged, "data": encoding.payload(stream)}


class _Columns:
    """The columns of a stream that is written, in their order."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []
        self._objects = 0
        self._names: list[str] = []

    def add(self, column: Any, label: Any, place: str = "") -> Any:
        """The description of a column.

        Args:
            place: what it is called in an error; else by its label.
        """
        return self._added(label, place or f"column {shortened(repr(label))}", to_arrow, column)

    def add_index(self, index: Any) -> dict[str, Any]:
        """The description of an index."""
        import pandas as pd

        if type(index).__module__.partition(".")[0] != "pandas":
            raise EncodeError(f"a {type_name(type(index))} has no form on the wire")
        if isinstance(index, pd.RangeIndex):
            return {"range": [index.start, index.stop, index.step], "name": _name(index.name)}
        if isinstance(index, pd.MultiIndex):
            return {
                "levels": [
                    self._added(name, f"level {at} of the index", dictionary, index.codes[at], index.levels[at])
                    for at, name in enumerate(index.names)
                ],
                "names": [_name(name) for name in index.names],
            }
        description = {"dtype": self.add(index, index.name, "the index"), "name": _name(index.name)}
        if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) and index.freq is not None:
            description["freq"] = frequency(index)
        return description

    def _added(self, label: Any, place: str, convert: Callable[..., tuple[Any, Any]], *parts: Any) -> Any:
        try:
            array, description = convert(*parts)
        except (EncodeError, ValueError, TypeError, OverflowError, NotImplementedError) as error:
            raise EncodeError(f"{place}: {error}") from error
        self._arrays.append(array)
        self._objects += objects_in(array, description)
        # For those who read the stream by itself; here columns are known by their position.
        self._names.append(str(label).encode("utf-8", "replace").decode() if label is not None else "")
        return description

    def stream(self, rows: int) -> memoryview:
        """All columns, each of so many rows."""
        pa = optional_module("pyarrow", "pandas")
        if not self._arrays and rows > FREE_VALUES:
            raise EncodeError(f"{rows} rows without a column have no form on the wire")
        # Not as a table, which without rows would leave out categories.
        stream = write_stream(pa.RecordBatch.from_arrays(self._arrays, names=self._names))
        if self._objects > len(stream) // OBJECT_BYTES:
            raise EncodeError(
                f"{self._objects} objects are too many for {len(stream)} bytes: give their columns dtypes"
            )
        return stream


def _labels(columns: Any, encoding: Encoding) -> Any:
    """The labels of columns: text as it is, if all of it is; else an index as such."""
    import pandas as pd

    if isinstance(columns, pd.RangeIndex):
        return _Columns().add_index(columns)
    labels = columns.tolist()
    is_text = isinstance(columns.dtype, pd.StringDtype) and all(type(label) is str for label in labels)
    if is_text or (columns.nlevels == 1 and columns.dtype == object):
        _, description = to_arrow(columns[:0])
        return {"labels": list(map(_name, labels)), "dtype": description, "name": _name(columns.name)}
    return encode_pandas(columns, encoding)


def _name(name: Any) -> Any:
    """A name in JSON: of a series, or of an index."""
    if name is None or type(name) in (str, bool, int):
        return name
    if isinstance(name, np.integer | np.bool_):
        return name.item()
    if isinstance(name, float) and math.isfinite(name):
        return float(name)
    if type(name) is tuple:
        return [_name(each) for each in name]
    if type(name).__module__.partition(".")[0] == "pandas":
        return _one_label(name)
    raise EncodeError(f"the name {shortened(repr(name))} has no form on the wire: use a string")


def _one_label(name: Any) -> Any:
    """A date or the like, as the only value of an index."""
    import pandas as pd

    columns = _Columns()
    description = columns.add_index(pd.Index([name]))
    return {"index": description, "data": base64.encode_text(columns.stream(1))}


def _is_plain(value: Any) -> bool:
    """True for data that JSON gives back as it is."""
    if type(value) is dict:
        return all(type(key) is str and key != TAG_KEY and _is_plain(member) for key, member in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value))


# -- from the wire ----------------------------------------------------------------------------------------------------


def decode_pandas(tagged: dict[str, Any], budget: ImageBudget | None = None) -> Any:
    """The frame, series or index of a tagged object. ValueError if it is not what the wire page says."""
    kind = tagged.get("kind")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise ValueError("pandas: kind must be 'frame', 'series' or 'index'")
    found = tagged.keys() - {TAG_KEY, "kind"} - ({"attrs"} if kind != "index" else set())
    if wrong := found ^ set(_MEMBERS[kind]):
        names = ", ".join(shortened(name) for name in sorted(wrong)[:3])
        raise ValueError(f"pandas: a {kind} misses these members, or must not have them: {names}")
    attrs = tagged.get("attrs", {})
    if not isinstance(attrs, dict):
        raise ValueError("pandas: attrs must be an object")
    optional_module("pandas", "pandas")
    try:
        value = _READERS[kind](tagged, _Stream(tagged["data"], budget))
    except (ValueError, RecursionError, DecodeElsewhere):
        raise
    except Exception as error:
        raise ValueError(f"pandas: {shortened(f'{type(error).__name__}: {error}', 200)}") from None
    if attrs:
        value.attrs = attrs
    return value


class _Stream:
    """The columns of a stream that is read, in their order."""

    def __init__(self, data: object, budget: ImageBudget | None) -> None:
        self.budget = budget or reading.get()
        table, _ = read_stream(data, self.budget)
        if any(column.num_chunks > 1 for column in table.columns):
            raise ValueError("pandas: the stream must have one batch")
        self._columns = iter(
            [column.chunk(0) if column.num_chunks else column.combine_chunks() for column in table.columns]
        )
        self._objects_left = base64.decoded_size(data) // OBJECT_BYTES
        #: None where there is no column to say it.
        self.rows: int | None = table.num_rows if table.num_columns else None

    def column(self, description: Any) -> Any:
        """The next one, as it came."""
        found = next(self._columns, None)
        if found is None:
            raise ValueError("pandas: the stream has too few columns")
        count = objects_in(found, description)
        if self.budget is not None:
            self.budget.take_table(count // _OBJECTS)
        self._objects_left -= count
        if self._objects_left < 0:
            raise ValueError("pandas: columns of objects that are too many for the bytes of the stream")
        return found

    def values(self, description: Any) -> Any:
        """The next one, as it is described."""
        return from_arrow(self.column(description), description)

    def end(self) -> None:
        if next(self._columns, None) is not None:
            raise ValueError("pandas: the stream has too many columns")

    def index(self, description: Any) -> Any:
        """The index that is described, of as many rows as the stream has."""
        import pandas as pd

        if not isinstance(description, dict):
            raise ValueError(f"pandas: an index is an object, got {described(description)}")
        names = description.keys()
        if names == {"range", "name"}:
            return _range_index(description, self.rows, self.budget)
        if names == {"levels", "names"}:
            levels, found = description["levels"], description["names"]
            if not isinstance(levels, list) or not isinstance(found, list) or len(levels) != len(found) or not levels:
                raise ValueError("pandas: levels and names must be arrays of one length")
            parts = [
                from_dictionary(self.column({"dtype": "category", "categories": level}), level) for level in levels
            ]
            return pd.MultiIndex(
                [values for _, values in parts],
                [codes for codes, _ in parts],
                names=[_name_of(name, self.budget) for name in found],
            )
        if names - {"freq"} != {"dtype", "name"}:
            raise ValueError("pandas: an index has 'range' and 'name', 'dtype' and 'name', or 'levels' and 'names'")
        values = self.values(description["dtype"])
        index = pd.Index(values, dtype=values.dtype, name=_name_of(description["name"], self.budget), copy=True)
        if "freq" in description:
            set_frequency(index, description["freq"])
        return index


def _range_index(description: dict[str, Any], rows: int | None, budget: ImageBudget | None) -> Any:
    """The index of a range.

    Args:
        rows: how many it must have; None: as it says, up to a limit.
    """
    numbers = description["range"]
    if rows is None:
        try:
            rows = min(len(range(*numbers)), FREE_VALUES)
        except (TypeError, ValueError, OverflowError):
            rows = -1
    return range_index(numbers, rows).rename(_name_of(description["name"], budget))


def _name_of(name: Any, budget: ImageBudget | None) -> Any:
    """A name out of its form in JSON."""
    if isinstance(name, list):
        return tuple(_name_of(each, budget) for each in name)
    if not isinstance(name, dict):
        return name
    if name.keys() != {"index", "data"}:
        raise ValueError("pandas: a name is a string, a number, an array of names, or an index of one value")
    index = _index(name, _Stream(name["data"], budget))
    if len(index) != 1:
        raise ValueError(f"pandas: a name is one value, not {len(index)}")
    return index[0]


def _index(tagged: dict[str, Any], stream: _Stream) -> Any:
    index = stream.index(tagged["index"])
    stream.end()
    return index


def _series(tagged: dict[str, Any], stream: _Stream) -> Any:
    import pandas as pd

    values = stream.values(tagged["dtype"])
    index = _index(tagged, stream)
    return pd.Series(values, index, values.dtype, _name_of(tagged["name"], stream.budget), copy=True)


def _frame(tagged: dict[str, Any], stream: _Stream) -> Any:
    import pandas as pd

    dtypes = tagged["dtypes"]
    if not isinstance(dtypes, list):
        raise ValueError(f"pandas: dtypes must be an array, got {described(dtypes)}")
    values = [stream.values(dtype) for dtype in dtypes]
    index = _index(tagged, stream)
    # With the dtype, or pandas would find one for objects.
    columns = {at: pd.Series(each, index, each.dtype, copy=False) for at, each in enumerate(values)}
    frame = pd.DataFrame(columns, index, copy=True)
    frame.columns = _labels_of(tagged["columns"], len(values), stream.budget)
    return frame


def _labels_of(described_as: Any, count: int, budget: ImageBudget | None) -> Any:
    import pandas as pd

    if isinstance(described_as, dict) and described_as.get(TAG_KEY) == TAG:
        labels = decode_pandas(described_as, budget)
        if not isinstance(labels, pd.Index) or len(labels) != count:
            raise ValueError(f"pandas: columns must be an index of {count} labels")
        return labels
    if isinstance(described_as, dict) and described_as.keys() == {"range", "name"}:
        return _range_index(described_as, count, budget)
    if not isinstance(described_as, dict) or described_as.keys() != {"labels", "dtype", "name"}:
        raise ValueError("pandas: columns have 'labels', 'dtype' and 'name', or are an index")
    labels = described_as["labels"]
    if not isinstance(labels, list) or len(labels) != count:
        raise ValueError(f"pandas: labels must be an array of {count} labels")
    name = _name_of(described_as["name"], budget)
    pa = optional_module("pyarrow", "pandas")
    empty = from_arrow(pa.array([], pa.large_string()), described_as["dtype"])
    if empty.dtype == object:
        values = np.fromiter((_name_of(label, budget) for label in labels), object, count)
    elif isinstance(empty.dtype, pd.StringDtype) and all(type(label) is str for label in labels):
        values = pd.array(labels, empty.dtype)
    else:
        raise ValueError("pandas: labels are text, or objects")
    return pd.Index(values, dtype=values.dtype, name=name, copy=False, tupleize_cols=False)


_READERS = {"frame": _frame, "series": _series, "index": _index}


# -- hints ------------------------------------------------------------------------------------------------------------


class PandasHint:
    """The hints `pd.DataFrame`, `pd.Series`, `pd.Index` and the kinds of index, such as `pd.DatetimeIndex`.

    A frame is also made of a table of Arrow, of a frame of polars, and of the plain base64 of an Arrow IPC stream.
    """

    takes_budget = True

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._kind = {"DataFrame": "frame", "Series": "series"}.get(cls.__name__, "index")
        self.name = f"pandas.{cls.__name__}"
        self.component = f"pandas_{cls.__name__}"

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG and value.get("kind") == self._kind:
            value = decode_pandas(value)
        return self.accept(value)

    def accept(self, value: object) -> object:
        if isinstance(value, self._cls):
            return value
        if self._kind == "frame" and (table := table_of(value)) is not None:
            return _frame_of_table(table)
        raise mismatch(self.name, value)

    def schema(self) -> dict[str, Any]:
        parts = {name: {"type": "object"} if name == "index" else {} for name in _MEMBERS[self._kind]}
        properties = {TAG_KEY: {"const": TAG}, "kind": {"const": self._kind}, **parts, "data": base64_of(MEDIA_TYPE)}
        tagged = {"type": "object", "properties": properties, "required": [TAG_KEY, "kind", *_MEMBERS[self._kind]]}
        if self._kind != "frame":
            return tagged
        return {"anyOf": [tagged, base64_of(MEDIA_TYPE, "an Arrow IPC stream")]}


def _frame_of_table(table: Any) -> Any:
    """The frame that pyarrow makes of a table, without what pandas may have written beside it.

    Raises:
        ValueError: it cannot, or values would be copied for each row that stand in the table once.
    """
    pa = optional_module("pyarrow", "pandas")
    optional_module("pandas", "pandas")
    fields = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):  # which `read_stream` has looked through
            kind = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        elif _repeats(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise ValueError(
                f"column {shortened(field.name)!r} of {shortened(str(kind))} does not go into a pandas frame"
            )
        fields.append(pa.field(field.name, kind, field.nullable))
    try:
        return table.cast(pa.schema(fields)).to_pandas(use_threads=False)
    except Exception as error:
        raise ValueError(f"no pandas frame can be made of the table: {shortened(str(error), 120)}") from None


def _repeats(kind: Any) -> bool:
    """True for a type in which one value may stand for many."""
    pa = optional_module("pyarrow", "pandas")
    types = pa.types
    inner = (kind.field(number).type for number in range(kind.num_fields))
    itself = (types.is_dictionary, types.is_run_end_encoded, types.is_list_view, types.is_large_list_view)
    views = (types.is_string_view, types.is_binary_view)
    return any(fits(kind) for fits in (*itself, *views)) or any(map(_repeats, inner))
