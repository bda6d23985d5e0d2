"""The load generator in C: it counts right replies, and notices wrong, late and missing ones, by each protocol."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite import load, templates
from suite.load import Load, LoadFailed, WrongReply

from .load_generator import (
    BODY,
    NEEDS_COMPILER,
    POST,
    REPLY,
    REQUEST,
    Http,
    lines,
    response,
    right_reply,
    right_response,
    run,
    serving,
    serving_grpc,
    serving_websocket,
)

pytestmark = [pytest.mark.slow, *NEEDS_COMPILER]

# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (2, 16), (300, 1)])
async def test_right_replies_are_counted(connections: int, in_flight: int) -> None:
    numbers: list[int] = []
    opened = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while line := await reader.readline():
            numbers.append(json.loads(line)["id"])
            writer.write(right_reply(line))

    async with serving(handle) as port:
        done = await run(port, connections=connections, in_flight=in_flight)
    assert opened == connections
    assert 0 < done.calls <= len(numbers)
    assert len(set(numbers)) == len(numbers)  # none is used twice, on whichever connection
    assert 1_000_000 <= min(numbers) <= max(numbers) <= 8_999_999
    assert done.rate == pytest.approx(done.calls / done.seconds, rel=0.01)
    assert (done.wrong, done.seconds >= 0.1, 0 < done.cpu <= 1.1) == (0, True, True)
    latency = done.latency_us
    assert 0 < latency.p50 <= latency.p90 <= latency.p99 <= latency.p999 <= latency.max


@pytest.mark.parametrize("protocol", ["lines", "http"])
async def test_replies_a_byte_at_a_time(protocol: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n" if protocol == "http" else b"\n"):
            http = protocol == "http"
            for byte in right_response(await reader.readexactly(len(BODY))) if http else right_reply(head):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with serving(handle) as port:
        assert (await (run_http(port) if protocol == "http" else run(port, connections=2, in_flight=3))).calls > 0


async def test_messages_larger_than_all_buffers() -> None:
    message = b"@@@@@@@" + b"x" * 3_000_000 + b"@@@@@@@\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()

    async with serving(handle) as port:
        done = await run(port, message, message, in_flight=2)
    assert done.calls > 0


def is_nth(line: bytes, n: int = 500) -> bool:
    return bool(json.loads(line)["id"] == 1_000_000 + n)


@pytest.mark.parametrize(
    "broken",
    [
        lambda line: right_reply(line).replace(b"sum", b"SUM"),
        lambda line: right_reply(line).replace(b"}", b" }"),
        lambda line: right_reply(line)[:-2] + b"\n",
        lambda line: b"\n",
        lambda line: b"x" * 100_000,
        lambda line: right_reply(line) * 2,
        lambda line: right_reply(line.replace(b":1000", b":1001")),
        lambda line: right_reply(line).replace(b'{"id":1000', b'{"id":1001'),
    ],
    ids=["value", "longer", "shorter", "empty", "endless", "twice", "another call", "another id"],
)
async def test_a_wrong_reply_is_noticed(broken: Callable[[bytes], bytes]) -> None:
    async with serving(lines(lambda line: (broken if is_nth(line) else right_reply)(line))) as port:
        with pytest.raises(WrongReply, match=r"expected \(\d+ bytes\): |nobody asked for"):
            await run(port, seconds=20)


async def test_swapped_results_and_a_reply_on_the_wrong_connection_are_noticed() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def swap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first, second = [json.loads(await reader.readline()) for _ in range(2)]
            first["a"], second["a"] = second["a"], first["a"]
            writer.write(right_reply(json.dumps(first).encode()) + right_reply(json.dumps(second).encode()))

    async def mix_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            writers[-1].write(right_reply(line))

    for handle, shape in ((swap, {"in_flight": 2}), (mix_up, {"connections": 3})):
        async with serving(handle) as port:
            with pytest.raises(WrongReply, match=r"expected|nobody"):
                await run(port, **shape)


async def test_a_lost_connection_and_a_reply_that_never_comes_are_errors() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(20):
            writer.write(right_reply(await reader.readline()))

    async with serving(handle) as port:
        with pytest.raises(LoadFailed, match="connection lost") as caught:
            await run(port, connections=2, seconds=20)
    assert not isinstance(caught.value, WrongReply)
    async with serving(lines(lambda line: b"" if is_nth(line, 3) else right_reply(line))) as port:
        with pytest.raises(LoadFailed, match="though 1 calls wait"):
            await run(port, in_flight=4, patience=0.3)


async def test_exit_statuses(tmp_path: Path) -> None:
    (tmp_path / "request").write_bytes(REQUEST)
    load.build()

    async def status(port: int, *options: str, reply: bytes = REPLY) -> int:
        (tmp_path / "reply").write_bytes(reply)
        files = [f"--request={tmp_path / 'request'}", f"--reply={tmp_path / 'reply'}"]
        command = [str(load.LOAD), f"--port={port}", "--seconds=0.1", "--warmup=0", *files, *options]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
        if done.returncode != 2:
            output = json.loads(done.stdout)
            assert output["wrong"] == (done.returncode == 3)
            assert bool(output.get("error")) == (done.returncode != 0)
        return done.returncode

    async with serving(lines()) as port:
        assert await status(port) == 0
        assert await status(port, reply=b"no\n") == 3
        assert await status(port, "--connections=none") == 2
        assert await status(port, "--protocol=carrier-pigeon") == 2
        assert await status(port, "--reconnect", "--in-flight=2") == 2
        assert await status(port, "--request=/nowhere") == 2
    assert await status(port) == 4  # nobody listens there any more
    async with serving(lines(lambda line: b"")) as port:
        assert await status(port, "--patience=0.3") == 5


@pytest.mark.parametrize(("connections", "in_flight"), [(1000, 1), (16, 16)])
async def test_the_bare_echo(connections: int, in_flight: int) -> None:
    load.build()
    with subprocess.Popen([load.ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        done = await run(port, REQUEST, REQUEST, connections=connections, in_flight=in_flight)
        process.terminate()
    assert (process.returncode, done.calls > 0) == (0, True)


async def test_binary_frames_are_sent_as_they_are_and_answered_by_lines() -> None:
    text, payload = REQUEST, b"\x00\xff\n\n" * 1000
    frame = b"@%d %d\n" % (len(text), len(payload)) + text + payload
    seen = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        while head := await reader.readline():
            assert head == frame.partition(b"\n")[0] + b"\n"
            line = await reader.readexactly(len(text))
            assert await reader.readexactly(len(payload)) == payload
            writer.write(right_reply(line))
            seen += 1

    async with serving(handle) as port:
        done = await run(port, frame, protocol="frame", connections=2, in_flight=3)
        learned = await asyncio.to_thread(templates.learn, "frame", port, frame, lambda reply, n: reply["id"] == n)
    assert 0 < done.calls < seen
    assert learned.startswith(b'{"id":@@@@@@@,')


# -- HTTP and WebSocket -----------------------------------------------------------------------------------------------


async def run_http(port: int, **options: Any) -> Load:
    return await run(port, POST, REPLY.rstrip(), protocol="http", **options)


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (2, 5)])
async def test_http_keeps_connections_open(connections: int, in_flight: int) -> None:
    server = Http(right_response)
    async with serving(server) as port:
        done = await run_http(port, connections=connections, in_flight=in_flight)
    assert 0 < done.calls < server.requests
    assert server.connections == connections


@pytest.mark.parametrize("closes", [False, True])
async def test_http_with_a_new_connection_for_each_call(closes: bool) -> None:
    server = Http(right_response, closes=closes)
    async with serving(server) as port:
        done = await run_http(port, connections=3, reconnect=True)
    assert 0 < done.calls < server.requests == server.connections


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (response, r"expected \(\d+ bytes\)"),
        (lambda body: response(right_reply(body)), r"expected \(28 bytes\).*got \(29 bytes\)"),
        (lambda body: response(b"x" * 10_000_000), r"got \(10000000 bytes\)"),
        (lambda body: response(right_reply(body).rstrip(), "500 Broken"), "200, got: HTTP/1.1 500 Bro"),
        (lambda body: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "chunks"),
        (lambda body: right_reply(body) + b"\r\n\r\n", "expected HTTP/1.1 200"),
    ],
    ids=["value", "longer", "much longer", "status", "chunked", "no HTTP"],
)
async def test_a_wrong_reply_over_http_is_noticed(answer: Callable[[bytes], bytes], error: str) -> None:
    async with serving(Http(answer)) as port:
        with pytest.raises(WrongReply, match=error):
            await run_http(port)


async def test_websocket() -> None:
    for ping in (False, True):
        async with serving_websocket(lambda text: right_reply(text.encode()).decode(), ping=ping) as port:
            assert (await run(port, protocol="websocket", path="/ws", connections=2, in_flight=3)).calls > 0
    async with serving_websocket(lambda text: text) as port:
        with pytest.raises(WrongReply, match="expected"):
            await run(port, protocol="websocket", path="/ws")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(b"", "404 Not Found"))

    async with serving(refuse) as port:
        with pytest.raises(WrongReply, match=r"expected HTTP/1.1 101, got: HTTP/1.1 404 Not Found"):
            await run(port, protocol="websocket", path="/ws")


# -- gRPC -------------------------------------------------------------------------------------------------------------

GRPC = {"protocol": "grpc", "path": "/test/Answer"}


def read_varint(data: bytes) -> int:
    return sum((byte & 127) << 7 * at for at, byte in enumerate(data))


def write_varint(number: int) -> bytes:
    return (bytes([number & 127 | 128]) + write_varint(number >> 7)) if number > 127 else bytes([number])


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (2, 40)])
async def test_grpc(connections: int, in_flight: int) -> None:
    def answer(request: bytes) -> bytes:
        assert request[:1] == b"\x08"
        return b"\x08" + write_varint(read_varint(request[1:]) + 1)

    shape = {**GRPC, "connections": connections, "in_flight": in_flight}
    with serving_grpc(answer) as port:
        assert (await run(port, b"\x08%%%%", b"\x08&&&&", **shape)).calls > 0
        with pytest.raises(WrongReply, match="expected"):
            await run(port, b"\x08%%%%", b"\x08%%%%", **shape)
        with pytest.raises(WrongReply, match=r"expected a whole reply, got: .*grpc-status"):
            await run(port, b"@@@@@@@", b"@@@@@@@", **{**shape, "path": "/test/Unknown"})
    async with serving(lines(lambda line: b"what do you want?\n")) as port:
        with pytest.raises(LoadFailed, match="no HTTP/2: what do you want"):
            await run(port, b"@@@@@@@", b"@@@@@@@", **GRPC)


@pytest.mark.parametrize("size", [16_370, 65_535, 5_000_000])
async def test_grpc_messages_larger_than_frames_and_windows(size: int) -> None:
    message = b"@@@@@@@" + b"x" * size + b"@@@@@@@"
    with serving_grpc(lambda request: request) as port:
        assert (await run(port, message, message, connections=2, in_flight=3, **GRPC)).calls > 0
