"""Hostile and careless peers: each gets an error or is closed in time, and others are served."""

from __future__ import annotations

import asyncio
import base64
import logging
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Limits, Server

from ..internals import open_connections

LIMITS = Limits(
    max_message_size=100_000,
    max_batch=10,
    max_calls=8,
    write_buffer=64 * 1024,
    max_connections=20,
    max_image_pixels=10_000,
)


def make_server(limits: Limits = LIMITS) -> Server:
    server = Server(limits=limits, drain_timeout=0.5)

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def shape(array: NDArray[np.float32]) -> list[int]:
        return list(array.shape)

    @server
    def size(image: Image.Image) -> list[int]:
        return list(image.size)

    @server
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @server
    def blob(size: int) -> str:
        return "x" * size

    return server


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with make_server().listening(port=0) as address:
        yield address


async def assert_served(raw: Any) -> None:
    reply = await raw.call("echo", ["still here"], "last")
    assert reply == {"jsonrpc": "2.0", "id": "last", "result": "still here"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\xff\xfe\x00", -32700),
        (b'{"jsonrpc":"2.0","method":"echo","params":["\xff"],"id":1}', -32700),
        (b'{"jsonrpc":"2.0","method":"echo","params":["\\ud800"],"id":1}', -32700),
        (b"nonsense", -32700),
        (b"NaN", -32700),
        (b'{"a":1,}', -32700),
        (b"[" * 5000, -32700),
        (b"[" * 5000 + b"]" * 5000, -32700),
        (b'{"a":' * 3000, -32700),
        (b"[" * 300 + b"]" * 300, -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":[%s%s],"id":1}' % (b"[" * 200, b"]" * 200), -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":[%s1%s],"id":1}' % (b'{"":' * 200, b"}" * 200), -32600),
        (b"1", -32600),
        (b'"x"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","method":"echo","id":1}', -32600),
        (b'{"method":"echo","id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":["echo"],"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":{},"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":5,"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":[1],"id":{}}', -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":[1],"id":true}', -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":[1],"id":[1]}', -32600),
        (b'{"jsonrpc":"2.0","method":"wait","params":[1],"timeout":"x","id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"wait","params":[1],"timeout":-1,"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":"rpc.nothing","id":1}', -32601),
        (b'{"jsonrpc":"2.0","method":"__class__","id":1}', -32601),
        (b'{"jsonrpc":"2.0","method":"","id":1}', -32601),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","method":"echo","params":[' + b"1" * 200_000 + b'],"id":1}', -32001),
        (b"x" * 100_001, -32001),
    ],
)
async def test_a_bad_line_gets_its_error_and_the_connection_lives(
    address: str, connect: Any, line: bytes, code: int
) -> None:
    raw = await connect(address)
    reply = await raw.ask(line)
    assert reply["error"]["code"] == code
    assert reply["error"]["message"]
    assert reply["jsonrpc"] == "2.0"
    await assert_served(raw)


_CALL = b'{"jsonrpc":"2.0","method":"echo","params":[1]'


@pytest.mark.parametrize(
    ("members", "call_id"),
    [
        ([_CALL + b',"id":"a"}', _CALL + b',"id":"b"}'] * 6, "a"),
        ([_CALL + b"}", b"1", _CALL + b',"id":[]}', _CALL + b',"id":7}'] * 3, 7),
        ([_CALL + b"}"] * 11, None),
        ([b"1"] * 11, None),
    ],
)
async def test_a_batch_that_is_too_large_gets_an_array_with_one_error(
    address: str, connect: Any, members: list[bytes], call_id: Any
) -> None:
    """With the id of the first call: clients look for their calls in an array by id."""
    raw = await connect(address)
    (reply,) = await raw.ask(b"[" + b",".join(members) + b"]")
    assert (reply["id"], reply["error"]["code"]) == (call_id, -32004)
    assert reply["error"]["data"] == {"size": len(members), "limit": 10}
    await assert_served(raw)


async def test_the_id_of_a_batch_that_is_too_large_is_exact(address: str, connect: Any) -> None:
    raw = await connect(address)
    await raw.send(b"[" + b",".join([_CALL + b',"id":1.50}'] * 11) + b"]\n")
    assert b'"id":1.50,' in await raw.reader.readline()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'[{"jsonrpc":"2.0","id":"a","method":"echo","params":[' + b"1" * 200_000 + b"]}]", -32001),
        (b'[{"jsonrpc":"2.0","id":"a","method":"echo","params":[' + b"[" * 300 + b"]" * 300 + b"]}]", -32600),
    ],
)
async def test_other_refusals_of_a_whole_batch_are_arrays_too(
    address: str, connect: Any, line: bytes, code: int
) -> None:
    raw = await connect(address)
    (reply,) = await raw.ask(line)
    assert (reply["id"], reply["error"]["code"]) == ("a", code)
    await assert_served(raw)


@pytest.mark.parametrize(
    "text",
    ["1", '"1"', "null", "1.0", "1.50", "1e2", str(2**64), str(-(2**70)), "0.1234567890123456789"],
)
async def test_ids_come_back_exactly(address: str, connect: Any, text: str) -> None:
    raw = await connect(address)
    expected = text.encode()
    for method, params in (("echo", "[1]"), ("wait", "[0]"), ("nothing", "[]")):
        await raw.send(f'{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{text}}}\n')
        assert b'"id":' + expected + b"," in await raw.reader.readline()
    await raw.send(f'[{{"jsonrpc":"2.0","method":"echo","params":[1],"id":{text}}}]\n')
    assert b'"id":' + expected + b"," in await raw.reader.readline()


async def test_the_error_for_a_long_message_names_limit_and_size_and_the_call(address: str, connect: Any) -> None:
    raw = await connect(address)
    line = b'{"jsonrpc":"2.0","id":7,"method":"echo","params":["' + b"x" * 150_000 + b'"]}'
    reply = await raw.ask(line)
    assert reply["id"] == 7
    assert reply["error"]["data"]["limit"] == 100_000
    assert 100_000 < reply["error"]["data"]["size"] <= len(line)
    assert "100000" in reply["error"]["message"]
    await assert_served(raw)


async def test_an_endless_line_is_answered_before_it_ends(address: str, connect: Any) -> None:
    raw = await connect(address)
    for _ in range(50):
        await raw.send(b"x" * 10_000)
    assert (await raw.reply())["error"]["code"] == -32001
    await raw.send(b"\n")
    await assert_served(raw)


async def test_a_reply_over_the_limit_is_an_error(address: str, connect: Any) -> None:
    raw = await connect(address)
    reply = await raw.call("blob", [200_000])
    assert reply["error"]["code"] == -32001
    assert reply["error"]["data"]["side"] == "server"
    batch = [{"jsonrpc": "2.0", "method": "blob", "params": [60_000], "id": n} for n in range(3)]
    replies = await raw.ask(orjson.dumps(batch))
    assert [(reply["id"], reply["error"]["code"]) for reply in replies] == [(n, -32001) for n in range(3)]
    await assert_served(raw)


async def test_a_value_as_deep_as_allowed_comes_back(address: str, connect: Any) -> None:
    raw = await connect(address)
    value: Any = 1
    for _ in range(126):
        value = [value]
    assert (await raw.call("echo", [value]))["result"] == value
    assert (await raw.call("echo", [[value]]))["error"]["code"] == -32600


def bomb(width: int, height: int) -> str:
    """A PNG of a few bytes that claims to be large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def tagged(dtype: Any, shape: Any, data: bytes | str) -> dict[str, Any]:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"$type": "ndarray", "dtype": dtype, "shape": shape, "data": text}


@pytest.mark.parametrize(
    "array",
    [
        tagged("<f4", [3], b"\0" * 8),
        tagged("<f4", [-1], b"\0" * 8),
        tagged("<f4", [2.0], b"\0" * 8),
        tagged("<f4", [True, 2], b"\0" * 8),
        tagged("<f4", [2**62, 2**62], b""),
        tagged("<f4", [1] * 33, b"\0" * 4),
        tagged("<f4", "2", b"\0" * 8),
        tagged("|O", [1], b"\0" * 8),
        tagged("<U2", [1], b"\xff" * 8),
        tagged("10000000f8", [0], b""),
        tagged("<V4", [2], b"\0" * 8),
        tagged([["a", "<f4"]], [2], b"\0" * 8),
        tagged("<f4", [2], "AAAAAAAAAAA"),
        tagged("<f4", [2], "AAAA AAAAAAA="),
        tagged("<f4", [2], "AAAAAAAAAAB="),
        {"$type": "ndarray"},
        {"$type": "image", "format": "png", "data": ""},
        {"$type": "nothing"},
        {"$type": 5},
        "k05VTVBZAQB2AA==",
        {},
        [],
        5,
        None,
    ],
)
async def test_a_lying_array(address: str, connect: Any, array: Any) -> None:
    raw = await connect(address)
    reply = await raw.call("shape", [array])
    assert reply["error"]["code"] == -32602
    assert reply["error"]["data"]["parameter"] == "array"
    await assert_served(raw)


@pytest.mark.parametrize(
    "image",
    [
        bomb(12_000, 12_000),
        {"$type": "image", "format": "png", "data": bomb(101, 100)},
        {"$type": "image", "format": "png", "data": bomb(10, 10)[:60]},
        {"$type": "image", "format": "eps", "data": base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0").decode()},
        {"$type": "image", "format": "raw", "mode": "RGB", "size": [100_000, 100_000], "data": ""},
        {"$type": "image", "format": "raw", "mode": "RGB", "size": [2, 2], "data": "AAAA"},
        {"$type": "image", "format": "raw", "mode": "X", "size": [1, 1], "data": "AAAA"},
        base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n").decode(),
        base64.b64encode(b"GIF89a").decode(),
        "",
        7,
    ],
)
async def test_an_image_that_is_a_bomb_or_none(address: str, connect: Any, image: Any) -> None:
    raw = await connect(address)
    reply = await raw.call("size", [image])
    assert reply["error"]["code"] == -32602
    assert reply["error"]["data"]["parameter"] == "image"
    await assert_served(raw)


# -- time and memory ------------------------------------------------------------------------------------------------


async def test_half_a_message_and_silence_is_closed(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(Limits(message_timeout=0.3))
    async with server.listening(port=0) as address:
        raw, other = await connect(address), await connect(address)
        await raw.send(b'{"jsonrpc":"2.0",')
        assert "end each message with a line end" in (await raw.reply())["error"]["data"]["reason"]
        assert await raw.reply() is None
        await assert_served(other)
    assert "message_timeout" in caplog.text
    assert server.counters.closed_for_limits == 1


async def test_a_message_that_comes_drop_by_drop_is_closed(connect: Any) -> None:
    async with make_server(Limits(message_timeout=0.3)).listening(port=0) as address:
        raw = await connect(address)
        try:
            async with asyncio.timeout(20):
                while not raw.reader.at_eof():
                    await raw.send(b"1")
                    await asyncio.sleep(0.02)
        except (ConnectionError, RuntimeError):  # uvloop raises the latter when its transport is closed already
            pass


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_server(Limits(idle_timeout=0.3)).listening(port=0) as address:
        idle, busy = await connect(address), await connect(address)
        asked = asyncio.ensure_future(busy.call("wait", [0.6]))
        assert await idle.reply() is None
        assert (await asked)["result"] == 0.6
    assert "idle_timeout" in caplog.text


async def test_a_peer_that_never_reads_does_not_grow_the_memory_and_is_closed(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It asks for 400 MB in one go; the server holds what the limit allows, and serves others meanwhile."""
    limits = Limits(max_message_size=2_000_000, write_buffer=1_000_000, write_timeout=0.5)
    server = make_server(limits)
    async with server.listening(port=0) as address:
        greedy, other = await connect(address), await connect(address)
        greedy.writer.transport.pause_reading()
        line = orjson.dumps({"jsonrpc": "2.0", "method": "blob", "params": [1_000_000], "id": 1}) + b"\n"
        await greedy.send(line * 400)
        await assert_served(other)
        while not (stuck := [s for s in running_streams(server) if s.unread_size > 0]):
            await asyncio.sleep(0)
        (stream,) = stuck
        while stream.is_open:
            assert stream.unread_size < 5_000_000
            await asyncio.sleep(0.05)
            await assert_served(other)
    assert "write_timeout" in caplog.text


async def test_a_peer_that_sends_and_never_reads_is_not_read_either(connect: Any) -> None:
    """Its requests stay in the network, not in the server."""
    server = make_server(Limits(write_buffer=100_000, write_timeout=None))
    async with server.listening(port=0) as address:
        greedy, other = await connect(address), await connect(address)
        greedy.writer.transport.pause_reading()
        line = orjson.dumps({"jsonrpc": "2.0", "method": "echo", "params": ["x" * 50_000], "id": 1}) + b"\n"
        sending = asyncio.ensure_future(greedy.send(line * 2000))
        done, _ = await asyncio.wait({sending}, timeout=0.5)
        assert not done, "100 MB were taken from a peer that reads nothing"
        await assert_served(other)
        for stream in running_streams(server):
            assert stream.unread_size < 1_000_000
            assert stream.session.queue.size < 1_000_000
        greedy.writer.transport.resume_reading()
        await sending
        for _ in range(2000):
            assert len((await greedy.reply())["result"]) == 50_000


async def test_a_peer_that_ends_and_never_reads_is_closed(connect: Any) -> None:
    limits = Limits(write_buffer=64_000_000, write_timeout=0.5)
    server = make_server(limits)
    async with server.listening(port=0) as address:
        greedy = await connect(address)
        greedy.writer.transport.pause_reading()
        await greedy.send('{"jsonrpc":"2.0","method":"blob","params":[30000000],"id":1}\n\n')
        while not server.counters.closed_for_limits:
            await asyncio.sleep(0.01)
        while server.counters.connections:
            await asyncio.sleep(0)


async def test_calls_in_flight_are_capped(connect: Any) -> None:
    server = Server(limits=Limits(max_calls=5))
    running = most = 0

    @server
    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return number

    async with server.listening(port=0) as address:
        raw = await connect(address)
        lines = [orjson.dumps({"jsonrpc": "2.0", "method": "work", "params": [n], "id": n}) for n in range(200)]
        await raw.send(b"\n".join(lines) + b"\n")
        got = [(await raw.reply())["result"] for _ in range(200)]
        assert sorted(got) == list(range(200))
        batch = b"[" + b",".join(lines) + b"]"
        assert len(await raw.ask(batch)) == 200
    assert most == 5


async def test_connections_over_the_cap_are_told_and_closed(connect: Any) -> None:
    server = make_server(Limits(max_connections=2))
    async with server.listening(port=0) as address:
        first, second = await connect(address), await connect(address)
        await assert_served(first)
        await assert_served(second)
        third = await connect(address)
        assert (await third.reply())["error"]["code"] == -32002
        assert await third.reply() is None
        await assert_served(first)
        await first.close()
        while True:
            fourth = await connect(address)
            reply = await fourth.call("echo", [1])
            if "result" in reply:
                break
    assert server.counters.connections_refused >= 1


async def test_others_are_served_while_one_keeps_asking(connect: Any) -> None:
    """One connection with thousands of requests at once does not make the others wait until they are all answered."""
    server = Server()
    answered = 0

    @server
    def work() -> None:
        nonlocal answered
        answered += 1
        sum(range(20_000))

    @server
    def count() -> int:
        return answered

    async with server.listening(port=0) as address:
        greedy, other = await connect(address), await connect(address)
        await greedy.send(b'{"jsonrpc":"2.0","method":"work","id":1}\n' * 3000)
        assert (await other.call("count"))["result"] < 3000


async def test_a_slow_inline_handler_is_named(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(slow_call=0.01)

    @server
    def sleepy() -> None:
        import time

        time.sleep(0.05)

    with caplog.at_level(logging.WARNING, "rpcstream.server"):
        async with server.listening(port=0) as address:
            raw = await connect(address)
            await raw.call("sleepy")
    assert "'sleepy' kept the event loop for 0.0" in caplog.text
    assert "offload='thread'" in caplog.text


def running_streams(server: Server) -> list[Any]:
    return open_connections(server)
