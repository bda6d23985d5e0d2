"""Values whose payloads are attached to a message: what is attached, and that both ends have the same afterwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Limits
from rpcstream.codec import Codec, payloads
from rpcstream.codec.payloads import Attachment
from rpcstream.errors import InvalidRequest, MessageTooLarge, ParseError
from rpcstream.wire.binary_frame import ATTACHED_MAX, ATTACHED_MIN
from rpcstream.wire.buffers import AttachedMessage, MessageParts

from ..kit.example_count import example_count
from .values import read_frame

CODEC = Codec()


def there_and_back(value: Any) -> Any:
    """The value that the other end has, sent in a frame if it can be."""
    message = CODEC.serialize({"value": value}, binary=True)
    if isinstance(message, AttachedMessage):
        parsed, _ = read_frame(message)
    else:
        parsed, _ = CODEC.parse(bytes(message))
    return CODEC.decode(parsed["value"])


def attached(value: Any) -> int:
    """How many payloads of a value are attached."""
    message = CODEC.serialize({"value": value}, binary=True)
    return len(message.payloads) if isinstance(message, AttachedMessage) else 0


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 0), (ATTACHED_MIN - 1, 0), (ATTACHED_MIN, 1), (10**6, 1)])
def test_payloads_are_attached_from_a_size_on(size: int, count: int) -> None:
    assert attached(np.zeros(size, np.uint8)) == attached(b"x" * size) == attached(bytearray(size)) == count
    assert np.array_equal(there_and_back(np.ones(size, np.uint8)), np.ones(size, np.uint8))
    assert there_and_back(b"x" * size) == b"x" * size


def test_a_message_with_more_payloads_than_a_frame_may_have_is_text() -> None:
    values = [np.full(ATTACHED_MIN, number, np.uint8) for number in range(ATTACHED_MAX + 5)]
    assert attached(values[:ATTACHED_MAX]) == ATTACHED_MAX
    assert attached(values) == 0
    assert [int(each[7]) for each in there_and_back(values)] == list(range(ATTACHED_MAX + 5))


def test_as_text_it_is_what_is_sent_without_frames() -> None:
    value = {"a": [np.arange(3000.0), b"y" * 5000], "b": np.arange(10), "c": "é"}
    message = CODEC.serialize(value, binary=True)
    assert isinstance(message, AttachedMessage)
    plain = CODEC.serialize(value)
    assert bytes(message) == bytes(plain)
    assert isinstance(plain, bytes | MessageParts)


@pytest.mark.parametrize(
    "value",
    [
        *({"$bin": 0}, {"a": {"$bin": "x"}}, [{"$bin": 0, "x": 1}], '{"$bin":0}', "$bin", "a \x00 b", {'x"$bin': 1}),
        *(orjson.Fragment(b'{"\\u0024bin":0}'), [2**70, -(2**70)], 1e300),
    ],
)
def test_other_values_beside_an_array_stay_what_they_are(value: Any) -> None:
    sent = [value, np.arange(5000)]
    other, array = there_and_back(sent)
    assert other == ({"$bin": 0} if isinstance(value, orjson.Fragment) else value)
    assert np.array_equal(array, np.arange(5000))


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


def test_an_array_that_stands_in_a_message_twice() -> None:
    array = np.arange(5000)
    left, right = there_and_back([array, array])
    left[0] = 7
    assert right[0] == 0
    pair = there_and_back(Pair(array, {"deep": (array,)}))
    assert np.array_equal(pair["left"], pair["right"]["deep"][0])


DTYPES = ["?", "<i1", "<u2", ">i4", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16", "<M8[ns]", ">M8[D]", "<m8[s]"]


@given(dtype=st.sampled_from(DTYPES), layout=st.sampled_from(["C", "F", "strided", "backwards", "0-d", "large"]))
@settings(max_examples=example_count(60), deadline=None)
def test_arrays_arrive_as_they_are(dtype: str, layout: str) -> None:
    array = (np.arange(2 * 8 * 1200) % 2).astype(np.dtype(dtype).newbyteorder("=")).astype(dtype).reshape(16, -1)
    array = {
        "C": array,
        "F": np.asfortranarray(array),
        "strided": array[::3, 1::2],
        "backwards": array[::-1, ::-1],
        "0-d": np.array(array[0, 1], dtype),
        "large": np.tile(array, 10),
    }[layout]
    result = there_and_back(array)
    assert (result.dtype.str, result.shape) == (array.dtype.str, array.shape)
    assert result.tobytes() == array.tobytes()
    assert result.flags.writeable
    result[...] = result


def test_a_bool_array_of_other_bytes() -> None:
    array = np.full(5000, 2, np.uint8)
    with pytest.raises(ValueError, match="bytes other than 0 and 1"):
        there_and_back(array.view(np.bool_))


def test_received_arrays_own_memory_that_nothing_else_uses() -> None:
    message = CODEC.serialize({"value": np.arange(5000)}, binary=True)
    parsed, line = read_frame(message)
    (attachment,) = line.attachments
    first, second = (np.asarray(CODEC.decode(parsed["value"])) for _ in range(2))
    assert np.shares_memory(first, attachment.memory)
    assert not np.shares_memory(first, second)
    assert first.flags.writeable
    assert second.flags.writeable


def refusal_of(json: bytes, sizes: tuple[int, ...] = (5000,), limits: Limits | None = None) -> Any:
    return payloads.read_frame(json, sizes, limits, "server").refusal


@pytest.mark.parametrize(
    "value",
    [
        *(b'{"$bin":1}', b'{"$bin":-1}', b'{"$bin":true}', b'{"$bin":0.0}', b'{"$bin":"0"}', b'{"$bin":null}'),
        *(b'{"$bin":[0]}', b'{"$bin":{"$bin":0}}', b'{"$bin":18446744073709551616}', b'[{"$bin":0},{"$bin":0}]'),
        *(b'{"$bin":0,"$bin":0}', b'{"a":{"$bin":0},"a":{"$bin":0}}', b'{"a":{"$bin":0},"a":1}'),
        *(b'{"$bin":0,"x":1}', b'"{\\"$bin\\":0}"', b'{"$bin ":0}', b"1", b"[" * 1000 + b'{"$bin":0}' + b"]" * 1000),
    ],
)
def test_each_payload_stands_in_exactly_one_place(value: bytes) -> None:
    assert isinstance(refusal_of(b'{"x":%b}\n' % value), InvalidRequest)


@pytest.mark.parametrize(
    ("json", "error"),
    [
        (b"[]\n", InvalidRequest),
        (b'[{"x":{"$bin":0}}]\n', InvalidRequest),
        (b'"x"\n', InvalidRequest),
        (b"null\n", InvalidRequest),
        (b'{"x":{"$bin":0}\n', ParseError),
        (b'{"x":{"$bin":0}}{}\n', ParseError),
        (b"\xff\n", ParseError),
        (b'{"x":NaN,"y":{"$bin":0}}\n', ParseError),
        (b"[" * 2000 + b"]" * 2000 + b"\n", ParseError),
        (b'{"x":{"$bin":0},"y":[' + b"0," * 10_000 + b"0]}\n", MessageTooLarge),
    ],
)
def test_json_that_is_no_message(json: bytes, error: type[Exception]) -> None:
    assert isinstance(refusal_of(json, limits=Limits(max_values=10_000)), error)


def test_integers_beside_an_array_are_exact() -> None:
    message = CODEC.serialize({"n": 2**70, "a": np.arange(5000)})
    assert b"%d" % 2**70 in bytes(message)
    json = b'{"n":%d,"a":{"$type":"bytes","data":{"$bin":0}}}\n' % 2**70
    frame = payloads.read_frame(json, (3,), None, "server")
    assert frame.refusal is None
    _, line = frame.content
    exact = payloads.parse_exactly(line)
    assert exact["n"] == 2**70
    assert exact["a"]["data"] is line.attachments[0]
    assert isinstance(line.attachments[0], Attachment)
