"""The variant for older tools: only words of draft 07, no circle, and everything that was allowed still is."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.methods.openrpc_compat import OlderDocument, older_head, older_schema


def older_schemas(schemas: dict[str, Any]) -> dict[str, Any]:
    return dict(OlderDocument().schemas(schemas))


def older_method(method: dict[str, Any]) -> dict[str, Any]:
    return without_titles(OlderDocument().method(method))


def without_titles(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_titles(each) for name, each in value.items() if name != "title"}
    return [without_titles(each) for each in value] if isinstance(value, list) else value


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
    made = without_titles(older_schemas(schemas))
    assert made["Tree"]["properties"] == {"left": {"description": "a Tree"}, "value": ref("Leaf")}
    assert made["A"] == {"items": {"description": "a B"}}
    assert made["B"]["anyOf"] == [{"description": "a A"}, {"type": "null"}]
    assert made["B"]["properties"] == {"tree": ref("Tree")}
    assert made["User"] == schemas["User"] | {"items": schemas["User"]["items"]}


@given(st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefgh"), max_size=4)))
def test_no_circle_is_left(edges: dict[str, list[str]]) -> None:
    schemas = {name: {"anyOf": [ref(to) for to in each]} for name, each in edges.items()}
    made = older_schemas(schemas)
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
    chain = {f"n{each}": {"items": ref(f"n{each + 1}")} for each in range(5000)}
    assert without_titles(older_schemas(chain)) == chain
    circle = {**chain, "n5000": {"items": ref("n0")}}
    assert all("$ref" not in schema["items"] for schema in older_schemas(circle).values())


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


def titles_of(schema: Any) -> list[tuple[str, str]]:
    """The title of each schema in one, with all that the schema says."""
    found = []
    if isinstance(schema, dict):
        if "title" in schema:
            found.append((str(schema["title"]), orjson.dumps(schema, option=orjson.OPT_SORT_KEYS).decode()))
        for each in schema.values():
            found += titles_of(each)
    elif isinstance(schema, list):
        for each in schema:
            found += titles_of(each)
    return found


def param(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "schema": schema}


def test_titles_say_what_a_schema_is_or_where_it_stands() -> None:
    integer = {"type": "integer"}
    method = {
        "name": "shop.price",
        "params": [
            param("a", **integer),
            param("b", **integer, default=1),
            param("c", type="array", items=integer),
            param("d", anyOf=[ref("NdArray_f4"), {"type": "null"}]),
            param("e", type="object", additionalProperties={"type": "array", "items": [integer, {"type": "string"}]}),
            param("f", type="string", contentEncoding="base64"),
            param("g"),
            param("h", **ref("Point")),
            param("i", title="Given", type="string"),
        ],
        "result": param("result", type="object", properties={"x": integer, "y": {"type": "number", "minimum": 0}}),
    }
    made = OlderDocument().method(method)
    titles = [each["schema"].get("title") for each in [*made["params"], made["result"]]]
    assert titles == [
        "Integer",
        "ShopPriceB",
        "ListOfInteger",
        "NdArrayF4OrNull",
        "MapOfTupleOfIntegerStr",
        "Base64",
        "Any",
        None,
        "Given",
        "ShopPriceResult",
    ]
    assert made["result"]["schema"]["properties"]["y"]["title"] == "ShopPriceResultY"


def test_what_says_something_else_has_another_title_and_no_method_has_it() -> None:
    older = OlderDocument()
    methods = [
        {"name": "colour", "params": [param("c", title="Colour", enum=[1]), param("d", title="Colour", enum=[2])]},
        {"name": "other", "params": [param("c", title="Colour", enum=[1]), param("col_our", enum=[2])]},
        {"name": "otherCol", "params": [param("our", enum=[3])]},
    ]
    made = [older.method(each) for each in methods]
    schemas = dict(older.schemas({"Colour": {"title": "Colour", "enum": [2]}, "a": {"enum": [5]}, "A": {"enum": [6]}}))
    assert [each["schema"]["title"] for each in made[0]["params"]] == ["Colour_2", "Colour_3"]
    assert made[1]["params"][0]["schema"]["title"] == "Colour_2"
    assert schemas["Colour"]["title"] == "Colour_3"
    said: dict[str, set[str]] = {}
    for title, text in titles_of([made, schemas]):
        said.setdefault("".join(part.capitalize() for part in title.split("_")), set()).add(text)
    assert all(len(texts) == 1 for texts in said.values())
    assert "Colour" not in said


def test_no_title_is_the_name_of_a_type_that_generated_clients_have_themselves() -> None:
    older = OlderDocument("My service")
    names = ("String", "Number", "Promise", "Client", "Options", "MyService")
    kinds = ("string", "number", "boolean", "object", "array", "null", "integer")
    schemas = {name: {"title": name, "type": "integer", "minimum": at} for at, name in enumerate(names)}
    made = dict(older.schemas({**schemas, **{kind: {"type": kind} for kind in kinds}}))
    titles = [made[name]["title"] for name in (*names, *kinds)]
    assert titles[:6] == ["String_2", "Number_2", "Promise_2", "Client_2", "Options_2", "MyService_2"]
    assert titles[6:] == ["Str", "Float", "Bool", "Dict", "List", "Null", "Integer"]


def test_titles_of_what_a_peer_may_send() -> None:
    older = OlderDocument()
    hostile = [
        {"title": 5, "type": ["string"]},
        {"title": "<script>"},
        {"title": "\x00" * 1000, "anyOf": [1, {"title": []}], "properties": {"x" * 10_000: {}}},
        {"items": 7, "type": {}, "const": 2**70},
        {"anyOf": [{"anyOf": [{"anyOf": []}]}]},
    ]
    for at, schema in enumerate(hostile):
        made = older.method({"name": 5, "params": [{"name": at, "schema": schema}]})
        assert len(made["params"][0]["schema"]["title"]) <= 300
    same = {f"n{each}": {"title": "Same", "const": each} for each in range(5000)}
    assert len({each["title"] for each in dict(older.schemas(same)).values()}) == 5000
