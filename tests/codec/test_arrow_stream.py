"""Arrow IPC streams that a hostile or careless peer may send: each is refused before a library reads it."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from rpcstream.codec.arrow_stream import check_stream


def stream_of(*tables: Any, **options: Any) -> bytearray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for table in tables:
            writer.write(table)
    return bytearray(sink.getvalue())


WORDS = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": [[1], None, []]})


class OfALibrary(pa.ExtensionType):
    """An extension type, whose code would run when a stream with it is read."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.of_a_library")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Any:
        raise AssertionError("the code of a library ran")


def extended() -> Any:
    return pa.table({"e": pa.ExtensionArray.from_storage(OfALibrary(), pa.array([1]))})


def nested(depth: int) -> Any:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.table({"a": pa.array([None], kind)})


def deltas() -> bytearray:
    first, second = (pa.table({"a": pa.array(words).dictionary_encode()}) for words in (["x"], ["x", "y"]))
    return stream_of(first, second, emit_dictionary_deltas=True)


REFUSED = {
    "is an Arrow file; send the stream": lambda: b"ARROW1\0\0" + stream_of(WORDS),
    "is a Parquet file; send an Arrow stream": lambda: b"PAR1",
    "it has no schema": lambda: b"",
    "does not begin as it should": lambda: stream_of(WORDS, use_legacy_format=True),
    "compressed buffers": lambda: stream_of(WORDS, compression="lz4"),
    "compressed buffers ": lambda: stream_of(WORDS, compression="zstd"),
    "deltas of dictionaries": deltas,
    "column 'e' has the extension type 'tests.of_a_library'": lambda: stream_of(extended()),
    "more than 32 deep": lambda: stream_of(nested(32)),
    "of more than 4096 batches": lambda: stream_of(*[WORDS.slice(0, 1)] * 4097),
    "of 9000000 values is too many for its": lambda: stream_of(pa.table({"n": pa.nulls(9_000_000)})),
    "bytes of a body of": lambda: stream_of(WORDS)[:-40],
    "bytes of metadata of": lambda: stream_of(WORDS)[:100],
    "metadata is malformed": lambda: stream_of(WORDS)[:-4],
    "bytes behind its end": lambda: stream_of(WORDS) + stream_of(WORDS),
    "a schema, then batches": lambda: (stream := stream_of(WORDS))[: schema_size(stream)] * 2,
}


def schema_size(stream: bytearray) -> int:
    return 8 + int.from_bytes(stream[4:8], "little")


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason: str) -> None:
    with pytest.raises(ValueError, match=reason.strip()):
        check_stream(REFUSED[reason]())


def test_what_is_just_allowed() -> None:
    check_stream(stream_of(nested(31)))
    check_stream(stream_of(*[WORDS.slice(0, 1)] * 2000))
    check_stream(stream_of(pa.table({"n": pa.nulls(1_000_000)})))
    check_stream(stream_of(pa.table({"b": [True] * 3_000_000})))
    check_stream(stream_of(WORDS)[:-8])  # its end need not be marked
    check_stream(stream_of(pa.table({"u": pa.array([b"0" * 16], pa.uuid())})))


class Flatbuffer:
    """Tables one behind the other, each of offsets to what comes later."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def table(self, slots: int, **numbers: int) -> int:
        """A table of so many slots of 8 bytes, `s1=5`: the number in slot 1."""
        self.data += struct.pack(
            f"<{slots + 2}H", 4 + 2 * slots, 4 + 8 * slots, *(4 + 8 * slot for slot in range(slots))
        )
        at = len(self.data)
        self.data += struct.pack("<i", 4 + 2 * slots) + bytes(8 * slots)
        for name, number in numbers.items():
            struct.pack_into("<q", self.data, at + 4 + 8 * int(name[1:]), number)
        return at

    def point(self, place: int) -> None:
        """Let the offset at this place lead to what comes next."""
        struct.pack_into("<I", self.data, place, len(self.data) - place)

    def vector(self, items: bytes, count: int) -> int:
        self.data += struct.pack("<I", count) + items
        return len(self.data) - len(items)

    def message(self) -> bytes:
        data = self.data + bytes(-len(self.data) % 8)
        return b"\xff\xff\xff\xff" + struct.pack("<i", len(data)) + data


def slot(table: int, number: int) -> int:
    return table + 4 + 8 * number


def schema_of_one_column(times: int, name: bytes) -> Flatbuffer:
    """A schema that names the same column so many times."""
    made = Flatbuffer()
    root = made.table(4, s1=1)
    struct.pack_into("<I", made.data, 0, root)
    schema = made.table(3)
    struct.pack_into("<I", made.data, slot(root, 2), schema - slot(root, 2))
    made.point(slot(schema, 1))
    fields = made.vector(bytes(4 * times), times)
    field = made.table(7)
    for place in range(fields, fields + 4 * times, 4):
        struct.pack_into("<I", made.data, place, field - place)
    for table, slots, absent in ((field, 7, range(1, 7)), (schema, 3, (0, 2))):
        for number in absent:
            struct.pack_into("<H", made.data, table - 2 * slots + 2 * number, 0)
    made.point(slot(field, 0))
    made.vector(name, len(name))
    return made


def test_columns_that_share_a_long_name_are_not_copied_again_and_again() -> None:
    assert len(check_stream(schema_of_one_column(2, b"name").message())) == 2
    with pytest.raises(ValueError, match="of more than 65536 columns"):
        check_stream(schema_of_one_column(66_000, b"name").message())
    hostile = schema_of_one_column(50_000, bytes(4_000_000)).message()
    with pytest.raises(ValueError, match="used again and again"):  # else it would copy 200 GB
        check_stream(hostile)


@pytest.mark.parametrize("at", range(0, 200, 4))
def test_offsets_to_anywhere(at: int) -> None:
    stream = stream_of(WORDS)
    reasons = []
    for wrong in (-1, 1, 2**31 - 1, -(2**31), 16, -16, 4000):
        changed = bytearray(stream)
        struct.pack_into("<i", changed, at, wrong)
        try:
            check_stream(changed)
        except ValueError as error:
            reasons.append(str(error))
    assert all(reasons)
