"""The document for older tools: only words of draft 07, no circle, a title for each type, whatever peers offer."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Hub, Info

from ..kit import TRANSPORTS, RawPeer, parsed
from ..kit.example_count import IS_THOROUGH


def older(*methods: dict[str, Any], **schemas: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """These methods and schemas as a hub has them for older tools, if a client offers them under the name "shop"."""

    async def ask() -> bytes | None:
        async with TRANSPORTS["memory"].serving(Hub(info=Info(title="My service")), None) as there:
            peer = await there.join(RawPeer)
            await peer.result("rpc.register", params={"name": "shop", "methods": methods, "components": schemas})
            peer.call("rpc.discover", "1.2.6")
            text = await peer.receive_bytes()
            peer.close()
            return text

    text = asyncio.run(ask())
    assert text is not None
    document = parsed(text.replace(b"schemas/shop.", b"schemas/"))["result"]
    assert document["openrpc"] == "1.2.6"
    assert not any(each["name"].startswith("rpc.") for each in document["methods"])
    made = {each["name"].removeprefix("shop."): each for each in document["methods"]}
    return made, {name.removeprefix("shop."): each for name, each in document["components"]["schemas"].items()}


def without_titles(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_titles(each) for name, each in value.items() if name != "title"}
    return [without_titles(each) for each in value] if isinstance(value, list) else value


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def param(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "schema": schema}


SCHEMAS: list[tuple[Any, Any]] = [
    ({**ref("A"), "default": 1}, {"allOf": [ref("A"), {"default": 1}]}),
    ({**ref("A"), "allOf": [ref("B")]}, {"allOf": [ref("A"), {"allOf": [ref("B")]}]}),
    (
        {"prefixItems": [ref("A"), {"type": "string"}], "items": False, "minItems": 2},
        {"items": [ref("A"), {"type": "string"}], "additionalItems": False, "minItems": 2},
    ),
    ({"items": {}, "prefixItems": [{}]}, {"items": [{}], "additionalItems": {}}),
    ({"properties": {"prefixItems": {"type": "string"}}}, {"properties": {"prefixItems": {"type": "string"}}}),
    ({"anyOf": [{"prefixItems": []}], "not": {"prefixItems": []}}, {"anyOf": [{"items": []}], "not": {"items": []}}),
    ({"format": "date", "if": {"format": "decimal"}}, {"format": "date", "if": {"x-format": "decimal"}}),
    ({"x-ndarray": {"dtype": None}, "const": {"a": 1}}, {"x-ndarray": {"dtype": None}, "const": {"a": 1}}),
]


def test_schemas_say_the_same_in_older_words() -> None:
    method = {
        "name": "m",
        "params": [param(f"p{at}", **schema) for at, (schema, _) in enumerate(SCHEMAS)],
        "result": {"name": "result", "schema": SCHEMAS[2][0]},
        "examples": [{"params": [{"name": "a", "value": {"prefixItems": []}}]}],
    }
    made = older(method)[0]["m"]
    found = [without_titles(each["schema"]) for each in made["params"]]
    assert found == [expected for _, expected in SCHEMAS]
    assert without_titles(made["result"]["schema"]) == SCHEMAS[2][1]
    assert made["examples"] == method["examples"]


@given(st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefgh"), max_size=4)))
@settings(max_examples=100 if IS_THOROUGH else 8, deadline=None)
def test_what_refers_to_itself_is_cut_open_and_nothing_else(edges: dict[str, list[str]]) -> None:
    _, made = older(**{name: {"anyOf": [ref(to) for to in each]} for name, each in edges.items()})
    left = {name: [each["$ref"].rpartition("/")[2] for each in made[name]["anyOf"] if "$ref" in each] for name in edges}

    def end(name: str, path: tuple[str, ...]) -> None:
        assert name not in path
        for to in left.get(name, ()):
            end(to, (*path, name))

    for name in left:
        end(name, ())
    circular = {name for name, each in edges.items() if any(name in reached(edges, to) for to in each)}
    for name, each in edges.items():
        for to in each:
            assert to in left[name] or circular & reached(edges, to), "other references stay"


def reached(edges: dict[str, list[str]], name: str) -> set[str]:
    found, waiting = set(), [name]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += edges.get(each, [])
    return found


def test_a_long_chain_takes_no_long_time() -> None:
    chain = {f"n{each}": {"items": ref(f"n{each + 1}")} for each in range(1000)}
    assert without_titles(older(**chain)[1]["n7"]) == {"items": ref("n8")}
    _, made = older(**chain, n1000={"items": ref("n0")})
    assert all("$ref" not in schema["items"] for schema in made.values())


TITLES: list[tuple[dict[str, Any], str | None]] = [
    (param("b", type="integer", default=1), "PriceB"),
    (param("c", type="array", items={"type": "integer"}), "PriceC"),
    (param("d", anyOf=[ref("NdArray_f4"), {"type": "null"}]), "PriceD"),
    (param("e", type="object", additionalProperties={"type": "array", "items": [{}]}), "PriceE"),
    (param("f", type="string", contentEncoding="base64"), "PriceF"),
    (param("h", **ref("Point")), None),
    # No two have the same, and none has a name that generated clients have themselves.
    *((param(f"j{n}", title="Colour", enum=[n]), ("Colour", "Colour_2", "Colour_3")[n]) for n in range(3)),
    *(
        (param(f"m{name}", title=name, const=name), f"{name}_2")
        for name in ("String", "Promise", "Client", "MyService")
    ),
    (param("n", title="Price", type="string"), "Price_2"),
]


def test_titles_say_where_a_schema_stands() -> None:
    method = {
        "name": "price",
        "params": [each for each, _ in TITLES],
        "result": param("result", type="object", properties={"y": {"type": "number", "minimum": 0}}),
    }
    made = older(method)[0]["price"]
    assert [each["schema"].get("title") for each in made["params"]] == [title for _, title in TITLES]
    assert made["result"]["schema"]["title"] == "PriceResult"
    assert made["result"]["schema"]["properties"]["y"]["title"] == "PriceResultY"


HOSTILE: list[dict[str, Any]] = [
    {"prefixItems": 1, "properties": [], "allOf": 5, "$ref": []},
    {"items": 7, "anyOf": {}, "$defs": 1, "dependentSchemas": 3},
    {"title": 5, "type": ["string"]},
    {"title": "\x00" * 1000, "anyOf": [1, {"title": []}], "properties": {"x" * 10_000: {}}},
    {"items": 7, "type": {}, "const": 2**63},
]


def test_what_is_malformed_is_described_too() -> None:
    methods = [
        {"name": f"m{at}", "params": [{"name": "x", "schema": each}, "x", {"name": "b"}]}
        for at, each in enumerate(HOSTILE)
    ]
    same = {f"n{each}": {"title": "Same", "const": each} for each in range(500)}
    made, schemas = older(*methods, {"name": "odd", "params": 1, "result": None}, **same)
    for each in methods:
        first, *others = made[each["name"]]["params"]
        assert others == ["x", {"name": "b"}]
        assert len(first["schema"].get("title", "")) <= 1000
    titles = {schemas[name]["title"] for name in same}
    assert len(titles) == 500
    assert all(re.fullmatch(r"Same(_\d+)?", title) for title in titles)
