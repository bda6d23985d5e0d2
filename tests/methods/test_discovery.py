"""The schemas in `rpc.discover`: defaults validate, and values that they allow are accepted."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import math
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ..kit.example_count import IS_THOROUGH
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
    default: float
    uniqueItems: frozenset[int]


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


def taking(hint: Any, *default: Any) -> Any:
    """A function of one parameter with this hint, and this default."""

    def it(value):  # type: ignore[no-untyped-def]
        return value

    it.__annotations__ = {"value": hint}
    it.__defaults__ = default
    return it


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
    (schema,), _ = described(taking(hint, default))
    assert ("default" in schema) != ("x-default" in schema)
    if "default" in schema:
        bind(taking(hint), schema["default"])
    if isinstance(default, float):
        assert ("default" in schema) is math.isfinite(default)


@given(st.data())
@settings(deadline=None, max_examples=100 if IS_THOROUGH else 8)
def test_what_a_schema_allows_is_taken(data: st.DataObject) -> None:
    hint, _ = data.draw(hints)
    (schema,), components = described(taking(hint))
    bind(taking(hint), data.draw(instances(schema, components)))


def bind(function: Any, value: Any) -> None:
    bind_there(function, orjson.dumps({"params": [value]}, option=orjson.OPT_PASSTHROUGH_SUBCLASS))


class Named:
    def __repr__(self) -> str:
        return f"<Named {id(self)}>"


class Shy:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("hint", "default", "shown"),
    [
        (float, INF, {"x-default": "inf"}),
        (np.float32, np.float32("-inf"), {"x-default": repr(np.float32("-inf"))}),
        (list[float], [1.0, NAN], {"x-default": "[1.0, nan]"}),
        (int, None, {"x-default": "None"}),
        (Point, Point(), {"x-default": repr(Point())}),
        (Any, {"a": [INF]}, {"x-default": "{'a': [inf]}"}),
        (Any, Shy(), {"x-default": "a Shy"}),
        (frozenset[str], frozenset("dcab"), {"default": ["a", "b", "c", "d"]}),
        # What stands for "not given" has no form that says anything.
        *((int, each, {}) for each in (object(), (object(),), bind, lambda: 1, Named())),
    ],
    ids=lambda each: type(each).__name__,
)
def test_how_a_default_is_shown(hint: Any, default: Any, shown: dict[str, Any]) -> None:
    (schema,), _ = described(taking(hint, default))
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
    assert components["Options"]["properties"].keys() == {"default", "uniqueItems"}
    assert "uniqueItems" not in str([components[name] for name in ("Point", "Measured", "Rich")])
