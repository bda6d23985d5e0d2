"""Payloads cut out of long messages, or attached to frames: both ends have the same values afterwards."""

from __future__ import annotations

import base64
import gc
import json
import weakref
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.codec import payloads
from rpcstream.codec.attachments import whole
from rpcstream.errors import InvalidRequest
from rpcstream.wire.binary_frame import ATTACHED_MAX, ATTACHED_MIN
from rpcstream.wire.buffers import AttachedMessage

from ..kit.example_count import example_count
from .values import CODEC, read_frame

LONG = "QUJD" * 10_000


def tagged(data: Any = LONG, **others: Any) -> dict[str, Any]:
    return {"$type": "bytes", "data": data, **others}


def plain(line: bytes) -> Any:
    """What came out, with strings for payloads."""
    return payloads.with_strings(payloads.parse(line)[0])


def test_a_payload_is_cut_out() -> None:
    message, line = payloads.parse(json.dumps({"id": 1, "params": [tagged(), "short"]}).encode())
    assert len(line) < 200
    assert CODEC.decode(message["params"]) == [base64.b64decode(LONG), "short"]


@pytest.mark.parametrize(
    "message",
    [
        *({"params": [LONG]}, {"params": {"data": LONG}}, {"params": {"$type": "own", "data": LONG}}),
        *({"params": {"$type": ["bytes"], "data": LONG}}, {"params": {"$type": "bytes", "date": LONG}}),
        {"params": ["ä" * 40_000, "\\" * 40_000, '"' * 20, "a\\", LONG]},
        *({LONG: 1}, {"a": {LONG: LONG}}, ["\x000", LONG], ["\x000", "\x001", LONG, LONG]),
        ["\x007", "\x00", "\x00" + "1" * 5000, "\x00x", "\x00²", LONG],
        *({"x": ["\x000"], "data": LONG, "$type": "bytes"}, [str(number) for number in range(5000)] + [LONG]),
    ],
    ids=range(13),
)
def test_what_could_be_mistaken_is_read_as_it_is(message: Any) -> None:
    for line in (json.dumps(message).encode(), orjson.dumps(message)):
        assert plain(line) == message


def test_what_is_not_json_is_refused() -> None:
    long = LONG.encode()
    for line in (
        *(b'{"a":"%b%b' % (long, end) for end in (b"", b'\x01"}', b'\xff"}', b'\\x"}', b'" "b"}')),
        *(b'"' * 100_000, b"\\" * 100_000, b'{"a":"' + b"\\" * 200_001 + b'"}', b'{"a":"' + b'\\"' * 200_000),
    ):
        with pytest.raises(orjson.JSONDecodeError):
            payloads.parse(line)


texts = st.one_of(
    # Long ones stand for numbers here, so that what fails can be printed.
    st.sampled_from(["<0>", "<1>", "<2>", "\x000", "\x001", "\\", '"', "$type", "data", "bytes"]),
    st.text(max_size=5),
)
values = st.recursive(
    texts | st.integers(-5, 5) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.sampled_from(["$type", "data"]), inner, max_size=4)
        | inner.map(lambda data: tagged(data))
    ),
    max_leaves=12,
)
besides = st.lists(st.sampled_from([b"\n", b"\\", b"\x1f", b"\xff", b"\xc3\xa9", b"\\u00e9", b"\x7f"]), max_size=2)


@settings(max_examples=example_count(250), deadline=None)
@given(values, st.booleans(), besides)
def test_nothing_else_is_different(value: Any, escaped: bool, beside: list[bytes]) -> None:
    """Whatever the long strings are. An outline is made only of what is JSON throughout."""
    line = json.dumps(value).encode() if escaped else orjson.dumps(value)
    for number, long in enumerate((LONG.encode(), LONG[:-1].encode() + b"=", b"a b" * 12_000 + b"".join(beside))):
        line = line.replace(b"<%d>" % number, long)
    try:
        same = orjson.loads(line)
    except orjson.JSONDecodeError:
        same = orjson.JSONDecodeError
    else:
        assert plain(line) == same
    try:
        found = payloads.outline(line)
    except orjson.JSONDecodeError:
        assert same is orjson.JSONDecodeError
        return
    if found is not None:
        message, cut = found
        assert bytes(whole(bytes(cut), cut)) == line
        assert payloads.with_strings(message) == same


def test_the_calls_of_a_batch_have_their_own_payloads() -> None:
    parts: list[Any] = [{"id": 1, "x": "a" * 10_000}, ["b" * 10_000, 2], tagged(), {"n": 5, "text": "c" * 10_000}]
    members = payloads.members(payloads.parse(json.dumps(parts).encode())[1])
    assert list(map(plain, [bytes(whole(bytes(part), part)) for part in members])) == parts


def there_and_back(value: Any) -> Any:
    """The value that the other end has, sent in a frame if it can be."""
    message = CODEC.serialize({"value": value}, binary=True)
    parsed, _ = read_frame(message) if isinstance(message, AttachedMessage) else payloads.parse(bytes(message))
    return CODEC.decode(parsed["value"])


def attached(value: Any) -> int:
    """How many payloads of a value are attached."""
    message = CODEC.serialize({"value": value}, binary=True)
    return len(message.payloads) if isinstance(message, AttachedMessage) else 0


def test_payloads_are_attached_from_a_size_on() -> None:
    for size, count in ((0, 0), (1, 0), (ATTACHED_MIN - 1, 0), (ATTACHED_MIN, 1), (10**6, 1)):
        assert attached(np.zeros(size, np.uint8)) == attached(b"x" * size) == attached(bytearray(size)) == count
        assert np.array_equal(there_and_back(np.ones(size, np.uint8)), np.ones(size, np.uint8))
        assert there_and_back(b"x" * size) == b"x" * size


def test_a_message_with_more_payloads_than_a_frame_may_have_is_text() -> None:
    numbers = [np.full(ATTACHED_MIN, number, np.uint8) for number in range(ATTACHED_MAX + 5)]
    assert attached(numbers[:ATTACHED_MAX]) == ATTACHED_MAX
    assert attached(numbers) == 0
    assert [int(each[7]) for each in there_and_back(numbers)] == list(range(ATTACHED_MAX + 5))


def test_as_text_it_is_what_is_sent_without_frames() -> None:
    value = {"a": [np.arange(3000.0), b"y" * 5000], "b": np.arange(10), "c": "é"}
    assert bytes(CODEC.serialize(value, binary=True)) == bytes(CODEC.serialize(value))


def test_other_values_beside_an_array_stay_what_they_are() -> None:
    for value in (
        *({"$bin": 0}, {"a": {"$bin": "x"}}, [{"$bin": 0, "x": 1}], '{"$bin":0}', "$bin", "a \x00 b", {'x"$bin': 1}),
        *(orjson.Fragment(b'{"\\u0024bin":0}'), [2**70, -(2**70)], 1e300),
    ):
        other, array = there_and_back([value, np.arange(5000)])
        assert other == ({"$bin": 0} if isinstance(value, orjson.Fragment) else value)
        assert np.array_equal(array, np.arange(5000))


def test_an_array_that_stands_in_a_message_twice() -> None:
    array = np.arange(5000)
    found = there_and_back({"left": array, "right": {"deep": (array,)}})
    found["left"][0] = 7
    assert found["right"]["deep"][0][0] == 0


def test_received_arrays_own_memory_that_nothing_else_uses() -> None:
    parsed, line = read_frame(CODEC.serialize({"value": np.arange(5000)}, binary=True))
    first, second = (np.asarray(CODEC.decode(parsed["value"])) for _ in range(2))
    assert np.shares_memory(first, line.payloads[0].memory)  # it is not copied
    assert not np.shares_memory(first, second)
    assert first.flags.writeable
    assert second.flags.writeable


def test_the_memory_of_a_frame_is_free_as_soon_as_its_message_is() -> None:
    text = b'{"jsonrpc":"2.0","id":1,"result":[{"$type":"bytes","data":{"$bin":0}}]}\n'
    gc.disable()
    try:
        frame = payloads.read_frame(text, (100_000,), None, "client")
        frame.content[1].take_memory()
        memory = weakref.ref(frame.content[1].payloads[0].memory)
        del frame
        assert memory() is None  # without the garbage collector
    finally:
        gc.enable()


def test_each_payload_stands_in_exactly_one_place() -> None:
    for value in (
        *(b'{"$bin":18446744073709551616}', b'{"a":{"$bin":0},"a":{"$bin":0}}', b'{"a":{"$bin":0},"a":1}', b"1"),
        *(b'{"$bin ":0}', b'{"$bin":{"$bin":0}}', b"[" * 1000 + b'{"$bin":0}' + b"]" * 1000),
    ):
        refusal = payloads.read_frame(b'{"x":%b}\n' % value, (5000,), None, "server").refusal
        assert isinstance(refusal, InvalidRequest), value


def test_integers_beside_a_payload_are_exact() -> None:
    line = b'{"params":[%d,{"$type":"bytes","data":"%b"}]}' % (2**70, LONG.encode())
    assert payloads.with_strings(payloads.parse_exactly(payloads.parse(line)[1])) == {"params": [2**70, tagged()]}
    json = b'{"n":%d,"a":{"$type":"bytes","data":{"$bin":0}}}\n' % 2**70
    frame = payloads.read_frame(json, (3,), None, "server")
    assert frame.refusal is None
    exact = payloads.parse_exactly(frame.content[1])
    assert (exact["n"], exact["a"]["data"]) == (2**70, frame.content[1].payloads[0])
