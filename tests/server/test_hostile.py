"""Hostile and careless peers: each gets an error or is closed in time, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from typing import Any

import orjson
import pytest

from rpcstream import Client, Limits, Logs
from rpcstream.testing import FakeTimeLoop, serve_in_thread

from ..kit import TRANSPORTS, RawPeer, UsualServer, batch, raw_peers, request

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


PIXELS = {"$type": "image", "format": "raw", "data": "", "mode": "RGB", "size": [100_000, 100_000]}
ARRAY = {"$type": "ndarray", "dtype": "<f4", "shape": [2**62, 2**62], "data": "AAAA"}

#: Deep, long, or not what it says; more of requests: tests/conversation/test_bytes.py, more of values: tests/codec.
LINES: list[tuple[bytes, int]] = [
    *[(each, -32700) for each in (b"\xff\xfe\x00", b"[" * 5000, nested(5000), b'{"a":' * 3000)],
    *[(call(each), -32600) for each in (nested(201), b"[" + b'{"":' * 200 + b"1" + b"}" * 200 + b"]")],
    (b'{"jsonrpc":"2.0","method":%b,"id":1}' % nested(1000), -32600),
    *[(call(b"[]", each), -32601) for each in (b"rpc.nothing", b"__class__", b"")],
    *[(each, -32001) for each in (call(b"[" + b"1" * 200_000 + b"]"), b"x" * 100_001, call(b"[200000]", b"blob"))],
    *[(call(orjson.dumps([each]), b"image"), -32602) for each in (PIXELS, "R0lGODlh", "", 7)],
    *[
        (call(orjson.dumps([each]), b"array"), -32602)
        for each in (ARRAY, {**ARRAY, "dtype": "|O"}, "k05VTVBZAQB2", [[]] * 2 + [1], [{}])
    ],
    *[(call(b'[{"$type":"bytes","data":"%b"}]' % (b"QUJD" * 9000 + each)), -32602) for each in (b"?", b"A//")],
]

#: Batches that are refused whole, and the id and code of the answer: an array, in which clients look for their calls.
BATCHES: list[tuple[bytes, bytes, int]] = [
    (batch(*[member(b'"a"'), member(b'"b"')] * 6), b'"a"', -32004),
    (batch(*[member(), b"1", member(b"[]"), member(b"7")] * 3), b"7", -32004),
    (batch(*[member(b"1.5")] * 11), b"1.5", -32004),
    (batch(*[member()] * 11), b"null", -32004),
    (batch(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[' + b"1" * 200_000 + b"]}"), b"1", -32001),
    (batch(call(nested(300))), b"1", -32600),
    (nested(300), b"null", -32600),
]


async def test_what_is_bad_gets_its_error_and_the_connection_lives(caplog: pytest.LogCaptureFixture) -> None:
    async with raw_peers(make_server(logs=Logs(slow_call=1e-9))) as connect:
        raw = await connect()
        for line, code in LINES:
            reply = await raw.ask(line)
            assert (reply["jsonrpc"], reply["error"]["code"]) == ("2.0", code), line[:100]
            assert reply["error"]["message"]
            assert len(orjson.dumps(reply)) < 1000
            await assert_served(raw)
        deepest = orjson.loads(nested(126))
        assert await raw.result("echo", deepest) == deepest
        assert re.search(r"'echo' blocked the event loop for 0\.0.*offload='thread'", caplog.text)
        for line, id, code in BATCHES:
            raw.send(line)
            text = await raw.receive_bytes() or b""
            assert b'"id":%b,' % id in text
            assert [each["error"]["code"] for each in orjson.loads(text)] == [code]
            await assert_served(raw)


async def test_ids_come_back_exactly() -> None:
    ids = ["1", '"1"', "null", "1.0", "1.5", "100.0", str(2**63 - 1), "0.12345678901234566"]
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
        replies = await raw.ask([*calls, 5, request("blob", 1, id=[1])])
        assert [reply["id"] for reply in replies] == [*range(100), None, None]
        assert {reply["error"]["code"] for reply in replies} == {-32001}
        assert replies[0]["error"]["data"]["size"] > 5_000_000
        # So many errors would be too long as well.
        (reply,) = await raw.ask([request("blob", 50_000, id=f"{n}{'x' * 500}") for n in range(180)])
        assert (reply["id"], reply["error"]["code"]) == (None, -32001)


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
