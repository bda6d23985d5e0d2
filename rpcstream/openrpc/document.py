"""Reads the methods of an OpenRPC document, and the types in its JSON Schemas.

What is malformed, contradictory or nested too deep becomes "any value".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from ..codec import TAG_KEY
from ..codec.rich_hint import shortened_text
from .types import (
    ANY,
    FORMATS,
    MAX_CHOICES,
    NEVER,
    NULL,
    RESERVED_PREFIX,
    Api,
    Array,
    DocumentError,
    Map,
    Member,
    Method,
    NamedType,
    Node,
    Parameter,
    Plain,
    Record,
    Reference,
    Rich,
    Tuple,
    Values,
    bounds_text,
    break_cycles,
    default_text,
    union,
)

#: Methods of a document, parameters of a method, and characters of a name.
MAX_METHODS, MAX_PARAMETERS, MAX_NAME = 20_000, 200, 200
#: Characters of the description of a parameter or a result.
MAX_DESCRIPTION = 2_000
#: Schemas inside each other.
MAX_DEPTH = 24
#: Characters of a string that is a type, and bits of an integer that is one.
MAX_TEXT, MAX_BITS = 200, 63
#: References that lead to references.
MAX_HOPS = 16

_REST = ("positional", "named")
_JSON_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}


class SchemaReader:
    """Reads the schemas of one document.

    Args:
        document: the OpenRPC document.

    Attributes:
        named: the types that were referred to, by key; complete after `finish`.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.named: dict[str, NamedType] = {}
        self._document = document
        #: The schema that is read, in which `#/$defs` of references are.
        self._root: Any = None
        #: Targets of references that are still to be read: the key, the schema, and its root.
        self._waiting: list[tuple[str, Any, Any]] = []
        self._roots: dict[int, tuple[int, Any]] = {}

    def read(self, schema: Any) -> Node:
        """The type of a schema, which may have `$defs` of its own."""
        self._root = schema
        return self._read(schema, 0)

    def finish(self) -> None:
        """Read the schemas that were referred to since the last time."""
        found = {}
        while self._waiting:
            key, schema, self._root = self._waiting.pop()
            found[key] = self.named[key]
            found[key].node = self._read(schema, 0)
            found[key].description = text_of(schema, "description")
        break_cycles(found)

    def target(self, value: Any) -> Any:
        """A part of the document that may be a reference (`{"$ref": "#/components/..."}`), followed."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = _at(self._document, value["$ref"])
        return None

    # -- one schema

    def _read(self, schema: Any, depth: int) -> Node:
        if schema is False:
            return NEVER
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return ANY
        node = self._read_object(schema, depth)
        return union([node, NULL]) if schema.get("nullable") is True else node

    def _read_object(self, schema: dict[str, Any], depth: int) -> Node:
        if isinstance(ref := schema.get("$ref"), str):
            return self._reference(ref)
        if rich := _rich(schema):
            return rich
        for word in ("anyOf", "oneOf"):
            if isinstance(members := schema.get(word), list) and members:
                return self._choice(members, schema.get("x-stream") is True, depth)
        if isinstance(members := schema.get("allOf"), list) and members:
            return self._all_of(schema, depth)
        if "const" in schema or isinstance(schema.get("enum"), list):
            return _values([schema["const"]] if "const" in schema else schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = dict.fromkeys(each for each in kind if isinstance(each, str))
            return union([self._of_kind(each, schema, depth) for each in kinds]) if kinds else ANY
        if not isinstance(kind, str):
            has_items = "items" in schema or "prefixItems" in schema
            kind = "object" if isinstance(schema.get("properties"), dict) else "array" if has_items else ""
        return self._of_kind(kind, schema, depth)

    def _of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> Node:
        if kind == "array":
            return self._array(schema, depth)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "string" and schema.get("contentEncoding") == "base64":
            return Plain("base64")
        if kind == "string":
            formats = [each for name in ("format", "x-format") if (each := text_of(schema, name)) in FORMATS]
            return Plain(formats[0] if formats else "str")
        return Plain(_JSON_TYPES.get(kind, "any"))

    def _choice(self, members: list[Any], is_stream: bool, depth: int) -> Node:
        if len(members) > MAX_CHOICES:
            return ANY
        nodes = [self._read(each, depth + 1) for each in members]
        if any(isinstance(each, Rich) for each in nodes):  # base64 is another form of the same value
            nodes = [each for each in nodes if each != Plain("base64")]
        return union([Array(each.item, is_stream) if isinstance(each, Array) and is_stream else each for each in nodes])

    def _all_of(self, schema: dict[str, Any], depth: int) -> Node:
        """The one schema that says something; of several, objects whose members are known have all of these."""
        own = {name: value for name, value in schema.items() if name not in ("allOf", "nullable")}
        nodes = dict.fromkeys(self._read(each, depth + 1) for each in [*schema["allOf"][:MAX_CHOICES], own])
        nodes.pop(ANY, None)
        if len(nodes) == 1:
            return nodes.popitem()[0]
        records = [each for each in nodes if isinstance(each, Record)]
        if not records or len(records) < len(nodes):
            return ANY
        members = {member.name: member for record in records for member in record.members}
        return Record(tuple(members.values()), any(record.is_open for record in records))

    def _array(self, schema: dict[str, Any], depth: int) -> Node:
        fixed, rest = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest, list):  # a tuple in draft 7 of JSON Schema
            fixed, rest = rest, schema.get("additionalItems", True)
        if not isinstance(fixed, list) or not fixed:
            return Array(self._read(rest, depth + 1), schema.get("x-stream") is True)
        if len(fixed) > MAX_CHOICES:
            return Array(ANY)
        items = [self._read(each, depth + 1) for each in fixed]
        is_whole = rest is False or schema.get("maxItems") == len(items)
        if is_whole and schema.get("minItems") == len(items):
            return Tuple(tuple(items))
        return Array(union(items if is_whole else [*items, self._read(rest, depth + 1)]))

    def _object(self, schema: dict[str, Any], depth: int) -> Node:
        members, others = schema.get("properties"), schema.get("additionalProperties")
        if not isinstance(members, dict) or not any(members):
            return Map(self._read(others, depth + 1) if isinstance(others, dict) else ANY)
        required = schema.get("required")
        names = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
        omits = schema.get("x-omit-defaults") is True
        found = []
        for name, each in members.items():
            if not name:  # no language has such a member
                continue
            has_default = isinstance(each, dict) and "default" in each
            is_given = name in names or (has_default and not omits)
            default = default_text(each) if has_default else ""
            node = self._read(each, depth + 1)
            found.append(Member(name, node, name in names, is_given, default, text_of(each, "description")))
        return Record(tuple(found), others is True or isinstance(others, dict), text_of(schema, "description"))

    # -- references

    def _reference(self, ref: str) -> Node:
        found = self._find(ref)
        if found is None or found[1] is False or not isinstance(found[1], dict):
            return NEVER if found is not None and found[1] is False else ANY
        key, schema, root = found
        hint = unquote(ref.rpartition("/")[2]).replace("~1", "/").replace("~0", "~")
        if rich := _rich(schema):
            return rich
        if _is_rich_choice(schema.get("anyOf")):
            node = self._choice(schema["anyOf"], False, MAX_DEPTH - 1)
            return replace(node, name=hint.replace("_", ".", 1)) if isinstance(node, Rich) else node
        if key not in self.named:
            self.named[key] = NamedType(key, hint)
            self._waiting.append((key, schema, root))
        return Reference(key)

    def _find(self, ref: str) -> tuple[str, Any, Any] | None:
        """The key and the schema that a reference leads to, and the root of that."""
        root = self._root
        if isinstance(root, dict) and ref.startswith(("#/$defs/", "#/definitions/")):
            schema = _at(root, ref)
            if schema is not None:
                number, _ = self._roots.setdefault(id(root), (len(self._roots), root))
                return f"{ref} of {number}", schema, root
        schema = _at(self._document, ref)
        return None if schema is None else (ref, schema, schema)


def text_of(value: Any, name: str) -> str:
    """A member that is text, else ""."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def _at(document: Any, pointer: str) -> Any:
    """What a pointer such as `#/components/schemas/Point` leads to (RFC 6901); None if there is nothing."""
    if not pointer.startswith("#/") or len(pointer) > 1000:
        return None
    found = document
    for part in pointer[2:].split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _values(values: list[Any]) -> Node:
    """One of these values; a value that is no type becomes the type that it has."""
    return union([_value(each) for each in values]) if len(values) <= MAX_CHOICES else ANY


def _value(value: Any) -> Node:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return Values((("bool", value),))
    if isinstance(value, int):
        return Values((("int", value),)) if value.bit_length() <= MAX_BITS else Plain("int")
    if isinstance(value, str):
        return Values((("str", value),)) if len(value) <= MAX_TEXT else Plain("str")
    if isinstance(value, float):
        return Plain("float") if math.isfinite(value) else ANY
    return Array(ANY) if isinstance(value, list) else Map(ANY)


# -- rich values


def _rich(schema: dict[str, Any]) -> Rich | None:
    """The rich value that a schema describes, by a member that says so or by its tagged object; None: it is none."""
    if isinstance(array := schema.get("x-ndarray"), dict):
        shape = array.get("shape")
        return Rich("ndarray", dtypes=_dtypes(array.get("dtype")), shape=_shape(shape))
    if isinstance(schema.get("x-image"), dict):
        return Rich("image")
    if schema.get("x-bytes") is True:
        return Rich("bytes")
    if (tag := tag_of(schema)) is None:
        return None
    dtype = schema["properties"].get("dtype")
    return Rich(tag, dtypes=_dtypes(dtype.get("enum") if tag == "ndarray" and isinstance(dtype, dict) else None))


def tag_of(schema: Any) -> str | None:
    """The tag, if the schema describes the tagged object of a rich value."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    tag = properties.get(TAG_KEY) if isinstance(properties, dict) else None
    return text_of(tag, "const") or None


def _is_rich_choice(schemas: Any) -> bool:
    """Whether these are the forms of one rich value: tagged objects, strings and numbers."""
    return (
        isinstance(schemas, list)
        and any(map(tag_of, schemas))
        and all(tag_of(each) or text_of(each, "type") in ("string", "number") for each in schemas)
    )


def _dtypes(texts: Any) -> tuple[str, ...]:
    """The dtypes as numpy names them, such as "float32"; empty unless all are known."""
    from ..codec.dtypes import EXTENSIONS, from_wire  # only for documents with arrays: this imports numpy

    if not isinstance(texts, list) or len(texts) > MAX_CHOICES:
        return ()
    names = set()
    for text in texts:
        try:
            names.add(text if text in EXTENSIONS else from_wire(text).type.__name__.rstrip("_"))
        except (TypeError, ValueError):
            return ()
    return tuple(sorted(names))


def _shape(dims: Any) -> tuple[int | str | None, ...] | None:
    if not isinstance(dims, list) or len(dims) > MAX_CHOICES:
        return None
    return tuple(dims) if all(dim is None or dim == "..." or isinstance(dim, int) for dim in dims) else None


# -- methods


def read_document(document: Any, only: str | None = None) -> Api:
    """Read the methods of an OpenRPC document.

    Args:
        document: of any server, as plain data.
        only: the method that is read; None: all.

    Raises:
        DocumentError: it is no OpenRPC document, or it has too many methods.
    """
    methods = document.get("methods") if isinstance(document, dict) else None
    if not isinstance(methods, list):
        raise DocumentError("this is not an OpenRPC document: it has no list of methods")
    if len(methods) > MAX_METHODS:
        raise DocumentError(f"the document has {len(methods):,} methods, and at most {MAX_METHODS:,} can be read")
    reader = SchemaReader(document)
    found: dict[str, Any] = {}
    for each in map(reader.target, methods):
        if 0 < len(name := text_of(each, "name")) <= MAX_NAME and only in (None, name):
            found.setdefault(name, each)
    in_order = sorted(found, key=lambda name: (name.startswith(RESERVED_PREFIX), name))
    read = [_method(found[name], reader) for name in in_order]
    reader.finish()
    info = document.get("info")
    return Api(text_of(info, "title")[:MAX_NAME], text_of(info, "version")[:MAX_NAME], read, reader.named)


def _method(described: dict[str, Any], reader: SchemaReader) -> Method:
    parameters = _parameters(described.get("params", []), reader)
    structure = described.get("paramStructure")
    keywords = [each for each in parameters or () if each.is_keyword]
    # A document that says which parameters need a name says that the others do not.
    takes_positions = not any(each.is_required for each in keywords) if keywords else structure != "by-name"
    content = reader.target(described.get("result"))
    result = reader.read(content.get("schema") if isinstance(content, dict) else None)
    item = None
    if described.get("x-stream") is True:
        of_result = result.item if isinstance(result, Array) else ANY
        item = reader.read(described["x-item"]) if "x-item" in described else of_result
    return Method(
        described["name"],
        described,
        parameters,
        takes_positions=takes_positions,
        takes_names=structure != "by-position",
        result=result,
        item=item,
        description=documentation_of(described).strip(),
        result_description=_shortened(text_of(content, "description")),
        deprecated=_shortened(text_of(described, "x-deprecated")) if described.get("deprecated") is True else None,
    )


def _parameters(params: Any, reader: SchemaReader) -> list[Parameter] | None:
    """The parameters; None if they contradict each other, or one has no name."""
    if not isinstance(params, list) or len(params) > MAX_PARAMETERS:
        return None
    found = [_parameter(each, reader) for each in map(reader.target, params)]
    rests = [each.rest for each in found if each.rest]
    names = {each.name for each in found if 0 < len(each.name) <= MAX_NAME}
    return found if len(names) == len(found) and len(set(rests)) == len(rests) else None


def _parameter(described: Any, reader: SchemaReader) -> Parameter:
    members = described if isinstance(described, dict) else {}
    schema = members.get("schema")
    known = schema if isinstance(schema, dict) else {}
    rest = text_of(members, "x-rest")
    is_required = members.get("required") is True and rest not in _REST
    return Parameter(
        text_of(members, "name"),
        reader.read(schema),
        is_required,
        rest if rest in _REST else "",
        is_keyword=members.get("x-keyword") is True,
        default="" if is_required or rest in _REST else default_text(known),
        bounds=bounds_text(known),
        description=_shortened(text_of(members, "description") or text_of(known, "description")),
    )


def _shortened(text: str) -> str:
    return shortened_text(text.strip(), MAX_DESCRIPTION)


def documentation_of(described: Mapping[str, Any]) -> str:
    """The summary of a method that OpenRPC describes, and its description below; empty where it has neither."""
    summary, text = (each if isinstance(each, str) else "" for each in map(described.get, ("summary", "description")))
    # Other programs repeat the summary at the start of the description.
    return text if text.startswith(summary) else f"{summary}\n\n{text}".rstrip()
