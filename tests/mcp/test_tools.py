"""Which tools there are, what their schemas say, what arguments agents give, and what they see of results."""

from __future__ import annotations

import base64
import datetime
import io
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import orjson
import PIL.Image
import pytest
from numpy.typing import NDArray

from rpcstream import Codec, ImageOptions, Info, RpcError, Server, Shape

from .conftest import Serve

Picture = PIL.Image.Image


@dataclass
class Node:
    name: str
    picture: Picture | None = None
    children: list[Node] = field(default_factory=list)


class Pair:
    """A type that is registered with a codec."""

    parts = (2, 1)


def png(width: int = 1) -> str:
    file = io.BytesIO()
    PIL.Image.new("L", (width, 1)).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


# -- definitions ----------------------------------------------------------------------------------------------------


def weather(city: str, days: int = 3, *, at: datetime.date | None = None) -> dict[str, float]:
    """The weather.

    Of a city.
    """
    return {city: float(days)}


async def test_a_tool_has_the_docstring_and_the_schemas_of_its_function(with_tool: Serve) -> None:
    async with with_tool(weather) as agent:
        [tool] = await agent.tools()
    properties = tool["inputSchema"].pop("properties")
    assert tool == {
        "name": "tool",
        "description": "The weather.\n\nOf a city.",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "additionalProperties": False,
            "required": ["city"],
        },
        "outputSchema": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    }
    assert properties["days"] == {"type": "integer", "default": 3}


@pytest.mark.parametrize(
    ("hint", "options", "schema"),
    [
        (int, {}, {"type": "integer"}),
        (Iterator[int], {}, {"type": "array", "items": {"type": "integer"}}),
        # Where a result is not known or not checked, or there are pictures in it, it has no schema.
        *((hint, {}, None) for hint in (Any, object, list, dict, dict[str, Any], NDArray[np.float32], bytes | None)),
        (list[Node], {}, None),
        (int, {"check_result": False}, None),
    ],
)
async def test_the_schema_of_a_result(with_tool: Serve, hint: Any, options: Any, schema: Any) -> None:
    def once() -> Any:
        return 1

    def several() -> Any:
        yield 1

    function = several if hint == Iterator[int] else once
    function.__annotations__["return"] = hint
    async with with_tool(function, **options) as agent:
        [tool] = await agent.tools()
        assert tool.get("outputSchema") == schema
        if hint is int and schema:
            # Where structured content must be an object, other results are in one.
            old = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            [tool] = (await agent.post(old, "MCP-Protocol-Version: 2025-11-25")).json["result"]["tools"]
            members = {"properties": {"result": {"type": "integer"}}, "required": ["result"]}
            assert tool["outputSchema"] == {"type": "object", **members}


async def test_classes_and_arrays_among_the_definitions(with_tool: Serve) -> None:
    def draw(node: Node, v: Annotated[NDArray[np.float32], Shape(None, 3)]) -> None: ...

    async with with_tool(draw) as agent:
        [tool] = await agent.tools()
    schema = tool["inputSchema"]
    assert schema["properties"]["node"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    described = schema["$defs"]["NdArray_f4_Nx3"]["anyOf"][0]["description"]
    assert described.endswith("dtype <f4; shape (any, 3)")
    assert b"$type" not in orjson.dumps(schema)
    assert b"x-image" not in orjson.dumps(schema)


async def test_methods_whose_names_agents_take_are_tools(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(mcp=True)
    fit, unfit = ("-", "a.b", "a_b", "x" * 128), ("a b", "a/b", "größe", "x" * 129)
    for name in (*fit, *unfit):
        server.add(lambda name=name: name, name=name, check_result=False)
    async with serve(server) as agent:
        assert [tool["name"] for tool in await agent.tools()] == list(fit)
        assert [(await agent.call(name))["content"][0]["text"] for name in fit] == list(fit)
    for name in unfit:
        assert f"{name[:128]!r} is no tool for agents: name it" in caplog.text


@pytest.mark.slow
async def test_thousands_of_tools_and_long_descriptions_come_in_pages(serve: Serve) -> None:
    server = Server(mcp=True)

    def work(a: int) -> int:
        return a

    work.__doc__ = "x" * 20_000
    for number in range(1000):
        server.add(work, name=f"work{number:04}")
    seen: list[str] = []
    more: dict[str, Any] = {}
    async with serve(server) as agent:
        while True:
            answer = await agent.ask("tools/list", **more)
            assert len(answer.body) < 1_100_000
            page = answer.json["result"]
            seen += [tool["name"] for tool in page["tools"]]
            assert len(page["tools"][0]["description"]) < 20_000
            if "nextCursor" not in page:
                break
            more = {"cursor": page["nextCursor"]}
        assert (seen, bool(more)) == ([f"work{number:04}" for number in range(1000)], True)
        for cursor in ("%", "/w==", "x" * 100_000, "é", 7):
            answer = await agent.ask("tools/list", cursor=cursor)
            assert (answer.status, answer.json["error"]["code"]) == (400, -32602)


async def test_methods_that_are_no_tools_and_what_is_said_of_others(serve: Serve) -> None:
    server = Server(mcp=True, info=Info(description="About pictures."))
    server.add(lambda: 1, name="a", mcp=False)
    server.add(lambda: 1, name="b", idempotent=True)
    server.add(lambda: 1, name="old", deprecated="use new")
    async with serve(server) as agent:
        b, old = await agent.tools()
        assert (b["annotations"], old["description"]) == ({"idempotentHint": True}, "Deprecated: use new.")
        assert (await agent.ask("server/discover")).json["result"]["instructions"] == "About pictures."
        server.add(lambda: 1, name="a", replace=True)
        assert [tool["name"] for tool in await agent.tools()] == ["a", "b", "old"]


# -- arguments ------------------------------------------------------------------------------------------------------


async def test_an_image_is_given_as_base64(with_tool: Serve) -> None:
    def show(picture: Picture, others: list[Node] = [], **more: Picture) -> list[Any]:  # noqa: B006
        found = [node.picture or node.children[0].picture for node in others]
        return [each.size[0] for each in (picture, *found, *more.values())]

    deep = {"name": "x", "children": [{"name": "y", "picture": png(4)}]}
    async with with_tool(show) as agent:
        for given, widths in [
            ({"picture": png(2), "others": [{"name": "x", "picture": png(3)}], "third": png(4)}, [2, 3, 4]),
            ({"picture": f"data:image/png;base64,{png(5)}"}, [5]),
            ({"picture": png(6), "others": [deep]}, [6, 4]),
        ]:
            assert (await agent.call("tool", **given))["structuredContent"] == widths


async def test_nested_lists_are_an_array_in_the_wanted_dtype(with_tool: Serve) -> None:
    def kinds(v: NDArray[np.float32], w: np.ndarray, u: NDArray[np.uint8] | None = None) -> list[Any]:
        return [[each.dtype.str, each.tolist()] for each in (v, w, u) if each is not None]

    async with with_tool(kinds) as agent:
        result = await agent.call("tool", v=[[1, 2], [3, 4]], w=[1, 2], u=[255])
        assert result["structuredContent"] == [["<f4", [[1.0, 2.0], [3.0, 4.0]]], ["<i8", [1, 2]], ["|u1", [255]]]
        for lists in ([[1], [1, 2]], ["a"], [[{}]], [10**30]):
            params = {"name": "tool", "arguments": {"v": [1], "w": lists}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            result = (await agent.post(json.dumps(call).encode())).json["result"]
            assert "w: nested lists must" in result["content"][0]["text"]


async def test_streams_and_further_arguments_are_given_as_lists(serve: Serve) -> None:
    server = Server(mcp=True)

    @server
    async def shapes(frames: AsyncIterator[NDArray[np.uint8]]) -> AsyncIterator[list[int]]:
        async for frame in frames:
            yield list(frame.shape)

    @server
    def total(unit: str, *numbers: float, by: int = 1) -> list[Any]:
        return [unit, *numbers]

    async with serve(server) as agent:
        assert (await agent.call("shapes", frames=[[[1, 2]], [[3, 4]]]))["structuredContent"] == [[1, 2], [1, 2]]
        assert (await agent.tools())[1]["inputSchema"]["properties"]["numbers"]["type"] == "array"
        for given, found in [
            ({"unit": "m", "numbers": [1, 2]}, '["m",1.0,2.0]'),
            ({"unit": "m", "numbers": []}, '["m"]'),
            ({"numbers": [1]}, "unit must be given"),
            ({"unit": "m", "numbers": 1}, "numbers must be an array"),
            ({"unit": "m", "numbers": [1], "by": 2}, "numbers does not go with arguments behind it"),
        ]:
            assert found in (await agent.call("total", **given))["content"][0]["text"]


# -- results --------------------------------------------------------------------------------------------------------


def file_in(block: Any) -> io.BytesIO:
    return io.BytesIO(base64.b64decode(block["resource"]["blob"]))


@pytest.mark.parametrize("name", [None, "raw", "jpeg", "webp"])
async def test_an_image_is_an_image_in_a_format_that_agents_read(with_tool: Serve, name: Any) -> None:
    picture = PIL.Image.new("RGB", (3, 2), (10, 20, 30))
    codec = Codec(images=ImageOptions(format=name)) if name else None
    async with with_tool(lambda: picture, codec=codec) as agent:
        [block] = (await agent.call("tool"))["content"]
    assert (block["type"], block["mimeType"]) == ("image", f"image/{name if name in ('jpeg', 'webp') else 'png'}")
    opened = PIL.Image.open(io.BytesIO(base64.b64decode(block["data"])))
    assert opened.size == (3, 2)
    assert name in ("jpeg", "webp") or opened.tobytes() == picture.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, np.nan], [np.inf, -2]], np.float32),
        *(np.zeros((0, 3)), np.array(7), np.array(["2020-01-01"], "M8[D]"), np.array([1j]), np.ones(3, bool)),
    ],
)
async def test_an_array_is_described_and_attached(with_tool: Serve, array: Any) -> None:
    async with with_tool(lambda: array) as agent:
        text, resource = (await agent.call("tool"))["content"]
    assert resource["resource"]["mimeType"] == "application/x-npy"
    assert resource["resource"]["uri"] == "rpcstream://result/1.npy"
    np.testing.assert_array_equal(np.load(file_in(resource)), array)
    if array.shape == (2, 2):
        described = "array 1: float32, shape (2, 2), least -2.0, greatest 1.5, mean -0.25, 2 not finite"
        assert text["text"].startswith(described)


async def test_parts_of_a_result_are_named_in_its_text(with_tool: Serve) -> None:
    value = {"name": "x", "pictures": [PIL.Image.new("L", (1, 1))], "v": np.arange(2), "raw": b"abc"}
    async with with_tool(lambda: value) as agent:
        text, image, array, npy, size, raw = (await agent.call("tool"))["content"]
    assert text["text"] == '{"name": "x", "pictures": ["[image 1]"], "v": "[array 2]", "raw": "[bytes 3]"}'
    assert (image["type"], npy["type"], raw["type"]) == ("image", "resource", "resource")
    assert array["text"].startswith("array 2: int64, shape (2,)")
    assert (size["text"], file_in(raw).read()) == ("bytes 3: 3 bytes", b"abc")
    codec = Codec()
    codec.register(Pair, "pair", encode=lambda pair: {"parts": np.array(pair.parts)}, decode=lambda parts: Pair())
    async with with_tool(lambda: Pair(), codec=codec) as agent:
        text, _, resource = (await agent.call("tool"))["content"]
    assert text["text"] == '{"$type": "pair", "parts": "[array 1]"}'
    np.testing.assert_array_equal(np.load(file_in(resource)), [2, 1])
    async with with_tool(lambda: np.zeros(4 * 1024 * 1024 + 1, np.uint8)) as agent:
        [block] = (await agent.call("tool"))["content"]
    assert block["text"].endswith("(not attached: it is larger than 4194304 bytes)")


TEXT = '{"$type":"float","value":"nan"}'


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("a\nb", "a\nb", "a\nb"),
        (12345678901234567890123, "12345678901234567890123", 12345678901234567890123),
        ({"result": 1}, '{"result": 1}', {"result": 1}),
        ([float("nan"), {"a": float("-inf")}, TEXT], None, [None, {"a": None}, TEXT]),
    ],
)
async def test_a_plain_result(with_tool: Serve, value: Any, text: str | None, structured: Any) -> None:
    hints: dict[type, Any] = {str: str, int: int, dict: dict[str, int], list: list[float | dict[str, float] | str]}

    def tool() -> Any:
        return value

    tool.__annotations__["return"] = hints[type(value)]
    async with with_tool(tool) as agent:
        result = await agent.call("tool")
    assert text is None or result["content"][0]["text"].replace('":1', '": 1') == text
    assert result["structuredContent"] == (structured if type(value) is not int else float(structured))


async def test_an_error_says_what_an_agent_can_mend(with_tool: Serve) -> None:
    def fail(message: str, data: dict[str, Any]) -> None:
        raise RpcError(1, message, data)

    async with with_tool(fail) as agent:
        data = {"reason": "it is not in the list", "nearest": ["Ulm"]}
        result = await agent.call("tool", message="No such city", data=data)
        assert result["content"][0]["text"] == 'No such city: it is not in the list\n{"nearest": ["Ulm"]}'
        result = await agent.call("tool", message="x", data={"x": "y" * 100_000})
        assert len(result["content"][0]["text"]) < 5000
