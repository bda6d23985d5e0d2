"""Tables of Arrow and frames of polars: exact round trips, hints, what is refused, what is said without a library."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from rpcstream import Client, EncodeError, InvalidParams, Server
from rpcstream.testing import serve_in_thread

from .values import codec, received, returned, sent, taken

WORDS = ["x", None, "of more than twelve bytes"]
DAY = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901)
COLUMNS = [
    *(pa.array([1, None], kind) for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.duration("ms"))),
    *(pa.array(WORDS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(pa.array([b"x", None], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))),
    *(pa.array([DAY, None], pa.timestamp(unit, zone)) for unit, zone in (("us", None), ("ns", "Europe/Oslo"))),
    *(pa.array([Decimal("1.10"), None], kind) for kind in (pa.decimal128(5, 2), pa.decimal256(50, 2))),
    *(pa.array([True, None]), pa.nulls(3), pa.array([DAY.date(), None]), pa.array([DAY.time(), None], pa.time64("us"))),
    pa.array(WORDS).dictionary_encode(),
    pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), ["a", "b", "unused"], ordered=True),
    *(pa.array([[1], None, []], kind(pa.int16())) for kind in (pa.list_, pa.large_list, pa.list_view)),
    pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
    pa.array([{"a": 1, "b": [{"c": "x"}]}, None]),
    pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
    pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"])),
    *(pa.array([b"0" * 16], pa.uuid()), pa.array([], pa.int64())),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_columns_of_arrow_come_back_as_they_are(column: Any) -> None:
    field = pa.field("a", column.type, metadata={"unit": "m"})
    table = pa.table([column], pa.schema([field], metadata={b"k": b"\xff"}))
    batch = table.to_batches()[0] if len(column) else pa.RecordBatch.from_pylist([], table.schema)
    for value in (table, batch):
        found = received(value)
        assert type(found) is type(value)
        assert found.schema.equals(value.schema, check_metadata=True)
        assert found.to_pylist() == value.to_pylist()
        assert taken(type(value), sent(value)).equals(value)


def series(values: list[Any], dtype: Any) -> Any:
    return pl.Series("x", values, dtype=dtype)


SERIES = [
    *(series([1, None], dtype) for dtype in (pl.Int8, pl.Int64, pl.UInt64)),
    *(series([1.5, float("nan"), None], pl.Float32), series([True, None, False], pl.Boolean)),
    *(series(WORDS, pl.String), series([b"a", None, b""], pl.Binary), series([None, None], pl.Null)),
    *(series([DAY.date(), None], pl.Date), series([DAY.time(), None], pl.Time)),
    *(series([DAY, None], pl.Datetime("ms", None)), series([DAY, None], pl.Datetime("ns", "Europe/Oslo"))),
    *(series([datetime.timedelta(seconds=1), None], pl.Duration("us")), series([Decimal("1.1")], pl.Decimal(10, 2))),
    *(series(["a", "b", None], pl.Categorical), series(["a"], pl.Categorical(pl.Categories("na;me", "n", pl.UInt8)))),
    *(series(["b", "a", None], pl.Enum(["a", "b", "ü;1", "", "unused"])), series([], pl.Enum([]))),
    *(series([[1], None, []], pl.List(pl.Int8)), series([[[1, 2]], None], pl.Array(pl.Int8, (1, 2)))),
    series([{"a": 1, "b": ["x"]}, None], pl.Struct({"a": pl.Int8, "b": pl.List(pl.String)})),
    *(series([{"": 1}], pl.Struct({"": pl.Int8})), series([["a", "b"], None], pl.List(pl.Categorical))),
    *(series([{"a": "b"}, None], pl.Struct({"a": pl.Enum(["b"])})), series([], pl.Struct({"a": pl.Int8}))),
]


@pytest.mark.parametrize("column", SERIES, ids=lambda column: str(column.dtype))
def test_columns_of_polars_come_back_as_they_are(column: Any) -> None:
    found = received(column)
    assert (found.name, found.dtype) == (column.name, column.dtype)
    assert found.equals(column)
    frame = column.to_frame()
    table = taken(pa.Table, sent(frame))
    for value in (sent(frame), sent(table), table):
        back = taken(pl.DataFrame, value)
        assert back.schema == frame.schema
        assert back.equals(frame)


@pytest.mark.parametrize(
    "table",
    [
        *(pa.table({}), pa.table({"a": [1, 2]}).select([]), pa.table([[1], ["x"]], names=["same", "same"])),
        *(pa.table({"": [1], "ü \n": [2]}), pa.table({"a": pa.chunked_array([[1], [], [2, 3]])})),
        pa.table({"a": pa.chunked_array([pa.array(["x"]).dictionary_encode(), pa.array(["y"]).dictionary_encode()])}),
        pa.table({"a": range(10_000), "b": ["x" * 10] * 10_000}),
        *(
            pl.DataFrame(),
            pl.DataFrame(height=5),
            pl.DataFrame({"": [1], "ü \n": [2]}),
            pl.DataFrame({"a": [1]}).clear(),
        ),
        pl.concat([pl.DataFrame({"a": [number]}) for number in range(20)], rechunk=False),
        pl.DataFrame({"a": range(10_000), "b": ["x" * 20] * 10_000}),
    ],
    ids=lambda table: f"{type(table).__module__} {table.shape}",
)
def test_tables_come_back_as_they_are(table: Any) -> None:
    found = received(table)
    assert (found.shape, found.schema) == (table.shape, table.schema)
    assert found.equals(table)


def test_a_slice_sends_its_own_rows_only() -> None:
    for table in (pa.table({"a": range(100_000)}), pl.DataFrame({"a": range(100_000)})):
        assert len(codec.dumps(table.slice(50_000, 3))) < 1000
        assert received(table.slice(50_000, 3)).equals(table.slice(50_000, 3))


def test_what_is_not_sent() -> None:
    for value, reason in (
        (pl.DataFrame({"x": [object()]}), "column 'x' of dtype Object.* has no form on the wire"),
        (pl.Series("x", [[1]], dtype=pl.List(pl.Int128)), r"column 'x' of dtype Int128 has no form"),
        (pl.DataFrame({"x": [{"\0": 1}]}), "with a NUL has no form on the wire"),
        (pl.DataFrame({"x": [1]}).lazy(), "LazyFrame has no form on the wire"),
        (pa.table({"n": pa.nulls(9_000_000)}), "of 9000000 values is too many"),
    ):
        with pytest.raises(EncodeError, match=reason):
            codec.dumps([value])


TABLE, FRAME = pa.table({"a": [1, 2]}), pl.DataFrame({"a": [1, 2]})
BATCH, COLUMN = TABLE.to_batches()[0], FRAME["a"]


def test_a_stream_in_base64_is_a_table_where_a_hint_asks() -> None:
    for hint in (pa.Table, pa.RecordBatch, pl.DataFrame, pd.DataFrame):
        found = taken(hint, sent(TABLE)["data"])
        assert type(found) is hint
        assert [int(str(number)) for number in found["a"]] == [1, 2]


def test_other_values_are_refused() -> None:
    two, stream = pl.DataFrame({"a": [1], "b": [1]}), pa.table({"a": pa.chunked_array([[1], [2]])})
    for hint, value, reason in (
        (pa.Table, sent(BATCH), "expected pyarrow.Table, got .*batch"),
        (pl.DataFrame, {"$type": "polars"}, "misses 'kind'"),
        (pl.DataFrame, sent(pa.table({"a\0b": [1]})), "has a NUL"),
        (pa.RecordBatch, sent(stream)["data"], "one batch is expected"),
        *((Any, {"$type": "arrow", "kind": kind, "data": ""}, "kind must be") for kind in ("frame", ["table"])),
        (Any, {"$type": "arrow", "kind": "table", "data": 5}, "int"),
        (Any, {"$type": "arrow", "kind": "table"}, "misses 'data'"),
        (Any, {"$type": "polars", "kind": "table", "data": ""}, "kind must be 'frame' or 'series'"),
        (Any, {"$type": "polars", "kind": "series", "data": sent(two)["data"]}, "column"),
    ):
        with pytest.raises(ValueError, match=reason):
            codec.decode([value]) if hint is Any else taken(hint, value)


def test_what_a_handler_returns_goes_out_as_the_hint_says() -> None:
    assert type(returned(pa.Table, FRAME)) is pa.Table
    assert type(returned(pl.DataFrame, TABLE)) is pl.DataFrame
    for hint, value in ((pa.Table, BATCH), (pa.RecordBatch, TABLE), (pl.Series, FRAME), (pa.Table, "")):
        with pytest.raises(ValueError, match=r"expected (pyarrow|polars)\."):
            returned(hint, value)


def test_wrong_metadata_of_polars_is_refused_before_polars_reads_it(capfd: pytest.CaptureFixture[str]) -> None:
    column = pa.array(["a"]).dictionary_encode()
    for key, value in (
        *(("_PL_ENUM_VALUES2", wrong) for wrong in (b"x", b"99999999999;a", b"5;a", b"1;\xff")),
        *(("_PL_CATEGORICAL2", b"0;0;u64;"), ("_PL_CATEGORICAL2", b"-1;0;u32;"), ("_PL_CATEGORICAL", b"")),
        ("k", b"\xff"),
    ):
        table = pa.table([column], pa.schema([pa.field("a", column.type, metadata={key: value})]))
        with pytest.raises(ValueError, match="the metadata of column 'a' is malformed"):
            taken(pl.DataFrame, sent(table))
        assert received(table).equals(table)  # what beside a table of Arrow's stands is anything
    assert capfd.readouterr().err == ""


def test_views_that_show_the_same_again_and_again_are_refused() -> None:
    text = b"x" * 1_000_000
    view = len(text).to_bytes(4, "little") + text[:4] + bytes(8)
    array = pa.Array.from_buffers(pa.string_view(), 10_000, [None, pa.py_buffer(view * 10_000), pa.py_buffer(text)])
    for table in (pa.table({"a": array}), pa.table({"a": pa.StructArray.from_arrays([array], names=["b"])})):
        with pytest.raises(EncodeError, match="show the same values again and again"):
            codec.dumps(table)
    repeated = pa.array(["of more than twelve bytes"] * 10_000).cast(pa.string_view())
    assert received(pa.table({"a": repeated})).num_rows == 10_000


def test_the_tables_of_a_message_are_counted_together() -> None:
    kinds = [TABLE, FRAME, pd.Series([1]), sparse.coo_array((1, 1))]
    empty, others = sent(pa.table({})), sent(kinds)
    assert len(codec.decode([empty] * 1000 + others)) == 1004
    for attempt, tables in (
        *((codec.decode, [empty] * 1024 + [other]) for other in others),
        (lambda tables: taken(list[pa.Table], tables), [empty] * 1025),
    ):
        with pytest.raises(ValueError, match="the tables of the message are too many"):
            attempt(tables)
    assert len(taken(list[pa.Table], [TABLE] * 1025)) == 1025  # decoded before


PANDAS = pd.DataFrame({"a": [1]})


@pytest.mark.parametrize("value", [TABLE, FRAME, PANDAS], ids=["pyarrow", "polars", "pandas"])
def test_what_is_said_without_the_library(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    line, library = sent(value), type(value).__module__.partition(".")[0]
    for missing in (library, "pyarrow"):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(ValueError, match=r"needs the package .*, which is not installed here: pip install"):
            codec.decode(line)
        if missing == "pyarrow" != library:
            with pytest.raises(EncodeError, match=rf"could not be encoded: this needs .* 'rpcstream\[{library}\]'"):
                codec.dumps([value])
        monkeypatch.undo()


def test_over_a_connection() -> None:
    server = Server()

    @server
    def head(frame: pl.DataFrame, rows: int) -> pl.DataFrame:
        return frame.head(rows)

    @server
    def echo(value: Any) -> Any:
        return value

    large = pl.DataFrame({"a": range(5000), "b": [str(number) for number in range(5000)]})
    with serve_in_thread(server) as address, Client(address) as client:
        for value in (FRAME, FRAME.to_arrow(), large, large.to_arrow(), large):  # as text first, then beside the JSON
            assert client.echo([value])[0].equals(value)
            assert client.head(value, 1).shape == (1, value.shape[1])
        assert type(client.call("head", FRAME, 1, returns=pa.Table)) is pa.Table
        with pytest.raises(InvalidParams, match=r"frame: expected polars.DataFrame, got a list"):
            client.head([1], 1)
