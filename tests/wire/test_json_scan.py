"""The number of values in a JSON text and their depth, compared with a parser."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.wire.json_scan import is_deeper, values_over, values_roughly

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
        assert not is_deeper(text, depth_of(value))
        count = quarters_of(value) // 4
        assert values_over(text, count - 1) == count
        assert values_over(text, count) == 0
        for same in (text, text + b" " * 100_000):  # as a short text is counted, and as a long one
            assert values_roughly(same) >= count
            assert values_over(same, count - 1) == count


@settings(deadline=None)
@given(VALUES, st.integers(1, 12))
def test_a_long_text_is_as_deep_as_a_short_one(value: Any, limit: int) -> None:
    text = orjson.dumps(value)
    long = b"[" + b",".join([text] * 10_000) + b"]"
    assert is_deeper(text, limit) == is_deeper(long, limit + 1) == (depth_of(value) > limit)


def test_a_text_is_over_the_limit_by_what_stands_outside_strings() -> None:
    numbers = b"[" + b"1," * 999 + b"1]"
    assert values_over(numbers, 1003) == 0
    assert values_over(numbers, 1002) == 1003
    commas = b'["' + b",[{" * 1000 + b'\\",["]'
    assert values_over(commas, 100) == 0
    assert values_roughly(commas) > 100
