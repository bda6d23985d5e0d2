"""WebSocket messages over the size limit, in one frame or in many: skipped, answered once, and not kept."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import AsyncClient, Limits, MessageTooLarge, Server
from rpcstream.wire.frames import BINARY, PING, TEXT, FrameReader, frame
from rpcstream.wire.messages import HEAD_SIZE, Oversize

from ..internals import is_in_frame
from ..kit import until
from ..kit.example_count import example_count
from .raw_websocket import CONTINUATION, RawWebSocket, fragment, frame_head, serving, websocket_connect

LIMIT = 10_000

#: The most that a frame can say that it has.
LONGEST = (1 << 63) - 1


def make_server(**limits: Any) -> Server:
    server = Server(limits=Limits(max_message_size=LIMIT, **limits))
    server.add(lambda value: value, name="echo")

    @server
    async def wait() -> None:
        await asyncio.Event().wait()

    return server


def request(size: int, id: Any = 7) -> bytes:
    """A request of so many bytes, which begins with its id."""
    start = orjson.dumps({"jsonrpc": "2.0", "id": id, "method": "echo"})[:-1] + b',"params":["'
    return start + b"x" * (size - len(start) - 3) + b'"]}'


def too_long(size: int, id: Any = 7) -> dict[str, Any]:
    """The answer to it: the very same that the line stream gives."""
    return {
        "jsonrpc": "2.0",
        "id": id,
        "error": {
            "code": -32001,
            "message": f"Message too large: {size} bytes or more, the server's limit is {LIMIT} bytes",
            "data": {"size": size, "limit": LIMIT, "side": "server"},
        },
    }


async def is_alive(raw: RawWebSocket) -> bool:
    return bool(await raw.result("rpc.ping") == "pong")


# -- what is answered -----------------------------------------------------------------------------------------------


async def test_the_largest_message_and_no_larger() -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        exact = request(LIMIT)
        raw.send(frame(TEXT, exact, masked=True))
        assert len((await raw.reply())["result"]) > 9000
        raw.send(fragment(TEXT, exact[:9999]) + fragment(CONTINUATION, exact[9999:], final=True))
        assert len((await raw.reply())["result"]) > 9000
        raw.send(frame(TEXT, exact + b" ", masked=True))
        assert await raw.reply() == too_long(LIMIT + 1)
        assert await is_alive(raw)
        assert websocket_server.streams[0].reason is None
        assert not websocket_server.streams[0].over_limit


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("size", [LIMIT + 1, 70_000, 3_000_000])
async def test_one_large_frame_keeps_its_place_among_others(opcode: int, size: int) -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        raw.call("echo", 1, id=1)
        raw.send(frame(opcode, request(size), masked=True))
        raw.call("echo", 2, id=2)
        assert [await raw.reply() for _ in range(3)] == [
            {"jsonrpc": "2.0", "id": 1, "result": 1},
            too_long(size),
            {"jsonrpc": "2.0", "id": 2, "result": 2},
        ]
        assert not is_in_frame(websocket_server.streams[0])


async def test_many_fragments_are_answered_once_and_pings_between_them_each() -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        whole = request(25_000)
        raw.send(fragment(TEXT, whole[:6000]), frame(PING, b"1", masked=True))
        assert await raw.pong() == b"1"
        raw.send(fragment(CONTINUATION, whole[6000:12_000]))
        # As soon as it is known; it says what has been announced by then.
        assert await raw.reply() == too_long(12_000)
        for number in range(50):
            raw.send(fragment(CONTINUATION, b"x" * 500), frame(PING, b"%d" % number, masked=True))
            assert await raw.pong() == b"%d" % number
        raw.send(fragment(CONTINUATION, b"", final=True))
        assert await is_alive(raw)


async def test_text_that_is_skipped_need_not_be_utf8() -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        raw.send(frame(TEXT, request(LIMIT) + b"\xff", masked=True))
        assert await raw.reply() == too_long(LIMIT + 1)
        raw.send(fragment(TEXT, request(LIMIT) + b"\xe2"), fragment(CONTINUATION, b"\xff", final=True))
        assert await raw.reply() == too_long(LIMIT + 1)
        assert await is_alive(raw)
        # What follows is checked again.
        raw.send(frame(TEXT, b'"\xff"', masked=True))
        close = await raw.closed()
        assert close is not None
        assert close.code == 1007


async def test_no_id_where_none_shows() -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        raw.send(frame(TEXT, b" " * 20_000, masked=True))
        assert await raw.reply() == too_long(20_000, id=None)
        raw.send(frame(TEXT, b"x" * 20_000, masked=True))
        assert await raw.reply() == too_long(20_000, id=None)


# -- broken rules within one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (frame(TEXT, b"{}", masked=True), "inside another"),
        (frame_head(BINARY, LONGEST), "inside another"),
        (fragment(PING, b""), "control frame"),
        (frame(CONTINUATION, b"", masked=False), "not masked"),
        (bytes([0xC0]) + frame(TEXT, b"", masked=True)[1:], "reserved"),
        (frame_head(CONTINUATION, 1 << 63), "2**63 bytes or more"),
        (fragment(CONTINUATION, b"", final=True) * 2, "continues no message"),
    ],
    ids=["inside", "inside-declared", "ping-in-pieces", "not-masked", "reserved", "endless", "continues-nothing"],
)
async def test_the_rules_hold_in_a_message_that_is_skipped(data: bytes, text: str) -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        raw.send(fragment(TEXT, request(20_000)))
        assert await raw.reply() == too_long(20_000)
        raw.send(data)
        close = await raw.closed()
        assert close is not None
        assert (close.code, text in close.reason) == (1002, True)


async def test_a_goodbye_in_a_message_that_is_skipped() -> None:
    async with serving(make_server()) as websocket_server, websocket_server.raw() as raw:
        raw.send(fragment(TEXT, request(20_000)))
        assert await raw.reply() == too_long(20_000)
        raw.say_close(3000)
        close = await raw.closed()
        assert close is not None
        assert close.code == 3000


# -- what it takes --------------------------------------------------------------------------------------------------


def test_a_frame_of_any_length_takes_no_memory() -> None:
    reader = FrameReader(masked=True, max_size=LIMIT)
    piece = bytes(1 << 16)
    (found,) = reader.feed(frame_head(TEXT, LONGEST) + piece)
    assert found == Oversize(LONGEST, bytes(HEAD_SIZE))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            assert reader.feed(piece) == []
        assert tracemalloc.get_traced_memory()[1] - before < 5_000
    finally:
        tracemalloc.stop()
    assert reader.partial


def test_fragments_without_end_take_no_memory() -> None:
    reader = FrameReader(masked=True, max_size=LIMIT)
    assert len(reader.feed(fragment(TEXT, bytes(9_000)) + fragment(CONTINUATION, bytes(9_000)))) == 1
    flood = fragment(CONTINUATION, b"x") * 1000 + fragment(CONTINUATION, bytes(70_000))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            assert reader.feed(flood) == []
        assert tracemalloc.get_traced_memory()[0] - before < 5_000
    finally:
        tracemalloc.stop()
    assert reader.feed(fragment(CONTINUATION, b"", final=True) + frame(TEXT, b"1", masked=True)) == [b"1"]
    assert not reader.partial


async def test_one_that_says_the_most_and_sends_it_is_answered_and_then_closed() -> None:
    server = make_server(message_timeout=0.3)
    async with serving(server) as websocket_server, websocket_server.raw() as raw, websocket_server.raw() as other:
        raw.send(frame_head(TEXT, LONGEST) + request(2000))
        assert await raw.reply() == too_long(LONGEST)
        with contextlib.suppress(ConnectionError):
            while websocket_server.streams[0].is_open:
                raw.send(bytes(100_000))
                await asyncio.wait_for(raw.writer.drain(), 20)
                await asyncio.sleep(0)
        assert "message_timeout" in (websocket_server.streams[0].reason or "")
        assert await is_alive(other)
    assert server.counters.closed_for_limits == 1


async def test_one_that_says_the_most_and_sends_nothing() -> None:
    server = make_server(message_timeout=0.2)
    async with serving(server) as websocket_server, websocket_server.raw() as raw:
        raw.send(frame_head(TEXT, LONGEST))
        assert await raw.closed() is None
        assert await raw.reply() is None
        assert "message_timeout" in (websocket_server.streams[0].reason or "")


@pytest.mark.parametrize("begun", [10, 9_000])
async def test_fragments_may_say_more_than_a_length_can_be(begun: int) -> None:
    """Together more than the longest frame: no number is too large for anything behind."""
    async with serving(make_server(max_calls=1)) as websocket_server, websocket_server.raw() as raw:
        whole = request(20_000)
        head = fragment(TEXT, whole[:begun]) + frame_head(CONTINUATION, LONGEST)
        raw.call("wait", id=1)
        raw.send(head + whole[begun:])
        await until(lambda: websocket_server.streams[0].session.queue)
        websocket_server.streams[0].session.running.cancel(1)
        assert (await raw.reply())["error"]["code"] == -32800
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["data"]["size"]) == (7, LONGEST + begun)


async def test_many_of_them_wait_without_their_bytes() -> None:
    """Behind calls that have no room, too, and in their order."""
    async with serving(make_server(max_calls=1)) as websocket_server, websocket_server.raw() as raw:
        raw.call("wait", id=1)
        for number in range(40):
            raw.send(frame(TEXT, request(100_000, id=number), masked=True))
        await until(lambda: websocket_server.streams[0].session.queue)
        websocket_server.streams[0].session.running.cancel(1)
        assert (await raw.reply())["error"]["code"] == -32800
        assert [await raw.reply() for _ in range(40)] == [too_long(100_000, id=number) for number in range(40)]


# -- the client -----------------------------------------------------------------------------------------------------


async def test_a_reply_that_is_too_long_fails_its_call_alone() -> None:
    server = Server()
    server.add(lambda size: "x" * size, name="fill")
    async with serving(server) as websocket_server:
        async with AsyncClient(
            "memory", connect=websocket_connect(websocket_server.port), limits=Limits(max_message_size=1000)
        ) as client:
            assert await client.call("fill", 900) == "x" * 900
            calls = [client.call("fill", size) for size in (10, 5000, 20, 2_000_000, 30)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert [each if isinstance(each, str) else type(each) for each in found] == [
                "x" * 10,
                MessageTooLarge,
                "x" * 20,
                MessageTooLarge,
                "x" * 30,
            ]
            assert "the client's limit is 1000 bytes" in str(found[1])
            assert await client.call("fill", 10) == "x" * 10
        assert len(websocket_server.streams) == 1
        assert websocket_server.streams[0].reason is None


# -- however it is cut ----------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=example_count(300), deadline=None)
def test_messages_of_any_size_however_they_are_cut(data: st.DataObject) -> None:
    """The reader against a list of what was said: each message whole, or once as too long, with its beginning."""
    masked, limit = data.draw(st.booleans()), data.draw(st.sampled_from([1, 100, 1000]))
    shapes = st.lists(st.lists(st.integers(0, 1500), min_size=1, max_size=5), max_size=5)
    stream, wanted, pings = b"", [], []
    for number, sizes in enumerate(data.draw(shapes)):
        payload, said = b"", None
        for at, size in enumerate(sizes):
            piece = bytes([97 + number]) * size
            is_last = at == len(sizes) - 1
            stream += fragment(CONTINUATION if at else TEXT, piece, final=is_last, masked=masked)
            payload += piece
            if said is None and len(payload) > limit:
                said = Oversize(len(payload), payload[:HEAD_SIZE])
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
