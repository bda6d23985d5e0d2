"""What the document of `rpc.discover` says of methods: options, examples, docstrings; and how it is given."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import AsyncClient, Example, Limits, NotPermitted, RegistrationError, RpcError, Server
from rpcstream.testing import memory_client

from .calling import described as described_there


def described(function: Any, **options: Any) -> dict[str, Any]:
    return described_there(function, **{"name": "m", **options})[0]


def add(a: int, b: int = 1) -> int:
    return a + b


@dataclasses.dataclass
class Box:
    corner: tuple[int, int]
    picture: NDArray[np.uint8] | None = None


def look(photo: Image.Image, box: Box, *more: float, scale: float = 1.0, **names: str) -> NDArray[np.float32]: ...  # type: ignore[empty-body]


def count(to: int) -> Iterator[int]:
    yield from range(to)


async def total(numbers: AsyncIterator[int]) -> int:
    return sum([number async for number in numbers])


def test_examples_stand_as_they_go_over_the_wire() -> None:
    examples = [Example({"a": 1, "b": 2}, 3, name="two numbers", description="Both."), Example([2**70], 2**70 + 1)]
    assert described(add, examples=examples)["examples"] == [
        {
            "name": "two numbers",
            "description": "Both.",
            "params": [{"name": "a", "value": 1}, {"name": "b", "value": 2}],
            "result": {"name": "result", "value": 3},
        },
        {
            "name": "example 2",
            "params": [{"name": "a", "value": 2**70}],
            "result": {"name": "result", "value": 2**70 + 1},
        },
    ]
    photo = Image.new("L", (2, 1))
    example = Example([photo, Box((1, 2), np.zeros(2, "u1")), 0.5, 2], np.zeros((2, 3), "<f4"))
    named = Example({"photo": photo, "box": Box((1, 2)), "title": "x"})
    made, other = described(look, examples=[example, named])["examples"]
    assert [each["name"] for each in made["params"]] == ["photo", "box", "more", "more"]
    image, box = [each["value"] for each in made["params"][:2]]
    assert (image["$type"], box["corner"], box["picture"]["dtype"]) == ("image", [1, 2], "|u1")
    assert made["result"]["value"]["shape"] == [2, 3]
    assert other["params"][-1] == {"name": "title", "value": "x"}
    (made,) = described(count, examples=[Example([2], [0, 1])])["examples"]
    assert made["result"] == {"name": "result", "value": [0, 1]}
    (made,) = described(total, examples=[Example([[1, 2]])])["examples"]
    assert made == {"name": "example 1", "params": [{"name": "numbers", "value": [1, 2]}]}


class Full(RpcError):
    def __init__(self) -> None:
        super().__init__(41, "no seats", {"most": 5})


class OfRow(RpcError):
    def __init__(self, row: int) -> None:
        super().__init__(42, f"row {row}")


def old() -> None: ...


old.__deprecated__ = "since 2"  # type: ignore[attr-defined]  # as `warnings.deprecated` does (PEP 702)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (add, {}, {"tags": None, "deprecated": None, "x-deprecated": None}),
        (add, {"deprecated": True}, {"deprecated": True, "x-deprecated": None}),
        (add, {"deprecated": "use plus"}, {"deprecated": True, "x-deprecated": "use plus"}),
        (old, {}, {"deprecated": True, "x-deprecated": "since 2"}),
        (add, {"name": "math.plus.add"}, {"tags": [{"name": "math"}]}),
        (add, {"name": "math.add", "tags": ["b", "a", "b"]}, {"tags": [{"name": "b"}, {"name": "a"}]}),
        (add, {"name": "math.add", "tags": ()}, {"tags": None}),
    ],
)
def test_what_options_say(function: Any, options: dict[str, Any], said: dict[str, Any]) -> None:
    found = described(function, **options)
    assert {name: found.get(name) for name in said} == said


def test_errors_that_are_declared_stand_before_those_of_the_framework() -> None:
    errors = described(add, errors=[RpcError(404, "Not found"), Full, OfRow(3), NotPermitted])["errors"]
    assert errors == [
        {"code": 404, "message": "Not found"},
        {"code": 41, "message": "no seats", "data": {"most": 5}},
        {"code": 42, "message": "row 3"},
        {"code": -32006, "message": "Not permitted"},
        {"code": -32602, "message": "Invalid params"},
        {"code": -32603, "message": "Internal error"},
    ]
    codes = {each["code"] for each in described(total, allow="ann")["errors"]}
    assert codes == {-32602, -32603, -32002, -32003, -32800, -32006}


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (add, {"examples": [Example({"a": "x"})]}, "the example 'example 1' does not fit: .*a: expected an integer"),
        (add, {"examples": [Example({"a": 1, "c": 1})]}, ".*unexpected 'c'|.*unknown"),
        (add, {"examples": [Example([1, 2, 3])]}, ".*at most 2"),
        *((each, {"examples": [Example([1], "x")]}, ".*the result is not what") for each in (add, count)),
        (count, {"examples": [Example([2], 5)]}, ".*not iterable"),
        (add, {"examples": [Example([object()])]}, ".*cannot be sent"),
        (lambda x: x, {"examples": [Example([b"\0" * 100_000])]}, ".*has 1.* bytes as JSON, and may have 65536"),
        *((add, {each: Example()}, f"{each} must be a list") for each in ("examples", "tags", "errors")),
        *((add, {"tags": [each]}, "a tag is a string of 1 to 100 characters") for each in ("", "x" * 101)),
        (add, {"tags": ["x"] * 101}, "tags: at most 100, got 101"),
        (add, {"errors": [404]}, "errors are RpcErrors"),
        (add, {"errors": [OfRow]}, "errors: OfRow needs arguments"),
        (add, {"errors": [RpcError(1.5, "x")]}, "errors: the code of an error is an integer"),
        (add, {"errors": [RpcError(1, "x", object())]}, "the error 1 cannot be sent"),
        (add, {"deprecated": 1}, "deprecated must be"),
        *((add, {"name": each}, ".*at most 1000 characters of Unicode") for each in ("x" * 1001, "a\ud800")),
    ],
)
def test_what_cannot_be_said_is_refused(function: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RegistrationError, match=f"^(?:m: )?{reason}"):
        described(function, **options)


HEAD = "\nDetect objects.\n\nIt takes a while.\n"
GOOGLE = """
Args:
    photo: the picture,
        in colour.
    gain (float, optional): how much
    **by_name: others by name

Returns:
    dict: the boxes

Note:
    Not for stars.
"""
NUMPY = """
Parameters
----------
photo : Image
    the picture,
    in colour.
gain, bias : float, optional
    how much
**by_name
    others by name

Returns
-------
dict
    the boxes

Notes
-----
Not for stars.
"""
SPHINX = """
Not for stars.

:param photo: the picture,
    in colour.
:param float gain: how much
:type photo: Image
:param \\\\**by_name: others by name
:returns: the boxes
"""
EPYTEXT = SPHINX.replace("\n:", "\n@").replace("float gain", "gain").replace("\\\\**", "")


def method(text: str | None) -> dict[str, Any]:
    """How a method with this docstring is described."""

    def it(photo: int, gain: int = 1, *more: int, a: int = 1, **by_name: int) -> int:
        return 0

    it.__doc__ = text
    return described(it)


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX, EPYTEXT], ids=["google", "numpy", "sphinx", "epytext"])
def test_each_form_of_docstrings_is_read(text: str) -> None:
    found = method(HEAD + text)
    params = {each["name"]: each.get("description", "") for each in found["params"]}
    assert found["summary"] == "Detect objects."
    assert params["photo"].split() == ["the", "picture,", "in", "colour."]
    assert (params["gain"], params["by_name"]) == ("how much", "others by name")
    assert found["result"]["description"] == "the boxes"
    assert found["description"].startswith("It takes a while.")
    assert "Not for stars." in found["description"]
    for section in ("picture", "the boxes", "Args", "Parameters", "param", "Returns", "@"):
        assert section not in found["description"]


@pytest.mark.parametrize(
    "text",
    [
        "Adds.\n\nReturns nothing: it is: a colon.",
        "Adds.\n\nExample:\n    >>> add(1, 2)\n    3",
        "Args:",
        "Parameters\n----------",
        "a\n\n-----\n:foo bar",
        "Adds.\n\n    Args: as in Args",
    ],
)
def test_a_text_without_such_sections_stays_whole(text: str) -> None:
    first, _, rest = inspect.cleandoc(text).partition("\n\n")
    found = method(text)
    assert (found["summary"], found.get("description", "")) == (first.replace("\n", " "), rest)
    assert not any("description" in each for each in found["params"])


def test_docstrings_that_are_empty_long_or_half_a_character() -> None:
    assert not {"summary", "description"} & method("").keys()
    long = "word " * 100 + "\n\nMore."
    assert method(long)["summary"].endswith("...")
    assert method(long)["description"] == long
    found = method("A \ud800 B.\n\nArgs:\n    a: \udfff é\n\nYields:\n    the numbers")
    assert (found["summary"], found["result"]["description"]) == ("A \\ud800 B.", "the numbers")
    assert {each["name"]: each.get("description") for each in found["params"]}["a"] == "\\udfff é"


@pytest.mark.parametrize(
    "text",
    [
        "a " * 500_000,
        "A.\n\nArgs:\n" + "    x: y\n" * 100_000,
        ":param x: y\n" * 80_000,
        "Parameters\n----------\n" + "x : y\n    z\n" * 80_000,
        "Args:\n" + " " * 1_000_000,
        ":param " + "a" * 1_000_000,
    ],
    ids=lambda text: text[:12].strip(),
)
def test_a_text_of_a_megabyte_is_cut(text: str) -> None:
    assert len(orjson.dumps(method(text))) < 100_000


async def test_all_who_ask_are_told_the_same_and_after_a_change_another() -> None:
    server, turns = Server(), 0
    for number in range(100):
        server.add(lambda a, b=1: a, name=f"m{number}")

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with server.listening(port=0) as address, AsyncClient(address) as client, AsyncClient(address) as other:
        asking = [client.submit("rpc.discover") for _ in range(5)]
        gone = other.submit("rpc.discover", compat="1.2.6")
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        gone.cancel()  # what was begun for one who left goes on for the next
        documents = await asyncio.gather(*asking, other.call("rpc.discover"))
        ticking.cancel()
        assert turns > 3, "others have their turn while it is written"
        older = await asyncio.gather(*[each.call("rpc.discover", compat="1.2.6") for each in (client, other)])
        assert all(each == documents[0] for each in documents)
        assert older[0] == older[1] != documents[0]
        assert len(older[0]["methods"]) == 100
        server.add(lambda: 1, name="new")
        assert "new" in {each["name"] for each in (await client.call("rpc.discover"))["methods"]}


async def test_long_texts_names_and_defaults_do_not_make_it_long() -> None:
    server = Server(description="d" * 1_000_000)
    kind = type("C" * 100_000, (), {"__annotations__": {"a": int}})
    kind.__doc__ = "\ud800" * 1_000_000

    def long(a: int = 1, b: str = "t" * 1_000_000, c: list[int] = [7] * 200_000, d: str = "\udfff", e=None): ...  # type: ignore[no-untyped-def]

    long.__doc__ = "A" * 1_000_000 + "\n\nArgs:\n    a: " + "b" * 1_000_000
    long.__annotations__["e"] = dataclasses.dataclass(kind) | None
    server.add(long)
    async with memory_client(server, limits=Limits(max_message_size=200_000)) as client:
        made = await client.call("rpc.discover")
    method = next(each for each in made["methods"] if each["name"] == "long")
    assert len(method["summary"]) <= 300
    defaults = [each["schema"].get("x-default", "") for each in method["params"]]
    assert [each[-3:] for each in defaults] == ["", "...", "...", "ff'", ""]
    ((name, schema),) = made["components"]["schemas"].items()
    assert len(name) <= 100
    assert schema["description"].startswith("\\ud800")
