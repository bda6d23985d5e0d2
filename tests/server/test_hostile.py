"""Hostile and careless peers: each gets an error or is closed in time, and others are served."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import struct
import threading
import time
import zlib
from typing import Any

import orjson
import pytest

from rpcstream import Client, Limits
from rpcstream.testing import FakeTimeLoop, connections_of, serve_in_thread

from ..kit import TRANSPORTS, RawPeer, UsualServer, batch, raw_peers, request, until

LIMITS = Limits(max_message_size=100_000, max_batch=10, max_calls=8, write_buffer=64 * 1024, max_image_pixels=10_000)


def make_server(limits: Limits = LIMITS, **options: Any) -> UsualServer:
    server = UsualServer(limits=limits, drain_timeout=0.5, **options)
    server.add(lambda size: "x" * size, name="blob")
    return server


async def assert_served(raw: RawPeer) -> None:
    assert await raw.result("echo", "still here", id="last") == "still here"


def call(params: bytes, method: bytes = b"echo") -> bytes:
    return b'{"jsonrpc":"2.0","method":"%b","params":%b,"id":1}' % (method, params)


def member(id: bytes = b"") -> bytes:
    return b'{"jsonrpc":"2.0","method":"echo","params":[1]%b}' % (b',"id":' + id if id else b"")


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


#: Deep, long, or odd in the encoding; what else is no request: tests/conversation/test_bytes.py.
LINES = [
    *[(each, -32700) for each in (b"\xff\xfe\x00", call(b'["\xff"]'), call(b'["\\ud800"]'), b'{"a":1,}')],
    *[(each, -32700) for each in (b"[" * 5000, nested(5000), b'{"a":' * 3000)],
    *[
        (each, -32600)
        for each in (nested(300), call(nested(201)), call(b"[" + b'{"":' * 200 + b"1" + b"}" * 200 + b"]"))
    ],
    (b'{"jsonrpc":"2.0","method":%b,"id":1}' % nested(1000), -32600),
    *[(call(b"[]", each), -32601) for each in (b"rpc.nothing", b"__class__", b"")],
    *[(each, -32001) for each in (call(b"[" + b"1" * 200_000 + b"]"), b"x" * 100_001, call(b"[200000]", b"blob"))],
]


async def test_a_bad_line_gets_its_error_and_the_connection_lives() -> None:
    async with raw_peers(make_server(slow_call=1e-9)) as connect:
        raw = await connect()
        for line, code in LINES:
            reply = await raw.ask(line)
            assert (reply["jsonrpc"], reply["error"]["code"]) == ("2.0", code), line[:100]
            assert reply["error"]["message"]
            await assert_served(raw)


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        (batch(*[member(b'"a"'), member(b'"b"')] * 6), b'"a"', -32004),
        (batch(*[member(), b"1", member(b"[]"), member(b"7")] * 3), b"7", -32004),
        (batch(*[member(b"1.50")] * 11), b"1.50", -32004),
        (batch(*[member()] * 11), b"null", -32004),
        (batch(*[b"1"] * 11), b"null", -32004),
        (batch(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[' + b"1" * 200_000 + b"]}"), b"1", -32001),
        (batch(call(nested(300))), b"1", -32600),
    ],
)
async def test_what_refuses_a_whole_batch_is_an_array_with_the_id_of_the_first_call(
    line: bytes, id: bytes, code: int
) -> None:
    """Clients look for their calls in an array by id."""
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        raw.send(line)
        text = await raw.receive_bytes()
        assert text is not None
        assert b'"id":%b,' % id in text
        (reply,) = orjson.loads(text)
        assert reply["error"]["code"] == code
        await assert_served(raw)


async def test_ids_come_back_exactly() -> None:
    ids = ["1", '"1"', "null", "1.0", "1.50", "1e2", str(2**64), str(-(2**70)), "0.12345678901234567"]
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        for id in ids:
            for method, params in (("echo", "[1]"), ("echo_after", "[1,0]"), ("nothing", "[]")):
                line = f'{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id}}}'
                for sent in (line, f"[{line}]"):
                    raw.send(sent)
                    assert b'"id":%b,' % id.encode() in (await raw.receive_bytes() or b"")


async def test_the_error_for_a_long_message_names_limit_and_size_and_comes_before_its_end() -> None:
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        raw.write(b'{"jsonrpc":"2.0","id":7,"method":"echo","params":["' + b"x" * 500_000)
        reply = await raw.receive()
        assert reply["id"] == 7
        assert reply["error"]["data"]["limit"] == 100_000
        assert 100_000 < reply["error"]["data"]["size"] <= 600_000
        raw.write(b'"]}\n')
        await assert_served(raw)


async def test_the_replies_of_a_batch_are_dropped_once_they_are_too_large() -> None:
    """Each call is told so, since an error without an id fails what else waits at a client."""
    async with raw_peers(make_server(Limits(max_message_size=100_000))) as connect:
        raw = await connect()
        calls = [request("blob", 50_000, id=n) for n in range(100)]
        replies = await raw.ask([*calls, 5, {"method": 7}, request("blob", 1, id=[1])])
        assert [reply["id"] for reply in replies] == [*range(100), None, None, None]
        assert {reply["error"]["code"] for reply in replies} == {-32001}
        assert replies[0]["error"]["data"]["size"] > 5_000_000
        # So many errors would be too long as well.
        (reply,) = await raw.ask([request("blob", 50_000, id=f"{n}{'x' * 500}") for n in range(180)])
        assert (reply["id"], reply["error"]["code"]) == (None, -32001)


async def test_a_value_as_deep_as_allowed_comes_back() -> None:
    async with raw_peers(make_server()) as connect:
        raw, value = await connect(), orjson.loads(nested(126))
        assert await raw.result("echo", value) == value
        assert await raw.code("echo", [value]) == -32600


# -- arrays, images and payloads; what else is wrong with them: tests/codec ------------------------------------------


def bomb(width: int, height: int) -> str:
    """A PNG of a few bytes that claims to be large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def array(dtype: Any, shape: Any, data: str) -> dict[str, Any]:
    return {"$type": "ndarray", "dtype": dtype, "shape": shape, "data": data}


RAW = {"$type": "image", "format": "raw", "data": "", "mode": "RGB"}
LIES: dict[str, list[Any]] = {
    "array": [
        *[array("<f4", shape, "AAAAAAAAAAA=") for shape in ([3], [-1], [2.0], [True, 2], "2", [2**62, 2**62])],
        *[array(dtype, [1], "AAAAAAAAAAA=") for dtype in ("|O", "10000000f8", "<V4", [["a", "<f4"]])],
        array("<U2", [1], base64.b64encode(b"\xff" * 8).decode()),
        *[array("<f4", [2], data) for data in ("AAAAAAAAAAA", "AAAA AAAAAAA=", "AAAAAAAAAAB=")],
        *({"$type": "ndarray"}, {"$type": "nothing"}, {"$type": 5}, "k05VTVBZAQB2AA==", {}, [], 5, None),
    ],
    "image": [
        *[bomb(12_000, 12_000), {"$type": "image", "format": "png", "data": bomb(101, 100)}],
        *[{**RAW, "size": [100_000, 100_000]}, {**RAW, "size": [2, 2], "data": "AAAA"}],
        *[base64.b64encode(data).decode() for data in (b"%!PS-Adobe-3.0 EPSF-3.0\n", b"GIF89a")],
        *("", 7),
    ],
}


@pytest.mark.parametrize("method", LIES)
async def test_a_lying_array_or_image(method: str) -> None:
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        for value in LIES[method]:
            error = (await raw.reply(method, value))["error"]
            assert (error["code"], error["data"]["parameter"]) == (-32602, method), value
        await assert_served(raw)


DATA = base64.b64encode(bytes(range(256)) * 400)
BROKEN = [DATA + b"?", DATA[:-1], DATA[:-4] + b"//=="]
BROKEN += [DATA[:1000] + each + DATA[1000:] for each in (b"\x01\x02\x03\x04", b"\xff\xff\xff\xff", rb"\u00e4", b"    ")]


@pytest.mark.parametrize("method", [b"echo", b"array"])
async def test_a_broken_payload_is_an_error_and_the_connection_lives(method: bytes) -> None:
    async with raw_peers(make_server(Limits())) as connect:
        raw = await connect()
        for data in BROKEN:
            for kind in (b'"bytes"', b'"ndarray","dtype":"|u1","shape":[102400]'):
                reply = await raw.ask(call(b'[{"$type":%b,"data":"%b"}]' % (kind, data), method))
                assert reply["error"]["code"] == -32602, reply
                assert len(orjson.dumps(reply)) < 1000
        await assert_served(raw)


# -- time and memory ------------------------------------------------------------------------------------------------


def test_a_message_that_we_do_not_read_is_not_overdue() -> None:
    async def main() -> None:
        server = make_server(Limits(max_calls=2, message_timeout=20))
        async with TRANSPORTS["memory"].serving(server, None) as endpoint:
            raw = await endpoint.raw()
            line = call(b"[0,50]", b"echo_after") + b"\n"
            raw.write(line * 2 + line[:20])
            await asyncio.sleep(5)
            raw.write(line[20:])
            assert [await raw.result() for _ in range(3)] == [0] * 3
            await endpoint.close()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())


async def test_a_peer_that_never_reads_does_not_grow_the_memory_and_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """It asks for 400 MB in one go; the server holds what the limit allows, and serves others meanwhile."""
    server = make_server(Limits(max_message_size=2_000_000, write_buffer=1_000_000, write_timeout=0.3))
    async with raw_peers(server) as connect:
        greedy, other = await connect(), await connect()
        greedy.transport.pause_reading()
        greedy.send(*[request("blob", 1_000_000)] * 400)
        await until(lambda: any(each.unread_size for each in connections_of(server)))
        (stuck,) = [each for each in connections_of(server) if each.unread_size]
        while stuck.is_open:
            assert stuck.unread_size < 5_000_000
            await asyncio.sleep(0.05)
            await assert_served(other)
    assert "write_timeout" in caplog.text


async def test_a_peer_that_sends_and_never_reads_is_not_read_either() -> None:
    """Its requests stay in the network, not in the server."""
    server = make_server(Limits(write_buffer=100_000, write_timeout=None))
    async with raw_peers(server) as connect:
        greedy, other = await connect(), await connect()
        greedy.transport.pause_reading()
        greedy.send(*[request("echo", "x" * 50_000)] * 400)
        await until(lambda: any(each.unread_size for each in connections_of(server)))
        for _ in range(10):
            await assert_served(other)
        assert greedy.transport.get_write_buffer_size() > 5_000_000, "20 MB were taken from a peer that reads nothing"
        assert all(each.unread_size < 1_000_000 for each in connections_of(server))
        greedy.transport.resume_reading()
        assert {len(await greedy.result()) for _ in range(400)} == {50_000}


async def test_a_slow_inline_handler_is_named(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(slow_call=0.01)
    server.add(lambda: time.sleep(0.05), name="sleepy")
    with caplog.at_level(logging.WARNING, "rpcstream.server"):
        async with raw_peers(server) as connect:
            await (await connect()).result("sleepy")
    assert "'sleepy' kept the event loop for 0.0" in caplog.text
    assert "offload='thread'" in caplog.text


@pytest.mark.parametrize("is_told", [False, True])
def test_what_was_answered_arrives_though_more_was_sent(is_told: bool) -> None:
    """The server stops (or was told that nothing follows) while requests and replies are still on their way."""
    server = make_server(Limits(max_calls=10))
    with serve_in_thread(server) as address, socket.socket() as peer, Client(address) as other:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = address.rpartition(":")
        peer.connect((host, int(port)))
        line = orjson.dumps(request("note", "x" * 1000)) + b"\n"
        peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(100):
                peer.send(line * 100)
        peer.settimeout(20)
        if is_told:
            threading.Thread(target=lambda: peer.sendall(b"\n" * 2), daemon=True).start()
        else:
            server.add(server.stop, name="stop")
            other.notify("stop")
        received = b""
        # Requests that were still on their way may be reset; what was answered has arrived before that.
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while data := peer.recv(1 << 20):
                received += data
    assert received.count(b'"result"') == len(server.noted)
