"""The types of a document, whatever language they are written in; and how they are read out of JSON Schema.

Owns which part of a schema counts, how references are followed, and the bounds on what a document may make of it. What
is malformed, contradictory or too deep becomes `ANY`, since a document may come from any server. Knows no language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ..codec import TAG_KEY

#: Schemas inside each other: what is deeper is any value.
MAX_DEPTH = 24
#: Alternatives of one type, values of an enumeration, parts of a tuple: with more it is any value.
MAX_CHOICES = 64
#: Schemas in one document. One of 10,000 methods has some 50,000.
MAX_SCHEMAS = 1_000_000
#: Characters of a string that is a type, and binary digits of such a number.
MAX_TEXT, MAX_BITS = 200, 63
#: References that lead to references.
MAX_HOPS = 16

#: Texts that stand for something else, as JSON Schema calls them.
FORMATS = frozenset(("date", "date-time", "time", "duration", "uuid", "decimal"))
_JSON_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
_DTYPE = re.compile(r"[<>|=]?([biufc])([0-9]{1,2})")
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
#: What can be an element of an array, for `Rich.dtypes`.
_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128", "datetime64", "timedelta64", "str"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
)


class DocumentError(ValueError):
    """A document that no types can be written for; the text says why."""


class Node:
    """A type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Plain(Node):
    """One of "any", "never", "str", "int", "float", "bool", "null", or a text in one of `FORMATS`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Values(Node):
    """One of these values: each a pair of its type's name and itself, since 1 and True are equal."""

    values: tuple[tuple[str, str | int | bool | None], ...]


@dataclass(frozen=True, slots=True)
class Rich(Node):
    """A rich value: "ndarray" (with the names of its dtypes; none: any), "image", "bytes" or "complex"."""

    kind: str
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Array(Node):
    """An array of items; where `is_stream`, an argument that may be sent item by item."""

    item: Node
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    """An array of exactly these."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Map(Node):
    """An object whose members all have one type."""

    value: Node


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object.

    Attributes:
        is_required: an argument has it.
        is_given: a result has it: those with a default are written, though an argument may leave them out.
    """

    name: str
    type: Node
    is_required: bool
    is_given: bool
    description: str = ""


@dataclass(frozen=True, slots=True)
class Record(Node):
    """An object with these members; where `is_open`, with any others too."""

    members: tuple[Member, ...]
    is_open: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Union(Node):
    """One of several types."""

    members: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Reference(Node):
    """A named type, by its key."""

    key: str


ANY, NEVER, NULL = Plain("any"), Plain("never"), Plain("null")


@dataclass(slots=True)
class NamedType:
    """A type that others refer to; `hint` is the name that the document has for it."""

    key: str
    hint: str
    node: Node = ANY
    description: str = ""


def union(members: list[Node]) -> Node:
    """One of these types: without what is there twice, null last."""
    flat: dict[Node, None] = {}
    values: dict[tuple[str, Any], None] = {}
    for member in members:
        for each in member.members if isinstance(member, Union) else (member,):
            if isinstance(each, Values):
                values.update(dict.fromkeys(each.values))
                flat.setdefault(Values(()))
            else:
                flat.setdefault(each)
    if ANY in flat:
        return ANY
    found = [Values(tuple(values)) if isinstance(each, Values) else each for each in flat if each not in (NULL, NEVER)]
    found += [NULL] if NULL in flat else []
    if len(found) > MAX_CHOICES or len(values) > MAX_CHOICES:
        return ANY
    return found[0] if len(found) == 1 else Union(tuple(found)) if found else NEVER


def parts(node: Node) -> Iterator[Node]:
    """A type and all types inside it, those that it refers to left out."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Array):
            waiting.append(node.item)
        elif isinstance(node, Map):
            waiting.append(node.value)
        elif isinstance(node, Tuple):
            waiting.extend(node.items)
        elif isinstance(node, Union):
            waiting.extend(node.members)
        elif isinstance(node, Record):
            waiting.extend(member.type for member in node.members)


class SchemaReader:
    """Reads the schemas of one document.

    Args:
        document: the OpenRPC document.

    Attributes:
        named: the types that were referred to, by key.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.named: dict[str, NamedType] = {}
        self._document = document
        self._left = MAX_SCHEMAS
        #: Targets of references that are still to be read: the key, the schema, and what `#/$defs` in it refers to.
        self._waiting: list[tuple[str, Any, Any]] = []
        self._roots: dict[int, tuple[int, Any]] = {}

    def read(self, schema: Any) -> Node:
        """The type of a schema, which stands for itself: `#/$defs` in it are its own.

        Raises:
            DocumentError: the document has too many schemas.
        """
        return self._read(schema, schema, 0)

    def finish(self) -> None:
        """Read what was referred to. Raises DocumentError as `read`."""
        while self._waiting:
            key, schema, root = self._waiting.pop()
            named = self.named[key]
            named.node = self._read(schema, root, 0)
            named.description = text_of(schema, "description")
        _break_cycles(self.named)

    def target(self, value: Any) -> Any:
        """A part of the document that may be a reference (`{"$ref": "#/components/…"}`), followed."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
                return value
            value = _at(self._document, value["$ref"])
        return None

    # -- one schema

    def _read(self, schema: Any, root: Any, depth: int) -> Node:
        self._left -= 1
        if self._left < 0:
            raise DocumentError(f"the document has more than {MAX_SCHEMAS:,} schemas")
        if schema is False:
            return NEVER
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return ANY
        node = self._without_null(schema, root, depth)
        return union([node, NULL]) if schema.get("nullable") is True else node

    def _without_null(self, schema: dict[str, Any], root: Any, depth: int) -> Node:
        if isinstance(ref := schema.get("$ref"), str):
            return self._reference(ref, root)
        if rich := _rich(schema):
            return rich
        if schema.get("x-stream") is True and (stream := self._stream(schema, root, depth)):
            return stream
        for choice in ("anyOf", "oneOf"):
            if isinstance(members := schema.get(choice), list) and members:
                return self._choice(members, root, depth)
        if isinstance(members := schema.get("allOf"), list) and members:
            return self._all_of(schema, root, depth)
        if "const" in schema:
            return _values([schema["const"]])
        if isinstance(values := schema.get("enum"), list):
            return _values(values)
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = dict.fromkeys(each for each in kind if isinstance(each, str))
            return union([self._of_kind(each, schema, root, depth) for each in kinds]) if kinds else ANY
        if not isinstance(kind, str):
            has_items = "items" in schema or "prefixItems" in schema
            kind = "object" if isinstance(schema.get("properties"), dict) else "array" if has_items else ""
        return self._of_kind(kind, schema, root, depth)

    def _of_kind(self, kind: str, schema: dict[str, Any], root: Any, depth: int) -> Node:
        if kind == "array":
            return self._array(schema, root, depth)
        if kind == "object":
            return self._object(schema, root, depth)
        if kind == "string":
            formats = [schema[name] for name in ("format", "x-format") if isinstance(schema.get(name), str)]
            return Plain(next((each for each in formats if each in FORMATS), "str"))
        return Plain(_JSON_TYPES.get(kind, "any"))

    def _choice(self, members: list[Any], root: Any, depth: int) -> Node:
        if len(members) > MAX_CHOICES:
            return ANY
        if _has_tagged(members):  # base64 is another form of the same
            members = [each for each in members if not (isinstance(each, dict) and "contentEncoding" in each)]
        return union([self._read(each, root, depth + 1) for each in members])

    def _all_of(self, schema: dict[str, Any], root: Any, depth: int) -> Node:
        """What fits all of several schemas: of objects, all their members; of one that says something, that."""
        records: dict[str, Member] = {}
        others: list[Node] = []
        is_open = False
        own = {name: value for name, value in schema.items() if name not in ("allOf", "nullable")}
        for each in [*schema["allOf"][:MAX_CHOICES], own]:
            node = self._read(each, root, depth + 1)
            record = self._record_behind(each, root, depth + 1) if isinstance(node, Reference) else node
            if isinstance(record, Record):
                records.update((member.name, member) for member in record.members)
                is_open = is_open or record.is_open
                others.append(node)
            elif node != ANY:
                others.append(node)
        others = list(dict.fromkeys(others))
        if len(others) <= 1:
            return others[0] if others else ANY
        return Record(tuple(records.values()), is_open) if records else ANY

    def _record_behind(self, schema: Any, root: Any, depth: int) -> Node:
        """The object that a reference leads to; ANY if it leads to something else."""
        for _ in range(MAX_HOPS):
            if not isinstance(schema, dict):
                return ANY
            if not isinstance(ref := schema.get("$ref"), str):
                return self._read(schema, root, depth + 1)
            found = self._find(ref, root)
            if found is None:
                return ANY
            _, schema, root = found
        return ANY

    def _array(self, schema: dict[str, Any], root: Any, depth: int) -> Node:
        fixed = schema.get("prefixItems")
        rest = schema.get("items", True)
        if isinstance(rest, list):  # a tuple as draft 7 of JSON Schema has it
            fixed, rest = rest, schema.get("additionalItems", True)
        if not isinstance(fixed, list) or not fixed:
            return Array(self._read(rest, root, depth + 1))
        if len(fixed) > MAX_CHOICES:
            return Array(ANY)
        items = [self._read(each, root, depth + 1) for each in fixed]
        if schema.get("minItems") == len(items) and (rest is False or schema.get("maxItems") == len(items)):
            return Tuple(tuple(items))
        if rest is not False and schema.get("maxItems") != len(items):
            items.append(self._read(rest, root, depth + 1))
        return Array(union(items))

    def _object(self, schema: dict[str, Any], root: Any, depth: int) -> Node:
        members, others = schema.get("properties"), schema.get("additionalProperties")
        if not isinstance(members, dict) or not any(members):
            return Map(self._read(others, root, depth + 1) if isinstance(others, dict) else ANY)
        required = schema.get("required")
        names = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
        omits = schema.get("x-omit-defaults") is True
        found = []
        for name, each in members.items():
            if not name:  # which is no member of an object anywhere else
                continue
            is_given = name in names or (not omits and isinstance(each, dict) and "default" in each)
            node = self._read(each, root, depth + 1)
            found.append(Member(name, node, name in names, is_given, text_of(each, "description")))
        is_open = others is True or isinstance(others, dict)
        return Record(tuple(found), is_open, text_of(schema, "description"))

    def _stream(self, schema: dict[str, Any], root: Any, depth: int) -> Node | None:
        """The type of an argument that may be sent item by item, if the schema has the items."""
        if "items" in schema:
            return Array(self._read(schema["items"], root, depth + 1), is_stream=True)
        members = schema.get("anyOf")
        if not isinstance(members, list) or len(members) > MAX_CHOICES:
            return None
        nodes = [self._read(each, root, depth + 1) for each in members]
        return union([Array(each.item, is_stream=True) if isinstance(each, Array) else each for each in nodes])

    # -- references

    def _reference(self, ref: str, root: Any) -> Node:
        found = self._find(ref, root)
        if found is None:
            return ANY
        key, schema, root = found
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            return ANY
        if rich := _rich(schema):
            return rich
        if _is_rich_choice(schema.get("anyOf")):
            return self._choice(schema["anyOf"], root, MAX_DEPTH - 1)
        if key not in self.named:
            hint = unquote(ref.rpartition("/")[2]).replace("~1", "/").replace("~0", "~")
            self.named[key] = NamedType(key, hint)
            self._waiting.append((key, schema, root))
        return Reference(key)

    def _find(self, ref: str, root: Any) -> tuple[str, Any, Any] | None:
        """The key and the schema that a reference leads to, and what `#/$defs` in that refers to."""
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
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        else:
            return None
    return found


def _values(values: list[Any]) -> Node:
    """One of these values; of what is no value of a type, its type."""
    found: list[Node] = []
    for value in values[: MAX_CHOICES + 1]:
        if isinstance(value, bool | None):
            found.append(Values((("null" if value is None else "bool", value),)))
        elif isinstance(value, int):
            found.append(Values((("int", value),)) if value.bit_length() <= MAX_BITS else Plain("int"))
        elif isinstance(value, str):
            found.append(Values((("str", value),)) if len(value) <= MAX_TEXT else Plain("str"))
        elif isinstance(value, float):
            found.append(Plain("float") if math.isfinite(value) else ANY)
        else:
            found.append(Array(ANY) if isinstance(value, list) else Map(ANY))
    if len(values) > MAX_CHOICES:
        kinds = {type(value).__name__ for value in values}
        return Plain(kinds.pop()) if len(kinds) == 1 and kinds <= {"str", "int", "float"} else ANY
    return union([NULL if each == Values((("null", None),)) else each for each in found])


# -- rich values


def _rich(schema: dict[str, Any]) -> Node | None:
    """The rich value that a schema describes, by what says so, or by its tagged object; None: it is none."""
    array = schema.get("x-ndarray")
    if isinstance(array, dict):
        return Rich("ndarray", _dtypes(array.get("dtype")))
    if isinstance(schema.get("x-image"), dict):
        return Rich("image")
    if schema.get("x-bytes") is True:
        return Rich("bytes")
    if (tag := _tag_of(schema)) is not None:
        dtype = schema["properties"].get("dtype")
        dtypes = _dtypes(dtype.get("enum") if isinstance(dtype, dict) else None)
        return Rich(tag, dtypes if tag == "ndarray" else ()) if tag in ("ndarray", "image", "bytes", "complex") else ANY
    return None


def _tag_of(schema: dict[str, Any]) -> str | None:
    """The tag, if the schema describes the tagged object of a rich value."""
    properties = schema.get("properties")
    tag = properties.get(TAG_KEY) if isinstance(properties, dict) else None
    if not isinstance(tag, dict):
        return None
    values = tag.get("enum")
    name = values[0] if isinstance(values, list) and len(values) == 1 else tag.get("const")
    return name if isinstance(name, str) else None


def _has_tagged(schemas: Any) -> bool:
    """Whether one of several schemas describes the tagged object of a rich value."""
    return isinstance(schemas, list) and any(isinstance(each, dict) and _tag_of(each) for each in schemas)


def _is_rich_choice(schemas: Any) -> bool:
    """Whether these are the forms of one rich value, though nothing else says so: tagged objects, texts and numbers."""
    return _has_tagged(schemas) and all(
        isinstance(each, dict) and (_tag_of(each) is not None or each.get("type") in ("string", "number"))
        for each in schemas
    )


def _dtypes(texts: Any) -> tuple[str, ...]:
    """The names of dtypes, as numpy has them; empty if it is not known which may come."""
    if not isinstance(texts, list) or not texts or len(texts) > MAX_CHOICES:
        return ()
    names = {_dtype_name(text) for text in texts if isinstance(text, str)}
    return tuple(sorted(names)) if names <= _DTYPES else ()


def _dtype_name(text: str) -> str:
    if text[1:2] in ("M", "m") or text.startswith(("datetime64", "timedelta64")):
        return "datetime64" if text.startswith("datetime64") or text[1:2] == "M" else "timedelta64"
    if text[1:2] in ("U", "S"):
        return "str" if text[1] == "U" else text
    found = _DTYPE.fullmatch(text)
    if found is None:
        return text
    kind = _KINDS[found[1]]
    return kind if kind == "bool" else f"{kind}{8 * int(found[2])}"


# -- all named types together


def _break_cycles(named: dict[str, NamedType]) -> None:
    """Make those types any value that consist of themselves: in no language is `A = A | None` a type."""
    direct = {
        key: {each.key for each in _alternatives(found.node) if isinstance(each, Reference) and each.key in named}
        for key, found in named.items()
    }
    users: dict[str, list[str]] = {key: [] for key in named}
    for key, targets in direct.items():
        for target in targets:
            users[target].append(key)
    free = [key for key, targets in direct.items() if not targets]
    while free:
        target = free.pop()
        for key in users[target]:
            direct[key].discard(target)
            if not direct[key]:
                free.append(key)
    for key, targets in direct.items():
        if targets:
            named[key].node = ANY


def _alternatives(node: Node) -> tuple[Node, ...]:
    return node.members if isinstance(node, Union) else (node,)


def different_inputs(named: dict[str, NamedType], kinds: frozenset[str]) -> set[str]:
    """The keys of the types of which an argument may be more than what a result is: by themselves, or what they hold.

    Args:
        named: the types.
        kinds: those of `Plain` types of which this is so.
    """
    users: dict[str, list[str]] = {key: [] for key in named}
    different = set()
    for key, found in named.items():
        for part in parts(found.node):
            if isinstance(part, Reference) and part.key in users:
                users[part.key].append(key)
            elif (
                part.kind in kinds if isinstance(part, Plain) else isinstance(part, Array | Tuple | Map | Record | Rich)
            ):
                different.add(key)
    waiting = list(different)
    while waiting:
        for key in users[waiting.pop()]:
            if key not in different:
                different.add(key)
                waiting.append(key)
    return different
