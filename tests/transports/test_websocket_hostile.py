"""WebSocket peers that break the rules, flood, do not read, fall silent or vanish: only their connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import ssl
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any, cast

import orjson
import pytest
import trustme

from rpcstream import AsyncClient, Limits, RpcError, Server
from rpcstream.transports import websocket
from rpcstream.transports.websocket import WebSocketStream
from rpcstream.wire.frames import BINARY, CLOSE, PING, PONG, TEXT, Close, FrameReader, frame
from rpcstream.wire.http_messages import Request
from rpcstream.wire.messages import HEAD_SIZE, Oversize
from rpcstream.wire.upgrade import accept_upgrade

from ..internals import last_unanswered_ping
from ..kit import until
from .raw_websocket import CONTINUATION, RawWebSocket, fragment, frame_head, serving, websocket_connect


def with_first(first: int, payload: bytes = b"") -> bytes:
    return bytes([first]) + frame(TEXT, payload, masked=True)[1:]


class Service:
    """A server with a handler that waits, and one that fills buffers."""

    def __init__(self, **limits: Any) -> None:
        self.server = server = Server(limits=Limits(**limits))
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

        @server
        async def wait() -> None:
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()

        @server
        def fill(size: int) -> str:
            return "x" * size


# -- broken rules ---------------------------------------------------------------------------------------------------

BROKEN = {
    "not masked": (frame(TEXT, b"{}", masked=False), 1002, "not masked"),
    "not masked, and long": (frame(TEXT, b"x" * 70_000, masked=False), 1002, "not masked"),
    "a reserved bit": (with_first(0xC1), 1002, "reserved"),
    "a reserved bit of a ping": (with_first(0x99), 1002, "reserved"),
    "a reserved data opcode": (with_first(0x83), 1002, "opcode 0x3"),
    "a reserved control opcode": (with_first(0x8B), 1002, "opcode 0xb"),
    "a ping in fragments": (with_first(0x09), 1002, "control frame"),
    "a long ping": (frame(PING, b"x" * 126, masked=True), 1002, "control frame"),
    "a long close": (frame(CLOSE, b"\x03\xe8" + b"x" * 124, masked=True), 1002, "control frame"),
    "a very long pong, of which only the head came": (frame_head(PONG, 1 << 40), 1002, "control frame"),
    "continues nothing": (with_first(0x80, b"{}"), 1002, "continues no message"),
    "begins inside another": (fragment(TEXT, b"{") + frame(TEXT, b"{}", masked=True), 1002, "inside another"),
    "not UTF-8": (frame(TEXT, b'"\xff"', masked=True), 1007, "UTF-8"),
    "half a character": (frame(TEXT, b'"\xe2\x82', masked=True), 1007, "UTF-8"),
    "a surrogate": (frame(TEXT, b'"\xed\xa0\x80"', masked=True), 1007, "UTF-8"),
    "not UTF-8 in a fragment": (fragment(TEXT, b'"\xff'), 1007, "UTF-8"),
    "half a character in the last one": (
        fragment(TEXT, b'"\xe2') + fragment(CONTINUATION, b"\x82", final=True),
        1007,
        "UTF-8",
    ),
    "longer than can be": (frame_head(BINARY, 1 << 63), 1002, "2**63 bytes or more"),
    "the longest that can be said": (frame_head(BINARY, (1 << 64) - 1), 1002, "2**63 bytes or more"),
    "half a close code": (frame(CLOSE, b"\x03", masked=True), 1002, "half a code"),
    **{
        f"the close code {code}": (frame(CLOSE, struct.pack("!H", code), masked=True), 1002, str(code))
        for code in (0, 999, 1004, 1005, 1006, 1015, 1100, 2999, 5000, 65535)
    },
    "a close reason that is not UTF-8": (frame(CLOSE, b"\x03\xe8\xff", masked=True), 1007, "UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_the_peer_is_told_which_rule_it_broke(name: str) -> None:
    data, code, text = BROKEN[name]
    service = Service(max_message_size=10_000)
    async with (
        serving(service.server) as websocket_server,
        websocket_server.raw() as other,
        websocket_server.raw() as raw,
    ):
        raw.call("rpc.ping", id=1)
        raw.call("wait", id=2)
        await service.started.wait()
        # What came before, even with the same read, is answered; what comes after is not.
        raw.call("rpc.ping", id=3)
        raw.send(data)
        raw.call("rpc.ping", id=4)
        close = await raw.closed()
        assert close is not None
        assert close.code == code
        assert text in close.reason
        assert [(await raw.reply())["id"] for _ in range(2)] == [1, 3]
        assert await raw.reply() is None
        await service.cancelled.wait()
        assert websocket_server.streams[1].reason == close.reason
        assert not websocket_server.streams[1].over_limit
        assert await other.result("rpc.ping") == "pong"
    assert service.server.counters.closed_for_limits == 0


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", BROKEN)
async def test_the_same_however_it_is_cut(name: str, size: int) -> None:
    data, code, text = BROKEN[name]
    reader = FrameReader(masked=True, max_size=10_000)
    for at in range(0, len(data), size):
        assert reader.feed(data[at : at + size]) == []
        assert not reader.pings
    assert reader.fault is not None
    assert reader.fault.code == code
    assert text in reader.fault.reason
    assert reader.feed(frame(TEXT, b"1", masked=True)) == []


async def test_a_server_that_masks_loses_the_client() -> None:
    reader = FrameReader(masked=False, max_size=1000)
    assert reader.feed(frame(TEXT, b"1", masked=True)) == []
    assert reader.fault is not None
    assert reader.fault.code == 1002


async def test_a_reason_that_is_too_long_for_its_frame() -> None:
    payload = Close(1013, "ä" * 100).payload
    assert len(payload) <= 125
    assert payload[2:].decode() == "ä" * 61


# -- floods ---------------------------------------------------------------------------------------------------------


async def test_a_flood_of_pings_from_a_peer_that_does_not_read() -> None:
    """Only the last ping is answered when it reads again; nothing is kept of the others."""
    limit = 64 * 1024
    service = Service(write_buffer=limit)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        (stream,) = websocket_server.streams
        own = raw.writer.transport
        cast(asyncio.Transport, own).pause_reading()
        raw.call("fill", 8_000_000)  # more than the system keeps for it
        await until(lambda: stream.is_full)
        unsent = stream.unread_size
        for round_ in range(20):
            flood = b"".join(frame(PING, b"%5d" % number + b"x" * 120, masked=True) for number in range(2000))
            raw.send(flood)
            await raw.writer.drain()
            if round_ == 19:
                raw.send(frame(PING, b"last", masked=True))
        await until(lambda: last_unanswered_ping(stream) == b"last")
        assert stream.unread_size <= unsent
        cast(asyncio.Transport, own).resume_reading()
        assert len((await raw.reply())["result"]) == 8_000_000
        assert await raw.pong() == b"last"
        raw.send(frame(PING, b"next", masked=True))
        assert await raw.pong() == b"next"


async def test_pings_alone_fill_no_more_than_the_buffer() -> None:
    """A peer that only pings and never reads."""
    limit = 64 * 1024
    service = Service(write_buffer=limit)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        (stream,) = websocket_server.streams
        cast(asyncio.Transport, raw.writer.transport).pause_reading()
        flood = frame(PING, b"x" * 125, masked=True) * 2000
        largest = 0
        for _ in range(400):
            raw.send(flood)
            await raw.writer.drain()
            largest = max(largest, stream.unread_size)
            if stream.is_full and largest > limit:
                break
        await until(lambda: stream.is_full)
        # A read that began with room may bring the answers to all of it.
        assert largest <= limit + 512 * 1024


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


async def test_a_flood_of_empty_fragments_keeps_nothing() -> None:
    reader = FrameReader(masked=True, max_size=10_000)
    reader.feed(fragment(TEXT, b'"'))
    flood = fragment(CONTINUATION, b"") * 2_000
    with memory_growth(10_000):
        for _ in range(20):
            assert reader.feed(flood) == []
    assert reader.partial
    assert reader.feed(fragment(CONTINUATION, b'"', final=True)) == [b'""']


async def test_fragments_of_one_byte_take_no_more_than_their_bytes() -> None:
    reader = FrameReader(masked=True, max_size=40_000)
    reader.feed(fragment(TEXT, b""))
    flood = fragment(CONTINUATION, b"x") * 2_000
    with memory_growth(80_000):
        for _ in range(20):
            assert reader.feed(flood) == []
    assert reader.feed(fragment(CONTINUATION, b"x")) == [Oversize(40_001, b"x" * HEAD_SIZE)]
    assert reader.partial


async def test_a_declared_length_takes_no_memory() -> None:
    reader = FrameReader(masked=True, max_size=1 << 30)
    with memory_growth(10_000):
        reader.feed(frame_head(TEXT, 1 << 30))
    assert reader.partial


async def test_empty_messages_are_answered_as_no_json() -> None:
    async with serving(Service().server) as websocket_server, websocket_server.raw() as raw:
        raw.send(frame(TEXT, b"", masked=True) * 50)
        assert {(await raw.reply())["error"]["code"] for _ in range(50)} == {-32700}


# -- peers that do not read, or fall silent -------------------------------------------------------------------------


async def test_one_that_does_not_read_its_replies_is_not_read_either_and_then_closed() -> None:
    service = Service(write_buffer=64 * 1024, write_timeout=0.3, max_calls=4)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        cast(asyncio.Transport, raw.writer.transport).pause_reading()
        with contextlib.suppress(ConnectionError):
            while websocket_server.streams[0].is_open:
                raw.call("fill", 100_000)
                await asyncio.sleep(0)
                await asyncio.wait_for(_drained(raw), 20)
        await until(lambda: websocket_server.streams[0].over_limit)
        assert "write_timeout" in (websocket_server.streams[0].reason or "")
    assert service.server.counters.closed_for_limits == 1


async def _drained(raw: RawWebSocket) -> None:
    await raw.writer.drain()


async def test_what_handlers_pile_up_for_one_that_does_not_read_is_limited() -> None:
    service = Service(write_buffer=64 * 1024, max_message_size=1_000_000)
    go_on = asyncio.Event()

    @service.server
    async def later() -> str:
        await go_on.wait()
        return "x" * 900_000

    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        cast(asyncio.Transport, raw.writer.transport).pause_reading()
        for number in range(40):
            raw.call("later", id=number)
        await until(lambda: websocket_server.streams[0].session.running.load == 40)
        go_on.set()
        await until(lambda: websocket_server.streams[0].over_limit)
        assert "write_buffer" in (websocket_server.streams[0].reason or "")


@pytest.mark.parametrize(
    "begun",
    [
        frame(TEXT, b'"' + b"x" * 500, masked=True)[:100],
        fragment(TEXT, b'"'),
        fragment(TEXT, b'"') + frame(PING, b"", masked=True),
        b"\x81",
    ],
    ids=["a frame", "a fragment", "a fragment and a ping", "half a head"],
)
async def test_a_message_that_does_not_end(begun: bytes) -> None:
    service = Service(message_timeout=0.2)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        raw.send(begun)
        assert await raw.closed() is None
        assert "message_timeout" in (websocket_server.streams[0].reason or "")
    assert service.server.counters.closed_for_limits == 1


async def test_silence_and_that_pings_break_it() -> None:
    service = Service(idle_timeout=0.6)
    async with (
        serving(service.server) as websocket_server,
        websocket_server.raw() as raw,
        websocket_server.raw() as silent,
    ):
        ended = asyncio.ensure_future(silent.closed())
        while not ended.done():
            raw.send(frame(PING, b"here", masked=True))
            assert await raw.pong() == b"here"
            await asyncio.sleep(0.01)
        assert "idle_timeout" in (websocket_server.streams[1].reason or "")
        assert websocket_server.streams[0].reason is None


# -- peers that vanish, or do not keep to the end -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "end", "close"])
async def test_whoever_is_gone_has_its_handlers_cancelled(how: str) -> None:
    service = Service()
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        raw.call("wait")
        await service.started.wait()
        if how == "reset":
            own: sockets.socket = raw.writer.get_extra_info("socket")
            own.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
            raw.writer.transport.abort()
        elif how == "end":
            raw.writer.write_eof()
        else:
            raw.say_close()
        await service.cancelled.wait()
        await until(lambda: not websocket_server.listener.sessions)


async def test_one_that_is_not_read_and_gone_is_found() -> None:
    service = Service(max_calls=1)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        (stream,) = websocket_server.streams
        raw.send(*({"jsonrpc": "2.0", "id": number, "method": "wait"} for number in range(3000)))
        await until(lambda: stream.is_paused)
        raw.writer.transport.abort()
        await asyncio.sleep(0.05)
        assert not service.cancelled.is_set()
        stream.probe()
        await service.cancelled.wait()


async def test_a_probe_does_not_disturb_one_that_is_there() -> None:
    service = Service(max_calls=1)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        (stream,) = websocket_server.streams
        raw.send(*({"jsonrpc": "2.0", "id": number, "method": "wait"} for number in range(3000)))
        await until(lambda: stream.is_paused)
        stream.probe()
        assert await raw.pong() == b""
        assert await raw.pong() == b""
        assert stream.session.channel is stream


async def test_one_that_does_not_answer_the_close_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.1)
    service = Service()
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        websocket_server.streams[0].drain()
        assert (await raw.close_frame()).code == 1001
        # What it says now is not heard, and does not keep the connection.
        raw.call("wait")
        raw.send(frame(PING, b"", masked=True))
        assert await raw.reply() is None
        assert not service.started.is_set()
        await until(lambda: not websocket_server.listener.sessions)


async def test_one_that_does_not_end_after_its_fault_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.1)
    service = Service()
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        raw.send(with_first(0x8F))
        assert (await raw.close_frame()).code == 1002
        for _ in range(3):
            raw.call("wait")
            await asyncio.sleep(0.01)
        await until(lambda: not websocket_server.streams[0].is_open)
        assert not service.started.is_set()


async def test_a_fault_after_our_goodbye_ends_it() -> None:
    async with serving(Service().server) as websocket_server, websocket_server.raw() as raw:
        websocket_server.streams[0].drain()
        assert (await raw.close_frame()).code == 1001
        raw.send(with_first(0x8F))
        assert (await raw.closed()) == Close(1001)
        raw.writer.close()
        await until(lambda: not websocket_server.listener.sessions)


async def test_a_close_frame_in_the_middle_of_a_message_is_answered() -> None:
    async with serving(Service().server) as websocket_server, websocket_server.raw() as raw:
        raw.send(fragment(TEXT, b'"'))
        raw.say_close(3000)
        assert await raw.closed() == Close(3000)


async def test_an_empty_close_frame_is_answered_with_one() -> None:
    async with serving(Service().server) as websocket_server, websocket_server.raw() as raw:
        raw.send(frame(CLOSE, b"", masked=True))
        close = await raw.closed()
        assert close is not None
        assert close.payload == b""
        assert websocket_server.streams[0].reason is None


async def test_a_goodbye_does_not_wait_for_a_handler_for_ever() -> None:
    """Requests that wait behind some that do not end are not heard out for long."""
    service = Service(max_calls=3)
    async with serving(service.server) as websocket_server, websocket_server.raw() as raw:
        for number in range(5):
            raw.call("wait", id=number)
        await until(lambda: websocket_server.streams[0].session.queue)
        raw.say_close()
        assert await raw.closed() == Close(1000)
        assert service.cancelled.is_set()


async def test_refused_and_aborted_in_any_state() -> None:
    async with (
        serving(Service().server) as websocket_server,
        websocket_server.raw() as raw,
        websocket_server.raw() as other,
    ):
        refused, aborted = websocket_server.streams
        refused.refuse(RpcError(-32002, "Server busy: 2 connections are open"))
        refused.refuse(RpcError(-32002, "again"))
        refused.drain()
        assert await raw.close_frame() == Close(1013, "Server busy: 2 connections are open")
        raw.say_close(1013)
        await raw.closed()
        aborted.abort("enough")
        aborted.abort("enough")
        aborted.close()
        assert await other.closed() is None
        await until(lambda: not websocket_server.listener.sessions)
        for stream in (refused, aborted):
            stream.send([b"{}"])
            stream.pause()
            stream.resume()
            stream.probe()
            assert stream.check(1e9) is None


async def test_a_client_whose_server_does_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers the goodbye, and leaves the connection open."""
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.1)
    ended = asyncio.Event()

    async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = (line.partition(":") for line in head.decode().split("\r\n")[1:-2])
        response = accept_upgrade(Request("GET", "/", {name.lower(): value.strip() for name, _, value in lines}))
        writer.write(response.head(0, True))
        reader_ = FrameReader(masked=True, max_size=1000)
        while data := await reader.read(1000):
            for message in reader_.feed(data):
                reply = {"jsonrpc": "2.0", "id": orjson.loads(message)["id"], "result": 1}
                writer.write(frame(TEXT, orjson.dumps(reply), masked=False))
            if reader_.closed is not None:
                writer.write(frame(CLOSE, reader_.closed.payload, masked=False))
        assert reader_.closed == Close(1000)
        writer.close()
        ended.set()

    server = await asyncio.start_server(stay, "127.0.0.1", 0)
    async with AsyncClient("memory", connect=websocket_connect(server.sockets[0].getsockname()[1])) as client:
        assert await client.call("anything") == 1
    await asyncio.wait_for(ended.wait(), 20)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("ending", ["a fault", "the end", "a goodbye", "our goodbye", "a reset"])
async def test_the_ends_over_tls(ending: str) -> None:
    authority = trustme.CA()
    own, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(own)
    authority.configure_trust(trusted)
    service = Service()
    async with serving(service.server, own=own, trusted=trusted) as websocket_server, websocket_server.raw() as raw:
        raw.call("wait")
        await service.started.wait()
        if ending == "our goodbye":
            websocket_server.streams[0].refuse(RpcError(-32002, "busy"))
            assert await raw.close_frame() == Close(1013, "busy")
            raw.say_close(1013)
        elif ending == "a reset":
            raw.writer.transport.abort()
        elif ending == "the end":
            raw.writer.close()
        elif ending == "a goodbye":
            raw.say_close()
            assert await raw.closed() == Close(1000)
        else:
            raw.send(with_first(0x8F))
            close = await raw.closed()
            assert close is not None
            assert close.code == 1002
        await service.cancelled.wait()
        await until(lambda: not websocket_server.listener.sessions)


def test_the_stream_is_what_a_listener_and_a_session_ask_for() -> None:
    """Checked at run time as well as by the types."""
    from rpcstream.peer.interfaces import Channel
    from rpcstream.transports.connection import Connection

    for interface in (Channel, Connection):
        wanted = {name for name in vars(interface) if not name.startswith("_")}
        assert all(hasattr(WebSocketStream, name) for name in wanted)
