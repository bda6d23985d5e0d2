"""Which tools there are, what their schemas say, and how the arguments of agents become those of methods."""

from __future__ import annotations

import base64
import datetime
import types
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import orjson
import PIL.Image
import pytest
from numpy.typing import NDArray

from rpcstream import Server, Shape
from rpcstream.cli.load import functions_server
from rpcstream.errors import InvalidParams
from rpcstream.mcp.tools import MAX_DESCRIPTION, PAGE_TOOLS, Tool, Tools

from ..internals import document_of, registry_of


@dataclass
class Node:
    name: str
    picture: PIL.Image.Image | None = None
    children: list[Node] = field(default_factory=list)


def tools_of(server: Server) -> Tools:
    return Tools(registry_of(server), document_of(server).whole)


def tool_of(function: Any, **options: Any) -> Tool:
    server = Server()
    server.add(function, name="tool", **options)
    found = tools_of(server).by_name("tool")
    assert found is not None
    return found


def definition(function: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(tool_of(function).definition)
    return parsed


def test_a_tool_has_the_docstring_and_the_schemas_of_its_function() -> None:
    def weather(city: str, days: int = 3, *, at: datetime.date | None = None) -> dict[str, float]:
        """The weather.

        Of a city.
        """
        return {}

    assert definition(weather) == {
        "name": "tool",
        "description": "The weather.\n\nOf a city.",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": definition(weather)["inputSchema"]["properties"],
            "additionalProperties": False,
            "required": ["city"],
        },
        "outputSchema": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    }
    assert definition(weather)["inputSchema"]["properties"]["days"] == {"type": "integer", "default": 3}


def test_where_structured_content_must_be_an_object_other_results_are_in_one() -> None:
    def count() -> list[Node]:
        return []

    def one() -> int:
        return 1

    def known() -> dict[str, int]:
        return {}

    parsed = orjson.loads(tool_of(one).definition_with_handshake)
    assert parsed["outputSchema"] == {
        "type": "object",
        "properties": {"result": {"type": "integer"}},
        "required": ["result"],
    }
    assert tool_of(one).is_wrapped
    assert not tool_of(known).is_wrapped
    assert not tool_of(count).has_output_schema  # there are pictures in it


@pytest.mark.parametrize("hint", [Any, object, list, dict, dict[str, Any], NDArray[np.float32], bytes | None])
def test_a_result_of_which_not_all_is_known_has_no_schema(hint: Any) -> None:
    def tool() -> Any: ...

    tool.__annotations__["return"] = hint
    assert not tool_of(tool).has_output_schema
    assert "outputSchema" not in definition(tool)


def test_a_result_that_is_not_checked_has_no_schema() -> None:
    def tool() -> int:
        return 1

    assert tool_of(tool).has_output_schema
    assert not tool_of(tool, check_result=False).has_output_schema


def test_classes_stand_among_the_definitions_of_their_tool() -> None:
    def draw(node: Node) -> None: ...

    schema = definition(draw)["inputSchema"]
    assert schema["properties"]["node"] == {"$ref": "#/$defs/Node"}
    node = schema["$defs"]["Node"]
    assert node["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert b"$type" not in orjson.dumps(schema)
    assert b"x-image" not in orjson.dumps(schema)


def test_an_image_is_given_as_content_or_as_base64() -> None:
    def show(picture: PIL.Image.Image, others: list[Node], **more: PIL.Image.Image) -> None: ...

    tool = tool_of(show)
    content = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    given = {"picture": content, "others": [{"name": "x", "picture": content}], "third": content}
    assert tool.params(given) == {"picture": "AAAA", "others": [{"name": "x", "picture": "AAAA"}], "third": "AAAA"}
    assert tool.params({"picture": "data:image/png;base64,AAAA"}) == {"picture": "data:image/png;base64,AAAA"}
    # What is no picture stays as it is, whatever it looks like.
    deeper = {"picture": "", "others": [{"name": content, "children": [{"name": "y", "picture": content}]}]}
    params: Any = tool.params(deeper)
    assert params["others"][0]["name"] == content
    assert params["others"][0]["children"][0]["picture"] == "AAAA"


def array_in(tagged: dict[str, Any]) -> Any:
    data = np.frombuffer(base64.b64decode(tagged["data"]), tagged["dtype"])
    return data.reshape(tagged["shape"])


def test_nested_lists_are_an_array_in_the_wanted_dtype() -> None:
    def norm(v: NDArray[np.float32], w: np.ndarray, u: NDArray[np.uint8] | None = None) -> float:
        return 0.0

    params: Any = tool_of(norm).params({"v": [[1, 2], [3, 4]], "w": [1, 2], "u": [255]})
    assert array_in(params["v"]).dtype == np.float32
    np.testing.assert_array_equal(array_in(params["v"]), [[1, 2], [3, 4]])
    assert array_in(params["w"]).dtype == np.int64
    assert array_in(params["u"]).dtype == np.uint8
    blob = {"type": "resource", "resource": {"uri": "x://y", "blob": "AAAA"}}
    assert tool_of(norm).params({"v": blob, "w": "BBBB"}) == {"v": "AAAA", "w": "BBBB"}


@pytest.mark.parametrize("lists", [[[1], [1, 2]], ["a"], [[{}]], [10**30]])
def test_lists_that_are_no_array_are_refused(lists: Any) -> None:
    def norm(v: np.ndarray) -> float:
        return 0.0

    with pytest.raises(ValueError, match="v: the lists are no array"):
        tool_of(norm).params({"v": lists})


def test_the_form_of_an_array_is_told_in_words() -> None:
    def norm(v: Annotated[NDArray[np.float32], Shape(None, 3)]) -> float:
        return 0.0

    described = definition(norm)["inputSchema"]["$defs"]["NdArray_f4_Nx3"]["anyOf"][0]["description"]
    assert described.endswith("dtype <f4; shape (any, 3)")


def test_a_stream_and_a_list_of_arrays_are_given_as_lists() -> None:
    async def each(frames: AsyncIterator[NDArray[np.uint8]]) -> AsyncIterator[int]:
        async for frame in frames:
            yield frame.size

    params: Any = tool_of(each).params({"frames": [[[1, 2]], [[3, 4]]]})
    assert [frame["shape"] for frame in params["frames"]] == [[1, 2], [1, 2]]


def test_further_positional_arguments_are_a_list() -> None:
    def total(unit: str, *numbers: float) -> float:
        return 0.0

    tool = tool_of(total)
    assert definition(total)["inputSchema"]["properties"]["numbers"]["type"] == "array"
    assert tool.params({"unit": "m", "numbers": [1, 2]}) == ["m", 1, 2]
    assert tool.params({"unit": "m", "numbers": []}) == {"unit": "m"}
    with pytest.raises(ValueError, match="unit must be given"):
        tool.params({"numbers": [1]})
    with pytest.raises(ValueError, match="numbers does not go with"):
        tool.params({"unit": "m", "numbers": [1], "by": 2})
    with pytest.raises(ValueError, match="numbers must be an array"):
        tool.params({"unit": "m", "numbers": 1})


def test_names_fit_and_no_two_are_the_same() -> None:
    server = Server()
    for name in ("a.b", "a b", "a_b", "a/b", "größe", "x" * 300, "x" * 301):
        server.add(lambda: 1, name=name)
    names = [orjson.loads(tool)["name"] for tool in tools_of(server).page(None, None, is_stateless=True)[0]]
    assert names == sorted(names)
    assert {"a.b", "a_b", "a_b_2", "a_b_3", "gr__e", "x" * 128, f"{'x' * 126}_2"} == set(names)
    tools = tools_of(server)
    assert {tool.method.name for name in names if (tool := tools.by_name(name))} == set(server.methods) - {
        name for name in server.methods if name.startswith("rpc.")
    }


def test_thousands_of_tools_and_long_descriptions_come_in_pages() -> None:
    server = Server()

    def work(a: int) -> int:
        return a

    work.__doc__ = "x" * 20_000
    for number in range(2 * PAGE_TOOLS):
        server.add(work, name=f"work{number:04}")
    tools = tools_of(server)
    seen: list[str] = []
    cursor: str | None = None
    pages = 0
    while True:
        page, cursor = tools.page(cursor, None, is_stateless=True)
        assert sum(map(len, page)) < 1_000_000
        seen += [orjson.loads(tool)["name"] for tool in page]
        assert len(orjson.loads(page[0])["description"]) == MAX_DESCRIPTION
        pages += 1
        if cursor is None:
            break
    assert seen == [f"work{number:04}" for number in range(2 * PAGE_TOOLS)]
    assert pages > 1


@pytest.mark.parametrize("cursor", ["%", "/w==", "x" * 100_000, "é"])
def test_a_cursor_that_was_not_given_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidParams, match="the cursor is none of this server"):
        tools_of(Server()).page(cursor, None, is_stateless=True)


def test_a_method_may_be_left_out_added_later_and_replaced() -> None:
    server = Server()
    server.add(lambda: 1, name="a", mcp=False)
    tools = tools_of(server)
    assert tools.page(None, None, is_stateless=True) == ([], None)
    server.add(lambda: 1, name="a", replace=True)
    server.add(lambda: 1, name="b", idempotent=True)
    assert tools.by_name("a") is not None
    assert orjson.loads(tools.page(None, None, is_stateless=True)[0][1])["annotations"] == {"idempotentHint": True}


def test_what_is_deprecated_says_so_and_why() -> None:
    server = Server(description="About pictures.")
    server.add(lambda: 1, name="old", deprecated="use new")
    tools = tools_of(server)
    [shown] = tools.page(None, None, is_stateless=True)[0]
    assert orjson.loads(shown)["description"] == "Deprecated: use new."
    assert tools.instructions == "About pictures."


def test_the_methods_of_every_server_of_functions_are_no_tools() -> None:
    module = types.ModuleType("functions")
    module.control_pump = lambda speed: speed  # type: ignore[attr-defined]
    module.__all__ = ["control_pump"]  # type: ignore[attr-defined]
    server = functions_server(module, pattern="control_*")
    assert {"ping", "print", "stop"} < server.methods.keys()
    assert [orjson.loads(tool)["name"] for tool in tools_of(server).page(None, None, is_stateless=True)[0]] == [
        "control_pump"
    ]


def test_a_generator_is_a_tool_that_gives_all_items() -> None:
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    assert definition(count)["outputSchema"] == {"type": "array", "items": {"type": "integer"}}
