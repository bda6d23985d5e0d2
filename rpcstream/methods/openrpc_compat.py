"""Rewrites the parts of an OpenRPC document for tools that read version 1.2.6, and JSON Schema draft 07 alone.

What draft 07 has other words for is said in these, what it has no words for is left out, so that more is allowed than
the method takes. A class that refers to itself is cut open where it does: tools that put the schemas in the place of
the references to them would never end. Pure; what is rewritten may come from any peer, and is left as it is where it
is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import orjson

from ..codec.schema import SCHEMA_REF
from .registry import RESERVED

#: The version of OpenRPC that is written for older tools.
COMPAT = "1.2.6"
Compat = Literal["1.2.6"]

_REF = SCHEMA_REF.format(name="")

#: Members of a schema that hold schemas: under names, in a list, and one as their value.
_BY_NAME = frozenset(("properties", "patternProperties", "dependencies", "definitions", "$defs"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf"))
_ONE = frozenset(("items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if"))
_ALSO_ONE = frozenset(("then", "else"))
#: Members that came after draft 07.
_LATER = frozenset(
    (
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "$schema",
        "$vocabulary",
        "contentSchema",
        "dependentRequired",
        "maxContains",
        "minContains",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
#: The formats of draft 07; there are tools that fail at any other.
_FORMATS = frozenset(
    (
        *("date-time", "time", "date", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"),
        *("uri-reference", "iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer", "regex"),
    )
)
_NO_LETTERS = re.compile(r"[^A-Za-z0-9]+")
#: Characters of a title that is made here, and of what one is made of.
_TITLE_MAX, _CONTEXT_MAX = 60, 200
#: What a schema of nothing but a type is called: `String`, `Number`, and the like are types of TypeScript already.
_PLAIN = {
    "array": "List",
    "boolean": "Bool",
    "integer": "Integer",
    "null": "Null",
    "number": "Float",
    "object": "Dict",
    "string": "Str",
}
#: Names that a generated client already uses: built-in types of TypeScript, and what the generator adds.
_NOT_FREE = frozenset(
    (
        *("Array", "BigInt", "Boolean", "Date", "Error", "Function", "Iterable", "Iterator", "Map", "Number", "Object"),
        *("Omit", "Partial", "Pick", "Promise", "Readonly", "Record", "RegExp", "Required", "Set", "String", "Symbol"),
        *("AlwaysFalse", "Client", "ContentDescriptorObject", "HTTPTransport", "JSONRPCError", "MethodCallValidator"),
        *("MethodNotFoundError", "MethodObject", "OpenRPC", "Options", "PostMessageIframeTransport"),
        *("PostMessageWindowTransport", "RequestManager", "WebSocketTransport"),
    )
)
#: Members of a method that are a schema.
_OF_METHOD = ("x-item", "x-end")


def older_head(head: Mapping[str, Any]) -> dict[str, Any]:
    """The members that say what the service is."""
    others = {name: value for name, value in head.items() if name != "x-jsonSchemaDialect"}
    return {**others, "openrpc": COMPAT}


class OlderDocument:
    """Rewrites the methods and components of one document, in the order in which they stand there.

    Each schema gets a title, which tools make the name of a type of, and no two have the same.

    Args:
        title: of the service, which tools make the name of a class of.
    """

    def __init__(self, title: str = "") -> None:
        self._titles = _Titles()
        self._titles.reserve(title)

    @staticmethod
    def has(method: str) -> bool:
        """Whether the method of this name is described: tools make no valid names of `rpc.ping` and the like."""
        return not method.startswith(RESERVED)

    def method(self, method: Mapping[str, Any]) -> dict[str, Any]:
        """A Method Object."""
        made, name = dict(method), str(method.get("name", "method"))
        self._titles.reserve(name)
        if isinstance(params := made.get("params"), list):
            made["params"] = [self._content(each, name) for each in params]
        if "result" in made:
            made["result"] = self._content(made["result"], name)
        for member in _OF_METHOD:
            if member in made:
                made[member] = self._titles.titled(older_schema(made[member]), f"{name} {member[2:]}")
        return made

    def schemas(self, schemas: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The components of a document, or of one that is part of another, each with its name; one by one."""
        circles = _circles(schemas)
        for name, schema in schemas.items():
            yield name, self._titles.titled(older_schema(schema, cut=circles.get(name, ())), name)

    def _content(self, content: Any, method: str) -> Any:
        """A Content Descriptor: a parameter, or the result."""
        if not isinstance(content, dict) or "schema" not in content:
            return content
        schema = older_schema(content["schema"])
        return {**content, "schema": self._titles.titled(schema, f"{method} {content.get('name')}")}


class _Titles:
    """Gives each schema of a document a title, and two that say different things different ones."""

    def __init__(self) -> None:
        #: The title of each schema, by the title that it should have and what it says.
        self._known: dict[tuple[str, bytes], str] = {}
        #: The titles, in Pascal case, as tools read them; and the last number behind each.
        self._taken = set(_NOT_FREE)
        self._numbers: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Leave the name of a method, or the title of the service, to the type that tools make of it."""
        self._taken.add(_pascal(name))

    def titled(self, schema: Any, context: str) -> Any:
        """The schema with titles in all its parts.

        Args:
            schema: of draft 07.
            context: where it stands, for the title of one that nothing else could be said of.
        """
        if not isinstance(schema, dict):
            return schema
        made: dict[str, Any] = {}
        said: dict[str, Any] = {}  # the same, with their titles in place of the parts
        for name, value in schema.items():
            if name in _BY_NAME and isinstance(value, dict):
                made[name] = {key: self.titled(each, f"{context} {key}") for key, each in value.items()}
                said[name] = {key: _title(each) for key, each in made[name].items()}
            elif isinstance(value, list) and (name in _LISTS or name == "items"):
                made[name] = [self.titled(each, f"{context} {at}") for at, each in enumerate(value, 1)]
                said[name] = [_title(each) for each in made[name]]
            elif name in _ONE or name in _ALSO_ONE:
                made[name] = self.titled(value, f"{context} {name}")
                said[name] = _title(made[name])
            else:
                made[name] = said[name] = value
        if "$ref" in schema:  # what it refers to has a title
            return made
        key = orjson.dumps(said, option=orjson.OPT_SORT_KEYS, default=repr) if _is_small(said) else repr(said).encode()
        made["title"] = self._free(_base_of(made, context), key)
        return made

    def _free(self, wanted: str, key: bytes) -> str:
        title = self._known.get((wanted, key))
        while title is None:
            number = self._numbers[wanted] = self._numbers.get(wanted, 0) + 1
            free = wanted if number == 1 else f"{wanted}_{number}"
            if (name := _pascal(free)) not in self._taken:
                self._taken.add(name)
                title = self._known[wanted, key] = free
        return title


def _is_small(said: dict[str, Any]) -> bool:
    """Whether orjson can write it: no integer of more than 64 bits."""
    try:
        orjson.dumps(said)
    except TypeError:
        return False
    return True


def _title(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return schema.get("title") or str(schema.get("$ref", "Any")).rpartition("/")[2]


def _base_of(schema: dict[str, Any], context: str) -> str:
    """The title that a schema should have: what it is, if that is short; else where it stands."""
    title, kind = schema.get("title"), schema.get("type")
    if isinstance(title, str) and _pascal(title):
        return title
    found = ""
    rest = schema.keys() - {"type"}
    if not schema:
        found = "Any"
    elif isinstance(kind, str) and not rest:
        found = _PLAIN.get(kind, kind)
    elif schema.get("contentEncoding") == "base64" and kind == "string":
        found = "Base64"
    elif isinstance(forms := schema.get("anyOf"), list) and forms and rest <= {"anyOf"}:
        found = " or ".join(str(_title(each)) for each in forms[:4])
    elif kind == "array" and isinstance(items := schema.get("items"), list):
        found = f"tuple of {' '.join(str(_title(each)) for each in items[:4])}"
    elif kind == "array" and rest == {"items"}:
        found = f"list of {_title(schema['items'])}"
    elif kind == "object" and rest == {"additionalProperties"}:
        found = f"map of {_title(schema['additionalProperties'])}"
    return _pascal(found if 0 < len(found) <= _TITLE_MAX else context)[:_TITLE_MAX] or "Type"


def _pascal(text: str) -> str:
    """`list of NdArray_f4` as `ListOfNdArrayF4`, the way tools make names of types out of titles."""
    return "".join(part[:1].upper() + part[1:] for part in _NO_LETTERS.split(text[:_CONTEXT_MAX]))


def older_schema(schema: Any, *, cut: Collection[str] = ()) -> Any:
    """One schema.

    Args:
        schema: of JSON Schema 2020-12.
        cut: the components whose references are replaced by a schema that allows everything.
    """
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "prefixItems" and isinstance(value, list):
            made["items"] = [older_schema(each, cut=cut) for each in value]
            if "items" in schema:
                made["additionalItems"] = older_schema(schema["items"], cut=cut)
        elif name == "items" and "prefixItems" in schema:
            continue
        elif name == "dependentSchemas":
            made["dependencies"] = older_schema({"properties": value}, cut=cut)["properties"]
        elif name in _BY_NAME and isinstance(value, dict):
            made["definitions" if name == "$defs" else name] = {
                key: older_schema(each, cut=cut) for key, each in value.items()
            }
        elif name in _LISTS and isinstance(value, list):
            made[name] = [older_schema(each, cut=cut) for each in value]
        elif name in _ONE or name in _ALSO_ONE:
            made[name] = older_schema(value, cut=cut)
        elif name == "format" and not (isinstance(value, str) and value in _FORMATS):
            made["x-format"] = value
        elif name not in _LATER:
            made[name] = value
    return _older_reference(made, cut) if "$ref" in made else made


def _older_reference(schema: dict[str, Any], cut: Collection[str]) -> dict[str, Any]:
    """A schema with a reference. In draft 07 all that stands beside one is ignored."""
    to = schema.pop("$ref")
    if isinstance(to, str) and to.removeprefix(_REF) in cut:
        return {"description": f"a {to.removeprefix(_REF)}", **schema}
    if not schema:
        return {"$ref": to}
    others = schema.pop("allOf", [])
    return {**schema, "allOf": [{"$ref": to}, *(others if isinstance(others, list) else ())]}


def _circles(schemas: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """For each schema that refers to itself, directly or through others, the schemas of these circles.

    By Tarjan's algorithm for strongly connected components, without recursion.
    """
    edges = {name: [to for to in _references(schema) if to in schemas] for name, schema in schemas.items()}
    circles: dict[str, frozenset[str]] = {}
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    for root in schemas:
        waiting = [] if root in order else [(root, iter(edges[root]))]
        while waiting:
            name, following = waiting[-1]
            if name not in order:
                order[name] = lowest[name] = len(order)
                path.append(name)
                on_path.add(name)
            for to in following:
                if to not in order:
                    waiting.append((to, iter(edges[to])))
                    break
                if to in on_path:
                    lowest[name] = min(lowest[name], order[to])
            else:
                waiting.pop()
                if waiting:
                    lowest[waiting[-1][0]] = min(lowest[waiting[-1][0]], lowest[name])
                if lowest[name] == order[name]:
                    circle = {name}
                    while (last := path.pop()) != name:
                        circle.add(last)
                    on_path -= circle
                    if len(circle) > 1 or name in edges[name]:
                        circles.update(dict.fromkeys(circle, frozenset(circle)))
    return circles


def _references(schema: Any) -> list[str]:
    """The names of the components that a schema refers to."""
    found: dict[str, None] = {}
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            to = each.get("$ref")
            if isinstance(to, str) and to.startswith(_REF):
                found[to.removeprefix(_REF)] = None
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return list(found)
