"""The schemas in `rpc.discover`: defaults validate, and values that they allow are accepted."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import functools
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Context

from ..kit.example_count import example_count
from .calling import bind as bind_there
from .calling import described as described_there

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
    limit: float
    ids: frozenset[int]


@dataclasses.dataclass
class Rich:
    """A class that msgspec cannot check by itself."""

    image: np.ndarray[Any, Any] | None = None
    scale: float = INF
    seen: set[str] = dataclasses.field(default_factory=set)


def described(function: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schemas of the parameters, and those that they refer to, as they go over the wire."""
    method, schemas = described_there(function)
    return [parameter["schema"] for parameter in method["params"]], schemas


def description_of(function: Any, **options: Any) -> dict[str, Any]:
    """What the document says of a method."""
    return described_there(function, **options)[0]


def allows(schema: Any, value: Any, components: dict[str, Any]) -> bool:
    """A slow validator of the part of JSON Schema that is used here; an unknown keyword is an error."""

    def ok(inner: Any, value: Any) -> bool:
        return allows(inner, value, components)

    if isinstance(schema, bool):
        return schema
    for name, wanted in schema.items():
        if name == "$ref":
            good = ok(components[wanted.rpartition("/")[2]], value)
        elif name == "type":
            good = is_of_type(value, wanted)
        elif name == "anyOf":
            good = any(ok(inner, value) for inner in wanted)
        elif name == "enum":
            good = any(type(value) is type(each) and value == each for each in wanted)
        elif name == "const":
            good = value == wanted
        elif name == "uniqueItems":
            good = not wanted or len({orjson.dumps(each) for each in value}) == len(value)
        elif name in ("minItems", "maxItems"):
            good = (len(value) >= wanted) if name == "minItems" else (len(value) <= wanted)
        elif name == "items":
            good = all(ok(wanted, each) for each in value[len(schema.get("prefixItems", ())) :])
        elif name == "prefixItems":
            good = all(ok(inner, each) for inner, each in zip(wanted, value, strict=False))
        elif name == "properties":
            good = all(ok(inner, value[key]) for key, inner in wanted.items() if key in value)
        elif name == "required":
            good = set(wanted) <= set(value)
        elif name == "additionalProperties":
            good = all(ok(wanted, each) for key, each in value.items() if key not in schema.get("properties", {}))
        elif name == "minimum":
            good = value >= wanted
        else:
            known = ("title", "default", "x-default", "format", "contentEncoding", "contentMediaType", "description")
            assert name in known or name in ("x-ndarray", "x-image", "x-bytes"), name
            good = True
        if not good:
            return False
    return True


def is_of_type(value: Any, name: str) -> bool:
    kinds: dict[str, Any] = {
        "null": type(None),
        "boolean": bool,
        "string": str,
        "array": list,
        "object": dict,
        "integer": int,
        "number": (int, float),
    }
    return isinstance(value, kinds[name]) and (name == "boolean" or not isinstance(value, bool))


def defaults_in(schema: Any) -> list[tuple[dict[str, Any], Any]]:
    """Every schema with a default that stands in this one, and that default."""
    found = []
    if isinstance(schema, dict):
        if "default" in schema and not isinstance(schema.get("properties", {}), list):
            found.append((schema, schema["default"]))
        for name, inner in schema.items():
            if name in ("default", "enum", "const"):
                continue
            for each in inner.values() if isinstance(inner, dict) and name == "properties" else [inner]:
                found += defaults_in(each)
    elif isinstance(schema, list):
        for each in schema:
            found += defaults_in(each)
    return found


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
    (Options, st.fixed_dictionaries({}, optional={"limit": st.floats(), "ids": st.frozensets(st.integers(0, 9))})),
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


@pytest.mark.slow
@given(hints.flatmap(lambda each: st.tuples(st.just(each[0]), each[1])))
@settings(deadline=None, max_examples=example_count(100))
def test_every_default_is_allowed_and_taken(each: tuple[Any, Any]) -> None:
    hint, default = each

    def it(value=default):  # type: ignore[no-untyped-def]
        return value

    it.__annotations__ = {"value": hint}
    (schema,), components = described(it)
    for part, value in [*defaults_in(schema), *(each for one in components.values() for each in defaults_in(one))]:
        assert allows(part, value, components), (part, value)
    assert ("default" in schema) != ("x-default" in schema)
    if "default" in schema:
        bind(it, schema["default"])
    if isinstance(default, float):
        assert ("default" in schema) is math.isfinite(default)


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=example_count(100))
def test_what_a_schema_allows_is_taken(data: st.DataObject) -> None:
    hint, _ = data.draw(hints)

    def it(value):  # type: ignore[no-untyped-def]
        return value

    it.__annotations__ = {"value": hint}
    (schema,), components = described(it)
    value = data.draw(instances(schema, components))
    assert allows(schema, value, components)
    bind(it, value)


def bind(function: Any, value: Any) -> None:
    bind_there(function, orjson.dumps({"params": [value]}, option=orjson.OPT_PASSTHROUGH_SUBCLASS))


@pytest.mark.parametrize(
    ("hint", "default", "shown"),
    [
        (float, INF, "inf"),
        (float, np.float64("nan"), "np.float64(nan)" if np.__version__ >= "2" else "nan"),
        (np.float32, np.float32("-inf"), None),
        (list[float], [1.0, NAN], "[1.0, nan]"),
        (float | None, NAN, "nan"),
        (int, None, "None"),
        (Point, Point(), None),
        (Any, {"a": [INF]}, "{'a': [inf]}"),
    ],
)
def test_a_default_that_json_cannot_say_is_text(hint: Any, default: Any, shown: str | None) -> None:
    def it(value=default):  # type: ignore[no-untyped-def]
        return value

    it.__annotations__ = {"value": hint}
    (schema,), _ = described(it)
    assert "default" not in schema
    assert schema["x-default"] == (shown if shown is not None else repr(default))


class Named:
    def __repr__(self) -> str:
        return f"<Named {id(self)}>"


@pytest.mark.parametrize(
    "default",
    [
        object(),
        (object(),),
        bind,
        lambda: 1,
        Named(),
        type("Odd", (), {"__repr__": lambda self: f"<Odd {id(self):#x}>"})(),
    ],
)
def test_a_sentinel_as_default_is_not_shown(default: Any) -> None:
    def it(value: int = default) -> None: ...

    (parameter,) = description_of(it)["params"]
    assert parameter == {"name": "value", "required": False, "schema": {"type": "integer"}}


def test_a_set_as_default_is_shown_in_order() -> None:
    def it(value: frozenset[str] = frozenset("dcab")) -> None: ...

    assert description_of(it)["params"][0]["schema"]["default"] == ["a", "b", "c", "d"]


def test_a_method_with_a_keyword_only_parameter_is_called_by_name() -> None:
    def required(a: int, *, b: int) -> None: ...
    def optional(a: int, *, b: int = 1) -> None: ...
    def positional(a: int, b: int = 1) -> None: ...
    def rest(a: int, *more: int, b: int = 1) -> None: ...
    def rest_and_required(a: int, *more: int, b: int) -> None: ...

    functions = (required, optional, positional, rest, rest_and_required)
    found = [description_of(each)["paramStructure"] for each in functions]
    assert found == ["by-name", "by-name", "either", "either", "by-name"]


def test_defaults_of_fields_and_sets_in_classes() -> None:
    def it(point: Point, measured: Measured, rich: Rich) -> None: ...

    _, components = described(it)
    assert components["Point"]["properties"] == {
        "x": {"type": "number", "x-default": "inf"},
        "y": {"type": "array", "items": {"type": "number"}},
        "name": {"type": "string", "x-default": "None"},
        "tags": {"type": "array", "items": {"type": "integer"}},
    }
    assert components["Measured"]["properties"]["among"]["x-default"] == "(1.0, nan)"
    assert components["Measured"]["properties"]["unit"]["default"] is None
    assert components["Rich"]["properties"]["scale"] == {"type": "number", "x-default": "inf"}
    assert "uniqueItems" not in str(components)


def test_members_that_are_called_like_keywords_stay() -> None:
    class Odd(TypedDict):
        default: float
        uniqueItems: bool

    def it(value: Odd) -> None: ...

    it.__annotations__ = {"value": Odd, "return": None}
    _, components = described(it)
    assert set(components["Odd"]["properties"]) == {"default", "uniqueItems"}


def test_a_set_takes_what_its_schema_allows() -> None:
    def it(value: set[int]) -> None: ...

    it.__annotations__ = {"value": set[int], "return": None}
    (schema,), components = described(it)
    assert allows(schema, [1, 1], components)
    bind(it, [1, 1])


# -- docstrings -------------------------------------------------------------------------------------------------------


def numbers(scale: float, to: int, ctx: Context | None = None) -> Iterator[float]:
    """Give the numbers below a limit.

    Each is scaled.
    """
    yield from (scale * each for each in range(to))


class Counter:
    def __call__(self, to: int) -> int:
        """Count to a number."""
        return to


class Described(Counter):
    """A counter with a text of its own."""


@functools.wraps(numbers)
def wrapped(*args: Any) -> Any:
    return numbers(*args)


def _renamed(function: Any) -> Any:
    function.__doc__ = "Its own text."
    return function


@pytest.mark.parametrize(
    ("function", "summary"),
    [
        (numbers, "Give the numbers below a limit."),
        (functools.partial(numbers, 2.0), "Give the numbers below a limit."),
        (functools.partial(functools.partial(numbers, 2.0), to=3), "Give the numbers below a limit."),
        (wrapped, "Give the numbers below a limit."),
        (_renamed(functools.partial(numbers, 2.0)), "Its own text."),
        (Counter(), "Count to a number."),
        (functools.partial(Counter()), "Count to a number."),
        (Described(), "A counter with a text of its own."),
        (functools.partial(lambda to: to), None),
    ],
)
@pytest.mark.parametrize("options", [{}, {"offload": "thread"}, {"ordered": True}], ids=str)
def test_a_docstring_is_found(function: Any, summary: str | None, options: Any) -> None:
    described = description_of(function, **options)
    assert described.get("summary") == summary
    assert ("Each is scaled." in described.get("description", "")) == (summary == "Give the numbers below a limit.")
