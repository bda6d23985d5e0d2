"""Signatures and hints of every kind, those of streams too: which params are taken, and the errors for others."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import functools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import annotated_types as at
import msgspec
import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Codec, InvalidParams, Server, Shape
from rpcstream.errors import InternalError, RegistrationError
from rpcstream.testing import memory_client

from .calling import bind, described

LISTED = [1]
T = TypeVar("T")


def every_kind(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **others: int) -> Any:
    return a, b, rest, c, d, others


def untyped(a, b=None) -> Any:  # type: ignore[no-untyped-def]
    return a, b


def odd_names(self: int, p0: int, __struct_fields__: int, type: int, name: int) -> Any:
    """With names that mean something to structs."""
    return self, p0, __struct_fields__, type, name


def number(a: int) -> int:
    return a


def positional(*numbers: int, **named: int) -> None: ...


def plain(text: str, size: int = 1) -> None: ...


class Calculator:
    def add(self, a: int, b: int) -> int:
        return a + b

    @staticmethod
    def twice(a: int) -> int:
        return 2 * a

    def __call__(self, a: int) -> int:
        return -a


def logged(function: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        return function(*args, **kwargs)

    return wrapper


CALCULATOR = Calculator()


@pytest.mark.parametrize(
    ("function", "params", "result"),
    [
        (every_kind, {"a": 1, "c": 3}, (1, 2, (), 3, 4, {})),
        (every_kind, {"a": 1, "b": 5, "c": 3, "d": 6, "e": 7}, (1, 5, (), 3, 6, {"e": 7})),
        (untyped, [{"x": [1, "y"]}], ({"x": [1, "y"]}, None)),
        (untyped, {"b": 1, "a": None}, (None, 1)),
        *((lambda: "done", params, "done") for params in (None, [], {})),
        (lambda a=LISTED: a is LISTED, [], True),
        (odd_names, [1, 2, 3, 4, 5], (1, 2, 3, 4, 5)),
        (odd_names, {"self": 1, "p0": 2, "__struct_fields__": 3, "type": 4, "name": 5}, (1, 2, 3, 4, 5)),
        (math.sqrt, {"x": 4}, 2),
        (CALCULATOR.add, [1, 2], 3),
        (Calculator.twice, [2], 4),
        (CALCULATOR, [1], -1),
        (functools.partial(CALCULATOR.add, 5), {"b": 2}, 7),
        (functools.partial(CALCULATOR.add, b=5), {"a": 2}, 7),
        (logged(CALCULATOR.add), [1, 2], 3),
        # Integers over 64 bits arrive exactly.
        *((number, b'{"params":[%d]}' % each, each) for each in (2**64, -(2**200), 2**63)),
        (number, b'{"params":{"a":%d}}' % 2**64, 2**64),
        (untyped, b'{"params":[[1e300, {"x": %d}]]}' % 2**64, ([1e300, {"x": 2**64}], None)),
    ],
)
def test_params_that_are_taken(function: Any, params: Any, result: Any) -> None:
    assert bind(function, params) == result


@pytest.mark.parametrize(
    ("function", "params", "told"),
    [
        (every_kind, [1, 2, 3], {"reason": "'c' is missing", "parameter": "c"}),
        (every_kind, {"a": 1, "c": 3, "e": "x"}, {"path": "$.e"}),
        (lambda: 1, [1], {"reason": "too many, at most 0 by position, got 1; the parameters are none"}),
        (lambda: 1, {"a": 1}, {"reason": "'a' is unknown; the parameters are none", "parameter": "a"}),
        (CALCULATOR, {"a": "x"}, {"path": "$.a"}),
        (logged(functools.partial(CALCULATOR.add, b=1)), {"a": "x"}, {"path": "$.a"}),
        (number, b'{"params":[1e300]}', {"reason": "expected an integer, got a number"}),
        (plain, {"txt": "x"}, {"parameter": "txt", "nearest": ["text"]}),
        (plain, {"text": "x", "sise": 1}, {"nearest": ["size"]}),
        (plain, {"text": "x", "zzz": 1}, {"nearest": None}),
    ],
)
def test_params_that_are_refused(function: Any, params: Any, told: dict[str, Any]) -> None:
    data = refused(function, params)
    assert {name: data.get(name) for name in told} == told


def refused(function: Callable[..., Any], params: Any) -> dict[str, Any]:
    """The data of the error for these params."""
    with pytest.raises(InvalidParams) as caught:
        bind(function, params)
    assert isinstance(caught.value.data, dict)
    return caught.value.data


def test_the_message_says_it_in_one_line() -> None:
    """Of the other mistakes: tests/conversation/test_mistakes.py."""
    with pytest.raises(InvalidParams, match=r"'txt' is unknown \(did you mean 'text'\?\)"):
        bind(plain, {"txt": "x"})
    for params, name, kind in (({"sise": "y"}, "sise", "a string"), ([1, None], "numbers", "null")):
        with pytest.raises(InvalidParams, match=f"Invalid params: {name}: expected an integer, got {kind}"):
            bind(positional, params)


def test_names_that_a_caller_invents_are_not_repeated_at_length() -> None:
    flood = {f"{'x' * 1000}{number}": 1 for number in range(1000)}
    for params in ({"text": "x", **flood}, flood):
        with pytest.raises(InvalidParams) as caught:
            bind(plain, params)
        assert len(caught.value.message) < 1000
        assert len(str(caught.value.data)) < 3000
    for name in ("x" * 100_000, "a`b", "a - at `$.b", "\x1b[2J"):
        with pytest.raises(InvalidParams, match="expected an integer, got a string") as caught:
            bind(positional, {name: "x"})
        assert len(str(caught.value.data)) < 500


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


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


Item = TypeVar("Item")


@dataclasses.dataclass
class Boxed(Generic[Item]):
    item: Item
    more: list[Item] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Careful:
    data: bytes

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("no data")


def array(values: Any, dtype: str) -> dict[str, Any]:
    return dict(orjson.loads(Codec().dumps(np.array(values, dtype))))


BYTES = {"$type": "bytes", "data": "YWI="}
SAMPLE = {"name": "a", "data": array([[1, 2, 3]], "f4"), "more": ["YQ=="]}


def taking(hint: Any) -> Callable[..., Any]:
    def function(other: int, value) -> Any:  # type: ignore[no-untyped-def]
        return value

    function.__annotations__["value"] = hint
    return function


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
        (list[Point | None], [None, {"x": 1}], [None, Point(1.0)]),
        (Chunk, [1], Chunk(1)),
        (str | bytes, "YWI=", "YWI="),
        (str | bytes, BYTES, b"ab"),
        (Point | Upload, {"name": "a"}, {"name": "a"}),
        (list[int] | dict[str, bytes], {"a": "YWI="}, {"a": b"ab"}),
        (Upload, {"name": "a", "data": "YQ=="}, {"name": "a", "data": b"a"}),
        (Chunk, [1, "YQ=="], Chunk(1, b"a")),
        (Boxed[int], {"item": 1, "more": [2]}, Boxed(1, [2])),
        (Boxed[bytes], {"item": "YQ==", "more": ["Yg=="]}, Boxed(b"a", [b"b"])),
        (Boxed, {"item": "x"}, Boxed("x")),
        (Any, {"y": {"$type": "unknown"}}, {"y": {"$type": "unknown"}}),
        (dict[str, Any], {"y": [BYTES]}, {"y": [b"ab"]}),
    ],
    ids=str,
)
def test_hint_accepts(hint: Any, sent: Any, expected: Any) -> None:
    for params in ([1, sent], {"other": 1, "value": sent}):
        got = bind(taking(hint), params)
        assert got == expected
        assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("hint", "sent", "path"),
    [
        (int, True, ""),
        (list[int], [1, "x"], "[1]"),
        (dict[str, int], {"a": "x"}, "[...]"),
        (Point, {"x": 1, "y": "z"}, ".y"),
        (Boxed[Point], {"item": {"y": 1}}, ".item"),
        (Point | Upload, {"other": 1}, ""),
        (list[bytes], ["YQ==", "%"], "[1]"),
        (Sample, {**SAMPLE, "data": array([[1, 2]], "f4")}, ".data"),
        (Sample, {**SAMPLE, "more": ["YQ==", "x"]}, ".more[1]"),
        (Sample, {"name": "a"}, ""),
        (Reading, {"value": "x"}, ".value"),
        (Reading, {"value": 1, "other": 2}, ""),
        (Boxed[int], {"item": "x"}, ".item"),
        (Careful, {"data": ""}, ""),
        (Any, [{**array([1], "i4"), "shape": [2]}], "[0]"),
    ],
    ids=str,
)
def test_hint_refuses_with_the_path(hint: Any, sent: Any, path: str) -> None:
    assert refused(taking(hint), {"other": 1, "value": sent})["path"] == f"$.value{path}"
    data = refused(taking(hint), [1, sent])
    assert (data["path"], data["parameter"]) == (f"$[1]{path}", "value")
    assert data["reason"]


def test_an_array_in_the_place_of_an_object_is_refused() -> None:
    for hint, sent in ((dict[str, Any], array([1], "f8")), (list[dict[str, Any]], [array([1], "f8")])):
        assert refused(taking(hint), [1, sent])["reason"] == "expected an object, got an array"


class Node(msgspec.Struct):
    value: NDArray[np.float64]
    children: list[Node] = []
    parent: RichHint | None = None


class RichHint(msgspec.Struct):
    owner: Node | bytes


def test_arrays_inside_of_classes_also_of_those_that_refer_to_themselves() -> None:
    sample = bind(taking(Sample), [1, SAMPLE])
    assert isinstance(sample, Sample)
    assert (sample.data.tolist(), sample.photo, sample.more) == ([[1, 2, 3]], None, [b"a"])
    inner = {"value": array([2], "f8"), "parent": {"owner": {"value": array([3], "f8")}}}
    got = bind(taking(Node), [1, {"value": array([1], "f8"), "children": [inner]}])
    assert isinstance(got.children[0], Node)
    assert got.children[0].value.tolist() == [2]
    assert got.children[0].parent.owner.value.tolist() == [3]
    data = refused(taking(Node), [1, {"value": array([1], "f8"), "children": [{"value": 5}]}])
    assert data["path"] == "$[1].children[0].value"


class Opaque:
    pass


@dataclasses.dataclass
class WithInitVar:
    data: bytes
    scale: dataclasses.InitVar[int] = 1


@pytest.mark.parametrize("hint", [Opaque, list[Opaque], Callable[[int], int], Opaque | int, WithInitVar, "Nowhere"])
def test_a_hint_that_cannot_be_checked_is_refused_with_its_place(hint: Any) -> None:
    def function(fine: int, wrong): ...  # type: ignore[no-untyped-def]

    places = {"wrong": "parameter 'wrong'", "return": "the return value"}
    for name, place in places.items():
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


async def numbers(*values: int) -> AsyncIterator[int]:
    for value in values:
        yield value


async def total(scale: int = 1, *, items: AsyncIterator[int] | None = None) -> int | None:
    return None if items is None else scale * sum([item async for item in items])


async def positive(items: Annotated[AsyncIterator[Annotated[int, at.Ge(0)]], "what to add"]) -> int:
    return sum([item async for item in items])


async def test_a_stream_may_be_left_out_and_its_items_are_constrained() -> None:
    server = Server()
    server.add(total)
    server.add(positive)
    async with memory_client(server) as client:
        assert [await client.total(items=each) for each in (numbers(20, 22), [1, 2], None)] == [42, 3, None]
        assert [await client.total(), await client.total(2)] == [None, None]
        assert await client.positive(items=numbers(1, 2)) == 3
        for method, items in (("positive", 5), ("positive", numbers(1, -2)), ("positive", [1, -2])):
            with pytest.raises(InvalidParams, match=r"an integer >= 0|a list"):
                await client.call(method, items)


def test_a_stream_is_described() -> None:
    schema = described(positive)[0]["params"][0]["schema"]
    assert (schema["x-stream"], schema["description"]) == (True, "what to add")
    assert schema["items"] == {"type": "integer", "minimum": 0}
    optional = described(total)[0]["params"][-1]["schema"]
    assert optional["x-stream"] is True
    assert {"type": "null"} in optional["anyOf"]


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (list[AsyncIterator[int]], "a stream inside of another hint cannot be read"),
        (AsyncIterator[int] | list[int], "a stream inside of another hint cannot be read"),
        (Annotated[AsyncIterator[int], at.MinLen(1)], ".*means nothing for this type"),
        (Annotated[AsyncIterator[int] | None, at.MinLen(1)], ".*means nothing for this type"),
    ],
)
def test_streams_that_could_not_be_read_are_refused(hint: Any, why: str) -> None:
    async def function(items: Any) -> None: ...

    function.__annotations__["items"] = hint
    with pytest.raises(RegistrationError, match=f"^function: parameter 'items': {why}"):
        Server().add(function)


def ends(value: Any) -> Iterator[int]:
    yield 1
    return value


async def has_no_end() -> AsyncGenerator[int, None]:
    yield 1


async def test_what_a_generator_returns_at_its_end_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.add(has_no_end)
    hints = {"ends": Generator[int, None, str], "ends_with_nothing": Generator[int, str | None, None]}
    for name, hint in {**hints, "unchecked": hints["ends"], "ends_somehow": Iterator[int]}.items():
        ends.__annotations__["return"] = hint
        server.add(ends, name=name, check_result=name != "unchecked")

    async with memory_client(server) as client:

        async def end(name: str, *params: Any) -> Any:
            async with getattr(client.stream, name)(*params) as stream:
                assert [item async for item in stream] == [1]
                return stream.result

        assert await end("ends", "done") == "done"
        assert await end("ends_with_nothing", None) is None
        assert [await end("ends_somehow", 5), await end("unchecked", 5), await end("has_no_end")] == [5, 5, None]
        assert await client.ends(5) == [1]  # nobody is given the end there
        for name in hints:
            with pytest.raises(InternalError):
                await end(name, 5)
    assert "not what the return hint says: expected a string, got an integer" in caplog.text
