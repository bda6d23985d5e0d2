"""What is said of a value that does not fit its hint."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL.Image import Image

from rpcstream import Shape
from rpcstream.codec import Codec
from rpcstream.codec.error_text import CHOICES_MAX
from rpcstream.codec.hints import hint_checker

codec = Codec()


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


class Pair(NamedTuple):
    mode: Mode
    name: str


class Options(TypedDict, total=False):
    mode: Mode


@dataclasses.dataclass
class Layer:
    """A class that msgspec cannot check by itself: it has an array."""

    name: str
    mask: np.ndarray
    mode: Mode = Mode.FAST


ARRAY = {"$type": "ndarray", "dtype": "<i8", "shape": [1], "data": "AQAAAAAAAAA="}
GOT = "got an array of int64 of shape (1,)"
HOW = 'an array is an object {"$type": "ndarray", "dtype": "<f4", "shape": [2, 3], "data": "<base64>"}'


def said(hint: Any, value: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        hint_checker(hint, codec)(value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, 1.5, "expected an integer, got a number that is no integer"),
        (bool, 1, "expected true or false, got an integer"),
        (dict[str, int], [], "expected an object, got a list"),
        (int | str, [], "expected an integer or a string, got a list"),
        (list[int], [1, "x"], "result[1]: expected an integer, got a string"),
        (tuple[int, int], [1], "expected a list of length 2, got 1"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "expected an integer >= 0"),
        (datetime.datetime, "soon", 'expected a date and time such as "2026-11-22T17:00:00Z"'),
        (decimal.Decimal, "x", 'expected a decimal number as a string, such as "1.50"'),
        (Mode, "slow", 'expected "fast" or "exact", got \'slow\''),
        (Mode, 1, 'expected "fast" or "exact", got an integer'),
        (Literal["a", "b", "c"], "d", 'expected one of "a", "b", "c", got \'d\''),
        (list[dict[str, Mode]], [{"x": "slow"}], 'result[0][...]: expected "fast" or "exact", got \'slow\''),
        (Pair, ["slow", "x"], 'result[0]: expected "fast" or "exact", got \'slow\''),
        (Options, {"mode": "slow"}, 'result.mode: expected "fast" or "exact", got \'slow\''),
        (Layer, {"name": "x", "mask": ARRAY, "mode": "slow"}, 'result.mode: expected "fast" or "exact", got \'slow\''),
        (list[Layer], [{"name": "x", "mask": 5}], f"result[0].mask: expected an array, got an integer; {HOW}"),
        (Layer, {"name": "x"}, "'mask' is missing"),
        (NDArray[np.uint8], [1, 2], f"expected an array of uint8, got a list; {HOW}"),
        (Annotated[np.ndarray, Shape(None, 3)], ARRAY, f"expected an array of shape (*, 3), {GOT}"),
        (NDArray[np.uint8], "aGVsbG8=", f"a string must be a .npy file in base64, and this is none; {HOW}"),
        (bytes, [1], "expected bytes, got a list; bytes are a string in base64"),
        (int | np.ndarray, "x", f"expected an integer or an array, got a string; {HOW}"),
        (Image, ARRAY, "expected an image, got an object tagged 'ndarray'"),
    ],
)
def test_errors_in_words(hint: Any, value: Any, text: str) -> None:
    found = said(hint, value)
    assert found.startswith(text) if "an object tagged" in text else found == text


def test_many_choices_are_cut() -> None:
    many = enum.Enum("many", {f"m{number}": number for number in range(100)})  # type: ignore[misc]
    assert said(many, 500).endswith(f" {CHOICES_MAX - 1} or {100 - CHOICES_MAX} more, got 500")


@pytest.mark.parametrize(
    "value",
    ["x" * 1_000_000, "`", "x` - at `$.y`", "' - at `$[0]`", "\u001b[2J", "\n"],
    ids=lambda value: repr(value)[:20],
)
def test_what_a_peer_wrote_is_not_taken_for_the_path_and_not_repeated_at_length(value: str) -> None:
    text = said(Options, {"mode": value})
    assert text.startswith('result.mode: expected "fast" or "exact", got ')
    assert len(text) < 200
    assert text.isprintable()


class Tree(msgspec.Struct):
    mode: Mode
    branches: list[Tree] | dict[str, Tree] | None = None


def test_a_class_that_contains_itself_in_several_ways() -> None:
    """Each step into it leads to the class in two ways, and 25 steps to it in 33 million."""
    value: Any = {"mode": "slow"}
    for _ in range(25):
        value = {"mode": "fast", "branches": [value]}
    assert said(Tree, value["branches"][0] | {"mode": "slow"}).startswith('result.mode: expected "fast" or "exact"')
    assert said(Tree, value).startswith("result.branches[0].branches[0]")


def test_the_example_of_an_array_is_one() -> None:
    example = json.loads(HOW.partition("object ")[2].replace("<base64>", "A" * 32))
    assert np.shape(codec.decode(example)) == (2, 3)
