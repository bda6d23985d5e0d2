"""Rewrites the parts of an OpenRPC document for tools that read version 1.2.6, and JSON Schema draft 07 alone.

What draft 07 has other words for is said in these, what it has no words for is left out, so that more is allowed than
the method takes. A class that refers to itself is cut open where it does: tools that put the schemas in the place of
the references to them would never end. Pure; what is rewritten may come from any peer, and is left as it is where it
is malformed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from ..codec.schema import SCHEMA_REF

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
#: Members of a method that are a schema.
_OF_METHOD = ("x-item", "x-end")


def older_head(head: Mapping[str, Any]) -> dict[str, Any]:
    """The members that say what the service is."""
    others = {name: value for name, value in head.items() if name != "x-jsonSchemaDialect"}
    return {**others, "openrpc": COMPAT}


def older_method(method: Mapping[str, Any]) -> dict[str, Any]:
    """A Method Object."""
    made = dict(method)
    if isinstance(params := made.get("params"), list):
        made["params"] = [_older_content(each) for each in params]
    if "result" in made:
        made["result"] = _older_content(made["result"])
    for name in _OF_METHOD:
        if name in made:
            made[name] = older_schema(made[name])
    return made


def older_schemas(schemas: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The components of a document, or of one that is part of another, each with its name; one by one."""
    circles = _circles(schemas)
    for name, schema in schemas.items():
        yield name, older_schema(schema, cut=circles.get(name, ()))


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


def _older_content(content: Any) -> Any:
    """A Content Descriptor: a parameter, or the result."""
    if not isinstance(content, dict) or "schema" not in content:
        return content
    return {**content, "schema": older_schema(content["schema"])}


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
