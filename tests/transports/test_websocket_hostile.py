"""WebSocket peers that break the rules, send too much, do not read, fall silent or vanish: only they are closed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket as sockets
import struct
import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.testing import FakeTimeLoop
from rpcstream.wire.envelope import HEAD_SIZE, Oversize
from rpcstream.wire.frames import Close as CloseFrame
from rpcstream.wire.frames import FrameReader

from ..kit import reply, request, until
from ..kit.certificates import client_side, server_tls
from ..kit.example_count import example_count
from ..kit.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    fragments,
    frame,
    frame_head,
)
from .conftest import Serve, Served, in_steps

LIMIT = 10_000

#: A frame of a message that goes on.
fragment = partial(frame, final=False)

#: The most that a frame can say that it has.
LONGEST = (1 << 63) - 1


BROKEN: list[tuple[bytes, int, str]] = [
    (frame(TEXT, b"{}", masked=False), 1002, "not masked"),
    (frame(TEXT, b"x" * 70_000, masked=False), 1002, "not masked"),
    (frame(TEXT, b"", first=0xC1), 1002, "reserved"),
    (frame(TEXT, b"", first=0x99), 1002, "reserved"),
    (frame(TEXT, b"", first=0x83), 1002, "opcode 0x3"),
    (frame(TEXT, b"", first=0x8B), 1002, "opcode 0xb"),
    (frame(TEXT, b"", first=0x09), 1002, "control frame"),
    (frame(PING, b"x" * 126), 1002, "control frame"),
    (frame(CLOSE, b"\x03\xe8" + b"x" * 124), 1002, "control frame"),
    (frame_head(PONG, 1 << 40), 1002, "control frame"),
    (frame(CONTINUATION, b"{}"), 1002, "continues no message"),
    (fragment(TEXT, b"{") + frame(TEXT, b"{}"), 1002, "inside another"),
    (frame(TEXT, b'"\xff"'), 1007, "UTF-8"),
    (frame(TEXT, b'"\xe2\x82'), 1007, "UTF-8"),
    (frame(TEXT, b'"\xed\xa0\x80"'), 1007, "UTF-8"),
    (fragments(TEXT, b'"\xff', b'"'), 1007, "UTF-8"),
    (fragments(TEXT, b'"\xe2', b"\x82"), 1007, "UTF-8"),
    (frame_head(BINARY, 1 << 63), 1002, "2**63 bytes or more"),
    (frame_head(BINARY, (1 << 64) - 1), 1002, "2**63 bytes or more"),
    (frame(CLOSE, b"\x03"), 1002, "too short"),
    *[
        (frame(CLOSE, struct.pack("!H", code)), 1002, "invalid status code")
        for code in (0, 999, 1004, 1005, 1006, 1015, 1100, 2999, 5000, 65535)
    ],
    (frame(CLOSE, b"\x03\xe8\xff"), 1007, "UTF-8"),
]


async def test_the_peer_is_told_which_rule_it_broke(serve: Serve) -> None:
    """What came before, even with the same read, is answered; what comes after is not."""
    served = await serve(max_message_size=LIMIT)
    other = await served.websocket()
    for data, code, text in BROKEN:
        raw = await served.websocket()
        raw.call("wait", id=2)
        await until(lambda: served.server.begun)
        raw.send(request("rpc.ping", id=3), data, request("rpc.ping", id=4))
        close = await raw.closed()
        assert close is not None
        assert (close.code, text in close.reason) == (code, True), data[:20]
        assert [each["id"] for each in await raw.rest()] == ([3] if code == 1002 else [3, None])
        await until(lambda: served.server.ended == [(None, "CancelledError")])
        served.server.begun.clear()
        served.server.ended.clear()
    assert await other.result("rpc.ping") == "pong"
    assert served.server.stats()["closed_for_limits"] == 0


@pytest.mark.parametrize("size", [1, 3])
def test_the_same_however_it_is_cut(size: int) -> None:
    for data, code, text in BROKEN:
        reader = FrameReader(masked=True, max_size=LIMIT)
        for at in range(0, len(data), size):
            assert reader.feed(data[at : at + size]) == []
            assert not reader.pings
        assert reader.fault is not None
        assert (reader.fault.code, text in reader.fault.reason) == (code, True), data[:20]
        assert reader.feed(frame(TEXT, b"1")) == []


def test_a_server_that_masks_loses_the_client() -> None:
    reader = FrameReader(masked=False, max_size=1000)
    assert reader.feed(frame(TEXT, b"1")) == []
    assert reader.fault is not None
    assert reader.fault.code == 1002


def test_a_reason_that_is_too_long_for_its_frame() -> None:
    payload = CloseFrame(1013, "ä" * 100).payload
    assert len(payload) <= 125
    assert payload[2:].decode() == "ä" * 61


def sized(size: int, id: Any = 7) -> bytes:
    """A request of so many bytes, which begins with its id."""
    start = orjson.dumps({"jsonrpc": "2.0", "id": id, "method": "echo"})[:-1] + b',"params":["'
    return start + b"x" * (size - len(start) - 3) + b'"]}'


def too_long(size: int, id: Any = 7) -> dict[str, Any]:
    """The answer to it: the very same that the line stream gives."""
    message = f"Message too large: {size} bytes or more, the server's limit is {LIMIT} bytes (max_message_size)"
    data = {"size": size, "limit": LIMIT, "side": "server"}
    return {"jsonrpc": "2.0", "id": id, "error": {"code": -32001, "message": message, "data": data}}


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (frame(TEXT, sized(LIMIT)), None),
        (fragments(TEXT, sized(LIMIT)[:9999], sized(LIMIT)[9999:]), None),
        (frame(TEXT, sized(LIMIT) + b" "), too_long(LIMIT + 1)),
        *[(frame(opcode, sized(size)), too_long(size)) for opcode in (TEXT, BINARY) for size in (70_000, 3_000_000)],
        (frame(TEXT, sized(LIMIT) + b"\xff"), too_long(LIMIT + 1)),  # what is skipped need not be UTF-8
        (fragments(TEXT, sized(LIMIT) + b"\xe2", b"\xff"), too_long(LIMIT + 1)),
        (frame(TEXT, b" " * 20_000), too_long(20_000, id=None)),
        (frame(TEXT, b"x" * 20_000), too_long(20_000, id=None)),
    ],
)
async def test_a_message_over_the_limit_is_answered_in_its_place(serve: Serve, sent: bytes, answer: Any) -> None:
    served = await serve(max_message_size=LIMIT)
    raw = await served.websocket()
    raw.call("echo", 1, id=1)
    raw.send(sent)
    raw.call("echo", 2, id=2)
    first, found, last = [await raw.reply() for _ in range(3)]
    assert (first, last) == (reply(1, 1), reply(2, 2))
    if "error" in found:
        assert found == answer
    else:
        assert (found["id"], len(found["result"]) > 9000, answer) == (7, True, None)
    # What follows is checked again.
    raw.send(frame(TEXT, b'"\xff"'))
    close = await raw.closed()
    assert close is not None
    assert close.code == 1007


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (frame(TEXT, b"{}"), 1002, "inside another"),
        (frame_head(BINARY, LONGEST), 1002, "inside another"),
        (fragment(PING, b""), 1002, "control frame"),
        (frame(CONTINUATION, b"", masked=False), 1002, "not masked"),
        (frame(TEXT, b"", first=0xC0), 1002, "reserved"),
        (frame_head(CONTINUATION, 1 << 63), 1002, "2**63 bytes or more"),
        (fragment(CONTINUATION, b"", final=True) * 2, 1002, "continues no message"),
    ],
)
def test_the_rules_hold_in_a_message_that_is_skipped(data: bytes, code: int, text: str) -> None:
    reader = FrameReader(masked=True, max_size=LIMIT)
    assert reader.feed(fragment(TEXT, sized(20_000))) == [Oversize(20_000, sized(20_000)[:HEAD_SIZE])]
    assert reader.feed(data) == []
    assert reader.fault is not None
    assert (reader.fault.code, text in reader.fault.reason) == (code, True)


@pytest.mark.parametrize("begun", [10, 9_000])
async def test_those_over_the_limit_are_refused_while_calls_run(serve: Serve, begun: int) -> None:
    """In their order; fragments may say together more than the longest frame can."""
    served = await serve(max_message_size=LIMIT, max_calls=1)
    raw = await served.websocket()
    raw.call("wait", id=1)
    for number in range(40):
        raw.send(frame(TEXT, sized(100_000, id=number)))
    whole = sized(20_000)
    raw.send(fragment(TEXT, whole[:begun]) + frame_head(CONTINUATION, LONGEST) + whole[begun:])
    assert [await raw.reply() for _ in range(40)] == [too_long(100_000, id=number) for number in range(40)]
    last = await raw.reply()
    assert (last["id"], last["error"]["data"]["size"]) == (7, LONGEST + begun)
    served.server.release()
    assert (await raw.reply())["id"] == 1


@given(st.data())
@settings(max_examples=example_count(200), deadline=None)
def test_messages_of_any_size_however_they_are_cut(data: st.DataObject) -> None:
    """The reader against a list of what was said: each message whole, or once as too long, with its beginning."""
    masked, limit = data.draw(st.booleans()), data.draw(st.sampled_from([1, 100, 1000]))
    stream, wanted, pings = b"", [], []
    for number, size in enumerate(data.draw(st.lists(st.integers(0, 1500), max_size=5))):
        payload = (f"ä{number}🌻" * size).encode()[: size + 20].decode(errors="ignore").encode()
        marks = [0, *sorted(data.draw(st.lists(st.integers(0, len(payload)), max_size=4))), len(payload)]
        said = None
        for at, (begin, end) in enumerate(itertools.pairwise(marks)):
            is_last = at == len(marks) - 2
            kind = CONTINUATION if at else data.draw(st.sampled_from([TEXT, BINARY]))
            stream += fragment(kind, payload[begin:end], final=is_last, masked=masked)
            if said is None and end > limit:
                said = Oversize(end, payload[:end][:HEAD_SIZE])
            if not is_last:
                pings.append(b"%d" % len(pings))
                stream += frame(PING, pings[-1], masked=masked)
        wanted.append(payload if said is None else said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader(masked=masked, max_size=limit)
    came, seen = [], []
    for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        came += reader.feed(stream[a:b])
        seen += reader.pings
    assert (came, seen) == (wanted, pings)
    assert reader.fault is None
    assert not reader.partial


def stop_reading(raw: RawWebSocket) -> None:
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]


async def test_a_flood_of_pings_from_a_peer_that_does_not_read(serve: Serve) -> None:
    """Only the last ping is answered when it reads again; nothing is kept of the others."""
    served = await serve(write_buffer=64 * 1024)
    raw = await served.websocket()
    stop_reading(raw)
    raw.call("fill", 8_000_000)  # more than the system keeps for it
    await until(lambda: served.connections[0].unread_size)
    for _ in range(20):
        raw.send(b"".join(frame(PING, b"%5d" % number + b"x" * 120) for number in range(2000)))
        await raw.writer.drain()
    raw.send(frame(PING, b"last"))
    await served.has_read_all()
    assert served.connections[0].unread_size < 8_100_000
    raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len((await raw.reply())["result"]) == 8_000_000
    assert await raw.pong() == b"last"
    raw.send(frame(PING, b"next"))
    assert await raw.pong() == b"next"


async def test_pings_alone_fill_no_more_than_the_buffer(serve: Serve) -> None:
    """A peer that only pings and never reads. A read that began with room may bring the answers to all of it."""
    served = await serve(write_buffer=64 * 1024)
    raw = await served.websocket()
    stop_reading(raw)
    flood = frame(PING, b"x" * 125) * 2000
    largest = 0
    for _ in range(400):
        raw.send(flood)
        await raw.writer.drain()
        largest = max(largest, served.connections[0].unread_size)
        if largest > 64 * 1024:
            break
    assert 64 * 1024 < largest <= 64 * 1024 + 512 * 1024


@contextlib.contextmanager
def memory_growth(most: int) -> Iterator[None]:
    """Python's memory grows by less than this many bytes in the block."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        assert tracemalloc.get_traced_memory()[0] - before < most
    finally:
        tracemalloc.stop()


def test_what_keeps_no_memory() -> None:
    """Empty fragments, lengths that are only said, and whatever is skipped; and single bytes take no more."""
    reader = FrameReader(masked=True, max_size=LIMIT)
    reader.feed(fragment(TEXT, b'"'))
    flood = fragment(CONTINUATION, b"") * 500
    with memory_growth(10_000):
        for _ in range(8):
            assert reader.feed(flood) == []
    assert reader.partial
    assert reader.feed(fragment(CONTINUATION, b'"', final=True)) == [b'""']
    reader = FrameReader(masked=True, max_size=4_000)
    reader.feed(fragment(TEXT, b""))
    flood = fragment(CONTINUATION, b"x") * 500
    with memory_growth(10_000):
        for _ in range(8):
            assert reader.feed(flood) == []
    assert reader.feed(fragment(CONTINUATION, b"x")) == [Oversize(4_001, b"x" * HEAD_SIZE)]
    flood = fragment(CONTINUATION, b"x") * 200 + fragment(CONTINUATION, bytes(70_000))
    with memory_growth(5_000):
        for _ in range(10):
            assert reader.feed(flood) == []
    assert reader.feed(fragment(CONTINUATION, b"", final=True) + frame(TEXT, b"1")) == [b"1"]
    with memory_growth(10_000):
        reader.feed(frame_head(TEXT, 4_000))
    reader, piece = FrameReader(masked=True, max_size=LIMIT), bytes(1 << 16)
    assert reader.feed(frame_head(TEXT, LONGEST) + piece) == [Oversize(LONGEST, bytes(HEAD_SIZE))]
    with memory_growth(5_000):
        for _ in range(200):
            assert reader.feed(piece) == []
    assert reader.partial


async def test_one_that_does_not_read_its_replies_is_closed(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve(write_buffer=64 * 1024, write_timeout=0.1, max_calls=4)
    raw = await served.websocket()
    stop_reading(raw)
    with contextlib.suppress(ConnectionError):
        while served.connections:
            raw.call("fill", 100_000)
            await asyncio.sleep(0)
            await asyncio.wait_for(raw.writer.drain(), 20)
    await until(lambda: served.server.stats()["closed_for_limits"] == 1)
    assert "write_timeout" in caplog.text


@pytest.mark.parametrize(
    "begun",
    [
        frame(TEXT, b'"' + b"x" * 500)[:100],
        fragment(TEXT, b'"'),
        frame_head(TEXT, LONGEST),
    ],
    ids=["a frame", "a fragment", "the longest"],
)
async def test_a_message_that_does_not_end(serve: Serve, begun: bytes, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve(message_timeout=0.05)
    raw = await served.websocket()
    raw.send(begun)
    assert await raw.closed() is None
    assert "message_timeout" in caplog.text
    assert served.server.stats()["closed_for_limits"] == 1


def test_silence_and_that_pings_break_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: FakeTimeLoop, served: Served) -> None:
        raw, silent = await served.websocket(), await served.websocket()
        ended = asyncio.ensure_future(silent.closed())
        for number in range(4):
            raw.send(frame(PING, b"%d" % number))
            assert await raw.pong() == b"%d" % number
            assert not ended.done()
            loop.jump(4)
        await ended
        assert await raw.result("rpc.ping") == "pong"
        assert caplog.text.count("idle_timeout") == 1

    in_steps(main, idle_timeout=15)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("how", ["reset", "abort", "end", "goodbye", "empty goodbye", "within a message", "fault"])
def test_whoever_is_gone_has_its_handlers_cancelled(how: str, tls: bool) -> None:
    said = {
        "goodbye": (frame(CLOSE, b"\x0b\xb8"), 3000),
        "empty goodbye": (frame(CLOSE, b""), 1005),
        "within a message": (fragment(TEXT, b'"') + frame(CLOSE, b"\x0b\xb8"), 3000),
        "fault": (frame(TEXT, b"", first=0x8F), 1002),
    }

    async def main(loop: FakeTimeLoop, served: Served) -> None:
        raw = await served.websocket(tls=client_side() if tls else None)
        for number in range(5):  # two wait behind the others
            raw.call("wait", number, id=number)
        await until(lambda: len(served.server.begun) == 3)
        if how in said:
            raw.send(said[how][0])
            await served.has_read_all(tls=client_side() if tls else None)
            loop.jump(1.1)  # so long may those take that wait
            assert (await raw.close_frame()).code == said[how][1]
        elif how == "end":
            raw.writer.close()
        else:
            if how == "reset":
                own: sockets.socket = raw.writer.get_extra_info("socket")
                own.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
            raw.abort()
        await until(lambda: len(served.server.ended) == 3)
        assert {how for _, how in served.server.ended} == {"CancelledError"}

    in_steps(main, max_calls=3, **({"tls": server_tls()} if tls else {}))


@pytest.mark.parametrize("then", ["nothing", "a fault", "calls"])
def test_one_that_does_not_end_is_left(then: str) -> None:
    """After the server's goodbye, or its own fault; what it says meanwhile is not heard."""

    async def main(loop: FakeTimeLoop, served: Served) -> None:
        raw = await served.websocket()
        assert await raw.result("rpc.ping") == "pong"
        if then == "nothing":
            served.server.stop()
            assert (await raw.close_frame()).code == 1001
        else:
            raw.send(frame(TEXT, b"", first=0x8F))
            assert (await raw.close_frame()).code == 1002
        if then != "a fault":
            raw.call("wait")
            raw.send(frame(PING, b""))
        for _ in range(20):
            await asyncio.sleep(0)
        assert served.server.stats()["connections"] == 1
        while served.server.stats()["connections"]:
            loop.jump(1)
            await asyncio.sleep(0)
        assert not served.server.begun

    in_steps(main)
