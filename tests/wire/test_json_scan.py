"""The number of values in a JSON text and their depth, compared with a parser."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.wire import envelope, json_scan
from rpcstream.wire.json_scan import deepest, values_over, values_roughly

TEXTS = st.text(alphabet='abc"\\[]{},:é\n', max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def quarters_of(value: Any) -> int:
    """What a value costs, in quarters: its commas, its strings, its arrays and objects."""
    if isinstance(value, str):
        return 4
    if isinstance(value, list):
        return 16 + 4 * max(len(value) - 1, 0) + sum(map(quarters_of, value))
    if isinstance(value, dict):
        return 16 + 4 * max(len(value) - 1, 0) + 4 * len(value) + sum(map(quarters_of, value.values()))
    return 0


@settings(deadline=None)  # the first one imports numpy
@given(VALUES)
def test_values_and_depth_are_what_a_parser_finds(value: Any) -> None:
    for text in (orjson.dumps(value), json.dumps(value, indent=1).encode()):
        assert deepest(text) == depth_of(value)
        count = quarters_of(value) // 4
        assert values_over(text, count - 1) == count
        assert values_over(text, count) == 0
        for same in (text, text + b" " * 100_000):  # as a short text is counted, and as a long one
            assert values_roughly(same) >= count
            assert (deepest(same), values_over(same, count - 1)) == (depth_of(value), count)


@settings(deadline=None)
@given(VALUES, st.integers(1, 12))
def test_a_long_text_is_as_deep_as_a_short_one(value: Any, limit: int) -> None:
    text = orjson.dumps(value)
    padded = text + b" " * (16 * 1024)
    assert envelope.is_deeper(padded, limit) == envelope.is_deeper(text, limit) == (depth_of(value) > limit)


def test_a_text_is_over_the_limit_by_what_stands_outside_strings() -> None:
    numbers = b"[" + b"1," * 999 + b"1]"
    assert values_over(numbers, 1003) == 0
    assert values_over(numbers, 1002) == 1003
    commas = b'["' + b",[{" * 1000 + b'\\",["]'
    assert values_over(commas, 100) == 0
    assert values_roughly(commas) > 100


def test_the_lines_of_a_value_are_followed_to_its_end() -> None:
    text = json.dumps({"a": [1, {"b": "]}"}], "c": {}}, indent=2).encode()
    first, *rest = text.split(b"\n")
    value = json_scan.SpreadValue.begun_by(first + b"\r")
    assert value is not None
    for number, line in enumerate(rest, 1):
        assert not value.is_over
        assert value.takes(line), line
        assert value.is_over is (number == len(rest))
    assert not value.takes(b"}")


@pytest.mark.parametrize(
    ("line", "begins", "belongs"),
    [
        (b"{'a':", True, True),
        (b'"a": [', False, True),
        *((each, False, None) for each in (b"{}", b'{"a":1}', b'{"a', b'{"a":"x', b'{"a":1}}{', b"]", b"[1, 2", b"x")),
        *((each, False, False) for each in (b"", b"hello", b'"a', b"<x>", b"'{")),
    ],
)
def test_what_begins_a_value_on_several_lines_and_what_belongs_to_it(
    line: bytes, begins: bool, belongs: bool | None
) -> None:
    assert (json_scan.SpreadValue.begun_by(line) is not None) is begins
    value = json_scan.SpreadValue.begun_by(b"{")
    assert value is not None
    assert belongs in (None, value.takes(line))
