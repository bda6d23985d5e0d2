"""What msgspec knows of types and does not say in their schemas: dates without a zone, and fields that are left out.

Works on the schemas as msgspec made them, beside the types that they are of. Imported only where schemas are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_DATES: dict[type, str] = {inspect.DateTimeType: "date-time", inspect.TimeType: "time"}
_CLASSES = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_LISTS = (
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.VarTupleType,
    inspect.CollectionType,
)


def add_details(schema: dict[str, Any], found: dict[str, Any], lowered: Any) -> None:
    """Add `x-format` to dates and times of which no zone is demanded, and `x-omit-defaults` to Structs that have it.

    "date-time" and "time" as `format` demand a zone (RFC 3339), and these values may have none.

    Args:
        schema: of the lowered hint.
        found: the classes in it, by name.
        lowered: see `hints.lower`.
    """
    info = inspect.type_info(lowered)
    _add(schema, info)
    for each in _classes_in(info):
        fields = {field.encode_name: field.type for field in each.fields}
        for name, part in found.items():
            members = part.get("properties")
            if part.get("title", name).startswith(each.cls.__name__) and members and members.keys() == fields.keys():
                for field, member in members.items():
                    _add(member, fields[field])
                if isinstance(each, inspect.StructType) and each.cls.__struct_config__.omit_defaults:
                    part["x-omit-defaults"] = True


def _add(schema: Any, info: Any) -> None:
    if isinstance(info, inspect.Metadata):
        return _add(schema, info.type)
    if not isinstance(schema, dict):
        return None
    if isinstance(info, inspect.UnionType):
        for each in info.types:
            for member in schema.get("anyOf", ()):
                _add(member, each)
    elif type(info) in _DATES:
        if schema.get("type") == "string" and "format" not in schema:
            schema["x-format"] = _DATES[type(info)]
    elif isinstance(info, _LISTS) and schema.get("type") == "array":
        _add(schema.get("items"), info.item_type)
    elif isinstance(info, inspect.TupleType):
        for member, each in zip(schema.get("prefixItems", ()), info.item_types, strict=False):
            _add(member, each)
    elif isinstance(info, inspect.DictType) and schema.get("type") == "object":
        _add(schema.get("additionalProperties"), info.value_type)
    return None


def _classes_in(info: Any) -> Iterator[Any]:
    """The classes in a type, at any depth, each once."""
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _CLASSES):
            yield each
            waiting += [field.type for field in each.fields]
        elif isinstance(each, inspect.Metadata):
            waiting.append(each.type)
        elif isinstance(each, inspect.UnionType):
            waiting += each.types
        elif isinstance(each, inspect.TupleType):
            waiting += each.item_types
        elif isinstance(each, _LISTS):
            waiting.append(each.item_type)
        elif isinstance(each, inspect.DictType):
            waiting += [each.key_type, each.value_type]
