"""Messages to bytes: values that orjson writes, those that msgspec writes, and those that cannot be encoded."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.codec import Codec
from rpcstream.codec.codec import INLINE
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count

codec = Codec()
UTC = datetime.UTC


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Level(enum.IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass
class Point:
    x: int
    _hidden: int = 2


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int
    y: Any = msgspec.UNSET


class Tagged(msgspec.Struct, omit_defaults=True, rename="camel", tag="it"):
    first_name: str = "a"
    some_list: list[int] = []
    made: dict[str, int] = msgspec.field(default_factory=dict)
    real: float = 1.5
    unset: Any = msgspec.UNSET
    pair: tuple[int, ...] = ()


class Compact(msgspec.Struct, array_like=True, tag=7):
    a: int = 1
    b: str = "x"


class Plain(msgspec.Struct):
    a: int
    b: Any = None


AS_MSGSPEC: list[Any] = [
    *(None, True, -(2**63), 2**64 - 1, 2**64, -(2**200), 1.5, "é\x00\n\u2028", [1, [2]], (1, (2,))),
    *({"a": {"b": []}}, {1: "a", 2.5: "b"}, {Level.HIGH: 2}, {uuid.UUID(int=5): 1}, {datetime.date(2020, 1, 2): 1}),
    *({decimal.Decimal("1.5"): 1}, {1}, frozenset({"a"}), Colour.RED, Colour.ONE, Level.HIGH, Pair(1, "b")),
    *(collections.OrderedDict(a=1), uuid.UUID(int=2**100), decimal.Decimal("1.50")),
    *(decimal.Decimal("NaN"), decimal.Decimal("1E+5"), datetime.datetime(1, 1, 1)),
    *(datetime.datetime(2020, 2, 3, 4, 5, 6, 7), datetime.date(9999, 12, 31), datetime.time(1, 2, 3, 4)),
    datetime.time(1, 2, tzinfo=UTC),
    datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3))),
    datetime.time(1, 2, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    *(datetime.timedelta(days=-1, microseconds=3), datetime.timedelta(0), datetime.timedelta(days=400, seconds=5)),
    *(Point(1), Slotted(1), Slotted(1, 2), Tagged(), Tagged("b", [1], {"a": 1}, 2.5, 3, (1,))),
    *(Tagged(real=float("1.50")), Tagged(some_list=[], made={}), Compact(), Plain(1, Plain(2))),
    {"deep": [{"in": Plain(1, {2: 3})}]},
]


@pytest.mark.parametrize("value", AS_MSGSPEC, ids=lambda value: type(value).__name__)
def test_written_as_msgspec_writes_it(value: Any) -> None:
    expected = msgspec.json.decode(msgspec.json.encode(value))
    assert msgspec.json.decode(codec.dumps(value)) == expected
    # And together with what only the exact way can write.
    assert msgspec.json.decode(codec.dumps([value, 2**64])) == [expected, 2**64]


def test_aware_datetimes_are_read_by_msgspec() -> None:
    for zone in (UTC, datetime.timezone(datetime.timedelta(hours=-5, minutes=-30)), zoneinfo.ZoneInfo("Europe/Berlin")):
        value = datetime.datetime(2020, 7, 1, 12, 0, 0, 123456, tzinfo=zone)
        for line in (codec.dumps(value), codec.dumps([value, 2**64])[1:-22]):
            assert msgspec.json.decode(line, type=datetime.datetime) == value


def subclass_of(base: type, value: Any) -> Any:
    return type("Mine", (base,), {})(value)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((subclass_of(type(plain), plain), plain) for plain in ("a", 2, 1.5)),
        *(({Colour.RED: 1, Colour.ONE: 2}, {"red": 1, "1": 2}), ({subclass_of(str, "k"): 1}, {"k": 1})),
        *((collections.deque([1]), [1]), (range(2), [0, 1]), ({"k": 1}.keys(), ["k"])),
        *((types.MappingProxyType({"k": 1}), {"k": 1}), (collections.Counter("aa"), {"a": 2})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_msgspec_refuses_but_is_plain_enough(value: Any, wanted: Any) -> None:
    assert orjson.loads(codec.dumps(value)) == wanted
    assert orjson.loads(codec.dumps([value, {1: 2}])) == [wanted, {"1": 2}]


def test_rich_values_inside_records_and_collections() -> None:
    array = np.arange(3, dtype="i4")
    for value in (Plain(1, array), Slotted(1, (array,)), {"k": {1: array}}, [2**70, array], Compact(b=array)):
        found = orjson.loads(codec.dumps(value))
        decoded = msgspec.json.encode(codec.decode(found), enc_hook=lambda a: a.tolist())
        assert b"[0,1,2]" in decoded


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Nothing:
    pass


class Broken:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.error


class BrokenZone(datetime.tzinfo):
    def utcoffset(self, _: Any) -> Any:
        raise ValueError("no such zone")

    tzname = dst = utcoffset


def test_deeper_than_orjson_writes() -> None:
    assert codec.dumps(nested(300)) == b"[" * 300 + b"1" + b"]" * 300


def circular() -> Any:
    value: list[Any] = []
    value.append({"a": value})
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Nothing(), "Nothing has no form on the wire"),
        ({"a": {1: Plain(1, Nothing())}}, "Nothing has no form on the wire"),
        (Nothing, "a type has no form"),
        ({"a": ["x", "\udfff"]}, "surrogates"),
        (circular(), "contains itself"),
        (nested(5_000), "too deep"),
        (10**5000, "digits"),
        ({None: 1}, "a NoneType has no form"),
        ({(1, 2): 1}, "key of type tuple"),
        # In this order: orjson itself crashes on such a zone, and refuses the integer before it gets there.
        ([2**64, datetime.datetime(2020, 1, 1, tzinfo=BrokenZone())], "no such zone"),
        (Broken(RuntimeError("on another device")), "Broken could not be made an array: on another device"),
        (iter([1]), "list_iterator"),
        (msgspec.UNSET, "Unset"),
        (orjson.Fragment(b"[1,\n2]"), "line end"),
        ([orjson.Fragment(b'"\x00"'), bytes(INLINE + 1)], "NUL"),
        ([orjson.Fragment(b"1\n"), 2**64], "line end"),
    ],
    ids=lambda value: str(type(value)),
)
def test_refused_with_what_and_where(value: Any, text: str) -> None:
    with pytest.raises(EncodeError, match=text):
        codec.dumps(value)


def test_interrupts_are_not_taken_for_failures() -> None:
    with pytest.raises(KeyboardInterrupt):
        codec.dumps([Broken(KeyboardInterrupt())])


def test_fragments_are_spliced_as_they_are() -> None:
    fragment = orjson.Fragment(b"18446744073709551616")
    assert codec.dumps({"id": fragment, "result": 1}) == b'{"id":18446744073709551616,"result":1}'
    assert codec.dumps({"id": fragment, 1: 2**70}) == b'{"id":18446744073709551616,"1":%d}' % 2**70
    found = orjson.loads(codec.dumps({"a": orjson.Fragment(b'"x"'), "b": bytes(INLINE + 1), "c": orjson.Fragment("2")}))
    assert (found["a"], found["c"], codec.decode(found["b"])) == ("x", 2, bytes(INLINE + 1))


@pytest.mark.parametrize("size", [0, 1, 2, 3, INLINE - 1, INLINE, INLINE + 1, 3 << 15, (3 << 15) + 1, 1_000_003])
def test_payloads_of_every_size_with_and_without_the_exact_way(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for more in ({}, {"c": 2**70}):
        message = {"a": data, "b": [data[::-1], "x\x00y"], **more}
        line = codec.dumps(message)
        assert b"\n" not in line
        assert b"\x00" not in line
        assert codec.decode(msgspec.json.decode(line)) == message


def test_small_and_big_payloads_mixed_stay_in_their_order() -> None:
    values = [bytes([number]) * (number % 3 * INLINE + number) for number in range(1, 40)]
    found: Any = codec.decode(orjson.loads(codec.dumps([{"v": value, "n": [value]} for value in values])))
    assert found == [{"v": value, "n": [value]} for value in values]


def test_an_encoder_may_dump_itself() -> None:
    def encode(box: Any) -> dict[str, str]:
        return {"text": nesting.dumps(box.content).decode()}

    nesting, kind = Codec(), types.SimpleNamespace
    nesting.register(kind, "box", encode=encode, decode=lambda parts: nesting.decode(orjson.loads(parts["text"])))
    big = bytes(INLINE * 2)
    value = [big, kind(content=[big, kind(content=big)]), big]
    assert nesting.decode(orjson.loads(nesting.dumps(value))) == [big, [big, big], big]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(
    scalars | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=example_count(150))
@given(documents)
def test_whatever_goes_out_comes_back(value: Any) -> None:
    line = codec.dumps(value)
    assert b"\n" not in line
    assert codec.decode(msgspec.json.decode(line)) == value
