"""Tags, errors, examples and deprecations: checked at registration, and described."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Example, NotPermitted, RegistrationError, RpcError, Server

from .calling import described as described_there
from .calling import document_of


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
    examples = [
        Example({"a": 1, "b": 2}, 3, name="two numbers", description="Both are given."),
        Example([2**70], 2**70 + 1),
        Example([5]),
    ]
    assert described(add, examples=examples)["examples"] == [
        {
            "name": "two numbers",
            "description": "Both are given.",
            "params": [{"name": "a", "value": 1}, {"name": "b", "value": 2}],
            "result": {"name": "result", "value": 3},
        },
        {
            "name": "example 2",
            "params": [{"name": "a", "value": 2**70}],
            "result": {"name": "result", "value": 2**70 + 1},
        },
        {"name": "example 3", "params": [{"name": "a", "value": 5}]},
    ]


def test_rich_values_streams_and_further_arguments_in_examples() -> None:
    photo = Image.new("L", (2, 1))
    example = Example([photo, Box((1, 2), np.zeros(2, "u1")), 0.5, 2], np.zeros((2, 3), "<f4"))
    (made,) = described(look, examples=[example])["examples"]
    assert [each["name"] for each in made["params"]] == ["photo", "box", "more", "more"]
    assert made["params"][0]["value"]["$type"] == "image"
    assert made["params"][1]["value"]["corner"] == [1, 2]
    assert made["params"][1]["value"]["picture"]["dtype"] == "|u1"
    assert made["result"]["value"]["shape"] == [2, 3]
    named = Example({"photo": photo, "box": Box((1, 2)), "title": "x"})
    assert described(look, examples=[named])["examples"][0]["params"][-1] == {"name": "title", "value": "x"}
    (made,) = described(count, examples=[Example([2], [0, 1])])["examples"]
    assert made["result"] == {"name": "result", "value": [0, 1]}
    (made,) = described(total, examples=[Example([[1, 2]], 3)])["examples"]
    assert made["params"] == [{"name": "numbers", "value": [1, 2]}]


@pytest.mark.parametrize(
    ("function", "example", "reason"),
    [
        (add, Example({"a": "x"}), "the example 'example 1' does not fit: .*a: expected an integer"),
        (add, Example({"a": 1, "c": 1}), "unexpected 'c'|unknown"),
        (add, Example([1, 2, 3]), "at most 2"),
        (add, Example([]), "missing 'a'"),
        (add, Example([1], "x"), "the result is not what the return hint says"),
        (count, Example([2], ["x"]), "the result is not what the return hint says"),
        (count, Example([2], 5), "not iterable"),
        (add, Example([object()]), "cannot be sent"),
        (look, Example([1, Box((1, 2))]), "expected an image"),
        (lambda x: x, Example([b"\0" * 100_000]), "has 1.* bytes as JSON, and may have 65536"),
        (add, {"a": 1}, "examples are Example"),
    ],
)
def test_an_example_that_does_not_fit_is_refused(function: Any, example: Any, reason: str) -> None:
    with pytest.raises(RegistrationError, match=f"^m: .*(?:{reason})"):
        described(function, examples=[example])


class Full(RpcError):
    def __init__(self) -> None:
        super().__init__(41, "no seats", {"most": 5})


class OfRow(RpcError):
    def __init__(self, row: int) -> None:
        super().__init__(42, f"row {row}")


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
    assert {each["code"] for each in described(total, allow="ann")["errors"]} == {
        *(-32602, -32603, -32002, -32003, -32800, -32006)
    }


def test_what_is_said_of_the_deprecation() -> None:
    def old() -> None: ...

    assert "deprecated" not in described(add)
    assert described(add, deprecated=True)["deprecated"] is True
    assert "x-deprecated" not in described(add, deprecated=True)
    assert described(add, deprecated="use plus")["x-deprecated"] == "use plus"
    old.__deprecated__ = "since 2"  # type: ignore[attr-defined]  # as `warnings.deprecated` does (PEP 702)
    assert (described(old)["deprecated"], described(old)["x-deprecated"]) == (True, "since 2")


def test_tags_are_given_or_the_first_part_of_the_name() -> None:
    assert "tags" not in described(add)
    assert described(add, name="math.plus.add")["tags"] == [{"name": "math"}]
    assert described(add, name="math.add", tags=["sums", "integers", "sums"])["tags"] == [
        {"name": "sums"},
        {"name": "integers"},
    ]
    assert "tags" not in described(add, name="math.add", tags=())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tags": "x"}, "tags must be a list"),
        ({"tags": [""]}, "a tag is a string of 1 to 100 characters"),
        ({"tags": ["x" * 101]}, "a tag is a string"),
        ({"tags": ["x"] * 101}, "tags: at most 100, got 101"),
        ({"errors": [404]}, "errors are RpcErrors"),
        ({"errors": RpcError(1, "x")}, "errors must be a list"),
        ({"errors": [OfRow]}, "errors: OfRow needs arguments"),
        ({"errors": [RpcError(1.5, "x")]}, "errors: the code of an error is an integer"),
        ({"errors": [RpcError(1, "x", object())]}, "the error 1 cannot be sent"),
        ({"examples": Example()}, "examples must be a list"),
        ({"deprecated": 1}, "deprecated must be"),
    ],
)
def test_what_is_malformed_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RegistrationError, match=f"^m: {reason}"):
        described(add, **options)


async def test_groups_and_batched_methods_take_them_too() -> None:
    class Calculator:
        def add(self, a: int) -> int:
            return a

    server = Server()
    server.add_object(Calculator(), prefix="calc", tags=["x"], errors=[Full], deprecated=True)
    with pytest.raises(TypeError, match="no option 'examples'"):
        server.add_object(Calculator(), prefix="other", examples=[])  # type: ignore[call-arg]

    @server.batched(examples=[Example([2], 4)], tags=["y"])
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    methods = (await document_of(server))["methods"]
    assert (methods["calc.add"]["tags"], methods["calc.add"]["deprecated"]) == ([{"name": "x"}], True)
    assert methods["double"]["examples"][0]["result"]["value"] == 4


@pytest.mark.parametrize("name", ["x" * 1001, "a\ud800"])
def test_a_name_that_cannot_be_sent_or_is_too_long_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="at most 1000 characters of Unicode"):
        Server().add(add, name=name)
