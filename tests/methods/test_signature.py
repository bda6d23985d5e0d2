"""Signatures of every kind: which params are accepted, and the errors for others."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Codec, InvalidParams, InvalidRequest, RegistrationError, Server, Shape
from rpcstream.testing import memory_client

from .calling import bind


def refused(function: Callable[..., Any], params: Any) -> dict[str, Any]:
    """The data of the error for these params."""
    with pytest.raises(InvalidParams) as caught:
        bind(function, params)
    assert caught.value.code == -32602
    assert isinstance(caught.value.data, dict)
    return caught.value.data


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Box(msgspec.Struct):
    corner: Point
    size: int = 1


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


T = TypeVar("T")


# -- kinds of parameters ------------------------------------------------------------------------------------------


def test_positional_only_keyword_only_defaults_and_the_rest() -> None:
    def function(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **others: int) -> Any:
        return a, b, rest, c, d, others

    assert bind(function, {"a": 1, "c": 3}) == (1, 2, (), 3, 4, {})
    assert bind(function, {"a": 1, "b": 5, "c": 3, "d": 6, "e": 7}) == (1, 5, (), 3, 6, {"e": 7})
    assert refused(function, [1, 2, 3])["missing"] == ["c"]
    assert refused(function, {"a": 1, "c": 3, "e": "x"})["path"] == "$.e"


def test_no_hints_takes_anything() -> None:
    def function(a, b=None):  # type: ignore[no-untyped-def]
        return a, b

    assert bind(function, [{"x": [1, "y"]}]) == ({"x": [1, "y"]}, None)
    assert bind(function, {"b": 1, "a": None}) == (None, 1)


def test_no_parameters() -> None:
    for params in (None, [], {}):
        assert bind(lambda: "done", params) == "done"
    assert refused(lambda: 1, [1])["reason"] == "too many"
    assert refused(lambda: 1, {"a": 1})["parameter"] == "a"


def test_mutable_and_strange_defaults_are_the_functions_own() -> None:
    marker = object()
    listed = [1]

    def function(a: list[int] = listed, b: Any = marker, c: Any = float("nan")) -> Any:
        return a, b, c

    a, b, c = bind(function, [])
    assert a is listed
    assert b is marker
    assert math.isnan(c)


def test_parameters_whose_names_mean_something_to_structs() -> None:
    def function(self: int, p0: int, __struct_fields__: int, type: int, name: int) -> Any:
        return self, p0, __struct_fields__, type, name

    named = {"self": 1, "p0": 2, "__struct_fields__": 3, "type": 4, "name": 5}
    assert bind(function, named) == bind(function, [1, 2, 3, 4, 5]) == (1, 2, 3, 4, 5)


def test_methods_partials_callables_and_wrapped() -> None:
    class Calculator:
        def add(self, a: int, b: int) -> int:
            return a + b

        @staticmethod
        def twice(a: int) -> int:
            return 2 * a

        @classmethod
        def name(cls, suffix: str) -> str:
            return cls.__name__ + suffix

        def __call__(self, a: int) -> int:
            return -a

    def logged(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            return function(*args, **kwargs)

        return wrapper

    calculator = Calculator()
    assert bind(math.sqrt, [4]) == bind(math.sqrt, {"x": 4}) == 2
    assert bind(calculator.add, [1, 2]) == 3
    assert bind(Calculator.twice, [2]) == 4
    assert bind(Calculator.name, ["!"]) == "Calculator!"
    assert bind(calculator, [1]) == -1
    assert bind(functools.partial(calculator.add, 5), {"b": 2}) == 7
    assert bind(functools.partial(calculator.add, b=5), {"a": 2}) == 7
    assert bind(logged(calculator.add), [1, 2]) == 3
    for function in (
        functools.partial(calculator.add, b=1),
        calculator,
        logged(functools.partial(calculator.add, b=1)),
    ):
        assert refused(function, {"a": "x"})["path"] == "$.a"


# -- hints ----------------------------------------------------------------------------------------------------------

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SOME_ID = uuid.UUID("5f0c9a52-7a0d-4c9e-8d3f-0f6c3b1a2e47")


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (float, 1, 1.0),
        (Sequence[int], [1], [1]),
        (tuple[int, str], [1, "x"], (1, "x")),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], [1, 1], {1}),
        (frozenset[str], ["x"], frozenset("x")),
        (dict[int, str], {"1": "x"}, {1: "x"}),
        (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
        (Colour, "red", Colour.RED),
        (Level, 1, Level.LOW),
        (Point, {"x": 1}, Point(1.0)),
        (Box, {"corner": {"x": 1, "y": 2}}, Box(Point(1.0, 2.0))),
        (list[Point | None], [None, {"x": 1}], [None, Point(1.0)]),
        (Pair, [1], Pair(1)),
        (datetime.datetime, "2026-01-02T03:04:05Z", NOW),
        (datetime.timedelta, "PT1.5S", datetime.timedelta(seconds=1.5)),
        (uuid.UUID, str(SOME_ID), SOME_ID),
        (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
        (bytes, "YWI=", b"ab"),
        (bytes, {"$type": "bytes", "data": "YWI="}, b"ab"),
        (str | bytes, "YWI=", "YWI="),
        (str | bytes, {"$type": "bytes", "data": "YWI="}, b"ab"),
        (complex, {"$type": "complex", "real": 1.0, "imag": 2.0}, 1 + 2j),
        (Point | Movie, {"title": "M"}, {"title": "M"}),
        (list[int] | dict[str, bytes], {"a": "YWI="}, {"a": b"ab"}),
    ],
)
def test_hint_accepts(hint: Any, sent: Any, expected: Any) -> None:
    def function(value) -> Any:  # type: ignore[no-untyped-def]
        return value

    function.__annotations__["value"] = hint
    for params in ([sent], {"value": sent}):
        got = bind(function, params)
        assert got == expected
        assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("hint", "sent", "path"),
    [
        (int, "1", ""),
        (int, True, ""),
        (list[int], [1, "x"], "[1]"),
        (dict[str, int], {"a": "x"}, "[...]"),
        (tuple[int, str], [1], ""),
        (Point, {"x": 1, "y": "z"}, ".y"),
        (Box, {"corner": {"y": 1}}, ".corner"),
        (Point | Movie, {"other": 1}, ""),
        (list[bytes], ["YQ==", "%"], "[1]"),
        (Image.Image, "YWI=", ""),
    ],
)
def test_hint_refuses_with_the_path(hint: Any, sent: Any, path: str) -> None:
    def function(other: int, value) -> Any:  # type: ignore[no-untyped-def]
        return value

    function.__annotations__["value"] = hint
    assert refused(function, {"other": 1, "value": sent})["path"] == f"$.value{path}"
    data = refused(function, [1, sent])
    assert (data["path"], data["parameter"]) == (f"$[1]{path}", "value")
    assert data["reason"]


def test_the_message_says_it_in_one_line() -> None:
    def function(a: int) -> None: ...

    with pytest.raises(InvalidParams, match="Invalid params: a: expected an integer, got a string"):
        bind(function, {"a": "x"})
    with pytest.raises(InvalidParams, match="missing 'a'"):
        bind(function, {})
    with pytest.raises(InvalidParams, match="unknown 'b'"):
        bind(function, {"a": 1, "b": 2})
    with pytest.raises(InvalidParams, match="at most 1 by position, got 2"):
        bind(function, [1, 2])
    with pytest.raises(InvalidRequest, match="array or an object"):
        bind(function, "x")


def test_integers_over_64_bits_arrive_exactly() -> None:
    def typed(a: int) -> int:
        return a

    def untyped(a):  # type: ignore[no-untyped-def]
        return a

    for function in (typed, untyped):
        for number in (2**64, -(2**200), 2**63):
            assert bind(function, b'{"params":[%d]}' % number) == number
            assert bind(function, b'{"params":{"a":%d}}' % number) == number
    assert bind(untyped, b'{"params":[[1e300, {"x": 18446744073709551616}]]}') == [1e300, {"x": 2**64}]
    assert refused(typed, b'{"params":[1e300]}')["expected"] == "int"


@dataclasses.dataclass
class Sample:
    name: str
    data: Annotated[NDArray[np.float32], Shape(None, 3)]
    photo: Image.Image | None = None
    more: list[bytes] = dataclasses.field(default_factory=list)


class Reading(msgspec.Struct, forbid_unknown_fields=True):
    value: float | NDArray[np.float64]
    label: str = "none"


class Upload(TypedDict):
    name: str
    data: NotRequired[bytes]


class Chunk(NamedTuple):
    number: int
    data: bytes = b""


def array(values: Any, dtype: str) -> dict[str, Any]:
    return dict(orjson.loads(Codec().dumps(np.array(values, dtype))))


def test_rich_values_inside_classes() -> None:
    def sample(s: Sample) -> Sample:
        return s

    sent = {"name": "a", "data": array([[1, 2, 3]], "f4"), "more": ["YQ=="]}
    got = bind(sample, {"s": sent})
    assert isinstance(got, Sample)
    assert got.data.tolist() == [[1, 2, 3]]
    assert (got.photo, got.more) == (None, [b"a"])
    assert refused(sample, {"s": {**sent, "data": array([[1, 2]], "f4")}})["path"] == "$.s.data"
    assert refused(sample, {"s": {**sent, "more": ["YQ==", "x"]}})["path"] == "$.s.more[1]"
    assert "data" in refused(sample, {"s": {"name": "a"}})["reason"]


def test_rich_values_inside_structs_typed_dicts_and_named_tuples() -> None:
    def take(r: Reading, u: Upload, c: Chunk) -> Any:
        return r, u, c

    sent = {"r": {"value": array([1], "f8")}, "u": {"name": "a", "data": "YQ=="}, "c": [1, "YQ=="]}
    reading, upload, chunk = bind(take, sent)
    assert reading.value.tolist() == [1]
    assert (upload, chunk) == ({"name": "a", "data": b"a"}, Chunk(1, b"a"))
    plain = {"r": {"value": 1.5}, "u": {"name": "a"}, "c": [1]}
    assert bind(take, plain) == (Reading(1.5), {"name": "a"}, Chunk(1))
    assert refused(take, {**plain, "r": {"value": "x"}})["path"] == "$.r.value"
    assert refused(take, {**plain, "r": {"value": 1, "other": 2}})["path"] == "$.r"


def test_tagged_values_in_untyped_places() -> None:
    def function(a, b: dict[str, Any]) -> Any:  # type: ignore[no-untyped-def]
        return a, b

    a, b = bind(function, {"a": [array([1], "i4")], "b": {"x": array([2], "i4"), "y": {"$type": "unknown"}}})
    assert a[0].tolist() == [1]
    assert b["x"].tolist() == [2]
    assert b["y"] == {"$type": "unknown"}
    wrong = {**array([1], "i4"), "shape": [2]}
    assert refused(function, {"a": [wrong], "b": {}})["path"] == "$.a[0]"


# -- what cannot be registered --------------------------------------------------------------------------------------


class Opaque:
    pass


@pytest.mark.parametrize("hint", [Opaque, list[Opaque], Callable[[int], int], Opaque | int, type[int], "Nowhere"])
def test_a_hint_that_cannot_be_checked_is_refused_with_its_place(hint: Any) -> None:
    def function(fine: int, wrong): ...  # type: ignore[no-untyped-def]

    for name, place in (("wrong", "parameter 'wrong'"), ("return", "the return value")):
        function.__annotations__ = {"fine": int, name: hint}
        with pytest.raises(RegistrationError, match=f"my.method: {place}" if hint != "Nowhere" else "my.method: "):
            Server().add(function, name="my.method")


async def test_string_hints_mean_local_classes_and_those_of_the_module_before_others() -> None:
    @dataclasses.dataclass
    class Local:
        a: int

    decimal = int  # noqa: F841  (what the hint of `at_the_top` must not find)
    server, seen = Server(), []

    @server
    def function(value: Local) -> Local:
        seen.append(value)
        return value

    server.add(at_the_top)
    async with memory_client(server) as client:
        assert await client.function({"a": 1}) == {"a": 1}
        assert await client.at_the_top("1.5") == "Decimal"
    assert seen == [Local(1)]


def at_the_top(value: decimal.Decimal) -> str:
    return type(value).__name__


def test_the_codec_knows_the_types_of_the_user() -> None:
    codec = Codec()
    codec.register(Opaque, "opaque", encode=lambda value: {}, decode=lambda parts: Opaque())

    def function(value: Opaque, values: list[Opaque] | None = None) -> Opaque:
        return value

    assert isinstance(bind(function, [{"$type": "opaque"}], codec=codec), Opaque)


# -- classes that are harder ----------------------------------------------------------------------------------------


class Node(msgspec.Struct):
    value: NDArray[np.float64]
    children: list[Node] = []
    parent: RichHint | None = None


class RichHint(msgspec.Struct):
    owner: Node | bytes


def test_recursive_classes_with_arrays_inside() -> None:
    def function(node: Node) -> Node:
        return node

    inner = {"value": array([2], "f8"), "parent": {"owner": {"value": array([3], "f8")}}}
    got = bind(function, {"node": {"value": array([1], "f8"), "children": [inner]}})
    assert isinstance(got.children[0], Node)
    assert got.children[0].value.tolist() == [2]
    assert got.children[0].parent.owner.value.tolist() == [3]
    data = refused(function, {"node": {"value": array([1], "f8"), "children": [{"value": 5}]}})
    assert data["path"] == "$.node.children[0].value"


Item = TypeVar("Item")


@dataclasses.dataclass
class Boxed(Generic[Item]):
    item: Item
    more: list[Item] = dataclasses.field(default_factory=list)


def test_generic_classes() -> None:
    def plain(box: Boxed[int]) -> Any:
        return box

    def rich(box: Boxed[bytes]) -> Any:
        return box

    def bare(box: Boxed) -> Any:  # type: ignore[type-arg]
        return box

    assert bind(plain, [{"item": 1, "more": [2]}]) == Boxed(1, [2])
    assert refused(plain, [{"item": "x"}])["path"] == "$[0].item"
    assert bind(rich, [{"item": "YQ==", "more": ["Yg=="]}]) == Boxed(b"a", [b"b"])
    assert bind(bare, [{"item": "x"}]) == Boxed("x")


@dataclasses.dataclass
class Careful:
    data: bytes

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("no data")


@dataclasses.dataclass
class WithInitVar:
    data: bytes
    scale: dataclasses.InitVar[int] = 1


def test_what_the_constructor_refuses_is_the_callers_error_and_a_pseudo_field_refused() -> None:
    def careful(value: Careful) -> None: ...

    def pseudo(value: WithInitVar) -> None: ...

    assert refused(careful, [{"data": ""}])["reason"] == "no data"
    with pytest.raises(RegistrationError, match="InitVar"):
        Server().add(pseudo)


def test_a_tagged_array_in_the_place_of_an_object() -> None:
    array = {"$type": "ndarray", "dtype": "<f8", "shape": [1], "data": "AAAAAAAA8D8="}

    def take(first: int, table: dict[str, Any], inner: list[dict[str, Any]] | None = None) -> None: ...

    for params in ([1, array], {"first": 1, "table": array}, [1, {}, [array]]):
        with pytest.raises(InvalidParams, match="expected an object, got an array") as caught:
            bind(take, params)
        assert caught.value.data["parameter"] in ("table", "inner")


def test_a_slip_in_a_name_is_told() -> None:
    def function(text: str, size: int = 1, **others: int) -> None: ...

    def plain(text: str, size: int = 1) -> None: ...

    data = refused(plain, {"txt": "x"})
    assert (data["missing"], data["unknown"], data["nearest"]) == (["text"], ["txt"], ["text"])
    with pytest.raises(InvalidParams, match=r"^.* missing 'text'; unknown 'txt' \(did you mean 'text'\?\)$"):
        bind(plain, {"txt": "x"})
    with pytest.raises(InvalidParams, match=r"^.* unknown 'sise' \(did you mean 'size'\?\)$") as caught:
        bind(plain, {"text": "x", "sise": 1})
    assert caught.value.data["nearest"] == ["size"]
    with pytest.raises(InvalidParams, match=r"unknown 'zzz'; the parameters are 'text', 'size'$") as caught:
        bind(plain, {"text": "x", "zzz": 1})
    assert "nearest" not in caught.value.data
    with pytest.raises(InvalidParams, match=r"Invalid params: sise: expected an integer, got a string"):
        bind(function, {"text": "x", "sise": "y"})


def test_names_that_a_caller_invents_are_not_repeated_at_length() -> None:
    def function(text: str) -> None: ...

    def rest(*numbers: int, **named: int) -> None: ...

    flood = {f"{'x' * 1000}{number}": 1 for number in range(1000)}
    for params in ({"text": "x", **flood}, flood):
        with pytest.raises(InvalidParams) as caught:
            bind(function, params)
        assert len(caught.value.message) < 1000
        assert len(str(caught.value.data)) < 3000
    for name in ("x" * 100_000, "a`b", "a - at `$.b", "\x1b[2J"):
        with pytest.raises(InvalidParams, match="expected an integer, got a string") as caught:
            bind(rest, {name: "x"})
        assert len(str(caught.value.data)) < 500
    with pytest.raises(InvalidParams, match="Invalid params: numbers: expected an integer, got null"):
        bind(rest, [1, None])
