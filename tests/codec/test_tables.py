"""Tables of Arrow and frames of polars: exact round trips, hints, what is refused, what hostile peers may send."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from rpcstream import Client, EncodeError, InvalidParams, Server
from rpcstream.codec.hints import hint_checker
from rpcstream.testing import serve_in_thread

from .values import codec, received, sent

WORDS = ["x", None, "of more than twelve bytes"]
DAY = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901)
COLUMNS = [
    *(pa.array([1, None], kind) for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.duration("ms"))),
    *(pa.array(WORDS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(pa.array([b"x", None], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))),
    *(
        pa.array([DAY, None], pa.timestamp(unit, zone))
        for unit in ("us", "ns")
        for zone in (None, "UTC", "Europe/Oslo")
    ),
    *(pa.array([Decimal("1.10"), None], kind) for kind in (pa.decimal128(5, 2), pa.decimal256(50, 2))),
    pa.array([True, None]),
    pa.nulls(3),
    pa.array([DAY.date(), None]),
    pa.array([DAY.time(), None], pa.time64("us")),
    pa.array(WORDS).dictionary_encode(),
    pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), ["a", "b", "unused"], ordered=True),
    *(pa.array([[1], None, []], kind(pa.int16())) for kind in (pa.list_, pa.large_list, pa.list_view)),
    pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
    pa.array([{"a": 1, "b": [{"c": "x"}]}, None]),
    pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
    pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"])),
    pa.array([b"0" * 16], pa.uuid()),
    pa.array([], pa.int64()),
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
        assert codec.rich_hint(type(value)).decode(sent(value)).equals(value)


@pytest.mark.parametrize(
    "table",
    [
        *(pa.table({}), pa.table({"a": [1, 2]}).select([]), pa.table([[1], ["x"]], names=["same", "same"])),
        *(pa.table({"": [1], "ü \n": [2]}), pa.table({"a": pa.chunked_array([[1], [], [2, 3]])})),
        pa.table({"a": pa.chunked_array([[number] for number in range(100)])}),
        pa.table({"a": pa.chunked_array([pa.array(["x"]).dictionary_encode(), pa.array(["y"]).dictionary_encode()])}),
        pa.table({"a": range(100_000), "b": ["x" * 10] * 100_000}),
        pa.table({"a": range(100_000)}).slice(50_000, 3),
    ],
    ids=lambda table: f"{table.num_rows} x {table.num_columns}",
)
def test_tables_come_back_as_they_are(table: Any) -> None:
    found = received(table)
    assert (found.shape, found.schema) == (table.shape, table.schema)
    assert found.equals(table)


def test_a_slice_sends_its_own_rows_only() -> None:
    assert len(codec.dumps(pa.table({"a": range(100_000)}).slice(5, 3))) < 1000


def series(values: list[Any], dtype: Any) -> Any:
    return pl.Series("x", values, dtype=dtype)


SERIES = [
    *(series([1, None], getattr(pl, f"{kind}{size}")) for kind in ("Int", "UInt") for size in (8, 16, 32, 64)),
    *(series([1.5, float("nan"), None], dtype) for dtype in (pl.Float32, pl.Float64)),
    *(series([True, None, False], pl.Boolean), series(WORDS, pl.String), series([b"a", None, b""], pl.Binary)),
    *(series([None, None], pl.Null), series([DAY.date(), None], pl.Date), series([DAY.time(), None], pl.Time)),
    *(series([DAY, None], pl.Datetime(unit, zone)) for unit in ("ms", "us", "ns") for zone in (None, "Europe/Oslo")),
    *(series([datetime.timedelta(seconds=1), None], pl.Duration(unit)) for unit in ("ms", "us", "ns")),
    *(series([Decimal("1.10"), None], pl.Decimal(10, 2)), series(["a", "b", None], pl.Categorical)),
    series(["a"], pl.Categorical(pl.Categories("na;me", "nämespace", pl.UInt8))),
    series(["b", "a", None], pl.Enum(["a", "b", "ü;1", "", "unused"])),
    *(series([], pl.Enum([])), series([[1], None, []], pl.List(pl.Int8))),
    series([[[1, 2]], None], pl.Array(pl.Int8, (1, 2))),
    series([{"a": 1, "b": ["x"]}, None], pl.Struct({"a": pl.Int8, "b": pl.List(pl.String)})),
    *(series([{"": 1}], pl.Struct({"": pl.Int8})), series([["a", "b"], None], pl.List(pl.Categorical))),
    series([{"a": "b"}, None], pl.Struct({"a": pl.Enum(["b"])})),
    *(series([[Decimal("1.1")]], pl.List(pl.Decimal(5, 1))), series([], pl.Struct({"a": pl.Int8}))),
]


@pytest.mark.parametrize("column", SERIES, ids=lambda column: str(column.dtype))
def test_columns_of_polars_come_back_as_they_are(column: Any) -> None:
    found = received(column)
    assert (found.name, found.dtype) == (column.name, column.dtype)
    assert found.equals(column)
    frame = column.to_frame()
    assert codec.rich_hint(pl.DataFrame).decode(sent(frame)).schema == frame.schema
    # As a table of Arrow's, and from one.
    table = codec.rich_hint(pa.Table).decode(sent(frame))
    for value in (sent(table), table):
        back = codec.rich_hint(pl.DataFrame).decode(value)
        assert back.schema == frame.schema
        assert back.equals(frame)


@pytest.mark.parametrize(
    "frame",
    [
        *(pl.DataFrame(), pl.DataFrame(height=5), pl.DataFrame({"": [1], "ü \n": [2]})),
        pl.DataFrame({"a": [1]}).clear(),
        pl.concat([pl.DataFrame({"a": [number]}) for number in range(200)], rechunk=False),
        pl.DataFrame({"a": range(100_000), "b": ["x" * 20] * 100_000}),
        pl.DataFrame({"a": range(100_000)}).slice(50_000, 3),
    ],
    ids=lambda frame: str(frame.shape),
)
def test_frames_come_back_as_they_are(frame: Any) -> None:
    found = received(frame)
    assert (found.shape, found.schema) == (frame.shape, frame.schema)
    assert found.equals(frame)


def test_what_is_received_can_be_changed_by_its_library() -> None:
    found = received(pl.DataFrame({"a": [1, 2]}))
    found[0, "a"] = 5
    assert found["a"].to_list() == [5, 2]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pl.DataFrame({"x": [object()]}), "column 'x' of dtype Object.* has no form on the wire"),
        (pl.Series("x", [1], dtype=pl.Int128), "column 'x' of dtype Int128 has no form on the wire: cast it"),
        (pl.Series("x", [[1]], dtype=pl.List(pl.Int128)), r"column 'x' of dtype Int128 has no form"),
        (pl.DataFrame({"a\0b": [1]}), "with a NUL has no form on the wire"),
        (pl.DataFrame({"x": [{"\0": 1}]}), "with a NUL has no form on the wire"),
        (pl.DataFrame({"x": [1]}).lazy(), "a polars.lazyframe.frame.LazyFrame has no form on the wire"),
        (pa.table({"n": pa.nulls(9_000_000)}), "of 9000000 values is too many"),
    ],
    ids=["object", "Int128", "inside", "NUL", "NUL inside", "lazy", "nulls"],
)
def test_what_is_not_sent(value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        codec.dumps([value])


def test_hints_take_what_they_say() -> None:
    table, frame = pa.table({"a": [1, 2]}), pl.DataFrame({"a": [1, 2]})
    batch, column = table.to_batches()[0], frame["a"]
    stream = sent(table)["data"]
    for hint, values in (
        (pa.Table, (sent(table), sent(frame), stream, table, frame)),
        (pa.RecordBatch, (sent(batch), stream, batch)),
        (pl.DataFrame, (sent(frame), sent(table), sent(batch), stream, frame, table, batch)),
        (pl.Series, (sent(column), column)),
    ):
        rich = codec.rich_hint(hint)
        for value in values:
            found = rich.decode(value)
            assert type(found) is hint
            assert (found.to_pylist() if hasattr(found, "to_pylist") else frame.rows(named=True)) == [
                {"a": 1},
                {"a": 2},
            ]
        assert rich.accept(rich.decode(values[0])) is not None
        assert rich.schema()
    for hint, value, reason in (
        (pa.Table, sent(batch), "Expected `pyarrow.Table`, got `arrow batch`"),
        (pa.Table, sent(column), "Expected `pyarrow.Table`, got `polars series`"),
        (pa.Table, sent(table) | {"kind": 5}, "Expected `pyarrow.Table`, got `arrow 5`"),
        (pa.RecordBatch, sent(table), "Expected `pyarrow.RecordBatch`, got `arrow table`"),
        (pl.Series, sent(frame), "Expected `polars.Series`, got `object tagged 'polars'`"),
        (pl.DataFrame, [1], "Expected `polars.DataFrame`, got `array`"),
        (pl.DataFrame, column, "Expected `polars.DataFrame`, got `Series`"),
        (pl.DataFrame, {"$type": "polars"}, "'polars' misses 'kind'"),
        (pl.DataFrame, sent(pa.table({"a\0b": [1]})), "polars: the name .* has a NUL"),
        (pa.Table, "QVJST1cxAAA=", "this is an Arrow file; send the stream format"),
        (pa.Table, "data.arrow", "not base64"),
        (
            pa.RecordBatch,
            sent(pa.table({"a": pa.chunked_array([[1], [2]])}))["data"],
            "one batch is expected, there are 2",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            codec.rich_hint(hint).decode(value)
    # What a handler returns goes out as the hint says.
    assert type(codec.rich_hint(pa.Table).accept(frame)) is pa.Table
    assert type(codec.rich_hint(pl.DataFrame).accept(table)) is pl.DataFrame
    for hint, value in ((pa.Table, batch), (pa.RecordBatch, table), (pl.Series, frame), (pa.Table, stream)):
        with pytest.raises(ValueError, match=r"Expected `(pyarrow|polars)\."):
            codec.rich_hint(hint).accept(value)


@pytest.mark.parametrize(
    ("tagged", "reason"),
    [
        ({"$type": "arrow", "kind": "frame", "data": ""}, "arrow: kind must be 'table' or 'batch'"),
        ({"$type": "arrow", "kind": ["table"], "data": ""}, "arrow: kind must be"),
        ({"$type": "arrow", "kind": "table", "data": ""}, "it has no schema"),
        ({"$type": "arrow", "kind": "table", "data": 5}, "got `int`"),
        ({"$type": "arrow", "kind": "table"}, "misses 'data'"),
        ({"$type": "polars", "kind": "table", "data": ""}, "polars: kind must be 'frame' or 'series'"),
        ({"$type": "polars", "kind": "series", "data": sent(pl.DataFrame({"a": [1], "b": [1]}))["data"]}, "one column"),
    ],
)
def test_wrong_tagged_objects(tagged: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        codec.decode([tagged])


def test_wrong_metadata_of_polars_is_refused_before_polars_reads_it(capfd: pytest.CaptureFixture[str]) -> None:
    column = pa.array(["a"]).dictionary_encode()
    for key, value in (
        ("_PL_ENUM_VALUES2", b"x"),
        ("_PL_ENUM_VALUES2", b"99999999999;a"),
        ("_PL_ENUM_VALUES2", b"5;a"),
        ("_PL_ENUM_VALUES2", b"1;\xff"),
        ("_PL_CATEGORICAL2", b"0;0;u64;"),
        ("_PL_CATEGORICAL2", b"-1;0;u32;"),
        ("_PL_CATEGORICAL", b""),
        ("k", b"\xff"),
    ):
        table = pa.table([column], pa.schema([pa.field("a", column.type, metadata={key: value})]))
        with pytest.raises(ValueError, match="polars: the metadata of column 'a' is malformed"):
            codec.rich_hint(pl.DataFrame).decode(sent(table))
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


@pytest.mark.parametrize("value", [pa.table({"a": [1]}), pl.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]})])
def test_the_tables_of_a_message_are_counted_together(value: Any) -> None:
    tagged = sent(value)
    assert len(codec.decode([tagged] * 100)) == 100  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the tables of the message are too many"):
        codec.decode([tagged] * 1009)
    check = hint_checker(list[type(value)], codec)  # type: ignore[misc]
    assert len(check([value] * 1009)) == 1009  # decoded before
    with pytest.raises(ValueError, match="the tables of the message are too many"):
        check([tagged] * 1009)


def test_mutations_do_not_end_the_process() -> None:
    command = [sys.executable, "-m", "tests.codec.table_mutations", "1", "250"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=50, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for kind in ("arrow", "pandas", "polars", "sparse"):
        assert f"{kind} refused" in done.stdout
        assert f"{kind} decoded" in done.stdout


@pytest.mark.parametrize(
    ("missing", "value", "said"),
    [
        ("pyarrow", pa.table({"a": [1]}), "needs the package pyarrow.* install 'rpcstream.arrow.'"),
        ("polars", pl.DataFrame({"a": [1]}), "needs the package polars.* install 'rpcstream.polars.'"),
    ],
)
def test_a_receiver_without_the_library_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, missing: str, value: Any, said: str
) -> None:
    line = sent(value)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=said):
        codec.decode(line)


@pytest.mark.parametrize(
    ("value", "extra"), [(pl.DataFrame({"a": [1]}), "polars"), (pd.DataFrame({"a": [1]}), "pandas")]
)
def test_a_sender_without_pyarrow_says_so(monkeypatch: pytest.MonkeyPatch, value: Any, extra: str) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EncodeError, match=rf"DataFrame could not be encoded: this needs .* 'rpcstream\[{extra}\]'"):
        codec.dumps([value])


def test_over_a_connection() -> None:
    server = Server()

    @server
    def head(frame: pl.DataFrame, rows: int) -> pl.DataFrame:
        return frame.head(rows)

    @server
    def echo(value: Any) -> Any:
        return value

    frame = pl.DataFrame({"city": ["Oslo", "Bern"], "degrees": [-2.5, 9.0]})
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.head(frame, 1).equals(frame.head(1))
        assert client.head(frame.to_arrow(), 1).equals(frame.head(1))
        assert client.head(sent(frame)["data"], 1).equals(frame.head(1))
        found = client.call("head", frame, 1, returns=pa.Table)
        assert type(found) is pa.Table
        assert client.echo({"a": [frame]})["a"][0].equals(frame)
        large = pl.DataFrame({"a": range(5000), "b": [str(number) for number in range(5000)]})
        for _ in range(3):  # as text first, then beside the JSON
            for value in (large, large.to_arrow()):
                assert client.echo([value])[0].equals(value)
                assert client.head(value, 5000).equals(large)
        with pytest.raises(InvalidParams, match=r"frame: expected polars.DataFrame, got a list"):
            client.head([1], 1)
