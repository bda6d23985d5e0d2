"""The variant for older tools: only words of draft 07, no circle, and everything that was allowed still is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.methods.openrpc_compat import older_head, older_method, older_schema, older_schemas


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.parametrize(
    ("schema", "older"),
    [
        ({"type": "integer"}, {"type": "integer"}),
        (True, True),
        (ref("A"), ref("A")),
        ({**ref("A"), "default": 1}, {"default": 1, "allOf": [ref("A")]}),
        ({**ref("A"), "allOf": [ref("B")]}, {"allOf": [ref("A"), ref("B")]}),
        (
            {"prefixItems": [ref("A"), {"type": "string"}], "items": False, "minItems": 2},
            {"items": [ref("A"), {"type": "string"}], "additionalItems": False, "minItems": 2},
        ),
        ({"items": {}, "prefixItems": [{}]}, {"items": [{}], "additionalItems": {}}),
        ({"$defs": {"x": {"prefixItems": [{}]}}}, {"definitions": {"x": {"items": [{}]}}}),
        ({"dependentSchemas": {"a": {"$defs": {}}}}, {"dependencies": {"a": {"definitions": {}}}}),
        ({"type": "object", "unevaluatedProperties": False, "dependentRequired": {}}, {"type": "object"}),
        ({"properties": {"$defs": {"type": "string"}}}, {"properties": {"$defs": {"type": "string"}}}),
        (
            {"anyOf": [{"prefixItems": []}], "not": {"prefixItems": []}},
            {"anyOf": [{"items": []}], "not": {"items": []}},
        ),
        ({"x-ndarray": {"dtype": None}, "const": {"$ref": 1}}, {"x-ndarray": {"dtype": None}, "const": {"$ref": 1}}),
        # what a peer may have made of it
        ({"prefixItems": 1, "properties": [], "allOf": 5, "$ref": []}, None),
        ({"items": 7, "anyOf": {}, "$defs": 1, "dependentSchemas": 3}, None),
    ],
)
def test_schemas(schema: Any, older: Any) -> None:
    made = older_schema(schema)
    if older is not None:
        assert made == older


def test_what_refers_to_itself_is_cut_open_and_nothing_else() -> None:
    schemas = {
        "Tree": {"properties": {"left": ref("Tree"), "value": ref("Leaf")}},
        "Leaf": {"type": "integer"},
        "A": {"items": ref("B")},
        "B": {"anyOf": [ref("A"), {"type": "null"}], "properties": {"tree": ref("Tree")}},
        "User": {"items": [ref("A"), ref("Tree"), ref("Missing")]},
    }
    made = dict(older_schemas(schemas))
    assert made["Tree"]["properties"] == {"left": {"description": "a Tree"}, "value": ref("Leaf")}
    assert made["A"] == {"items": {"description": "a B"}}
    assert made["B"]["anyOf"] == [{"description": "a A"}, {"type": "null"}]
    assert made["B"]["properties"] == {"tree": ref("Tree")}
    assert made["User"] == schemas["User"] | {"items": schemas["User"]["items"]}


@given(st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefgh"), max_size=4)))
def test_no_circle_is_left(edges: dict[str, list[str]]) -> None:
    schemas = {name: {"anyOf": [ref(to) for to in each]} for name, each in edges.items()}
    made = dict(older_schemas(schemas))
    left = {
        name: [each["$ref"].rpartition("/")[2] for each in schema["anyOf"] if "$ref" in each]
        for name, schema in made.items()
    }

    def end(name: str, path: tuple[str, ...]) -> None:
        assert name not in path
        for to in left.get(name, ()):
            end(to, (*path, name))

    for name in left:
        end(name, ())
    for name, each in edges.items():
        for to in each:
            assert to in left[name] or name in reached(edges, to), "only what leads back is cut"


def reached(edges: dict[str, list[str]], name: str) -> set[str]:
    found, waiting = set(), [name]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += edges.get(each, [])
    return found


def test_a_long_chain_takes_no_long_time() -> None:
    chain = {f"n{each}": {"items": ref(f"n{each + 1}")} for each in range(20_000)}
    assert dict(older_schemas(chain)) == chain
    circle = {**chain, "n20000": {"items": ref("n0")}}
    assert all("$ref" not in schema["items"] for _, schema in older_schemas(circle))


def test_methods_and_the_head() -> None:
    tuple_schema = {"prefixItems": [{}]}
    method = {
        "name": "m",
        "params": [{"name": "a", "schema": tuple_schema}, "x", {"name": "b"}],
        "result": {"name": "result", "schema": tuple_schema},
        "x-item": tuple_schema,
        "x-end": tuple_schema,
        "examples": [{"params": [{"value": tuple_schema}]}],
    }
    made = older_method(method)
    assert made["params"] == [{"name": "a", "schema": {"items": [{}]}}, "x", {"name": "b"}]
    assert made["result"]["schema"] == made["x-item"] == made["x-end"] == {"items": [{}]}
    assert made["examples"] == method["examples"]
    assert older_method({"params": 1, "result": None}) == {"params": 1, "result": None}
    head = {"openrpc": "1.4.1", "info": {}, "x-jsonSchemaDialect": "x", "x-security": []}
    assert older_head(head) == {"openrpc": "1.2.6", "info": {}, "x-security": []}
