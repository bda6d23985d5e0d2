"""Frames, series and indexes of pandas: exact round trips, hints, what is refused, and what hostile peers may send."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import EncodeError

from ..kit.example_count import example_count
from .values import codec, received, returned, sent, taken


def assert_same(found: Any, value: Any) -> None:
    assert type(found) is type(value)
    if isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(
            found, value, check_exact=True, check_index_type="exact", check_column_type="exact", check_freq=True
        )
        assert found.attrs == value.attrs
        assert list(map(type, found.columns)) == list(map(type, value.columns))
        for at in range(value.shape[1]):
            assert_same_objects(found.iloc[:, at], value.iloc[:, at])
    elif isinstance(value, pd.Series):
        pd.testing.assert_series_equal(found, value, check_exact=True, check_index_type="exact", check_freq=True)
        assert_same_objects(found, value)
        assert type(found.name) is type(value.name)
    else:
        pd.testing.assert_index_equal(found, value, exact="exact", check_exact=True)
        assert getattr(found, "freq", None) == getattr(value, "freq", None)
        assert found.names == value.names


def assert_same_objects(found: Any, value: Any) -> None:
    """None, nan, NA and NaT are told apart, and 1 and True."""
    if value.dtype == object:
        assert list(map(repr, found)) == list(map(repr, value))


def series(values: Any, dtype: Any = object) -> Any:
    return pd.Series(values, dtype=dtype)


DAYS = pd.date_range("2020-03-27", periods=3)
COLUMNS = [
    *(series([1, 0, 1], kind) for kind in ("?", "i1", "i8", "u4", "f2", "f8", "boolean", "Int8", "UInt64", "Float32")),
    *(series([1 + 2j, complex("nan"), 0], "F"), series([1, None, 2], "M8[s]"), series([1, None, 2], "m8[ns]")),
    *(series(["a", None, "b"], kind) for kind in ("category", "string[python]", "string[pyarrow]")),
    *(series(["a", None, "b"], pd.StringDtype(storage, na_value=np.nan)) for storage in ("python", "pyarrow")),
    *(series(DAYS.tz_localize(zone), None) for zone in ("UTC", "Europe/Oslo", datetime.UTC)),
    series(DAYS.tz_localize(datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))), None),
    series([pd.NaT] * 3, "M8[us, Europe/Oslo]"),
    series([pd.Period("2020Q1"), pd.NaT, pd.Period("2020Q2")], None),
    series(pd.period_range("2020", periods=3, freq="M"), None),
    series(pd.interval_range(0, 3), None),
    series(pd.IntervalIndex.from_tuples([(0.0, 1.0), None, (2.0, 3.0)], closed="both"), None),
    series(pd.interval_range(pd.Timestamp("2020", tz="UTC"), periods=3), None),
    series(pd.Categorical([1, None, 3], categories=[3, 1, 7], ordered=True), None),
    *(series(pd.Categorical(DAYS.tz_localize("UTC")), None), series(pd.cut([1, 2, 3], 2), None)),
    *(series(pd.Categorical([None] * 3), None), series([1, 2, None], "int64[pyarrow]")),
    series([[1], None, []], pd.ArrowDtype(pa.list_(pa.int8()))),
    series([datetime.datetime(2020, 1, 1), None], pd.ArrowDtype(pa.timestamp("us", "Europe/Oslo"))),
    *(series(["a", missing, "b"]) for missing in ("c", None, float("nan"), pd.NA)),
    *(series([missing] * 3) for missing in (None, float("nan"), pd.NA, pd.NaT)),
    *(series([b"a", None, b""]), series([True, None, False]), series([1, None, 2]), series([1.5, None, 2.5])),
    series([datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1)]),
    *(series([datetime.time(1, 2, 3, 4), None]), series([datetime.datetime(2020, 1, 1), None])),
    *(series([datetime.timedelta(1), None]), series([Decimal("1.10"), None, Decimal("2.00")])),
    *(series([[1, 2], None, []]), series([[{"a": [None, "x"]}], None]), series([])),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.dtype}-{column.tolist()}"[:60])
def test_columns_come_back_as_they_are(column: Any) -> None:
    values = [column, column.to_frame("x"), column.rename(("a", 1))]
    if column.dtype != "f2":  # of which pandas has no index
        index = pd.Index(column, dtype=column.dtype, name="i")
        values += [index, pd.DataFrame({"v": range(len(column))}, index)]
    for value in values:
        assert_same(received(value), value)
        assert_same(taken(type(value), sent(value)), value)


INDEXES = [
    *(pd.RangeIndex(3), pd.RangeIndex(5, -5, -3, name="r"), pd.RangeIndex(0), pd.Index([])),
    *(pd.Index([], dtype="i8"), pd.Index(["a", "b"], name=pd.Timestamp("2020"))),
    *(pd.Index([1, 2], name=("a", ("b", None, 1.5, True))), pd.date_range("2020", periods=4, freq="2h")),
    pd.date_range("2020", periods=4, freq="W-WED", tz="Europe/Oslo"),
    *(pd.date_range("2020", periods=4, freq="ME"), pd.date_range("2020", periods=4, freq="-1D")),
    *(pd.bdate_range("2020", periods=3), pd.timedelta_range(0, periods=3, freq="90min")),
    pd.MultiIndex.from_product([["b", "a"], [1, 2]], names=["x", None]),
    pd.MultiIndex.from_tuples([("a", None), ("b", 1.5)]),
    pd.MultiIndex(levels=[["z", "a", "unused"], [1]], codes=[[0, 1, -1], [0, 0, 0]]),
    pd.MultiIndex.from_arrays([DAYS.tz_localize("UTC"), pd.Categorical(["x", None, "y"])], names=[("t", 1), 3]),
]


@pytest.mark.parametrize("index", INDEXES, ids=lambda index: f"{type(index).__name__}-{index.tolist()}"[:50])
def test_indexes_come_back_as_they_are(index: Any) -> None:
    count = len(index)
    for value in (
        index,
        pd.DataFrame({"a": range(count)}, index),
        pd.DataFrame(index=index),
        pd.DataFrame([range(count)] * 2, columns=index),
        pd.DataFrame(columns=index),
        pd.Series(range(count), index),
    ):
        assert_same(received(value), value)


def test_labels_of_columns_may_be_anything() -> None:
    for labels in (["a", 1, 1.5, None, True, ("t", 2)], [pd.Timestamp("2020"), "ü"], [("a", 1), ("a", 2)], ["a"] * 2):
        frame = pd.DataFrame([range(len(labels))], columns=pd.Index(labels, tupleize_cols=False, name="n"))
        assert_same(received(frame), frame)


VALUES = {
    "str": st.none() | st.text(max_size=5),
    "string[python]": st.none() | st.text(max_size=5),
    "category": st.none() | st.sampled_from(["a", "b", "ü"]),
    "Int16": st.none() | st.integers(-(2**15), 2**15 - 1),
    "float32": st.floats(width=32),
    "M8[us]": st.none() | st.datetimes(),
    "bool": st.booleans(),
    "object": st.none() | st.text(max_size=5),
}


@given(st.data(), st.lists(st.sampled_from(sorted(VALUES)), max_size=4), st.integers(0, 5))
@settings(deadline=None, max_examples=example_count(60))
def test_any_frame(data: st.DataObject, kinds: list[str], rows: int) -> None:
    def column(kind: str) -> Any:
        return pd.Series(data.draw(st.lists(VALUES[kind], min_size=rows, max_size=rows)), dtype=kind)

    index = pd.Index(column(data.draw(st.sampled_from(sorted(VALUES)))))
    frame = pd.concat([column(kind) for kind in kinds], axis=1) if kinds else pd.DataFrame(index=range(rows))
    labels = data.draw(st.lists(st.text(max_size=3) | st.integers(-5, 5), min_size=len(kinds), max_size=len(kinds)))
    frame = frame.set_axis(index).set_axis(pd.Index(labels), axis=1)
    assert_same(received(frame), frame)


def test_what_is_received_can_be_changed() -> None:
    frame = received(pd.DataFrame({"a": [1, 2], "b": [1.0, 2.0]}))
    frame.loc[0, "a"] = 7
    frame["b"] += 1
    assert frame.to_dict("list") == {"a": [7, 2], "b": [2.0, 3.0]}
    for dtype in ("?", "f2", "M8[ns]", "M8[ns, UTC]", "m8[s]", "Int64", "Float32", "int64[pyarrow]", "category"):
        found = received(pd.Series([0, 1], dtype=dtype))
        found.iloc[0] = found.iloc[1]
        assert found.tolist() == [found.iloc[1]] * 2


class Frame(pd.DataFrame):
    """Of a library that is built on pandas."""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pd.DataFrame({"x": series([1, "a"])}), r"column 'x': it holds objects \(int, str\) that Arrow does not keep"),
        (series([None, float("nan"), "a"]), r"missing values of several kinds \(None, nan\): use one"),
        (series([np.ones(2)] * 2), r"it holds objects \(ndarray\) that Arrow does not keep as they are"),
        (series([{"a": 1}, {"b": 1}]), r"it holds objects \(dict\)"),
        (series(["\ud800"]), "it holds objects .* that Arrow does not keep as they are: .*surrogates"),
        (series([1, 0], "Sparse[int]"), "its dtype Sparse.* has no form on the wire: convert it"),
        (pd.DataFrame({"a": [1]}, index=[object()]), "the index: it holds objects"),
        (pd.Series([1], name=frozenset()), "the name frozenset.* has no form on the wire: use a string"),
        (pd.date_range("2020", periods=2, freq=pd.DateOffset(months=1, days=1)), "the frequency .* has no form on"),
        (Frame({"a": [1]}), "a .*Frame has no form on the wire: send a DataFrame, or register the type"),
        (pd.DataFrame(index=pd.RangeIndex(10**7)), "10000000 rows without a column have no form on the wire"),
        (pd.array([1]), "IntegerArray has no form on the wire: send its array"),
    ],
)
def test_what_is_not_sent(value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        codec.dumps([value])


def test_attrs_that_are_no_json_are_refused() -> None:
    frame = pd.DataFrame({"a": [1]})
    for attrs in ({"a": (1,)}, {"a": float("nan")}, {1: 1}, {"a": np.ones(1)}, {"$type": "bytes"}):
        frame.attrs = attrs
        with pytest.raises(EncodeError, match="attrs are not plain JSON data"):
            codec.dumps(frame)


PLAIN, TABLE, OTHER = pd.DataFrame({"a": [1, 2]}), pa.table({"a": [1, 2]}), pl.DataFrame({"a": [1, 2]})


def test_hints_take_what_they_say() -> None:
    tables = (TABLE, sent(TABLE), sent(TABLE)["data"], sent(TABLE.to_batches()[0]), OTHER, sent(OTHER))
    for value in (PLAIN, sent(PLAIN), *tables):
        assert_same(taken(pd.DataFrame, value), PLAIN)
    assert returned(pd.DataFrame, PLAIN) is PLAIN
    assert_same(returned(pd.DataFrame, TABLE), PLAIN)  # so that it goes out as the hint says
    assert_same(taken(pd.DatetimeIndex, sent(DAYS)), DAYS)


def test_tables_of_arrow_as_frames() -> None:
    words = pa.array(["x", None, "of more than twelve bytes"])
    table = pa.table(
        {"view": words.cast(pa.string_view()), "category": words.dictionary_encode(), "t": [[1], None, []]}
    )
    # What pandas wrote beside a table is not read: it names dtypes that pandas would look up.
    found = taken(pd.DataFrame, sent(table.replace_schema_metadata({"pandas": '{"columns": 5}'})))
    assert found["view"].tolist()[2] == "of more than twelve bytes"
    assert found["category"].dtype == "category"
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1_000_000], pa.int32()), pa.array(["x" * 10_000]))
    inside = pa.array([[words[2].as_py()]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    for column in (runs, inside, pa.array([[1]], pa.list_view(pa.int8()))):
        with pytest.raises(ValueError, match=r"column 'c' of .* does not go into a pandas frame"):
            taken(pd.DataFrame, sent(pa.table({"c": column})))
    with pytest.raises(ValueError, match="no pandas frame can be made of the table"):
        taken(pd.DataFrame, sent(pa.table({"c": pa.array([2**31 - 1], pa.date32())})))


FRAME = pd.DataFrame({"a": [1, 2], "c": pd.Categorical(["x", "y"]), "o": series(["a", None])}, DAYS[:2])
GOOD = sent(FRAME)


def with_member(place: str, value: Any) -> Any:
    """`GOOD` with another value at a place such as `index.dtype` or `dtypes.1.categories`."""
    changed = orjson.loads(orjson.dumps(GOOD))
    *steps, last = place.split(".")
    target = changed
    for step in steps:
        target = target[int(step) if step.isdecimal() else step]
    target[int(last) if last.isdecimal() else last] = value
    return changed


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("kind", kind) for kind in ("series", "frames", None, [])),
        *(("dtypes", value) for value in ([], ["<i8"], None, {}, ["<i8"] * 4)),
        *(("dtypes.0", value) for value in ("<i4", "<f8", "|O", ">i8", "Int32", "bfloat16", "", 5, None, [], {})),
        *(("dtypes.0", value) for value in ("<M8[ns]", "<M8[7s]", "<c8", "boolean", "string", "category")),
        *(("dtypes.0", {"dtype": value}) for value in ("category", "period", "interval", "string", "object", "x", [])),
        ("dtypes.0", {"dtype": "object", "missing": "None", "more": 1}),
        *(("dtypes.1.categories", value) for value in ("<i8", None, {"dtype": "object", "missing": "x"})),
        *(("dtypes.1.ordered", 1), ("dtypes.2", {"dtype": "interval", "closed": "right", "bounds": "<i8"})),
        *(("dtypes.0", {"dtype": "period", "freq": freq}) for freq in ("x" * 1000, "nothing")),
        *(("index", value) for value in (None, [], {}, {"range": [0, 2, 1]}, {"levels": [], "names": []})),
        *(("index", {"range": value, "name": None}) for value in ([0, 3, 1], [0, 2, 0], [0, 2], None, [0.0, 2, 1])),
        *(("index", {"range": value, "name": None}) for value in ([0, 2**63, 1], [0, True, 1], [2, 0, 1])),
        *(("index.freq", value) for value in ("h", "x", "", None, 5, "D" * 1000, "9" * 100 + "D")),
        *(("index.name", value) for value in ({}, {"index": {}, "data": ""}, {"$type": "bytes", "data": ""})),
        *(("columns", value) for value in (None, [], ["a", "c", "o"], {"range": [0, 2, 1], "name": None}, GOOD)),
        *(("columns.labels", value) for value in (["a"], None, ["a", "b", {}], ["a", "b", "c", "d"], ["a", "b", 1])),
        *(("columns.dtype", value) for value in ("<i8", "category", {"dtype": "category"})),
        *(("data", value) for value in ("", sent(pa.table({"a": [1]}))["data"])),
        ("more", 1),
    ],
    ids=repr,
)
def test_what_is_wrong_is_refused(place: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        codec.decode([with_member(place, value)])


def test_the_example_of_the_wire_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()
    (text,) = re.findall(r'^\{"\$type": "pandas".*$', page, re.MULTILINE)
    days = pd.DataFrame({"city": ["Oslo", "Bern"], "degrees": [-2.5, 9.0]})
    if days["city"].dtype != "object":  # as since version 3
        line = sent(days)
        assert orjson.loads(text) == line | {"data": "<base64 of the stream>"}


def test_a_time_zone_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    line = sent(pd.Series(DAYS.tz_localize("Europe/Oslo"), dtype=None))
    assert line["dtype"]["zone"] == "Europe/Oslo"
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    for zone in ("dateutil//etc/passwd", "dateutil/Europe/Oslo", "../../etc/passwd", "tzlocal()", "", "x" * 99):
        with pytest.raises(ValueError, match=r"pandas: the time zone .* is not known"):
            codec.decode(line | {"dtype": line["dtype"] | {"zone": zone}})


def test_objects_are_bounded_by_the_bytes_that_bring_them() -> None:
    for values in ([True, None] * 500, [None] * 1000, [[], None] * 500, ["", None] * 500, [[None], ["x"]] * 500):
        assert_same(received(series(values)), series(values))
    bits = pa.array([True] * 100_000)
    for column, dtype in (
        (bits, {"dtype": "object", "missing": "None"}),
        (bits, {"dtype": "bool objects", "missing": "None"}),
        (pa.nulls(100_000), {"dtype": "object", "missing": "None"}),
        (pa.array([[True] * 1000] * 100, pa.large_list(pa.bool_())), {"dtype": "object", "missing": "None"}),
        (pa.nulls(100_000, pa.string()), {"dtype": "string", "storage": "python", "missing": "NA"}),
    ):
        data = sent(pa.table({"a": column}))["data"]
        line = {"$type": "pandas", "kind": "series", "name": None, "dtype": dtype, "data": data}
        with pytest.raises(ValueError, match="pandas: columns of objects that are too many for the bytes"):
            codec.decode(line | {"index": {"range": [0, 100_000, 1], "name": None}})
    with pytest.raises(EncodeError, match=r"objects are too many for .* bytes: give their columns dtypes"):
        codec.dumps(series([[True] * 1000] * 100))


def test_rows_without_columns_are_bounded() -> None:
    line = sent(pd.DataFrame(index=pd.RangeIndex(5)))
    assert len(codec.decode(line)) == 5  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pandas: a range of 1000000 values is expected, this has others"):
        codec.decode(line | {"index": {"range": [0, 10**12, 1], "name": None}})
