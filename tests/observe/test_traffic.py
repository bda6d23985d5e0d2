"""Bytes received and sent, as `/metrics` shows them, against what a socket has sent and received."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rpcstream import AsyncClient, Server
from rpcstream.observe.traffic import Traffic, bytes_of

from ..certificates import authority, server_tls
from ..waiting import until
from .reading import value

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system counts them only there")


def closed_socket() -> socket.socket:
    sock = socket.socket()
    sock.close()
    return sock


def shown(server: Server) -> tuple[float | None, float | None]:
    text = server.metrics_text()
    return value(text, "rpcstream_bytes_received_total"), value(text, "rpcstream_bytes_sent_total")


def make_server(**options: object) -> Server:
    server = Server(metrics=True, **options)  # type: ignore[arg-type]

    @server
    def repeat(text: str, times: int) -> str:
        return text * times

    return server


def request(number: int, times: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"repeat","params":["abc",%d]}\n' % (number, times)


async def test_they_are_those_of_open_and_of_closed_connections() -> None:
    server = make_server()
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        received = sent = 0
        for closed, times in enumerate((1, 100_000)):
            reader, writer = await asyncio.open_connection(host, int(port), limit=1_000_000)
            for number in range(3):
                line = request(number, times)
                writer.write(line)
                sent += len(line)
                received += len(await reader.readline())
            assert shown(server) == (sent + closed, received)
            writer.close()
            await writer.wait_closed()
            await until(lambda: server.counters.connections == 0)
            assert shown(server) == (sent + closed + 1, received)


async def test_of_http_and_of_what_was_refused() -> None:
    server = make_server()
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        body = request(1, 1)
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        reader, writer = await asyncio.open_connection(host, int(port))
        data = head % len(body) + body + b"nonsense\r\n\r\n"
        writer.write(data)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        await until(lambda: server.counters.connections == 0)
        assert b'"abc"' in answer
        assert shown(server) == (len(data) + 1, len(answer))


async def test_of_tls_they_are_the_encrypted_ones() -> None:
    server = make_server(tls=server_tls())
    async with (
        server.listening(port=0) as address,
        AsyncClient(f"tls://{address.removeprefix('tls://')}", ca=authority()) as client,
    ):
        assert await client.repeat("abc", 1000) == "abc" * 1000
        received, sent = shown(server)
        assert received is not None
        assert sent is not None
        assert received > len(request(1, 1)) + 200
        assert sent > 3000 + 200


async def test_other_sockets_count_nothing(tmp_path: Path) -> None:
    server = make_server()
    path = tmp_path / "sock"
    async with server.listening(unix=path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request(1, 1))
        await reader.readline()
        assert shown(server) == (0, 0)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "make", [lambda: None, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), closed_socket]
)
def test_what_is_no_tcp_connection_counts_nothing(make: Callable[[], socket.socket | None]) -> None:
    sock, traffic = make(), Traffic()
    traffic.add(sock)
    assert traffic.total([sock]) == bytes_of(sock) == (0, 0)
    if sock is not None:
        sock.close()


async def test_without_metrics_they_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Traffic, sock: object) -> None:
        raise AssertionError("read without metrics")

    monkeypatch.setattr(Traffic, "add", fail)
    server = Server()
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
        await until(lambda: server.counters.connections == 0)
