"""JSON schemas of hints: made by msgspec, then corrected so that they say exactly what is accepted.

Knows schemas as plain data, and neither methods nor how a hint is lowered.
"""

from __future__ import annotations

import math
import re
from typing import Any

#: Where the schemas of classes stand, in the document that a schema is part of.
SCHEMA_REF = "#/components/schemas/{name}"

#: Where they stand before they have got their names there.
_LOCAL = "#/$local/"
LOCAL_REF = _LOCAL + "{name}"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
#: Characters of the name of a component, of a title, and of a description.
_NAME_MAX, _TITLE_MAX, TEXT_MAX = 100, 300, 16_384

#: Members that hold schemas: under names, in a list, and one as their value.
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_ONE = frozenset(("items", "additionalProperties", "propertyNames", "contains", "not"))

#: Members that are texts for people, and how long each may be.
_TEXTS = {"title": _TITLE_MAX, "description": TEXT_MAX}


class Components(dict[str, dict[str, Any]]):
    """The named schemas of one document. Each class, and each kind of rich value, has a name of its own.

    A name that several want gets a number: `Point`, `Point_2`. Names have only letters, digits, `_`, `.` and `-`, so
    that they can stand in a reference as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[Any, tuple[str, Any]] = {}

    def name_of(self, owner: Any) -> str | None:
        """The name that was taken for this class or hint; None if none was."""
        found = self._owners.get(_key(owner))
        return None if found is None else found[0]

    def take(self, wanted: str, owner: Any) -> str:
        """Take a name for a class or hint, whose schema follows."""
        plain, number = component_name(wanted), 1
        name = plain
        while name in self:
            number += 1
            name = f"{plain}_{number}"
        self[name] = {}
        # With the owner itself: the key of one that has no hash is its place in memory.
        self._owners[_key(owner)] = (name, owner)
        return name

    def give_back(self, owner: Any) -> None:
        """Give back the name that was taken, since there is no schema."""
        name, _ = self._owners.pop(_key(owner))
        del self[name]

    def place(self, parts: dict[str, Any], taken: dict[str, str] | None = None) -> dict[str, str]:
        """Add schemas that refer to each other by `LOCAL_REF`; returns the name that each has here.

        Args:
            parts: the schemas by the names that they have among each other.
            taken: the names of those that have one already (`take`).
        """
        names = {name: component_name(name) for name in parts} | (taken or {})
        numbers = dict.fromkeys(parts.keys() - (taken or {}).keys(), 1)
        is_settled = False
        while not is_settled:
            is_settled, used = True, set((taken or {}).values())
            for name in numbers:
                # What has this name is the same, down to what it refers to, or this one gets another name.
                while names[name] in used or self.get(names[name], same := _part(parts[name], names, name)) != same:
                    numbers[name] += 1
                    names[name] = f"{component_name(name)}_{numbers[name]}"
                    is_settled = False
                used.add(names[name])
        for name, part in parts.items():
            self[names[name]] = _part(part, names, name)
        return names

    def refer(self, wanted: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Add a schema that refers to no other; returns a reference to it."""
        name = self.place({wanted: {"title": component_name(wanted), **schema}})[wanted]
        return {"$ref": SCHEMA_REF.format(name=name)}


def _key(owner: Any) -> Any:
    try:
        hash(owner)
    except TypeError:
        return ("id", id(owner))
    return owner


def component_name(text: str) -> str:
    """The text as a name of a component: without what would have to be escaped in a reference, and not too long."""
    return _NOT_IN_NAMES.sub("_", text[:_NAME_MAX]).strip("_") or "Type"


def _part(part: dict[str, Any], names: dict[str, str], name: str) -> dict[str, Any]:
    """A schema as it stands among the components; one whose name has got a number has it in its title as well."""
    made: dict[str, Any] = renamed(part, names)
    return {**made, "title": names[name]} if "title" in made and names[name] != component_name(name) else made


def renamed(schema: Any, names: dict[str, str]) -> Any:
    """A schema in which each reference to a local name refers to the component of that name in `names`."""
    if isinstance(schema, dict):
        return {key: renamed(member, names) for key, member in schema.items()}
    if isinstance(schema, list | tuple):
        return [renamed(member, names) for member in schema]
    if isinstance(schema, str) and schema.startswith(_LOCAL) and (name := names.get(schema[len(_LOCAL) :])):
        return SCHEMA_REF.format(name=name)
    return schema


def schema_of(lowered: Any, components: Components, *, name: str | None = None) -> dict[str, Any]:
    """The JSON schema of a lowered hint; classes that it names are added to `components` and referred to there.

    Args:
        lowered: see `hints.lower`.
        components: of the document.
        name: the name that was taken for the class that is lowered; None: it is no class, or has no name yet.

    Raises:
        TypeError: JSON Schema has no words for the hint.
    """
    import msgspec  # only where schemas are made: the codec is imported without it

    from .schema_details import add_details

    def hook(kind: Any) -> Any:
        return kind.schema(components)

    (schema,), found = msgspec.json.schema_components([lowered], schema_hook=hook, ref_template=LOCAL_REF)
    add_details(schema, found, lowered)
    taken = {} if name is None else {schema["$ref"][len(_LOCAL) :]: name}
    names = components.place({part: corrected(described) for part, described in found.items()}, taken)
    made: dict[str, Any] = renamed(corrected(schema), names)
    return made


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
            result["x-default"] = shortened_text(str(value), _TITLE_MAX)
        elif name in _TEXTS and isinstance(value, str):
            result[name] = shortened_text(value, _TEXTS[name])
        elif name != "uniqueItems" or schema.get("minItems", 0) > 1:
            result[name] = value
    return result


def shortened_text(text: str, limit: int) -> str:
    """The text, or its beginning and "..." if it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3].rstrip()}..."


def shortened_texts(schema: Any) -> Any:
    """A schema of others, with titles and descriptions of bounded length."""
    if isinstance(schema, dict):
        return {
            name: shortened_text(member, _TEXTS[name])
            if name in _TEXTS and isinstance(member, str)
            else shortened_texts(member)
            for name, member in schema.items()
        }
    return [shortened_texts(member) for member in schema] if isinstance(schema, list) else schema


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
