"""Writes the schemas of a server's methods as agents read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..codec.schema import SCHEMA_REF
from ..openrpc.schemas import tag_of

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

_BASE64: Schema = {"type": "string", "contentEncoding": "base64"}


#: What an agent may give in place of a tagged object and its base64.
_FORMS: Mapping[str, list[Schema]] = {
    "image": [{**_BASE64, "description": "an image file as base64 (png, jpeg, webp, gif), or a data: URL of one"}],
    "ndarray": [
        {"type": "array", "items": {}, "description": "the numbers, as lists nested by the array's dimensions"},
        {**_BASE64, "description": "a .npy file as base64"},
    ],
    "bytes": [_BASE64],
}


def whole_schema(schema: Schema, components: Mapping[str, Schema], *, is_result: bool = False) -> Schema:
    """A schema that stands by itself: what it refers to is among its `$defs`.

    Args:
        schema: as in the document.
        components: the schemas that others refer to, by name.
        is_result: of a value that is sent, not one that is taken: numbers may be null there, which stands for NaN.
    """
    names: dict[str, None] = {}
    shown = _shown(schema, names, is_result)
    defs: Schema = {}
    while (name := next((each for each in names if each not in defs), None)) is not None:
        defs[name] = _shown(components.get(name, {}), names, is_result)
    return {**shown, "$defs": defs} if defs else shown


def _shown(schema: Any, names: dict[str, None], is_result: bool) -> Any:
    """A schema for agents; the names of the components that it refers to are added to `names`."""
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
            shown["anyOf"] = [_shown(each, names, is_result) for each in _forms(value)]
        elif member in _BY_NAME and type(value) is dict:
            shown[member] = {name: _shown(each, names, is_result) for name, each in value.items()}
        elif member in _LISTS and type(value) is list:
            shown[member] = [_shown(each, names, is_result) for each in value]
        elif member in _ONE:
            shown[member] = _shown(value, names, is_result)
        elif member == "type" and value == "number" and is_result:
            shown[member] = ["number", "null"]
        else:
            shown[member] = value
    return shown


def _is_base64(schema: Any) -> bool:
    return type(schema) is dict and schema.get("contentEncoding") == "base64"


def _forms(choices: list[Any]) -> list[Any]:
    """The members of a union, with what an agent may give in place of tagged objects and their base64."""
    tagged = {tag: each for each in choices if (tag := tag_of(each)) in _FORMS}
    rest = [each for each in choices if tag_of(each) not in tagged]
    if not tagged or not any(map(_is_base64, rest)):  # without rich values, or a number of numpy
        return rest or choices
    rest = [each for each in rest if not _is_base64(each)]
    forms = [form for tag in tagged if tag is not None for form in _FORMS[tag]]
    if "ndarray" in tagged:
        forms[0] = {**forms[0], "description": f"{forms[0]['description']}{_form_of(tagged['ndarray'])}"}
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
