"""One column of pandas as an Arrow array and back: what its dtype is called, and what is refused since it would change.

A column is a series, an index of one level, or an array of an extension type. Its form is an Arrow array beside a
description in JSON: the name of a simple dtype ("<f8", "Int64"), an object for others ({"dtype": "category", ...}).
What comes in is built from the description by the table here; pandas is given no text to interpret but time zones and
frequencies, which are checked first. Knows no frame and no tagged object.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import EncodeError
from . import dtypes
from .pandas_objects import from_objects, to_bools, to_objects
from .rich_hint import described, optional_module, shortened

#: Classes of pandas with values and a mask, by the dtype of the values.
_NULLABLE = {
    "boolean": "BooleanArray",
    **{f"{sign}Int{size}": "IntegerArray" for sign in ("", "U") for size in (8, 16, 32, 64)},
    **{f"Float{size}": "FloatingArray" for size in (32, 64)},
}
_UNITS = ("s", "ms", "us", "ns")
#: Names of time zones, and offsets. Not `dateutil/PATH`, for which pandas would open a file.
_ZONE = re.compile(r"(?!dateutil/)[A-Za-z][A-Za-z0-9_+-]{0,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}|[+-]\d\d:\d\d(?::\d\d)?")
#: Frequencies as pandas writes them; others take no end of time, or other paths in pandas.
FREQUENCY = re.compile(r"[+-]?\d{0,6}[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,12})?")
_CLOSED = ("left", "right", "both", "neither")


# -- to Arrow ---------------------------------------------------------------------------------------------------------


def to_arrow(column: Any) -> tuple[Any, Any]:
    """The Arrow array and the description of a column.

    Raises:
        EncodeError: its dtype, or an object in it, has no form on the wire.
    """
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        values = np.asarray(column)
        return from_objects(values) if dtype.kind == "O" else _numbers(values)
    column = getattr(column, "array", column)
    if isinstance(dtype, pd.CategoricalDtype):
        array, categories = dictionary(column.codes, dtype.categories)
        return array, {"dtype": "category", "ordered": bool(dtype.ordered), "categories": categories}
    if isinstance(dtype, pd.DatetimeTZDtype):
        return _zoned(column)
    if isinstance(dtype, pd.PeriodDtype):
        freq = dtype.name[7:-1]  # of "period[M]"; the offset says "ME"
        if not FREQUENCY.fullmatch(freq) or pd.PeriodDtype(freq) != dtype:
            raise EncodeError(f"its frequency {shortened(freq)!r} has no form on the wire")
        return _masked(column.asi8, column.isna()), {"dtype": "period", "freq": freq}
    if isinstance(dtype, pd.IntervalDtype):
        return _intervals(column)
    if isinstance(dtype, pd.StringDtype):
        array = optional_module("pyarrow", "pandas").array(column, type=_arrow().large_string(), from_pandas=True)
        missing = "NA" if dtype.na_value is pd.NA else "nan"
        return _whole(array), {"dtype": "string", "storage": dtype.storage, "missing": missing}
    if isinstance(dtype, pd.ArrowDtype):
        return _whole(column.__arrow_array__()), "arrow"
    if dtype.name in _NULLABLE:
        # Where the mask is set, anything may stand behind it.
        values = column.to_numpy(dtype.numpy_dtype, na_value=dtype.numpy_dtype.type(0))
        return _masked(values, column.isna()), dtype.name
    raise EncodeError(f"its dtype {shortened(str(dtype))} has no form on the wire: convert it")


def dictionary(codes: Any, values: Any) -> tuple[Any, Any]:
    """The dictionary array of codes, -1 for none, and an index of values; and the description of these.

    Where the values are categories themselves, all of them are values, in their order.
    """
    import pandas as pd

    codes = np.asarray(codes)
    if isinstance(values.dtype, pd.CategoricalDtype):  # Arrow has no dictionaries of dictionaries
        codes = np.append(values.codes, -1)[codes]
        array, categories = dictionary(codes, values.categories)
        return array, {"dtype": "category", "ordered": bool(values.ordered), "categories": categories}
    array, description = to_arrow(values)
    if isinstance(values, pd.RangeIndex):
        description = {"dtype": "range", "range": [values.start, values.stop, values.step]}
    elif isinstance(values, pd.DatetimeIndex | pd.TimedeltaIndex) and values.freq is not None:
        description = {"dtype": "index", "values": description, "freq": frequency(values)}
    return _arrow().DictionaryArray.from_arrays(_masked(codes, codes == -1), array), description


def frequency(index: Any) -> str:
    """The text of the frequency of an index of dates or durations. EncodeError if it does not say all of it."""
    import pandas as pd

    text: str = index.freqstr
    if not FREQUENCY.fullmatch(text) or pd.tseries.frequencies.to_offset(text) != index.freq:
        raise EncodeError(f"the frequency {shortened(text)!r} has no form on the wire: set index.freq = None")
    return text


def range_index(numbers: Any, count: int) -> Any:
    """The index of a range that came in, of so many values. ValueError if it is malformed, or has others."""
    import pandas as pd

    if not isinstance(numbers, list) or len(numbers) != 3 or not all(map(_is_long, numbers)) or not numbers[2]:
        raise ValueError("pandas: a range is an array of three integers: start, stop and a step that is not 0")
    start, stop, step = numbers
    if max(0, -((start - stop) // step)) != count:
        raise ValueError(f"pandas: a range of {count} values is expected, this has others")
    return pd.RangeIndex(start, stop, step)


def _is_long(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def set_frequency(index: Any, freq: Any) -> None:
    """Set the frequency of an index that came in. ValueError if it has none, or another."""
    import pandas as pd

    if not isinstance(freq, str) or not FREQUENCY.fullmatch(freq):
        raise ValueError("pandas: the frequency of an index is malformed")
    if not isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex):
        raise ValueError("pandas: an index of dates or durations has a frequency, no other")
    index.freq = freq


def _numbers(values: Any) -> tuple[Any, Any]:
    values = np.ascontiguousarray(values)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    name = dtypes.to_wire(values.dtype)
    pa = _arrow()
    if values.dtype.kind == "c":
        parts = values.view(f"f{values.dtype.itemsize // 2}")
        return pa.FixedSizeListArray.from_arrays(pa.array(parts), 2), name
    if values.dtype.kind in "mM" and np.datetime_data(values.dtype) not in [(unit, 1) for unit in _UNITS]:
        raise EncodeError(f"its dtype {values.dtype} has no form on the wire")
    return pa.array(values, from_pandas=False), name


def _zoned(column: Any) -> tuple[Any, Any]:
    import pandas as pd

    dtype = column.dtype
    zone = str(dtype.tz)
    if isinstance(dtype.tz, datetime.timezone) and dtype.tz != datetime.UTC:
        zone = zone.removeprefix("UTC")
    if not _ZONE.fullmatch(zone) or pd.DatetimeTZDtype(dtype.unit, zone) != dtype:
        raise EncodeError(f"its time zone {shortened(repr(dtype.tz))} has no form on the wire: use a zoneinfo.ZoneInfo")
    array = _masked(column.asi8, column.isna()).view(_arrow().timestamp(dtype.unit, zone))
    return array, {"dtype": f"<M8[{dtype.unit}]", "zone": zone}


def _intervals(column: Any) -> tuple[Any, Any]:
    missing = column.isna()
    (left, description), (right, _) = to_arrow(column.left), to_arrow(column.right)
    pa = _arrow()
    array = pa.StructArray.from_arrays([left, right], names=["left", "right"], mask=pa.array(missing))
    return array, {"dtype": "interval", "closed": column.closed, "bounds": description}


def _masked(values: Any, mask: Any) -> Any:
    """An Arrow array of numbers; null where the mask says so, and nowhere else."""
    return _arrow().array(np.ascontiguousarray(values), mask=np.asarray(mask), from_pandas=False)


def _whole(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, _arrow().ChunkedArray) else array


def _arrow() -> Any:
    return optional_module("pyarrow", "pandas")


# -- from Arrow -------------------------------------------------------------------------------------------------------


def from_arrow(array: Any, description: Any) -> Any:
    """The column of an Arrow array and its description, perhaps over the memory of the array: not to be changed.

    Raises:
        ValueError: they do not fit together, or the description is none.
    """
    if isinstance(description, str):
        if description in _NULLABLE:
            return _nullable(array, description)
        if description == "arrow":
            pd = optional_module("pandas", "pandas")
            return pd.arrays.ArrowExtensionArray(array)
        return _plain(array, description)
    kind = description.get("dtype") if isinstance(description, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"pandas: a dtype is a string, or an object that has one, got {described(description)}")
    try:
        if "zone" in description:
            return _with_zone(array, kind, **_others(description))
        read = _READERS.get(kind)
        if read is None:
            raise ValueError(f"pandas: the dtype {shortened(kind)!r} is not known")
        return read(array, **_others(description))
    except TypeError as error:
        raise ValueError(f"pandas: the dtype {shortened(kind)!r} is malformed: {shortened(str(error))}") from None


def from_dictionary(array: Any, description: Any) -> tuple[Any, Any]:
    """Codes, -1 for none, and the index of values. ValueError as for `from_arrow`."""
    _expect(array, _arrow().types.is_dictionary, "dictionary")
    codes = array.indices.fill_null(-1) if array.indices.null_count else array.indices
    return codes.to_numpy(zero_copy_only=False), _values(array.dictionary, description)


def _values(array: Any, description: Any) -> Any:
    """The index of the values of a dictionary."""
    import pandas as pd

    names = description.keys() if isinstance(description, dict) else set()
    if names == {"dtype", "values", "freq"} and description["dtype"] == "index":
        index = _values(array, description["values"])
        set_frequency(index, description["freq"])
        return index
    if names == {"dtype", "range"} and description["dtype"] == "range":
        return range_index(description["range"], len(array))
    if names == {"dtype", "ordered", "categories"} and description["dtype"] == "category":
        dtype = _category_dtype(_values(array, description["categories"]), description["ordered"])
        return pd.CategoricalIndex(pd.Categorical.from_codes(np.arange(len(dtype.categories)), dtype=dtype))
    values = from_arrow(array, description)
    return pd.Index(values, dtype=values.dtype, copy=True)


def _others(description: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in description.items() if name != "dtype"}


def _expect(array: Any, fits: Callable[[Any], bool], expected: str) -> None:
    if not fits(array.type):
        raise ValueError(f"pandas: a column of {expected} is expected, it is {shortened(str(array.type))}")


def _plain(array: Any, name: str) -> Any:
    """A column of a dtype of numpy."""
    dtype = dtypes.from_wire(name)
    pa = _arrow()
    if dtype.kind == "c":
        part = pa.from_numpy_dtype(f"f{dtype.itemsize // 2}")
        _expect(array, lambda kind: pa.types.is_fixed_size_list(kind) and kind == pa.list_(part, 2), f"pairs of {part}")
        numbers = array.flatten()
        if array.null_count or numbers.null_count or len(numbers) != 2 * len(array):
            raise ValueError(f"pandas: a column of {name} has nulls")
        return numbers.to_numpy().view(dtype)
    unit = np.datetime_data(dtype)[0] if dtype.kind in "mM" else ""
    if (
        dtypes.is_extension(dtype)
        or not dtype.isnative
        or (unit and dtype.str[1:] not in (f"M8[{unit}]", f"m8[{unit}]"))
    ):
        raise ValueError(f"pandas: no column has the dtype {name!r}")
    if unit and unit not in _UNITS:
        raise ValueError(f"pandas: no column has the dtype {name!r}")
    expected = {"M": pa.timestamp, "m": pa.duration}[dtype.kind](unit) if unit else pa.from_numpy_dtype(dtype)
    _expect(array, lambda kind: kind == expected, str(expected))
    if array.null_count and not unit:
        raise ValueError(f"pandas: a column of {name} has nulls")
    return _dates(array, dtype) if unit else array.to_numpy(zero_copy_only=False)


def _dates(array: Any, dtype: Any) -> Any:
    """Dates or durations of numpy, with NaT for null."""
    numbers = array.view(_arrow().int64())
    if numbers.null_count:
        numbers = numbers.fill_null(np.iinfo(np.int64).min)
    return numbers.to_numpy().view(dtype)


def _with_zone(array: Any, name: str, zone: Any) -> Any:
    import pandas as pd

    unit = name[4:-1]
    if name != f"<M8[{unit}]" or unit not in _UNITS or not isinstance(zone, str) or not _ZONE.fullmatch(zone):
        raise ValueError(
            f"pandas: the time zone {shortened(str(zone))!r} or the dtype {shortened(name)!r} is not known"
        )
    pa = _arrow()
    _expect(array, lambda kind: pa.types.is_timestamp(kind) and kind.unit == unit, f"timestamps in {unit}")
    try:
        dtype = pd.DatetimeTZDtype(unit, zone)
    except Exception:
        raise ValueError(f"pandas: the time zone {zone!r} is not known here") from None
    return pd.DatetimeIndex(_dates(array, f"M8[{unit}]")).tz_localize("UTC").tz_convert(dtype.tz).array


def _nullable(array: Any, name: str) -> Any:
    import pandas as pd

    pa = _arrow()
    dtype = np.dtype("bool" if name == "boolean" else name.lower())
    _expect(array, lambda kind: kind == pa.from_numpy_dtype(dtype), str(dtype))
    mask = array.is_null().to_numpy(zero_copy_only=False)
    values = np.array((array.fill_null(dtype.type(0)) if array.null_count else array).to_numpy(zero_copy_only=False))
    return getattr(pd.arrays, _NULLABLE[name])(values, np.array(mask))


def _category(array: Any, ordered: Any, categories: Any) -> Any:
    import pandas as pd

    codes, values = from_dictionary(array, categories)
    return pd.Categorical.from_codes(codes, dtype=_category_dtype(values, ordered))


def _category_dtype(categories: Any, ordered: Any) -> Any:
    import pandas as pd

    if type(ordered) is not bool:
        raise ValueError("pandas: ordered is true or false")
    return pd.CategoricalDtype(categories, ordered)


def _period(array: Any, freq: Any) -> Any:
    import pandas as pd

    _expect(array, lambda kind: kind == _arrow().int64(), "int64")
    if not isinstance(freq, str) or not FREQUENCY.fullmatch(freq):
        raise ValueError("pandas: the frequency of periods is malformed")
    ordinals = _dates(array, "i8")
    try:
        return pd.arrays.PeriodArray(ordinals, dtype=pd.PeriodDtype(freq))
    except Exception:
        raise ValueError(f"pandas: the frequency {freq!r} is not known here") from None


def _interval(array: Any, closed: Any, bounds: Any) -> Any:
    import pandas as pd

    _expect(array, lambda kind: _arrow().types.is_struct(kind) and kind.num_fields == 2, "intervals")
    if closed not in _CLOSED:
        raise ValueError("pandas: closed is 'left', 'right', 'both' or 'neither'")
    left, right = (from_arrow(array.field(side), bounds) for side in (0, 1))
    return pd.arrays.IntervalArray.from_arrays(left, right, closed=closed)


def _string(array: Any, storage: Any, missing: Any) -> Any:
    import pandas as pd

    _expect(array, lambda kind: kind in (_arrow().large_string(), _arrow().string()), "text")
    if storage not in ("python", "pyarrow") or missing not in ("NA", "nan"):
        raise ValueError("pandas: the storage of text is 'python' or 'pyarrow', what is missing 'NA' or 'nan'")
    dtype = pd.StringDtype(storage, na_value=pd.NA if missing == "NA" else np.nan)
    return dtype.__from_arrow__(array)


_READERS: dict[str, Callable[..., Any]] = {
    "bool objects": to_bools,
    "category": _category,
    "interval": _interval,
    "object": to_objects,
    "period": _period,
    "string": _string,
}
