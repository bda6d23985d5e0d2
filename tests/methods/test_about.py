"""What `rpc.discover` says of methods: options, examples, docstrings; schemas, which allow what is taken."""

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import enum
import inspect
import math
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from rpcstream import AsyncClient, Example, Info, Limits, NotPermitted, RpcError, Server
from rpcstream.errors import RegistrationError
from rpcstream.testing import memory_client

from ..kit.example_count import IS_THOROUGH
from .calling import bind, taking
from .calling import described as described_there


def described(function: Any, **options: Any) -> dict[str, Any]:
    return described_there(function, **{"name": "m", **options})[0]


def add(a: int, b: int = 1) -> int:
    return a + b


@dataclasses.dataclass
class Box:
    corner: tuple[int, int]
    picture: NDArray[np.uint8] | None = None


def look(photo: Image.Image, box: Box, *more: float) -> NDArray[np.float32]: ...  # type: ignore[empty-body]


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
    (made,) = described(look, examples=[example])["examples"]
    assert [each["name"] for each in made["params"]] == ["photo", "box", "more", "more"]
    image, box = [each["value"] for each in made["params"][:2]]
    assert (image["$type"], box["corner"], box["picture"]["dtype"]) == ("image", [1, 2], "|u1")
    assert made["result"]["value"]["shape"] == [2, 3]
    (made,) = described(lambda **named: 1, examples=[Example({"title": "x"})])["examples"]
    assert made["params"] == [{"name": "title", "value": "x"}]
    (made,) = described(count, examples=[Example([2], [0, 1])])["examples"]
    assert made["result"] == {"name": "result", "value": [0, 1]}
    (made,) = described(total, examples=[Example([[1, 2]])])["examples"]
    assert made == {"name": "example 1", "params": [{"name": "numbers", "value": [1, 2]}]}


class Full(RpcError):
    def __init__(self) -> None:
        super().__init__(41, "no seats", {"most": 5})


def old() -> None: ...


old.__deprecated__ = "since 2"  # type: ignore[attr-defined]  # as `warnings.deprecated` does (PEP 702)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (add, {}, {"tags": None, "deprecated": None, "x-deprecated": None}),
        (add, {"deprecated": "use plus"}, {"deprecated": True, "x-deprecated": "use plus"}),
        (old, {}, {"deprecated": True, "x-deprecated": "since 2"}),
        (add, {"name": "math.plus.add"}, {"tags": [{"name": "math"}]}),
        (add, {"name": "math.add", "tags": ["b", "a", "b"]}, {"tags": [{"name": "b"}, {"name": "a"}]}),
    ],
)
def test_what_options_say(function: Any, options: dict[str, Any], said: dict[str, Any]) -> None:
    found = described(function, **options)
    assert {name: found.get(name) for name in said} == said


def test_errors_that_are_declared_stand_before_those_of_the_framework() -> None:
    errors = described(add, errors=[RpcError(404, "Not found"), Full, NotPermitted])["errors"]
    assert errors == [
        {"code": 404, "message": "Not found"},
        {"code": 41, "message": "no seats", "data": {"most": 5}},
        {"code": -32006, "message": "Not permitted"},
        {"code": -32602, "message": "Invalid params"},
        {"code": -32603, "message": "Internal error"},
    ]
    codes = {each["code"] for each in described(total, allow="ann")["errors"]}
    assert codes == {-32602, -32603, -32002, -32003, -32800, -32006}


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (add, {"examples": [Example({"a": "x"})]}, "example 1: .*a: expected an integer"),
        (add, {"examples": [Example({"a": 1, "c": 1})]}, ".*unexpected 'c'|.*unknown"),
        (add, {"examples": [Example([1, 2, 3])]}, ".*too many, at most 2"),
        *((each, {"examples": [Example([1], "x")]}, ".*the result is not what") for each in (add, count)),
        (count, {"examples": [Example([2], 5)]}, ".*not iterable"),
        (add, {"examples": [Example([object()])]}, ".*has no form on the wire"),
        *((add, {each: Example()}, f"{each}: .*not iterable") for each in ("examples", "tags", "errors")),
        *((add, {"tags": each}, "tags: expected a list of strings") for each in ([""], "x", [1])),
        (add, {"examples": [{"a": 1}]}, "example 1: expected Example"),
        (add, {"errors": [404]}, "errors: expected RpcErrors"),
        (add, {"errors": [RpcError]}, "errors: .*missing 2 required"),
        (add, {"errors": [RpcError(1, "x", object())]}, "errors: .*has no form on the wire"),
        (add, {"name": "x" * 1001}, ".*1 to 1000 characters"),
    ],
)
def test_what_cannot_be_said_is_refused(function: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RegistrationError, match=f"^(?:.*: )?{reason}"):
        described(function, **options)


HEAD = "\nDetect objects.\n\nIt takes a while. Not for stars.\n"
GOOGLE = """
Args:
    photo: the picture,
        in colour.
    gain (float, optional): how much
    **by_name: others by name

Returns:
    dict: the boxes
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


def test_docstrings_that_are_empty_or_say_little() -> None:
    assert not {"summary", "description"} & method("").keys()
    found = method("A\nB.\n\nArgs:\n    a: é\n\nYields:\n    the numbers")
    assert (found["summary"], found["result"]["description"]) == ("A B.", "the numbers")
    assert {each["name"]: each.get("description") for each in found["params"]}["a"] == "é"


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
    server = Server(info=Info(description="d" * 1_000_000))
    kind = type("C" * 100_000, (), {"__annotations__": {"a": int}})
    kind.__doc__ = "d" * 1_000_000

    def long(a: int = 1, b: str = "t" * 1_000_000, c: list[int] = [7] * 200_000, d: str = "\udfff", e=None): ...  # type: ignore[no-untyped-def]

    long.__doc__ = "A" * 1_000_000 + "\n\nArgs:\n    a: " + "b" * 1_000_000
    long.__annotations__["e"] = dataclasses.dataclass(kind) | None
    server.add(long)
    async with memory_client(server, limits=Limits(max_message_size=200_000)) as client:
        made = await client.call("rpc.discover")
    method = next(each for each in made["methods"] if each["name"] == "long")
    assert len(method["summary"]) <= 16_384
    defaults = [each["schema"].get("x-default", "") for each in method["params"]]
    assert all(len(each) < 400 for each in defaults)
    assert defaults[3] == repr("\udfff")
    ((name, schema),) = made["components"]["schemas"].items()
    assert len(name) <= 100
    assert len(schema["description"]) <= 16_384


INF, NAN = math.inf, math.nan


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float = INF
    y: list[float] = dataclasses.field(default_factory=lambda: [NAN])
    name: str = None  # type: ignore[assignment]
    tags: set[int] = dataclasses.field(default_factory=set)


class Measured(msgspec.Struct):
    value: float
    error: float = -INF
    among: tuple[float, ...] = (1.0, NAN)
    unit: str | None = None
    kinds: dict[str, set[str]] = {}


class Options(TypedDict, total=False):
    default: float
    uniqueItems: frozenset[int]


@dataclasses.dataclass
class Rich:
    """A class that msgspec cannot check by itself."""

    image: np.ndarray[Any, Any] | None = None
    scale: float = INF
    seen: set[str] = dataclasses.field(default_factory=set)


def take(hint: Any, value: Any) -> None:
    bind(taking(hint), orjson.dumps({"params": [value]}, option=orjson.OPT_PASSTHROUGH_SUBCLASS))


def schemas_of(function: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schemas of the parameters, and those that they refer to, as they go over the wire."""
    method, schemas = described_there(function)
    return [parameter["schema"] for parameter in method["params"]], schemas


plain = [
    (int, st.integers(-(2**60), 2**60)),
    (float, st.floats()),
    (str, st.text(max_size=3)),
    (bool, st.booleans()),
    (Colour, st.sampled_from(Colour)),
    (Literal[1, "x", None], st.sampled_from([1, "x", None])),
    (decimal.Decimal, st.decimals(allow_nan=True)),
    (np.float32, st.floats(width=32).map(np.float32)),
    (Point, st.builds(Point, x=st.floats())),
    (Measured, st.builds(Measured, st.floats(), st.floats())),
    (Options, st.fixed_dictionaries({}, optional={"default": st.floats(), "uniqueItems": st.just(frozenset({1}))})),
    (Rich, st.builds(Rich, scale=st.floats())),
    (Any, st.floats() | st.lists(st.floats(), max_size=2) | st.none()),
]
hashable = [each for each in plain if each[0] in (int, str, bool, Colour)]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda each: (list[each[0]], st.lists(each[1], max_size=3))),
        inner.map(lambda each: (dict[str, each[0]], st.dictionaries(st.text(max_size=2), each[1], max_size=2))),
        inner.map(lambda each: (tuple[each[0], int], st.tuples(each[1], st.integers(0, 5)))),
        inner.map(lambda each: (each[0] | None if each[0] is not Any else Any, each[1] | st.none())),
        st.sampled_from(hashable).map(lambda each: (set[each[0]], st.sets(each[1], max_size=3))),
        st.sampled_from(hashable).map(
            lambda each: (
                Annotated[frozenset[each[0]], msgspec.Meta(min_length=2)],
                st.frozensets(each[1], min_size=2, max_size=2),
            )
        ),
    )


hints = st.recursive(st.sampled_from(plain), containers, max_leaves=4)


def resolved(schema: Any, components: dict[str, Any]) -> Any:
    return components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def instances(schema: Any, components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, made from the schema alone."""

    def of(inner: Any) -> st.SearchStrategy[Any]:
        return instances(inner, components)

    if "$ref" in schema:
        return of(components[schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        # Tagged objects and their base64 are not made up.
        plain = [each for each in schema["anyOf"] if "contentEncoding" not in str(resolved(each, components))]
        return st.one_of(map(of, plain))
    kind = schema.get("type")
    if kind == "array":
        fixed = [of(each) for each in schema.get("prefixItems", ())]
        if fixed:
            return st.tuples(*fixed).map(list)
        least, most = schema.get("minItems", 0), schema.get("maxItems", schema.get("minItems", 0) + 3)
        unique = orjson.dumps if schema.get("uniqueItems") else None
        return st.lists(of(schema.get("items", {})), min_size=least, max_size=most, unique_by=unique)
    if kind == "object":
        members = {name: of(each) for name, each in schema.get("properties", {}).items()}
        needed = {name: members.pop(name) for name in schema.get("required", ())}
        if members or needed:
            return st.fixed_dictionaries(needed, optional=members)
        return st.dictionaries(st.text(max_size=2), of(schema.get("additionalProperties", {})), max_size=2)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        "integer": st.integers(-(2**60), 2**60),
        "number": st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-5, 5),
        "string": st.text(max_size=3) if "format" not in schema else st.sampled_from(["1.5", "-3"]),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return simple.get(kind, st.integers(-(2**60), 2**60) | st.none())


@given(hints.flatmap(lambda each: st.tuples(st.just(each[0]), each[1])))
@settings(deadline=None, max_examples=100 if IS_THOROUGH else 8)
def test_a_default_that_is_shown_is_taken(each: tuple[Any, Any]) -> None:
    hint, default = each
    (schema,), _ = schemas_of(taking(hint, default))
    assert ("default" in schema) != ("x-default" in schema)
    if "default" in schema:
        take(hint, schema["default"])
    if isinstance(default, float):
        assert ("default" in schema) is math.isfinite(default)


@given(st.data())
@settings(deadline=None, max_examples=100 if IS_THOROUGH else 8)
def test_what_a_schema_allows_is_taken(data: st.DataObject) -> None:
    hint, _ = data.draw(hints)
    (schema,), components = schemas_of(taking(hint))
    take(hint, data.draw(instances(schema, components)))


@pytest.mark.parametrize(
    ("hint", "default", "shown"),
    [
        (np.float32, np.float32("-inf"), {"x-default": repr(np.float32("-inf"))}),
        (list[float], [1.0, NAN], {"x-default": "[1.0, nan]"}),
        (int, None, {"x-default": "None"}),
        (Point, Point(), {"x-default": repr(Point())}),
        (Any, {"a": [INF]}, {"x-default": "{'a': [inf]}"}),
        (frozenset[str], frozenset("dcab"), {"default": ["a", "b", "c", "d"]}),
        # What stands for "not given" has no form that says anything.
        *((int, each, {}) for each in (object(), (object(),), bind, lambda: 1)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_how_a_default_is_shown(hint: Any, default: Any, shown: dict[str, Any]) -> None:
    (schema,), _ = schemas_of(taking(hint, default))
    assert {name: value for name, value in schema.items() if name in ("default", "x-default")} == shown


def test_a_method_with_a_keyword_only_parameter_is_called_by_name() -> None:
    def required(a: int, *, b: int) -> None: ...
    def optional(a: int, *, b: int = 1) -> None: ...
    def positional(a: int, b: int = 1) -> None: ...
    def rest(a: int, *more: int, b: int = 1) -> None: ...
    def rest_and_required(a: int, *more: int, b: int) -> None: ...

    functions = (required, optional, positional, rest, rest_and_required)
    found = [described_there(each)[0]["paramStructure"] for each in functions]
    assert found == ["by-name", "by-name", "either", "either", "by-name"]


def test_defaults_of_fields_and_sets_in_classes() -> None:
    def it(point: Point, measured: Measured, rich: Rich, options: Options) -> None: ...

    _, components = schemas_of(it)
    assert components["Point"]["properties"] == {
        "x": {"type": "number"},
        "y": {"type": "array", "items": {"type": "number"}},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    }
    assert components["Options"]["properties"].keys() == {"default", "uniqueItems"}
