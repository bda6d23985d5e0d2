"""Changes tables, frames and sparse arrays on the wire at random, and decodes them: they are decoded or a ValueError.

    python -m tests.codec.table_mutations [SEED [COUNT [ KIND ...]]]

In a process of its own, since what goes wrong here may end it. What was decoded is used as well: what can be looked at
without an end of the process is valid.
"""

from __future__ import annotations

import base64
import datetime
import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson

from rpcstream import Codec

codec = Codec()


def arrow_table() -> Any:
    import pyarrow as pa

    codes = pa.array([0, 1, 0] * 4, pa.int8())
    words = ["x", None, "of more than twelve bytes"] * 4
    union = [pa.array([1] * 12), pa.array(["a"] * 12)]
    columns = {
        "int": [1, 2, None] * 4,
        "text": words,
        "large": pa.array(words, pa.large_string()),
        "view": pa.array(words).cast(pa.string_view()),
        "dictionary": pa.array(words).dictionary_encode(),
        "lists": [[1], [2], None] * 4,
        "view of lists": pa.array([[1], [2], None] * 4, pa.list_view(pa.int64())),
        "arrays": pa.array([[1, 2]] * 12, pa.list_(pa.int8(), 2)),
        "struct": [{"x": 1, "y": "z"}] * 12,
        "map": pa.array([[("a", 1)]] * 12, pa.map_(pa.string(), pa.int64())),
        "union": pa.UnionArray.from_sparse(codes, union),
        "dense": pa.UnionArray.from_dense(codes, pa.array([0] * 12, pa.int32()), union),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([5, 12], pa.int32()), pa.array(["a", "b"])),
        "nothing": pa.nulls(12),
        "bool": [True, None, False] * 4,
        "decimal": [Decimal("1.10")] * 12,
        "bytes": [b"a"] * 12,
        "time": pa.array([1] * 12, pa.timestamp("ns", "Europe/Oslo")),
        "uuid": pa.array([b"0" * 16] * 12, pa.uuid()),
    }
    return pa.table(columns, metadata={"k": "v"})


def polars_frame() -> Any:
    import polars as pl

    words = ["x", None, "of more than twelve bytes"] * 4
    day = datetime.datetime(2020, 1, 1)
    columns = {
        "int": [1, 2, None] * 4,
        "text": words,
        "category": pl.Series(words, dtype=pl.Categorical),
        "enum": pl.Series(["a", "b", "a"] * 4, dtype=pl.Enum(["a", "b", "c"])),
        "struct": [{"x": 1}] * 12,
        "lists": [[1], [], None] * 4,
        "decimal": pl.Series(["1.1", "2", None] * 4).cast(pl.Decimal(10, 2)),
        "arrays": pl.Series([[1, 2]] * 12, dtype=pl.Array(pl.Int8, 2)),
        "bytes": [b"a", b"", None] * 4,
        "bool": [True, False, None] * 4,
        "date and time": pl.Series([day] * 12, dtype=pl.Datetime("us", "Europe/Oslo")),
        "time": [day.time()] * 12,
        "nothing": [None] * 12,
    }
    return pl.DataFrame(columns)


def pandas_frame() -> Any:
    import pandas as pd

    words = ["x", None, "of more than twelve bytes"] * 4
    days = pd.date_range("2020", periods=12, tz="Europe/Oslo")
    columns = {
        "int": range(12),
        "text": words,
        "objects": pd.Series(words, dtype=object),
        "lists": pd.Series([[1], [2], None] * 4, dtype=object),
        "category": pd.Categorical(words),
        "nullable": pd.array([1, None, 3] * 4, "Int64"),
        "complex": [1j] * 12,
        "period": pd.period_range("2020", periods=12, freq="M"),
        "interval": pd.interval_range(0, 12),
        "arrow": pd.array([1] * 12, "int64[pyarrow]"),
        "date": days.tz_localize(None),
        1: days,
    }
    frame = pd.DataFrame(columns)
    frame.index = pd.MultiIndex.from_arrays([words, pd.Categorical(words), days], names=["a", None, ("b", 1)])
    return frame


def sparse_array() -> Any:
    import scipy.sparse

    return scipy.sparse.csr_array([[0, 1, 0], [0, 0, 2]])


#: How to make a value of each kind, and how to use it.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "arrow": (arrow_table, lambda table: table.to_pylist()),
    "pandas": (pandas_frame, lambda frame: [*(column.tolist() for _, column in frame.items()), frame.index.tolist()]),
    "polars": (polars_frame, lambda frame: frame.rechunk().to_arrow().to_pylist()),
    "sparse": (sparse_array, lambda array: array.toarray() if max(array.shape) < 1000 else None),
}


def changed(tagged: Any, some: random.Random) -> Any:
    """The tagged object with a few bytes of its payloads changed, or of the JSON."""
    copy = orjson.loads(orjson.dumps(tagged))
    if some.random() < 0.3:
        _change_json(copy, some)
        return copy
    places = [each for each in (copy, *copy.values()) if isinstance(each, dict) and "data" in each]
    place = some.choice(places)
    data = bytearray(base64.b64decode(place["data"]))
    for _ in range(some.choice((1, 1, 2, 5))):
        at = some.randrange(len(data))
        size = some.choice((1, 1, 4, 8))
        number = some.choice((0, 1, -1, 16, 127, -128, some.randrange(256), 2**31 - 1, 2**40, 2**62))
        at -= at % size
        data[at : at + size] = number.to_bytes(9, "little", signed=True)[:size]
    place["data"] = base64.b64encode(data[: some.choice((None, None, None, len(data) - 8))]).decode()
    return copy


def _change_json(value: Any, some: random.Random) -> None:
    """Put something else in one place of a tagged object."""
    key = some.choice([key for key in (value if isinstance(value, dict) else range(len(value))) if key != "data"])
    if isinstance(value[key], dict | list) and value[key] and some.random() < 0.8:
        _change_json(value[key], some)
    else:
        junk = (None, True, 5, -1, 0.5, 10**12, "x", "<M8[ns]", "Int64", "arrow", "h", [], {}, [0, 10**9, 1])
        value[key] = some.choice((*junk, *(value if isinstance(value, list) else value.values())))


def main(seed: int, count: int, kinds: list[str]) -> int:
    some = random.Random(seed)
    seen: Counter[tuple[str, str]] = Counter()
    for kind in kinds:
        make, use = KINDS[kind]
        good = orjson.loads(codec.dumps(make()))
        for _ in range(count):
            try:
                value = codec.decode(changed(good, some))
            except ValueError as error:
                seen[kind, "refused" if str(error) else "refused without a reason"] += 1
                continue
            seen[kind, "decoded"] += 1
            try:
                use(value)
            except BaseException as error:  # dates that Python has not, say; polars has errors that are no Exception
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
    for key, number in sorted(seen.items()):
        print(*key, number)
    return 0


if __name__ == "__main__":
    importlib.import_module("faulthandler").enable()
    given = sys.argv[1:]
    seed, count = int(given[0]) if given else 0, int(given[1]) if len(given) > 1 else 20_000
    sys.exit(main(seed, count, given[2:] or list(KINDS)))
