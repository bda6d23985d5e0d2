"""Columns of Python objects as Arrow arrays and back: those of which Arrow gives back the very same objects.

So a column holds objects of one class, or lists and dicts of such, and one kind of what pandas takes for missing. Knows
no other dtype.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np

from ..errors import EncodeError
from .rich_hint import optional_module, shortened

#: Bytes of a stream, for each Python object that its columns are made of. Each has as many in the types that are sent.
OBJECT_BYTES = 8
_MISSING = ("None", "nan", "NA", "NaT")


def from_objects(values: Any) -> tuple[Any, Any]:
    """The Arrow array and the description of an array of Python objects.

    Raises:
        EncodeError: Arrow would change one of them, or there are several kinds of missing values.
    """
    import pandas as pd

    mask = np.asarray(pd.isna(values))
    mask[mask] = [_missing_name(each) is not None for each in values[mask]]
    missing = {_missing_name(each) for each in values[mask]}
    if len(missing) > 1:
        raise EncodeError(f"it has missing values of several kinds ({', '.join(sorted(map(str, missing)))}): use one")
    description = {"dtype": "object", "missing": missing.pop() if missing else "None"}
    kinds = set(map(type, values[~mask])) or {int}
    pa = optional_module("pyarrow", "pandas")
    exact = {
        str: pa.large_string(),
        bytes: pa.large_binary(),
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        datetime.date: pa.date64(),
    }
    kind = exact.get(next(iter(kinds))) if len(kinds) == 1 else None
    advice = "give the column a dtype"
    try:
        array = pa.array(values, kind, mask=mask, from_pandas=False)
        if kind is not None or all(map(_is_same, values[~mask], array.filter(pa.array(~mask)).to_pylist())):
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            if kind == pa.bool_():
                return array.cast(pa.int64()), {**description, "dtype": "bool objects"}
            return array.cast(_wide(array.type)), description
    except Exception as error:
        if kind is not None:
            advice = shortened(str(error), 120)
    names = ", ".join(sorted(each.__name__ for each in kinds)[:4])
    raise EncodeError(f"it holds objects ({names}) that Arrow does not keep as they are: {advice}")


def _wide(kind: Any) -> Any:
    """The type of Arrow in which each object takes 8 bytes, where there is one that holds the same objects."""
    pa = optional_module("pyarrow", "pandas")
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([field.with_type(_wide(field.type)) for field in fields])
    if pa.types.is_list(kind):
        return pa.large_list(_wide(kind.value_type))
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), pa.date32(): pa.date64()}
    return wide.get(kind, pa.int64() if pa.types.is_null(kind) else kind)


def objects_in(array: Any, description: Any) -> int:
    """The number of Python objects that a column is made of, at most one for each `OBJECT_BYTES` of a stream.

    Else a column of 64 MiB could be 512 million objects: bits are objects, too.
    """
    if not isinstance(description, dict) or not isinstance(kind := description.get("dtype"), str):
        return 0
    if kind in ("object", "bool objects"):
        return _objects_within(array)
    if kind == "string" and description.get("storage") == "python":
        return len(array)
    if kind == "category" and hasattr(array, "dictionary"):
        return objects_in(array.dictionary, description.get("categories"))
    if kind == "index":
        return objects_in(array, description.get("values"))
    if kind == "interval" and array.type.num_fields == 2:
        return sum(objects_in(array.field(side), description.get("bounds")) for side in (0, 1))
    return 0


def _objects_within(array: Any) -> int:
    types = optional_module("pyarrow", "pandas").types
    if types.is_struct(array.type):
        return len(array) + sum(_objects_within(array.field(number)) for number in range(array.type.num_fields))
    return len(array) + (_objects_within(array.values) if types.is_large_list(array.type) else 0)


def _missing_name(value: Any) -> str | None:
    import pandas as pd

    if value is None:
        return "None"
    if type(value) is float and math.isnan(value):
        return "nan"
    return "NA" if value is pd.NA else "NaT" if value is pd.NaT else None


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_is_same, one.values(), other.values()))
    if isinstance(one, float):
        return bool(one == other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, datetime.datetime | datetime.time):
        return bool(one == other) and str(one.tzinfo) == str(other.tzinfo) and one.fold == other.fold
    return bool(one == other)


def to_objects(array: Any, missing: Any) -> Any:
    """The array of Python objects of an Arrow array; `missing` says which object stands for null.

    Raises:
        ValueError: the array has a type of which none is made.
    """
    if missing not in _MISSING:
        raise ValueError(f"pandas: what is missing is one of {', '.join(_MISSING)}")
    _check_objects(array.type)
    values: Any = array.to_pylist()
    if missing != "None":
        stand_in = _stand_in(missing)
        values = [stand_in if each is None else each for each in values]
    return np.fromiter(values, object, len(array))


def to_bools(array: Any, missing: Any) -> Any:
    """The same for numbers that stand for True and False."""
    values = to_objects(array, missing)
    return np.fromiter((bool(each) if type(each) is int else each for each in values), object, len(values))


def _stand_in(missing: str) -> Any:
    import pandas as pd

    return {"nan": float("nan"), "NA": pd.NA, "NaT": pd.NaT}[missing]


def _check_objects(kind: Any) -> None:
    """Raise ValueError for a type whose Python objects could take more memory than the column."""
    types = optional_module("pyarrow", "pandas").types
    plain: Iterable[Callable[[Any], bool]] = (
        *(types.is_primitive, types.is_null, types.is_decimal, types.is_date, types.is_time),
        *(types.is_string, types.is_large_string, types.is_binary, types.is_large_binary),
    )
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_objects(kind.field(number).type)
    elif types.is_large_list(kind):
        _check_objects(kind.value_type)
    elif not any(fits(kind) for fits in plain):
        raise ValueError(f"pandas: a column of objects is not of {shortened(str(kind))}")
