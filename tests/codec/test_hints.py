"""Hints: what the page of hints does not say line by line, and what is said of a value that does not fit."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import random
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict, TypeVar

import annotated_types as at
import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from PIL.Image import Image
from typing_extensions import Doc

from rpcstream import Codec, Server, Shape
from rpcstream.codec.hints import CompiledHint, hint_checker
from rpcstream.codec.rich_hint import Components, schema_of
from rpcstream.errors import RegistrationError

from ..kit.example_count import IS_THOROUGH

codec = Codec()
T = TypeVar("T")
Positive = NewType("Positive", Annotated[int, at.Gt(0)])  # type: ignore[valid-newtype]


def check(hint: Any, value: Any) -> Any:
    return hint_checker(hint, codec)(value)


def refused(hint: Any, value: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        check(hint, value)
    return str(caught.value)


def schema(hint: Any) -> dict[str, Any]:
    return schema_of(CompiledHint(hint, codec).described, Components())


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Annotated[int, at.Gt(5)], 3, "expected an integer >= 6"),
        (list[Annotated[int, at.MultipleOf(2)]], [2, 3], "result[1]: expected an integer that's a multiple of 2"),
        (Annotated[int, at.Ge(0)] | Annotated[str, at.MinLen(2)], -1, "expected an integer >= 0"),
        (Annotated[str, msgspec.Meta(pattern="^A")], "b", "expected a string matching regex '^A'"),
        (Annotated[set[int], at.MaxLen(1)], [1, 2], "of length <= 1"),
        (Annotated[datetime.time, msgspec.Meta(tz=True)], "12:00:00", "time with a timezone component"),
    ],
)
def test_errors_say_the_constraint(hint: Any, value: Any, text: str) -> None:
    assert text in refused(hint, value)


@dataclasses.dataclass
class Page(Generic[T]):
    items: Annotated[list[T], at.MinLen(1)]
    more: T = None  # type: ignore[assignment]


class Sized(TypedDict):
    size: Required[Annotated[int, at.Ge(0)]]
    name: Annotated[NotRequired[str], at.MinLen(1)]


class Row(NamedTuple):
    place: Annotated[int, at.Ge(0)]
    patterned: Annotated[str, msgspec.Meta(pattern="^a")] | list[int] = "a"


@pytest.mark.parametrize(
    ("hint", "fits", "misfits"),
    [
        (Page[int], {"items": [1]}, [{"items": []}, {"items": ["a"]}, {"items": [1], "more": "a"}]),
        (Page[NDArray[np.int8]], {"items": [np.ones(1, "i1")]}, [{"items": [1]}, {"items": [np.ones(1, "i2")]}]),
        (Sized, {"size": 1}, [{"size": -1}, {"size": 1, "name": ""}, {}]),
        (Row, [1, [2]], [[-1], [1, "b"], [1, ["a"]]]),
        (Positive, 1, [0, "a"]),
        (Annotated[Positive, at.Lt(5)], 4, [0, 5]),
        (Annotated[Positive | None, at.Lt(5)], None, [0, 5]),
    ],
)
def test_constraints_inside_of_classes_and_types(hint: Any, fits: Any, misfits: list[Any]) -> None:
    check(hint, fits)
    for misfit in misfits:
        assert refused(hint, misfit)


def test_a_pattern_beside_a_list_does_not_crash() -> None:
    text = Annotated[str, msgspec.Meta(pattern="^a+$")]
    for hint in (text | list[int], text | list[int] | None, NewType("Named", text) | list[int]):  # type: ignore[operator, valid-newtype]
        made = [cls("Made", [("part", hint)]) for cls in (msgspec.defstruct, dataclasses.make_dataclass)]
        assert check(hint, "aa") == "aa"
        assert check(hint, [1]) == [1]
        assert [check(cls, {"part": [1]}).part for cls in made] == [[1], [1]]
        assert all(refused(hint, wrong) for wrong in ("b", 5, ["a"]))
        assert all(refused(cls, {"part": "b"}) for cls in made)


def test_schemas_have_constraints_and_descriptions() -> None:
    assert schema(Annotated[int, at.Ge(0), "how many"]) == {"type": "integer", "minimum": 0, "description": "how many"}
    titled = msgspec.Meta(title="T", examples=["x"], extra_json_schema={"deprecated": True})
    assert schema(Annotated[str, Doc("b"), titled]) == {
        "type": "string",
        "description": "b",
        "title": "T",
        "examples": ["x"],
        "deprecated": True,
    }
    assert schema(Annotated[int | None, at.Ge(0)])["anyOf"][0] == {"type": "integer", "minimum": 0}
    assert schema(Annotated[NDArray[np.float32], Shape(None, 3), "points"])["description"] == "points"


def test_constraints_that_would_do_nothing_are_refused() -> None:
    def function(a: int = pydantic.Field(ge=0)) -> int:
        return a

    with pytest.raises(RegistrationError, match=r"parameter .a.: its default is one of pydantic"):
        Server().add(function)


Holds = Callable[[Any], bool]


def _plain_hint(chance: random.Random) -> tuple[Any, Holds]:
    bound, size = chance.randrange(-3, 4), chance.randrange(3)
    hints: list[tuple[Any, type, Holds]] = [
        (int, int, lambda value: True),
        (bool, bool, lambda value: True),
        (Annotated[int, at.Ge(bound)], int, lambda value: value >= bound),
        (Annotated[int, msgspec.Meta(lt=bound)], int, lambda value: value < bound),
        (Annotated[int, at.Lt(bound), at.MultipleOf(2)], int, lambda value: value < bound and value % 2 == 0),
        (Annotated[str, at.MinLen(size)], str, lambda value: len(value) >= size),
        (Annotated[str, msgspec.Meta(pattern="^a")], str, lambda value: value.startswith("a")),
    ]
    hint, kind, holds = chance.choice(hints)
    return hint, lambda value: type(value) is kind and holds(value)


def _random_hint(chance: random.Random, depth: int) -> tuple[Any, Holds]:
    """A hint, and what it says in plain Python."""
    kind = chance.randrange(6) if depth else 0
    if kind == 0:
        return _plain_hint(chance)
    hint, holds = _random_hint(chance, depth - 1)
    if kind == 1:
        size = chance.randrange(3)
        limited = Annotated[list[hint], at.MaxLen(size)]  # type: ignore[valid-type]
        return limited, lambda value: type(value) is list and len(value) <= size and all(map(holds, value))
    if kind == 2:
        return dict[str, hint], lambda value: type(value) is dict and all(map(holds, value.values()))
    if kind == 3:
        make = chance.choice([dataclasses.make_dataclass, msgspec.defstruct])
        return make("Made", [("x", hint)]), lambda value: type(value) is dict and "x" in value and holds(value["x"])
    if kind == 4:
        return hint | None, lambda value: value is None or holds(value)
    other, other_holds = _random_hint(chance, depth - 1)
    return hint | other, lambda value: holds(value) or other_holds(value)


def _random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(4) if depth else chance.randrange(2)
    if kind < 2:
        return chance.choice([chance.randrange(-4, 5), "", "a", "ab", "b", True, None, 1.5])
    if kind == 2:
        return [_random_value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return {chance.choice("xxy"): _random_value(chance, depth - 1) for _ in range(chance.randrange(3))}


@pytest.mark.thorough
def test_random_hints_say_what_they_say_in_python() -> None:
    for seed in range(500 if IS_THOROUGH else 40):
        chance = random.Random(seed)
        hint, holds = _random_hint(chance, 3)
        checker = hint_checker(hint, codec)
        for _ in range(40):
            value = _random_value(chance, 3)
            try:
                checker(value)
                is_accepted = True
            except ValueError:
                is_accepted = False
            assert is_accepted == holds(value), (seed, hint, value)


def test_the_length_of_a_text_is_checked_before_what_may_take_long() -> None:
    slow = "^(a+)+$"  # takes a second for 24 characters, and twice as long for each further one
    with pytest.raises(ValueError, match="length <= 10"):
        check(Annotated[str, msgspec.Meta(pattern=slow, max_length=10)], "a" * 100 + "b")


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


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, 1.5, "expected an integer, got a number"),
        (dict[str, int], [], "expected an object, got a list"),
        (list[int], [1, "x"], "result[1]: expected an integer, got a string"),
        (tuple[int, int], [1], "expected a list of length 2, got 1"),
        (datetime.datetime, "soon", "Invalid RFC3339 encoded datetime"),
        (Mode, "slow", 'expected "fast" or "exact", got \'slow\''),
        (Literal["a", "b", "c"], "d", 'expected "a" or "b" or "c", got \'d\''),
        (list[dict[str, Mode]], [{"x": "slow"}], 'result[0][...]: expected "fast" or "exact", got \'slow\''),
        (Pair, ["slow", "x"], 'result[0]: expected "fast" or "exact", got \'slow\''),
        (Layer, {"name": "x", "mask": ARRAY, "mode": "slow"}, 'result.mode: expected "fast" or "exact", got \'slow\''),
        (list[Layer], [{"name": "x", "mask": 5}], f"result[0].mask: expected an array, got an integer; {HOW}"),
        (Layer, {"name": "x"}, "'mask' is missing"),
        (NDArray[np.uint8], [1, 256], "expected an array of uint8, got an array of int64 of shape (2,)"),
        (
            np.ndarray,
            [[1], [1, 2]],
            "nested lists must have equal lengths at each depth, up to 32 levels",
        ),
        (np.ndarray | None, [10**30], "nested lists must contain only numbers of up to 64 bits"),
        (Annotated[np.ndarray, Shape(None, 3)], ARRAY, f"expected an array of shape (*, 3), {GOT}"),
        (bytes, [1], "expected bytes, got a list; bytes are a string in base64"),
        (int | np.ndarray, "x", "expected an integer or an array, got a string"),
        (Image, ARRAY, "expected an image, got an object tagged 'ndarray'"),
    ],
)
def test_errors_in_words(hint: Any, value: Any, text: str) -> None:
    found = refused(hint, value)
    assert found.startswith(text) if "an object tagged" in text else found == text


def test_what_a_peer_wrote_is_not_taken_for_the_path_and_not_repeated_at_length() -> None:
    for value in ("x" * 1_000_000, "`", "x` - at `$.y`", "' - at `$[0]`", "\u001b[2J", "\n"):
        text = refused(Options, {"mode": value})
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
    assert refused(Tree, value["branches"][0] | {"mode": "slow"}).startswith('result.mode: expected "fast" or "exact"')
    assert refused(Tree, value).startswith("result.branches[0].branches[0]")


def test_the_example_of_an_array_is_one() -> None:
    example = json.loads(HOW.partition("object ")[2].replace("<base64>", "A" * 32))
    assert np.shape(codec.decode(example)) == (2, 3)


@pytest.mark.parametrize("key", ['a"b', "a\\b", "a\nb"])
@pytest.mark.parametrize("field", [int, np.ndarray])
def test_a_key_that_no_schema_can_have_is_refused_at_registration(key: str, field: Any) -> None:
    odd: Any = TypedDict("odd", {key: field})  # type: ignore[operator, misc]

    def method(value):  # type: ignore[no-untyped-def]
        return None

    method.__annotations__["value"] = odd
    with pytest.raises(RegistrationError, match=r"odd: the key .* has a quote, a backslash or a control character"):
        Server().add(method)
