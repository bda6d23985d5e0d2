"""`--format table`: which values become rows and columns, and how wide these are."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import Codec
from rpcstream.cli.output import Terminal, format_line
from rpcstream.cli.table import format_table, text_width


def table(value: object, width: int = 0, *, colour: bool = False) -> str:
    return format_table(orjson.loads(Codec().dumps(value)), Terminal(width, colour), Codec())


def test_a_list_of_objects() -> None:
    rows = [{"name": "roof", "heat": 31.5}, {"name": "cellar", "heat": 9, "wet": True}, {"heat": None}]
    assert table(rows) == ("name    heat  wet\nroof    31.5\ncellar     9  true\n        null")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1, "a"], [22, "b", None]], " 1  a\n22  b  null"),
        ({"a": 1, "long": [1, {"b": 2}]}, 'a     1\nlong  [1, {"b": 2}]'),
        (["x", 1, None], "x\n1\nnull"),
        ([{"a": {"b": "c"}}, {"a": ""}], 'a\n{"b": "c"}\n'),
        (5, "5"),
        ([], "[]"),
        ({}, "{}"),
        ([{}], "\n"),
        ([[]], ""),
        (np.arange(3), "ndarray int64 (3,)\n  [0 1 2]"),
    ],
)
def test_other_values(value: object, text: str) -> None:
    assert table(value) == text


def test_rich_values_are_described() -> None:
    assert table([{"a": np.arange(2, dtype="f4"), "b": b"x"}]) == (
        "a                             b\nndarray float32 (2,) [0. 1.]  bytes (1) b'x'"
    )


def test_wide_values_are_cut_to_fit() -> None:
    rows = [{"id": 1, "text": "x" * 100, "more": "y" * 100}]
    lines = table(rows, 40).splitlines()
    assert lines[1] == " 1  " + "x" * 14 + "...  " + "y" * 14 + "..."
    assert table(rows, 0).splitlines()[1] == " 1  " + "x" * 57 + "...  " + "y" * 57 + "..."


def test_what_fits_is_not_cut() -> None:
    assert table([{"sensor": "roof", "heat": 31.5}], 40) == "sensor  heat\nroof    31.5"


def test_columns_that_do_not_fit_are_said() -> None:
    rows = [{f"column{number}": "x" * 20 for number in range(10)}]
    lines = table(rows, 40).splitlines()
    assert lines[-1] == "(6 more columns do not fit: --format json has all)"
    assert max(map(len, lines[:-1])) <= 40
    many = [{f"{number}": 1} for number in range(1000)]
    assert len(table(many).splitlines()[0].split()) == 100


def test_wide_letters_are_aligned() -> None:
    text = table([{"a": "\u4e16\u754c", "b": 1}, {"a": "e\u0301", "b": 2}, {"a": "abcde", "b": 3}])
    assert {text_width(line) for line in text.splitlines()[1:]} == {8}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.integers(10, 100))
def test_it_is_no_wider_than_the_terminal_and_commands_nothing(value: Any, width: int) -> None:
    text = format_table(value, Terminal(width), Codec())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    if isinstance(value, list | dict) and value:
        assert all(text_width(line) <= width or "more columns" in line for line in text.split("\n"))


@given(json_values)
def test_a_value_on_one_line_stays_json(value: Any) -> None:
    line = format_line(value, Terminal(), Codec())
    assert "\n" not in line
    assert json.loads(line) == value


def test_a_line_describes_rich_values() -> None:
    value = orjson.loads(Codec().dumps({"a": np.zeros((100, 100)), "b": [b"xyz"]}))
    assert format_line(value, Terminal(), Codec()) == '{"a": ndarray float64 (100, 100), "b": [bytes (3) b\'xyz\']}'
