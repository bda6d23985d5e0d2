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
    kinds = set(map(type, values[~mask]))
    pa = optional_module("pyarrow", "pandas")
    exact = {
        str: pa.large_string(),
        bytes: pa.large_binary(),
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        datetime.date: pa.date32(),
    }
    kind = exact.get(next(iter(kinds))) if len(kinds) == 1 else None
    advice = "give the column a dtype"
    try:
        array = pa.array(values, kind, mask=mask, from_pandas=False)
        if kind is not None or all(map(_is_same, values[~mask], array.filter(pa.array(~mask)).to_pylist())):
            return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array, description
    except Exception as error:
        if kind is not None:
            advice = shortened(str(error), 120)
    names = ", ".join(sorted(each.__name__ for each in kinds)[:4])
    raise EncodeError(f"it holds objects ({names}) that Arrow does not keep as they are: {advice}")


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
    elif types.is_list(kind):
        _check_objects(kind.value_type)
    elif not any(fits(kind) for fits in plain):
        raise ValueError(f"pandas: a column of objects is not of {shortened(str(kind))}")
