"""Arrow IPC streams that a hostile or careless peer may send: each is refused before a library reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from .values import encoded, taken


def stream_of(*tables: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for table in tables:
            writer.write(table)
    return sink.getvalue().to_pybytes()


def read(stream: bytes) -> Any:
    return taken(pa.Table, encoded(stream))


WORDS = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": [[1], None, []]})
ROW = pa.table({"a": [1]})


class OfALibrary(pa.ExtensionType):
    """An extension type, whose code would run when a stream with it is read."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.of_a_library")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Any:
        raise AssertionError("the code of a library ran")


def nested(depth: int) -> Any:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.table({"a": pa.array([None], kind)})


def deltas() -> bytes:
    first, second = (pa.table({"a": pa.array(words).dictionary_encode()}) for words in (["x"], ["x", "y"]))
    return stream_of(first, second, emit_dictionary_deltas=True)


def one_column_again_and_again(count: int, name: str) -> bytes:
    """The schema of so many columns, each of which is the first one of them."""
    schema = pa.schema([(name, pa.int8()), *((str(number), pa.int8()) for number in range(1, count))])
    data = bytearray(schema.serialize())
    offsets = np.frombuffer(data, "<u4", count, data.index(struct.pack("<I", count)) + 4)
    offsets[:] = offsets[0] - 4 * np.arange(count)
    return bytes(data)


EXTENDED = pa.table({"e": pa.ExtensionArray.from_storage(OfALibrary(), pa.array([1]))})


@pytest.mark.parametrize(
    ("reason", "stream"),
    [
        ("is an Arrow file; send the stream", lambda: b"ARROW1\0\0" + stream_of(WORDS)),
        ("is a Parquet file; send an Arrow stream", lambda: b"PAR1"),
        ("it has no schema", lambda: b""),
        ("does not begin as it should", lambda: stream_of(WORDS, use_legacy_format=True)),
        *(("compressed buffers", lambda name=name: stream_of(WORDS, compression=name)) for name in ("lz4", "zstd")),
        ("deltas of dictionaries", deltas),
        ("column 'e' has the extension type 'tests.of_a_library'", lambda: stream_of(EXTENDED)),
        ("more than 32 deep", lambda: stream_of(nested(32))),
        ("of more than 4096 batches", lambda: stream_of(*[ROW] * 4097)),
        ("of 9000000 values is too many for its", lambda: stream_of(pa.table({"n": pa.nulls(9_000_000)}))),
        *(("bytes of", lambda length=length: stream_of(WORDS)[:length]) for length in (-40, 100)),
        ("metadata is malformed", lambda: stream_of(WORDS)[:-4]),
        ("bytes behind its end", lambda: stream_of(WORDS) + stream_of(WORDS)),
        ("a schema, then batches", lambda: WORDS.schema.serialize().to_pybytes() * 2),
        # It would copy 5 GB.
        ("used again and again", lambda: one_column_again_and_again(50_000, "a" * 100_000)),
        pytest.param(
            "of more than 65536 columns", lambda: one_column_again_and_again(66_000, "a"), marks=pytest.mark.slow
        ),
    ],
)
def test_what_is_refused(reason: str, stream: Callable[[], bytes]) -> None:
    with pytest.raises(ValueError, match=reason):
        read(stream())


@pytest.mark.parametrize(
    "stream",
    [
        *(stream_of(nested(31)), stream_of(*[ROW] * 1000), stream_of(pa.table({"n": pa.nulls(1_000_000)}))),
        *(stream_of(pa.table({"b": [True] * 100_000})), stream_of(WORDS)[:-8]),  # its end need not be marked
        *(stream_of(pa.table({"u": pa.array([b"0" * 16], pa.uuid())})), one_column_again_and_again(200, "a")),
    ],
    ids=["deep", "batches", "nulls", "bits", "no end", "uuid", "shared"],
)
def test_what_is_just_allowed(stream: bytes) -> None:
    assert read(stream).validate(full=True) is None
