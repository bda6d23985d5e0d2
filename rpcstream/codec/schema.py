"""JSON schemas as msgspec makes them, corrected: a schema says no more and no less than what is really taken.

Owns the differences between the two. Knows schemas as plain data, and neither hints nor methods.
"""

from __future__ import annotations

import math
from typing import Any

#: What holds schemas under names, in a list, and as its value.
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_ONE = frozenset(("items", "additionalProperties", "propertyNames", "contains", "not"))


def corrected(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, with what follows put right, in the schemas inside it too:

    * A default that JSON cannot say (an infinity, a NaN) or that is itself not taken (None where null is none of the
      types) stands as text in `x-default`, for people: a caller must not send null in its place.
    * A set takes an array in which a value comes twice, so its items need not be unique; except where so many are
      needed that it would be too small then.
    """
    result: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _BY_NAME:
            result[name] = {inner: _corrected(member) for inner, member in value.items()}
        elif name in _LISTS:
            result[name] = [_corrected(member) for member in value]
        elif name in _ONE:
            result[name] = _corrected(value)
        elif name == "default" and (holds_no_number(value) or (value is None and not _may_be_null(schema))):
            result["x-default"] = str(value)
        elif name != "uniqueItems" or schema.get("minItems", 0) > 1:
            result[name] = value
    return result


def holds_no_number(value: Any) -> bool:
    """Is a float in plain data an infinity or a NaN, which JSON writes as null?"""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(holds_no_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(holds_no_number, value))


def _corrected(schema: Any) -> Any:
    return corrected(schema) if isinstance(schema, dict) else schema  # `true`, `false`


def _may_be_null(schema: dict[str, Any]) -> bool:
    """As far as the schema itself says; one that it refers to is of a class, and takes no null."""
    if "anyOf" in schema:
        return any(map(_may_be_null, schema["anyOf"]))
    if "enum" in schema:
        return None in schema["enum"]
    return schema.get("type", "null") == "null" and "$ref" not in schema
