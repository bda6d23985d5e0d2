"""Tables of pyarrow, polars and pandas: what comes back, hints, and what is refused."""

from __future__ import annotations

import base64
import datetime
import random
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from rpcstream import Client, InvalidParams, Server
from rpcstream.codec.codec import Reading
from rpcstream.codec.hints import CompiledHint
from rpcstream.errors import EncodeError, MessageTooLarge
from rpcstream.testing import serve_in_thread

from ..kit.example_count import IS_THOROUGH
from .values import codec, received, returned, sent, taken

DAY = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901)
WORDS = ["x", None, "of more than twelve bytes"]

ARROW = [
    *(pa.array([1, None], kind) for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.duration("ms"))),
    *(pa.array(WORDS, kind) for kind in (pa.string(), pa.large_string())),
    *(pa.array([DAY, None], pa.timestamp(unit, zone)) for unit, zone in (("us", None), ("ns", "Europe/Oslo"))),
    *(pa.array([Decimal("1.10"), None]), pa.array([True, None]), pa.nulls(3), pa.array([b"x", None])),
    *(pa.array(WORDS).dictionary_encode(), pa.array([[1], None, []]), pa.array([[1, 2], None], pa.list_(pa.int8(), 2))),
    *(pa.array([{"a": 1, "b": [{"c": "x"}]}, None]), pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))),
    *(pa.array([b"0" * 16], pa.uuid()), pa.array([], pa.int64())),
]


@pytest.mark.parametrize("column", ARROW, ids=lambda column: str(column.type))
def test_columns_of_arrow_come_back_as_they_are(column: Any) -> None:
    table = pa.table([column], pa.schema([pa.field("a", column.type, metadata={"unit": "m"})], metadata={b"k": b"v"}))
    assert received(table).equals(table, check_metadata=True)
    assert taken(pa.Table, sent(table)).equals(table)


POLARS = [
    *(pl.Series("x", [1, None], dtype) for dtype in (pl.Int8, pl.Int64, pl.UInt64, pl.Float32)),
    *(
        pl.Series("x", [True, None]),
        pl.Series("x", WORDS),
        pl.Series("x", [b"a", None]),
        pl.Series("x", [None, None]),
        pl.Series("", [1]),
    ),
    *(pl.Series("x", [DAY, None]), pl.Series("x", [DAY.date(), None]), pl.Series("x", [DAY.time(), None])),
    *(pl.Series("x", [datetime.timedelta(seconds=1)]), pl.Series("x", [Decimal("1.1")])),
    *(pl.Series("x", ["a", "b", None], pl.Categorical), pl.Series("x", [[1], None, []])),
    *(pl.Series("x", [[1, 2]], pl.Array(pl.Int8, 2)), pl.Series("x", [{"a": 1, "b": ["x"]}, None])),
]


@pytest.mark.parametrize("column", POLARS, ids=lambda column: str(column.dtype))
def test_columns_of_polars_come_back_as_they_are(column: Any) -> None:
    found = received(column.to_frame("y"))
    assert found["y"].dtype == column.dtype
    assert found.equals(column.to_frame("y"))


DAYS = pd.date_range("2020-03-27", periods=3, freq=None)
PANDAS = [
    *(pd.Series([1, 0, 1], dtype=kind) for kind in ("?", "i1", "u4", "f2", "f8", "boolean", "UInt64", "Float32")),
    *(pd.Series(["a", None, "b"], dtype=kind) for kind in ("category", "string[pyarrow]")),
    *(pd.Series([1, 2, 3], name="n"), pd.Series([1.5], name=("a", 1)), pd.Series(["a"])),
    *(pd.Series(DAYS.tz_localize("Europe/Oslo")), pd.Series(pd.period_range("2020", periods=3, freq="M"))),
    *(pd.Series(pd.interval_range(0, 3)), pd.Series([datetime.date(2020, 1, 1)], dtype=object)),
    *(
        pd.Series([[1, 2], None, []]).map(lambda each: each if each is None else np.array(each)),
        pd.Series([], dtype="i8"),
    ),
    pd.Series([1], pd.MultiIndex.from_tuples([("a", 1)], names=["x", None])),
    pd.Series([1, 2, 3], DAYS.rename("day")),
    pd.Series([1, 2], pd.RangeIndex(5, 1, -2)),
]


@pytest.mark.parametrize("column", PANDAS, ids=lambda column: f"{column.dtype} {column.index.dtype}")
def test_columns_of_pandas_come_back_as_pyarrow_keeps_them(column: Any) -> None:
    frame = column.to_frame("y")
    frame.attrs = {"unit": "m"}
    for value in (received(frame), taken(pd.DataFrame, sent(frame))):
        pd.testing.assert_frame_equal(value, frame, check_freq=False)
        assert value.attrs == frame.attrs


def test_labels_of_columns_come_back() -> None:
    for labels in (["a", "b"], [1, 2], pd.MultiIndex.from_tuples([("p", 1), ("q", 2)]), pd.RangeIndex(2)):
        frame = pd.DataFrame(np.eye(2), columns=labels)
        pd.testing.assert_frame_equal(received(frame), frame)


@pytest.mark.parametrize(
    "table",
    [
        *(pa.table({}), pa.table([[1], ["x"]], names=["same", "same"]), pa.table({"": [1], "ü \n": [2]})),
        *(
            pa.table({"a": pa.chunked_array([[1], [], [2, 3]])}),
            pa.table({"a": range(10_000), "b": ["x" * 10] * 10_000}),
        ),
        *(
            pl.DataFrame(),
            pl.DataFrame({"ü \n": [2]}),
            pl.DataFrame({"a": [1]}).clear(),
            pl.DataFrame({"a": range(9999)}),
        ),
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


TABLE, FRAME, PANDA = pa.table({"a": [1, 2]}), pl.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [1, 2]})
STREAM = sent(TABLE)["data"]
EVERY = [TABLE, FRAME, PANDA]


@pytest.mark.parametrize("hint", [pa.Table, pl.DataFrame, pd.DataFrame])
def test_hints_take_the_tables_of_all_libraries(hint: Any) -> None:
    for value in (*map(sent, EVERY), STREAM, *EVERY):
        assert type(taken(hint, value)) is hint
        assert taken(pa.Table, taken(hint, value)).to_pylist() == [{"a": 1}, {"a": 2}]
    for value in EVERY:
        assert type(returned(hint, value)) is hint
    for value in (PANDA["a"], 5, [TABLE], {"$type": "polars"}):
        with pytest.raises(ValueError, match=r"(xpected|its members are)"):
            taken(hint, value)


def test_a_series_goes_as_an_array() -> None:
    for value in (FRAME["a"], PANDA["a"], PANDA.index):
        assert isinstance(received(value), np.ndarray)


def stream_of(column: Any, **options: Any) -> dict[str, Any]:
    """The tagged object of a table of one column, written by pyarrow."""
    table = pa.table({"a": column})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write(table)
    return {"$type": "arrow", "data": base64.b64encode(stream.getvalue()).decode()}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (stream_of(range(1000), compression="zstd"), "its buffers are compressed"),
        (stream_of(pa.array(WORDS).dictionary_encode(), compression="lz4"), "its buffers are compressed"),
        (stream_of(pa.nulls(9_000_000)), "9000000 rows are too many"),
        (stream_of(pa.array(WORDS, pa.string_view())), "string_view is not accepted: cast it"),
        (stream_of(pa.array([[1]], pa.list_view(pa.int8()))), "is not accepted: cast it"),
        (
            stream_of(pa.RunEndEncodedArray.from_arrays(pa.array([10**6], pa.int32()), pa.array(["a"]))),
            "is not accepted",
        ),
        (stream_of(pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string())))), "inside of another type"),
        (stream_of(pa.array([[None]])), "inside of another type"),
        ({"$type": "arrow", "data": 5}, "int"),
        ({"$type": "arrow", "data": ""}, "cannot read the Arrow IPC stream"),
        ({"$type": "arrow", "data": STREAM[:-400]}, "cannot read the Arrow IPC stream"),
        ({"$type": "arrow"}, "its members are data"),
        (
            {
                "$type": "pandas",
                "data": stream_of(pa.StructArray.from_arrays([[True] * 90_000], ["a"]))["data"],
            },
            "180000 objects are too many",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        codec.decode([value])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pl.DataFrame({"x": [object()]}), "of polars could not be encoded"),
        (pl.DataFrame({"x": [1]}).lazy(), "LazyFrame has no form on the wire"),
        (pd.DataFrame({"x": [object()]}), "of pandas could not be encoded"),
        (pa.table({"a": pa.array(WORDS, pa.string_view())}), "cast it"),
    ],
    ids=["object", "lazy", "pandas object", "view"],
)
def test_what_is_not_sent(value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        codec.dumps([value])


NESTED = pa.table(
    {"s": WORDS, "l": [[1], [], None], "d": pa.array(["a", "b", "a"]).dictionary_encode(), "st": [{"q": 1}] * 3}
)
LABELLED = pd.DataFrame({"c": pd.Categorical(["u", "v"]), "p": pd.period_range("2020", periods=2)}, [3, 4])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_damaged_streams_are_refused_or_read(capfd: pytest.CaptureFixture[str]) -> None:
    streams = [base64.b64decode(sent(value)["data"]) for value in (NESTED, LABELLED, FRAME)]
    chance = random.Random(1)
    for _ in range(20_000 if IS_THOROUGH else 500):
        damaged = bytearray(chance.choice(streams))
        for _ in range(chance.choice([1, 1, 2, 5])):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        tag = chance.choice(["arrow", "pandas", "polars"])
        try:
            codec.decode({"$type": tag, "data": base64.b64encode(damaged).decode()})
        except ValueError:
            pass
    assert capfd.readouterr().err == ""  # polars prints where it stops


def test_the_tables_of_a_message_are_counted_together() -> None:
    empty, others = sent(pa.table({})), sent([TABLE, FRAME, PANDA, sparse.coo_array((1, 1))])
    hint = CompiledHint(list[pa.Table], codec)
    assert len(codec.decode([empty] * 140 + others, Reading(codec.max_image_pixels))) == 144  # type: ignore[arg-type]
    for read in (lambda value, reading: codec.decode(value + others, reading), hint.read):
        with pytest.raises(MessageTooLarge):
            read([empty] * 160, Reading(codec.max_image_pixels))


@pytest.mark.parametrize("value", [TABLE, FRAME, PANDA], ids=["pyarrow", "polars", "pandas"])
def test_what_is_said_without_the_library(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    line, library = sent(value), type(value).__module__.partition(".")[0]
    for missing in (library, "pyarrow"):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(ValueError, match=r"needs the package .*, which is not installed here: pip install"):
            codec.decode(line)
        monkeypatch.undo()


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
        for value in (frame, frame.to_arrow(), frame.to_pandas(), sent(frame)["data"]):
            assert client.head(value, 1).equals(frame.head(1))
        assert type(client.call("head", frame, 1, returns=pa.Table)) is pa.Table
        large = pl.DataFrame({"a": range(5000), "b": [str(number) for number in range(5000)]})
        for value in (large, large.to_arrow(), large):  # as text first, then beside the JSON
            assert client.echo([value])[0].equals(value)
        with pytest.raises(InvalidParams, match=r"frame: expected polars.DataFrame, got a list"):
            client.head([1], 1)
