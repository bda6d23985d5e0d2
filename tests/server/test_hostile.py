"""Hostile and careless peers: each gets an error or is closed in time, and others are served."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import socket
import struct
import threading
import time
import zlib
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import AsyncClient, Client, Limits
from rpcstream.testing import connections_of, serve_in_thread

from ..kit import RawPeer, UsualServer, batch, raw_peers, request, until

LIMITS = Limits(max_message_size=100_000, max_batch=10, max_calls=8, write_buffer=64 * 1024, max_image_pixels=10_000)


def make_server(limits: Limits = LIMITS, **options: Any) -> UsualServer:
    server = UsualServer(limits=limits, drain_timeout=0.5, **options)
    server.add(lambda size: "x" * size, name="blob")
    return server


async def assert_served(raw: RawPeer) -> None:
    assert await raw.result("echo", "still here", id="last") == "still here"


def call(params: bytes, method: bytes = b"echo", **members: bytes) -> bytes:
    more = b"".join(b',"%b":%b' % (name.encode(), value) for name, value in members.items())
    return b'{"jsonrpc":"2.0","method":"%b","params":%b,"id":1%b}' % (method, params, more)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\xff\xfe\x00", -32700),
        (call(b'["\xff"]'), -32700),
        (call(b'["\\ud800"]'), -32700),
        (b"nonsense", -32700),
        (b"NaN", -32700),
        (b'{"a":1,}', -32700),
        (b"[" * 5000, -32700),
        (b"[" * 5000 + b"]" * 5000, -32700),
        (b'{"a":' * 3000, -32700),
        (b"[" * 300 + b"]" * 300, -32600),
        (call(b"[" * 201 + b"]" * 201), -32600),
        (call(b"[" + b'{"":' * 200 + b"1" + b"}" * 200 + b"]"), -32600),
        (b"1", -32600),
        (b'"x"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","method":"echo","id":1}', -32600),
        (b'{"method":"echo","id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":["echo"],"id":1}', -32600),
        (b'{"jsonrpc":"2.0","method":%s%s,"id":1}' % (b"[" * 1000, b"]" * 1000), -32600),
        (call(b"5"), -32600),
        *[(b'{"jsonrpc":"2.0","method":"echo","params":[1],"id":%b}' % each, -32600) for each in (b"{}", b"true")],
        (call(b"[1,0]", b"echo_after", timeout=b'"x"'), -32600),
        (call(b"[1,0]", b"echo_after", timeout=b"-1"), -32600),
        *[(call(b"[]", each), -32601) for each in (b"rpc.nothing", b"__class__", b"")],
        (b"[]", -32600),
        (call(b"[" + b"1" * 200_000 + b"]"), -32001),
        (b"x" * 100_001, -32001),
        (call(b"[200000]", b"blob"), -32001),
    ],
)
async def test_a_bad_line_gets_its_error_and_the_connection_lives(line: bytes, code: int) -> None:
    async with raw_peers(make_server(slow_call=1e-9)) as connect:
        raw = await connect()
        reply = await raw.ask(line)
        assert (reply["jsonrpc"], reply["error"]["code"]) == ("2.0", code)
        assert reply["error"]["message"]
        await assert_served(raw)


def member(id: bytes = b"") -> bytes:
    return b'{"jsonrpc":"2.0","method":"echo","params":[1]%b}' % (b',"id":' + id if id else b"")


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        (batch(*[member(b'"a"'), member(b'"b"')] * 6), b'"a"', -32004),
        (batch(*[member(), b"1", member(b"[]"), member(b"7")] * 3), b"7", -32004),
        (batch(*[member(b"1.50")] * 11), b"1.50", -32004),
        (batch(*[member()] * 11), b"null", -32004),
        (batch(*[b"1"] * 11), b"null", -32004),
        (batch(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[' + b"1" * 200_000 + b"]}"), b"1", -32001),
        (batch(call(b"[" * 300 + b"]" * 300)), b"1", -32600),
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


@pytest.mark.parametrize(
    "id", ["1", '"1"', "null", "1.0", "1.50", "1e2", str(2**64), str(-(2**70)), "0.12345678901234567"]
)
async def test_ids_come_back_exactly(id: str) -> None:
    async with raw_peers(make_server()) as connect:
        raw = await connect()
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
        raw, value = await connect(), 1
        for _ in range(126):
            value = [value]  # type: ignore[assignment]
        assert await raw.result("echo", value) == value
        assert await raw.code("echo", [value]) == -32600


def bomb(width: int, height: int) -> str:
    """A PNG of a few bytes that claims to be large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


def array(dtype: Any, shape: Any, data: bytes | str) -> dict[str, Any]:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"$type": "ndarray", "dtype": dtype, "shape": shape, "data": text}


def image(format: str, data: str, **more: Any) -> dict[str, Any]:
    return {"$type": "image", "format": format, "data": data, **more}


@pytest.mark.parametrize(
    ("method", "value"),
    [
        *[
            ("array", each)
            for each in (
                array("<f4", [3], b"\0" * 8),
                array("<f4", [-1], b"\0" * 8),
                array("<f4", [2.0], b"\0" * 8),
                array("<f4", [True, 2], b"\0" * 8),
                array("<f4", [2**62, 2**62], b""),
                array("<f4", [1] * 33, b"\0" * 4),
                array("<f4", "2", b"\0" * 8),
                array("|O", [1], b"\0" * 8),
                array("<U2", [1], b"\xff" * 8),
                array("10000000f8", [0], b""),
                array("<V4", [2], b"\0" * 8),
                array([["a", "<f4"]], [2], b"\0" * 8),
                array("<f4", [2], "AAAAAAAAAAA"),
                array("<f4", [2], "AAAA AAAAAAA="),
                array("<f4", [2], "AAAAAAAAAAB="),
                {"$type": "ndarray"},
                image("png", ""),
                {"$type": "nothing"},
                {"$type": 5},
                "k05VTVBZAQB2AA==",
                *({}, [], 5, None),
            )
        ],
        *[
            ("image", each)
            for each in (
                bomb(12_000, 12_000),
                image("png", bomb(101, 100)),
                image("png", bomb(10, 10)[:60]),
                image("eps", base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0").decode()),
                image("raw", "", mode="RGB", size=[100_000, 100_000]),
                image("raw", "AAAA", mode="RGB", size=[2, 2]),
                image("raw", "AAAA", mode="X", size=[1, 1]),
                base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n").decode(),
                base64.b64encode(b"GIF89a").decode(),
                *("", 7),
            )
        ],
    ],
)
async def test_a_lying_array_or_image(method: str, value: Any) -> None:
    async with raw_peers(make_server()) as connect:
        raw = await connect()
        error = (await raw.reply(method, value))["error"]
        assert (error["code"], error["data"]["parameter"]) == (-32602, method)
        await assert_served(raw)


# -- long messages, whose payloads are not parsed ----------------------------------------------------------------------

DATA = base64.b64encode(bytes(range(256)) * 400)


def tagged(data: bytes, kind: bytes = b"bytes", more: bytes = b"") -> bytes:
    return b'{"$type":"%b"%b,"data":"%b"}' % (kind, more, data)


BROKEN = {
    "alphabet": DATA + b"?",
    "padding": DATA[:-1],
    "end": DATA[:-4] + b"//==",
    "control": DATA[:1000] + b"\x01\x02\x03\x04" + DATA[1000:],
    "utf-8": DATA[:1000] + b"\xff\xff\xff\xff" + DATA[1000:],
    "escape": DATA[:1000] + rb"\u00e4" + DATA[1000:],
    "blank": DATA[:1000] + b"    " + DATA[1000:],
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("method", [b"echo", b"array"])
async def test_a_broken_payload_is_an_error_and_the_connection_lives(method: bytes, data: bytes) -> None:
    async with raw_peers(make_server(Limits())) as connect:
        raw = await connect()
        for value in (tagged(data), tagged(data, b"ndarray", b',"dtype":"|u1","shape":[102400]')):
            reply = await raw.ask(call(b"[%b]" % value, method))
            assert reply["error"]["code"] == -32602, reply
            assert len(orjson.dumps(reply)) < 1000
        await assert_served(raw)


@pytest.mark.parametrize("pieces", [1, 7, 60])
async def test_payloads_in_pieces_and_what_only_looks_like_one(pieces: int) -> None:
    server = make_server(Limits())

    @server
    def texts(value: dict[str, str]) -> int:
        return sum(map(len, value.values()))

    async with raw_peers(server) as connect:
        raw = await connect()
        one = call(b"[%b]" % tagged(DATA), b"size")
        lines = [call(b'[{"a":"b"}]', b"texts"), one, call(b"[%b]" % tagged(DATA), b"texts"), call(b"[1]", b"size")]
        lines += [b"[%b]" % b",".join(lines), call(b"[%b]" % tagged(b"\xff" * 100_000), b"texts")]
        stream = b"\n".join(lines) + b"\n"
        step = len(stream) // pieces + 1
        for start in range(0, len(stream), step):
            raw.write(stream[start : start + step])
            await asyncio.sleep(0)
        expected = [1, 102_400, len("bytes") + len(DATA)]
        assert [await raw.result() for _ in range(3)] == expected
        assert await raw.code() == -32602
        assert [each.get("result") for each in await raw.receive()] == [*expected, None]
        assert await raw.code() == -32700


async def test_many_long_ones_at_once_both_ways_and_integers_beside_them() -> None:
    async with make_server(Limits()).listening(port=0) as address, AsyncClient(address) as client:
        arrays = [np.full(size, size % 251, np.uint8) for size in (1, 5000, 70_000, 300_000, 2_000_000)] * 4
        futures = [client.submit.echo([2**70 + number, array]) for number, array in enumerate(arrays)]
        for number, (future, array) in enumerate(zip(futures, arrays, strict=True)):
            got, back = await future
            assert got == 2**70 + number
            np.testing.assert_array_equal(back, array)


# -- time and memory ------------------------------------------------------------------------------------------------


async def test_half_a_message_and_silence_or_drops_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(Limits(message_timeout=0.3))
    async with raw_peers(server) as connect:
        raw, slow, other = await connect(), await connect(), await connect()
        raw.write(b'{"jsonrpc":"2.0",')
        while not slow.is_over:
            slow.write(b"1")
            await asyncio.sleep(0.02)
        assert "end each message with a line end" in (await raw.receive())["error"]["data"]["reason"]
        assert await raw.rest() == []
        await assert_served(other)
    assert "message_timeout" in caplog.text
    assert server.counters.closed_for_limits == 2


async def test_a_message_that_we_do_not_read_is_not_overdue() -> None:
    async with raw_peers(make_server(Limits(max_calls=2, message_timeout=0.2))) as connect:
        raw = await connect()
        line = call(b"[0,0.5]", b"echo_after") + b"\n"
        raw.write(line * 2 + line[:20])
        await asyncio.sleep(0.05)
        raw.write(line[20:])
        assert [await raw.result() for _ in range(3)] == [0] * 3


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async with raw_peers(make_server(Limits(idle_timeout=0.3))) as connect:
        idle, busy = await connect(), await connect()
        busy.call("echo_after", "done", 0.6)
        assert await idle.rest() == []
        assert await busy.result() == "done"
    assert "idle_timeout" in caplog.text


async def test_a_peer_that_never_reads_does_not_grow_the_memory_and_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """It asks for 400 MB in one go; the server holds what the limit allows, and serves others meanwhile."""
    server = make_server(Limits(max_message_size=2_000_000, write_buffer=1_000_000, write_timeout=0.5))
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


@pytest.mark.parametrize("ends", [True, False])
async def test_a_peer_that_never_reads_is_closed(ends: bool) -> None:
    """One that ends, and one that lets replies of async handlers pile up."""
    limits: dict[str, Any] = {"write_buffer": 100_000, "max_message_size": 2_000_000, "max_calls": 200}
    server = make_server(Limits(**({"write_buffer": 64_000_000, "write_timeout": 0.3} if ends else limits)))

    @server
    async def later() -> str:
        await server.call_wait()
        return "x" * 1_000_000

    async with raw_peers(server) as connect:
        greedy, other = await connect(), await connect()
        greedy.transport.pause_reading()
        greedy.send(*([request("blob", 30_000_000), b""] if ends else [request("later")] * 150))
        await until(lambda: ends or len(server.begun) == 150)
        server.release()
        await until(lambda: server.counters.closed_for_limits)
        await assert_served(other)


async def test_a_peer_that_sends_and_never_reads_is_not_read_either() -> None:
    """Its requests stay in the network, not in the server."""
    server = make_server(Limits(write_buffer=100_000, write_timeout=None))
    async with raw_peers(server) as connect:
        greedy, other = await connect(), await connect()
        greedy.transport.pause_reading()
        greedy.send(*[request("echo", "x" * 50_000)] * 1000)
        await until(lambda: any(each.unread_size for each in connections_of(server)))
        for _ in range(10):
            await assert_served(other)
        assert greedy.transport.get_write_buffer_size() > 10_000_000, "50 MB were taken from a peer that reads nothing"
        assert all(each.unread_size < 1_000_000 for each in connections_of(server))
        greedy.transport.resume_reading()
        assert {len(await greedy.result()) for _ in range(1000)} == {50_000}


async def test_calls_in_flight_are_capped() -> None:
    server = make_server(Limits(max_calls=5))
    running = most = 0

    @server
    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return number

    async with raw_peers(server) as connect:
        raw = await connect()
        calls = [request("work", n, id=n) for n in range(200)]
        raw.send(*calls)
        assert {await raw.result() for _ in calls} == set(range(200))
        assert len(await raw.ask(calls)) == 200
    assert most == 5


async def test_connections_over_the_cap_are_told_and_closed() -> None:
    server = make_server(Limits(max_connections=2))
    async with raw_peers(server) as connect:
        first, second = await connect(), await connect()
        await assert_served(first)
        await assert_served(second)
        third = await connect()
        assert [each["error"]["code"] for each in await third.rest()] == [-32002]
        await assert_served(first)
        first.close()
        await until(lambda: server.counters.connections == 1)
        await assert_served(await connect())
    assert server.counters.connections_refused == 1


async def test_others_have_their_turn_while_one_keeps_asking() -> None:
    """Neither thousands of requests at once, nor calls that finish meanwhile, make others wait for all of them."""
    server, answered = make_server(Limits()), 0

    @server(name="work")
    def work() -> None:
        nonlocal answered
        answered += 1
        end = time.perf_counter() + 0.005
        while time.perf_counter() < end:
            pass

    server.add(lambda: answered, name="answered")
    async with raw_peers(server) as connect:
        greedy, other = await connect(), await connect()
        greedy.send(*[request("echo_after", 1, 0.05)] * 50, *[request("work")] * 150)
        counts: list[int] = []
        while not counts or counts[-1] < 150:
            counts.append(await other.result("answered"))
        assert max(after - before for before, after in itertools.pairwise(counts)) < 80


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
