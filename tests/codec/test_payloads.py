"""Long messages whose payloads are cut out before the rest is parsed: the values are the same."""

from __future__ import annotations

import base64
import gc
import json
import weakref
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Codec
from rpcstream.codec import payloads
from rpcstream.codec.payloads import CutLine, Payload

from ..kit.example_count import example_count

LONG = "QUJD" * 10_000


def tagged(data: str = LONG, **others: Any) -> dict[str, Any]:
    return {"$type": "bytes", "data": data, **others}


def read(message: Any) -> tuple[Any, bytes | bytearray]:
    return payloads.parse(json.dumps(message).encode())


def plain(line: bytes) -> Any:
    """What came out, with strings for payloads."""
    return payloads.with_strings(payloads.parse(line)[0])


def test_a_payload_is_cut_out() -> None:
    message, line = read({"id": 1, "params": [tagged(), "short"]})
    assert isinstance(line, CutLine)
    assert len(line) < 200
    payload = message["params"][0]["data"]
    assert isinstance(payload, Payload)
    assert bytes(payload.text).decode() == LONG
    assert message["params"][1] == "short"
    assert Codec().decode(message["params"]) == [base64.b64decode(LONG), "short"]


@pytest.mark.parametrize(
    "message",
    [
        *({"params": [LONG]}, {"params": {"data": LONG}}, {"params": {"$type": "own", "data": LONG}}),
        *({"params": {"$type": ["bytes"], "data": LONG}}, {"params": {"$type": "bytes", "date": LONG}}),
        {"params": ["ä" * 40_000, "\\" * 40_000, '"' * 20, "a\\", LONG]},
    ],
    ids=["alone", "untagged", "own tag", "no tag", "other member", "escapes"],
)
def test_other_long_strings_are_strings(message: Any) -> None:
    for line in (json.dumps(message).encode(), orjson.dumps(message)):
        assert payloads.parse(line)[0] == message


@pytest.mark.parametrize(
    "message",
    [
        *({LONG: 1}, {"a": {LONG: LONG}}, ["\x000", LONG], ["\x000", "\x001", LONG, LONG]),
        ["\x007", "\x00", "\x00" + "1" * 5000, "\x00x", "\x00²", LONG],
        *({"x": ["\x000"], "data": LONG, "$type": "bytes"}, [str(number) for number in range(5000)] + [LONG]),
        [list(range(100_000)), LONG],
    ],
    ids=["key", "keys", "placeholder", "placeholders", "nearly", "payload", "many", "wide"],
)
def test_what_could_be_mistaken_is_read_as_it_is(message: Any) -> None:
    assert plain(json.dumps(message).encode()) == message


def test_a_member_that_comes_twice_counts_as_the_parser_says() -> None:
    line = b'{"$type":"bytes","data":"%b","data":"QUJD"}' % LONG.encode()
    assert payloads.parse(line)[0] == {"$type": "bytes", "data": "QUJD"}


def test_deep_and_long_is_read_as_it_is() -> None:
    line = b"[" * 1000 + b'"' + LONG.encode() + b'"' + b"]" * 1000
    value = payloads.parse(line)[0]
    for _ in range(1000):
        (value,) = value
    assert value == LONG


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"a":"%b' % LONG.encode(), b'{"a":"%b\x01"}' % LONG.encode(), b'{"a":"%b\xff"}' % LONG.encode()),
        *(b'{"a":"%b\\x"}' % LONG.encode(), b'{"a":"%b" "b"}' % LONG.encode(), b'"' * 100_000, b"\\" * 100_000),
        *(b'{"a":"' + b"\\" * 200_001 + b'"}', b'{"a":"' + b'\\"' * 200_000),
    ],
)
def test_what_is_not_json_is_refused(line: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        payloads.parse(line)


def test_exact_integers_beside_a_payload() -> None:
    line = b'{"params":[%d,{"$type":"bytes","data":"%b"}]}' % (2**70, LONG.encode())
    message, cut = payloads.parse(line)
    assert message["params"][0] == float(2**70)
    assert payloads.with_strings(payloads.parse_exactly(cut)) == {"params": [2**70, tagged()]}


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
        | inner.map(lambda data: {"$type": "bytes", "data": data})
    ),
    max_leaves=12,
)


@settings(max_examples=example_count(150), deadline=None)
@given(values, st.booleans())
def test_nothing_else_is_different(value: Any, escaped: bool) -> None:
    line = json.dumps(value).encode() if escaped else orjson.dumps(value)
    for number, long in enumerate((LONG, LONG[:-1] + "=", "a b" * 12_000)):
        line = line.replace(b"<%d>" % number, long.encode())
    assert plain(line) == orjson.loads(line)


besides = st.lists(st.sampled_from([b"\n", b"\\", b"\x1f", b"\xff", b"\xc3\xa9", b"\\u00e9", b"\x7f"]), max_size=2)


@settings(max_examples=example_count(150), deadline=None)
@given(values, st.booleans(), besides)
def test_an_outline_is_the_same_undecoded(value: Any, escaped: bool, beside: list[bytes]) -> None:
    """Whatever the long strings are; those that are none are found when they are looked at."""
    line = json.dumps(value).encode() if escaped else orjson.dumps(value)
    longs = (LONG.encode(), LONG[:-1].encode() + b"=", b"a b" * 12_000 + b"".join(beside))
    for number, long in enumerate(longs):
        line = line.replace(b"<%d>" % number, long)
    try:
        same = orjson.loads(line)
    except orjson.JSONDecodeError:
        same = orjson.JSONDecodeError
    try:
        found = payloads.outline(line)
    except orjson.JSONDecodeError:
        assert same is orjson.JSONDecodeError
        return
    if found is not None:
        message, cut = found
        assert payloads.is_json(cut) is (same is not orjson.JSONDecodeError)
        assert bytes(payloads.whole(bytes(cut), cut)) == line
        if payloads.is_json(cut):
            assert payloads.with_strings(message) == same
            assert not any(len(text) > 10_000 for text in strings_of(message))


def strings_of(value: Any) -> list[str]:
    """Those among the values; the name of a member may be long."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in strings_of(each)]
    if isinstance(value, list):
        return [text for each in value for text in strings_of(each)]
    return [value] if isinstance(value, str) else []


def test_the_memory_of_a_frame_is_free_as_soon_as_its_message_is() -> None:
    text = b'{"jsonrpc":"2.0","id":1,"result":[{"$type":"bytes","data":{"$bin":0}}]}\n'
    gc.collect()
    gc.disable()
    try:
        frame = payloads.read_frame(text, (100_000,), None, "client")
        (view,) = frame.content[1].take_memory()
        memory = weakref.ref(frame.content[1].attachments[0].memory)
        assert len(view) == 100_000
        del frame, view
        assert memory() is None  # without the garbage collector
    finally:
        gc.enable()


def test_parts_of_an_array_have_their_own_strings() -> None:
    parts: list[Any] = [{"id": 1, "x": "a" * 10_000}, ["b" * 10_000, 2], tagged(), {"n": 5, "text": "c" * 10_000}]
    message, line = read(parts)
    assert isinstance(line, CutLine)
    members = payloads.members(line)
    assert [orjson.loads(bytes(payloads.whole(bytes(part), part))) for part in members] == parts
    assert all(map(payloads.is_json, members))
    assert len(message) == 4
