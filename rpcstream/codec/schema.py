"""JSON schemas of hints: made by msgspec, then corrected so that they say exactly what is accepted.

Knows schemas as plain data, and neither methods nor how a hint is lowered.
"""

from __future__ import annotations

import math
from typing import Any

#: Where the schemas of classes stand, in the document that a schema is part of.
SCHEMA_REF = "#/components/schemas/{name}"

#: Members that hold schemas: under names, in a list, and one as their value.
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_ONE = frozenset(("items", "additionalProperties", "propertyNames", "contains", "not"))


def schema_of(lowered: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a lowered hint; classes that it names are added to `components` and referred to there.

    Raises TypeError for a hint that JSON Schema has no words for.
    """
    import msgspec  # only where schemas are made: the codec is imported without it

    def hook(kind: Any) -> Any:
        return kind.schema(components)

    (schema,), found = msgspec.json.schema_components([lowered], schema_hook=hook, ref_template=SCHEMA_REF)
    components.update((name, corrected(part)) for name, part in found.items())
    return corrected(schema)


def corrected(schema: dict[str, Any]) -> dict[str, Any]:
    """Correct a schema of msgspec, and the schemas inside it.

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
    """True if a float in plain data is an infinity or a NaN, which JSON writes as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(holds_no_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(holds_no_number, value))


def _corrected(schema: Any) -> Any:
    return corrected(schema) if isinstance(schema, dict) else schema  # `true`, `false`


def _may_be_null(schema: dict[str, Any]) -> bool:
    """True if the schema itself accepts null; one that it refers to is that of a class, and does not."""
    if "anyOf" in schema:
        return any(map(_may_be_null, schema["anyOf"]))
    if "enum" in schema:
        return None in schema["enum"]
    return schema.get("type", "null") == "null" and "$ref" not in schema
