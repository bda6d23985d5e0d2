"""The schemas of a server's methods as agents read them, and their arguments as methods take them.

On the wire an image, an array or bytes is a tagged object. An agent knows none: it gives an image as MCP's image
content or as base64, an array as nested lists or a `.npy` file, bytes as base64. Owns both directions of that, by the
schemas of the document of `rpc.discover`. Pure; knows neither messages nor methods.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pybase64

from ..codec.reading import Reading
from ..codec.rich_hint import NESTED, TAG_KEY
from ..codec.schema import SCHEMA_REF

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REF = SCHEMA_REF.format(name="")
_DEFS = "#/$defs/"

#: Members of a schema that hold schemas: by name, in a list, and one.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "propertyNames", "contains", "not")

#: Members that tell programs how a value looks on the wire, which is not how an agent gives it.
_FOR_PROGRAMS = frozenset(("x-ndarray", "x-image", "x-bytes", "x-stream"))

#: References that are followed from one schema, so that a chain of them has an end.
_MAX_STEPS = 64

_BASE64: Schema = {"type": "string", "contentEncoding": "base64"}


def _content(kind: str, members: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": {"type": {"const": kind}, **members}, "required": ["type", *required]}


_RESOURCE = _content(
    "resource",
    {"resource": {"type": "object", "properties": {"blob": _BASE64}, "required": ["blob"]}},
    ["resource"],
)

#: In place of a tagged object and its base64: what an agent may give.
_FORMS: Mapping[str, list[Schema]] = {
    "image": [
        {**_BASE64, "description": "an image file as base64 (png, jpeg, webp, gif), or a data: URL of one"},
        _content("image", {"data": _BASE64, "mimeType": {"type": "string"}}, ["data"]),
    ],
    "ndarray": [
        {"type": "array", "items": {}, "description": "the numbers, as lists nested by the array's dimensions"},
        {**_BASE64, "description": "a .npy file as base64"},
        _RESOURCE,
    ],
    "bytes": [_BASE64, _RESOURCE],
}


class AgentSchemas:
    """The schemas of one document.

    Args:
        components: the schemas that others refer to, by name.
    """

    def __init__(self, components: Mapping[str, Schema]) -> None:
        self._components = components
        self._readers: dict[str, Reader] = {}

    def resolved(self, schema: Schema) -> Schema:
        """The schema that a reference leads to, or itself."""
        for _ in range(_MAX_STEPS):
            name = schema.get("$ref")
            if type(name) is not str or not name.startswith(_REF):
                break
            schema = self._components.get(name.removeprefix(_REF), {})
        return schema

    def choices(self, schema: Schema) -> Iterator[Schema]:
        """The schemas of which a value has one, without unions around them."""
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            each = self.resolved(waiting.pop())
            if id(each) in seen:
                continue
            seen.add(id(each))
            members = [*each.get("anyOf", ()), *each.get("oneOf", ())]
            if members:
                waiting += [member for member in members if type(member) is dict]
            else:
                yield each

    def tags(self, schema: Schema) -> set[str]:
        """The kinds of rich values, such as "image", that a value itself may be."""
        found = {tag for each in self.choices(schema) if (tag := tag_of(each)) is not None}
        if "ndarray" in found and not any(map(_is_base64, self.choices(schema))):
            found.discard("ndarray")  # a number of numpy, which is a number for an agent
        return found

    def is_rich(self, schema: Schema) -> bool:
        """Whether there may be rich values anywhere in a value."""
        return any(tag_of(each) is not None for each in self._all(schema))

    def is_closed(self, schema: Schema) -> bool:
        """Whether a schema says of every part of a value what it is, so that there can be no rich values unforeseen."""
        return all(_says_something(each) for each in self._all(schema))

    def _all(self, schema: Schema) -> Iterator[Schema]:
        """A schema and all schemas in it, each once."""
        seen: set[int] = set()
        waiting: list[Any] = [schema]
        while waiting:
            each = waiting.pop()
            if each is True:
                yield {}
            if type(each) is not dict or id(each) in seen:
                continue
            seen.add(id(each))
            yield each
            waiting += _parts(each)
            if "$ref" in each:
                waiting.append(self.resolved(each))

    # -- for agents -------------------------------------------------------------------------------------------------

    def whole(self, schema: Schema, *, is_result: bool = False) -> Schema:
        """A schema that stands by itself: what it refers to is among its `$defs`.

        Args:
            is_result: of a value that is sent, not one that is taken: numbers may be null there, which stands for NaN.
        """
        names: dict[str, None] = {}
        shown = self._shown(schema, names, is_result)
        defs: Schema = {}
        while names:
            name = next(iter(names))
            del names[name]
            defs[name] = {}
            defs[name] = self._shown(self._components.get(name, {}), names, is_result)
            for known in defs:
                names.pop(known, None)
        return {**shown, "$defs": defs} if defs else shown

    def is_object(self, schema: Schema) -> bool:
        """Whether a value is an object in any case, and so may be structured content in all versions."""
        return self.resolved(schema).get("type") == "object"

    def _shown(self, schema: Any, names: dict[str, None], is_result: bool) -> Any:
        if type(schema) is not dict:
            return schema
        shown: Schema = {}
        for member, value in schema.items():
            if member in _FOR_PROGRAMS:
                continue
            if member == "$ref" and type(value) is str and value.startswith(_REF):
                names[value.removeprefix(_REF)] = None
                shown[member] = _DEFS + value.removeprefix(_REF)
            elif member in ("anyOf", "oneOf") and not is_result:
                shown["anyOf"] = [self._shown(each, names, is_result) for each in _forms(value)]
            elif member in _BY_NAME and type(value) is dict:
                shown[member] = {name: self._shown(each, names, is_result) for name, each in value.items()}
            elif member in _LISTS and type(value) is list:
                shown[member] = [self._shown(each, names, is_result) for each in value]
            elif member in _ONE:
                shown[member] = self._shown(value, names, is_result)
            elif member == "type" and value == "number" and is_result:
                shown[member] = ["number", "null"]
            else:
                shown[member] = value
        return shown

    # -- from agents ------------------------------------------------------------------------------------------------

    def reader(self, schema: Schema) -> Reader:
        """What turns the values that agents give for a schema into those that the method takes."""
        name = schema.get("$ref")
        if type(name) is not str:
            return Reader(self, schema)
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = Reader(self, schema)
        return reader


class Reader:
    """Turns what an agent has given for one schema into what the method takes. Finds out about the schema once."""

    def __init__(self, schemas: AgentSchemas, schema: Schema) -> None:
        self._schemas = schemas
        self._schema = schema
        self._members: dict[str | None, Reader] = {}
        self._items: dict[int | None, Reader] = {}

    @functools.cached_property
    def is_rich(self) -> bool:
        """Whether there may be rich values anywhere in a value."""
        return self._schemas.is_rich(self._schema)

    @functools.cached_property
    def _choices(self) -> list[Schema]:
        return list(self._schemas.choices(self._schema))

    @functools.cached_property
    def _tags(self) -> set[str]:
        return self._schemas.tags(self._schema)

    @functools.cached_property
    def _forms(self) -> list[Schema]:
        """The forms of an array that nested lists become; none where lists stay lists."""
        if "ndarray" not in self._tags or any("items" in each or "prefixItems" in each for each in self._choices):
            return []
        return [each for each in self._choices if tag_of(each) == "ndarray"]

    def value(self, given: Any, reading: Reading) -> Any:
        """What an agent has given, as the method takes it.

        Args:
            reading: counts the arrays and objects that are looked at.

        Raises:
            ValueError: nested lists are no array.
            MessageTooLarge: there are too many arrays and objects.
        """
        if (type(given) is not dict and type(given) is not list) or not self.is_rich:
            return given
        reading.take_values(1)
        if isinstance(given, dict):
            found = _from_content(given, self._tags)
            return self._object(given, reading) if found is None else found
        if self._forms:
            return _array(given, self._forms)
        if NESTED.isdisjoint(map(type, given)):
            return given
        known = self._known_items
        first = [self._item(at).value(item, reading) for at, item in enumerate(given[:known])]
        others = self._item(None)
        if not others.is_rich:
            return [*first, *given[known:]]
        return [*first, *(others.value(item, reading) for item in given[known:])]

    @functools.cached_property
    def _known_items(self) -> int:
        return max((len(each.get("prefixItems", ())) for each in self._choices), default=0)

    def _item(self, at: int | None) -> Reader:
        """For the item at this place; None: for those that have no schema of their own."""
        if at not in self._items:
            self._items[at] = self._schemas.reader(_item_schema(self._choices, self._known_items if at is None else at))
        return self._items[at]

    def _object(self, given: dict[str, Any], reading: Reading) -> dict[str, Any]:
        if TAG_KEY in given or NESTED.isdisjoint(map(type, given.values())):
            return given
        return {name: self._member(name).value(value, reading) for name, value in given.items()}

    def _member(self, name: str) -> Reader:
        known = name if any(name in each.get("properties", ()) for each in self._choices) else None
        if known not in self._members:
            schemas = [each["properties"][known] for each in self._choices if known in each.get("properties", ())]
            schemas = schemas or [each.get("additionalProperties") for each in self._choices]
            self._members[known] = self._schemas.reader(_any_of(schemas))
        return self._members[known]


def tag_of(schema: Schema) -> str | None:
    """The kind of the rich value whose tagged object a schema describes; None for others."""
    properties = schema.get("properties")
    tag = properties.get(TAG_KEY) if type(properties) is dict else None
    const = tag.get("const") if type(tag) is dict else None
    return const if type(const) is str else None


def _parts(schema: Schema) -> list[Any]:
    parts: list[Any] = []
    for member, value in schema.items():
        if member in _BY_NAME and type(value) is dict:
            parts += value.values()
        elif member in _LISTS and type(value) is list:
            parts += value
        elif member in _ONE:
            parts.append(value)
    return parts


def _says_something(schema: Schema) -> bool:
    """Whether a schema, its parts left aside, says of which type a value is, and an object or array what is in it."""
    kind = schema.get("type")
    if kind == "object":
        return "properties" in schema or "additionalProperties" in schema
    if kind == "array":
        return "items" in schema or "prefixItems" in schema
    return bool(schema.keys() & {"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"})


def _is_base64(schema: Schema) -> bool:
    return schema.get("type") == "string" and schema.get("contentEncoding") == "base64"


def _forms(choices: list[Any]) -> list[Any]:
    """The members of a union, with what an agent may give in place of tagged objects and their base64."""
    tags = dict.fromkeys(tag for each in choices if type(each) is dict and (tag := tag_of(each)) in _FORMS)
    if not tags:
        return choices
    rest = [each for each in choices if type(each) is not dict or tag_of(each) not in tags]
    has_base64 = any(type(each) is dict and _is_base64(each) for each in rest)
    if not has_base64:  # a number of numpy
        return rest or choices
    rest = [each for each in rest if type(each) is not dict or not _is_base64(each)]
    forms = [form for tag in tags if tag is not None for form in _FORMS[tag]]
    if "ndarray" in tags:
        array = next(each for each in choices if type(each) is dict and tag_of(each) == "ndarray")
        forms[0] = {**forms[0], "description": f"{forms[0]['description']}{_form_of(array)}"}
    return forms + rest


def _form_of(array: Schema) -> str:
    """The dtype and the shape that an array must have, for people; empty if any will do."""
    properties = array["properties"]
    dtypes = properties.get("dtype", {}).get("enum")
    dims = properties.get("shape", {}).get("prefixItems")
    said = f"; dtype {dtypes[0]}" if dtypes else ""
    if dims is not None:
        said += f"; shape ({', '.join(str(dim.get('const', 'any')) for dim in dims)})"
    return said


def _any_of(schemas: list[Any]) -> Schema:
    known = [each for each in schemas if type(each) is dict]
    return known[0] if len(known) == 1 else {"anyOf": known} if known else {}


def _item_schema(choices: list[Schema], at: int) -> Schema:
    schemas = []
    for each in choices:
        first = each.get("prefixItems", ())
        schemas.append(first[at] if at < len(first) else each.get("items"))
    return _any_of(schemas)


def _from_content(given: dict[str, Any], tags: set[str]) -> Any:
    """The base64 in MCP's image content, or in an embedded resource, where such a value is wanted; else None."""
    kind = given.get("type")
    if kind == "image" and "image" in tags:
        data = given.get("data")
        return data if type(data) is str else None
    if kind == "resource" and tags & {"ndarray", "bytes", "image"}:
        resource = given.get("resource")
        blob = resource.get("blob") if type(resource) is dict else None
        return blob if type(blob) is str else None
    return None


def _array(numbers: list[Any], forms: list[Schema]) -> dict[str, Any]:
    """Nested lists of numbers as the tagged object of an array, in a wanted dtype that keeps them.

    Raises:
        ValueError: they are no array of numbers.
    """
    try:
        array = np.asarray(numbers)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"the lists are no array: {str(error)[:200]}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError("the lists are no array: they must hold numbers, and lists at one depth must be equally long")
    wanted = [name for form in forms for name in form["properties"].get("dtype", {}).get("enum", ())]
    if wanted and array.dtype.str not in wanted:
        array = next((cast for name in wanted if (cast := _cast(array, name)) is not None), array)
    data = pybase64.b64encode(array.tobytes()).decode()
    return {TAG_KEY: "ndarray", "dtype": array.dtype.str, "shape": list(array.shape), "data": data}


@functools.cache
def _dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of numpy's own with this name; None for one of an extension."""
    try:
        return np.dtype(name)
    except TypeError:
        return None


def _cast(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any] | None:
    """The array in another dtype; None where that is not one of numbers, or would change whole numbers."""
    dtype = _dtype(name)
    if dtype is None or dtype.kind not in "biufc":
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    return cast if dtype.kind in "fc" or array.size == 0 or np.array_equal(cast, array) else None
