"""What to write in Python in place of an argument that the other end refused. Imported when there is such an error."""

from __future__ import annotations

import re
from typing import Any

from ..codec import TAG_KEY
from ..errors import InvalidParams

_STEP = re.compile(r"\[(\d{1,9})\]|\.([^.\[]+)")
_ARRAY = re.compile(r"(?:(\w+)(?: \| \w+)* )?ndarray\b")
#: Characters of a path, and of what is expected, that are looked at.
_MOST = 300
_MISSING = object()


def advise(error: InvalidParams, params: Any) -> None:
    """Add to an error about an argument how Python gives what is expected, if that is known.

    Args:
        params: of the call.
    """
    data = error.data
    if not isinstance(data, dict) or error.advice is not None:
        return
    path, expected, reason = (str(data.get(name, ""))[:_MOST] for name in ("path", "expected", "reason"))
    value = _value_at(params, path)
    if value is not _MISSING:
        name, first = str(data.get("parameter")), _STEP.search(path)
        name = name + path[first.end() :] if name.isidentifier() and first is not None else "value"
        written = _written(value, expected, reason, name)
        if written is not None:
            error.advice = f"in Python: {written}"


def _value_at(params: Any, path: str) -> Any:
    value = params
    for place, name in _STEP.findall(path):
        try:
            value = value[name] if name else value[int(place)]
        except (LookupError, TypeError):
            return _MISSING
    return value if path.startswith("$") else _MISSING


def _written(value: Any, expected: str, reason: str, name: str) -> str | None:
    """What to write; None where nothing is known."""
    names = expected.split(" | ")
    if isinstance(value, str):
        if "image" in names or "looks like the path of a file" in reason:
            return f"ImageFile({name}) for an image, pathlib.Path({name}).read_bytes() for bytes"
        return None
    if "image" in names:
        return f"Image.fromarray({name})" if _is_array(value) else None
    if (array := _ARRAY.search(expected)) is not None:
        return _as_array(value, array[1], name)
    if "array" in names:
        if _is_array(value):
            return f"{name}.tolist()"
        if isinstance(value, dict) and value.get(TAG_KEY) == "stream":
            return f"list({name}), since an iterator is sent item by item"
        return f"[{name}]" if type(value).__module__.startswith("PIL.") else None
    if {"int", "float", "bool", "str"}.intersection(names) and _is_array(value) and getattr(value, "size", 0) == 1:
        return f"{name}.item()"
    return None


def _as_array(value: Any, dtype: str | None, name: str) -> str | None:
    """An array of this dtype; None where the value is one already, or can be none."""
    if _is_array(value):
        return None if dtype in (None, str(value.dtype)) else f"np.asarray({name}, np.{dtype})"
    is_convertible = isinstance(value, list | tuple | int | float) or hasattr(value, "__array_interface__")
    if not is_convertible:
        return None
    return f"np.asarray({name})" if dtype is None else f"np.asarray({name}, np.{dtype})"


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy, a Series of pandas, or something like these."""
    return hasattr(value, "dtype") and hasattr(value, "tolist")
