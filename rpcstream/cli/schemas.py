"""What the parameters of a method take, as far as that decides how an argument of the command line is sent.

Reads the types from the document of `rpc.discover`, which may come from any server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..codec import TAG_KEY

#: Parameters of a method that are read: one with more is called as the command line says.
MAX_PARAMETERS = 100
#: Schemas inside each other, alternatives of one, and schemas of one document that are read: a document of a few KB in
#: which alternatives refer to alternatives has any number.
_MAX_DEPTH, _MAX_CHOICES, _MAX_SCHEMAS = 8, 50, 200_000

_JSON_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    type(None): ("null",),
}

#: A parameter: its name, "positional" or "named" if it takes all further ones (else ""), and the JSON types that it
#: takes, with `dtype:<f4` for each dtype of an array; None where it takes anything, or what it takes is not known.
Parameter = tuple[str, str, list[str] | None]


class MethodTypes:
    """What the parameters of one method take."""

    __slots__ = ("parameters",)

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters

    def taken(self, where: str | int) -> list[str] | None:
        """What the parameter with this name, or at this position, takes; None where that is not known."""
        rest = "named" if isinstance(where, str) else "positional"
        fixed = [parameter for parameter in self.parameters if not parameter[1]]
        if isinstance(where, int):
            found = fixed[where] if where < len(fixed) else None
        else:
            found = next((parameter for parameter in fixed if parameter[0] == where), None)
        if found is None:
            found = next((parameter for parameter in self.parameters if parameter[1] == rest), None)
        return None if found is None else found[2]


def wants_text(taken: list[str] | None, value: Any) -> bool:
    """Whether a parameter takes text, and not this value, which is a number, a bool or None."""
    return taken is not None and "string" in taken and not any(kind in taken for kind in _JSON_TYPES[type(value)])


def dtypes_in(taken: list[str] | None) -> list[str]:
    """The dtypes of the arrays that a parameter takes; empty where it takes all of them, or no array."""
    return [each.removeprefix("dtype:") for each in taken or () if each.startswith("dtype:")]


# -- documents


def methods_in(document: Any) -> dict[str, MethodTypes]:
    """What the methods take, by name; malformed parts of the document are left out."""
    methods = document.get("methods") if isinstance(document, dict) else None
    components = document.get("components") if isinstance(document, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    reader = _SchemaReader(schemas)
    return {method["name"]: MethodTypes(_parameters(method.get("params"), reader)) for method in _named(methods)}


def _parameters(params: Any, reader: _SchemaReader) -> list[Parameter]:
    found: list[Parameter] = []
    for each in _named(params):
        rest = each.get("x-rest")
        types = reader.types(each.get("schema"))
        rest = rest if rest in ("positional", "named") else ""
        found.append((each["name"], rest, None if types is None else sorted(types)))
    return found if len(found) <= MAX_PARAMETERS else []


def _named(objects: Any) -> list[dict[str, Any]]:
    members = objects if isinstance(objects, list) else []
    return [member for member in members if isinstance(member, dict) and isinstance(member.get("name"), str)]


class _SchemaReader:
    """Reads the schemas of one document, up to a number.

    Args:
        schemas: those that others refer to, by name.
    """

    def __init__(self, schemas: Any) -> None:
        self._schemas = schemas if isinstance(schemas, dict) else {}
        self._left = _MAX_SCHEMAS

    def types(self, schema: Any, depth: int = 0) -> set[str] | None:
        """The JSON types that a schema takes, and its dtypes; None for all. Base64 of bytes does not count as text."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._left < 0:
            return None
        if "$ref" in schema:
            return self.types(self._schemas.get(str(schema["$ref"]).rpartition("/")[2]), depth + 1)
        for choice in ("anyOf", "oneOf"):
            if isinstance(schema.get(choice), list):
                return _union(self.types(each, depth + 1) for each in schema[choice][:_MAX_CHOICES])
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return _union(set(_JSON_TYPES.get(type(value), ("object",))) for value in values)
        kind = schema.get("type")
        kinds = {each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)}
        if not kinds:
            return None
        if schema.get("contentEncoding") is not None:
            kinds.discard("string")
        return kinds | _dtypes(schema)


def _union(sets: Iterable[set[str] | None]) -> set[str] | None:
    united: set[str] = set()
    for each in sets:
        if each is None:
            return None
        united |= each
    return united


def _dtypes(schema: dict[str, Any]) -> set[str]:
    members = schema.get("properties")
    if not isinstance(members, dict) or not isinstance(members.get(TAG_KEY), dict):
        return set()
    dtype = members.get("dtype")
    names = dtype.get("enum") if isinstance(dtype, dict) else None
    if members[TAG_KEY].get("const") != "ndarray" or not isinstance(names, list):
        return set()
    return {f"dtype:{name}" for name in names[:_MAX_CHOICES] if isinstance(name, str) and len(name) < 40}
