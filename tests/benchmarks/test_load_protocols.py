"""The load generator in C over HTTP, WebSocket and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from .load_generator import (
    NEEDS_COMPILER,
    POST,
    REPLY,
    REQUEST,
    Http,
    Load,
    LoadFailed,
    WrongReply,
    lines,
    response,
    right_reply,
    right_response,
    run,
    serving,
    serving_websocket,
    templates,
)

pytestmark = [pytest.mark.slow, *NEEDS_COMPILER]

# -- binary frames ----------------------------------------------------------------------------------------------------


async def test_frames_are_sent_as_they_are_and_answered_by_lines() -> None:
    json, payload = REQUEST, b"\x00\xff\n\n" * 1000
    frame = b"@%d %d\n" % (len(json), len(payload)) + json + payload
    seen = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        while head := await reader.readline():
            assert head == frame.partition(b"\n")[0] + b"\n"
            line = await reader.readexactly(len(json))
            assert await reader.readexactly(len(payload)) == payload
            writer.write(right_reply(line))
            seen += 1

    async with serving(handle) as port:
        done = await run(port, frame, protocol="frame", connections=2, in_flight=3)
        learned = await asyncio.to_thread(templates.learn, "frame", port, frame, lambda reply, n: reply["id"] == n)
    assert 0 < done.calls < seen
    assert learned.startswith(b'{"id":@@@@@@@,')


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def run_http(port: int, **options: Any) -> Load:
    return await run(port, POST, REPLY.rstrip(), protocol="http", **options)


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (4, 1), (2, 5)])
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


async def test_http_replies_in_pieces() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.split()[-1]))
            for byte in right_response(body):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with serving(handle) as port:
        assert (await run_http(port)).calls > 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda body: response(body), r"expected \(\d+ bytes\)"),
        (lambda body: response(right_reply(body)), r"expected \(28 bytes\).*got \(29 bytes\)"),
        (lambda body: response(b"x" * 10_000_000), r"got \(10000000 bytes\)"),
        (
            lambda body: response(right_reply(body).rstrip(), "500 Broken"),
            r"expected HTTP/1.1 200, got: HTTP/1.1 500 Bro",
        ),
        (lambda body: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "chunks"),
        (lambda body: right_reply(body) + b"\r\n\r\n", "expected HTTP/1.1 200"),
    ],
    ids=["value", "longer", "much longer", "status", "chunked", "no HTTP"],
)
async def test_a_wrong_reply_over_http_is_noticed(answer: Callable[[bytes], bytes], error: str) -> None:
    async with serving(Http(answer)) as port:
        with pytest.raises(WrongReply, match=error):
            await run_http(port)


# -- WebSocket --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ping", [False, True])
async def test_websocket(ping: bool) -> None:
    async with serving_websocket(lambda text: right_reply(text.encode()).decode(), ping=ping) as port:
        done = await run(port, protocol="websocket", path="/ws", connections=2, in_flight=3)
    assert done.calls > 0


async def test_a_wrong_reply_over_websocket_is_noticed() -> None:
    async with serving_websocket(lambda text: text) as port:
        with pytest.raises(WrongReply, match="expected"):
            await run(port, protocol="websocket", path="/ws")


async def test_a_server_without_websocket_is_noticed() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(b"", "404 Not Found"))

    async with serving(handle) as port:
        with pytest.raises(WrongReply, match=r"expected HTTP/1.1 101, got: HTTP/1.1 404 Not Found"):
            await run(port, protocol="websocket", path="/ws")


# -- gRPC -------------------------------------------------------------------------------------------------------------


@contextmanager
def serving_grpc(answer: Callable[[bytes], bytes], *options: tuple[str, int]) -> Iterator[int]:
    """`/test/Answer`, with messages as bytes."""
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=[*unlimited, *options])
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer(request))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Answer": handler})])
    port: int = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


async def run_grpc(port: int, request: bytes, reply: bytes, **options: Any) -> Load:
    return await run(port, request, reply, **{"protocol": "grpc", "path": "/test/Answer"} | options)


def read_varint(data: bytes) -> int:
    return sum((byte & 127) << 7 * at for at, byte in enumerate(data))


def write_varint(number: int) -> bytes:
    return (bytes([number & 127 | 128]) + write_varint(number >> 7)) if number > 127 else bytes([number])


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (3, 1), (2, 40)])
async def test_grpc(connections: int, in_flight: int) -> None:
    def answer(request: bytes) -> bytes:
        assert request[:1] == b"\x08"
        return b"\x08" + write_varint(read_varint(request[1:]) + 1)

    with serving_grpc(answer) as port:
        shape = {"connections": connections, "in_flight": in_flight}
        assert (await run_grpc(port, b"\x08%%%%", b"\x08&&&&", **shape)).calls > 0
        with pytest.raises(WrongReply, match="expected"):
            await run_grpc(port, b"\x08%%%%", b"\x08%%%%", **shape)


@pytest.mark.parametrize("size", [16_370, 65_535, 300_000, 5_000_000])
async def test_grpc_messages_larger_than_frames_and_windows(size: int) -> None:
    message = b"@@@@@@@" + b"x" * size + b"@@@@@@@"
    with serving_grpc(lambda request: request) as port:
        assert (await run_grpc(port, message, message, connections=2, in_flight=3)).calls > 0


async def test_grpc_errors_are_wrong_replies() -> None:
    with (
        serving_grpc(lambda request: request) as port,
        pytest.raises(WrongReply, match=r"expected a whole reply, got: .*grpc-status"),
    ):
        await run_grpc(port, b"@@@@@@@", b"@@@@@@@", path="/test/Unknown")


async def test_grpc_against_something_else() -> None:
    async with serving(lines(lambda line: b"what do you want?\n")) as port:
        with pytest.raises(LoadFailed, match="no HTTP/2: what do you want"):
            await run_grpc(port, b"@@@@@@@", b"@@@@@@@")
