"""Long messages that are written in shares, over TLS, and with asyncio's transports."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Limits, Server
from rpcstream.testing import connections_of

from ..kit.certificates import authority, client_side, server_tls

MIB = 1024 * 1024
#: About as much as is given to the system at once.
SHARE = 256 * 1024


@pytest.fixture(params=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def publishing(is_tls: bool = True, **limits: Any) -> Server:
    server = Server(tls=server_tls() if is_tls else None, limits=Limits(**limits))

    @server
    def tell(size: int) -> int:
        return server.publish("big", "x" * size)

    @server
    def echo(value: Any) -> Any:
        return value

    return server


@pytest.mark.parametrize("is_tls", [True, False])
def test_readers_that_stall_share_one_message(runner: asyncio.Runner, is_tls: bool) -> None:
    """Eight subscribers stall: the server has the message once, not a copy for each; and then each gets all of it."""
    size, readers = 12 * MIB, 8
    server = publishing(is_tls)

    async def main() -> None:
        async with server.listening(port=0) as address, asyncio.timeout(60):
            host, _, port = address.rpartition(":")
            tls: ssl.SSLContext | None = client_side() if is_tls else None
            ends = []
            for _ in range(readers):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, limit=4096)
                writer.write(b'{"jsonrpc":"2.0","id":1,"method":"rpc.subscribe","params":["big"]}\n')
                assert b'"result"' in await reader.readline()
                ends.append((reader, writer))
            tracemalloc.start()
            assert await call(host, port, tls, "tell", [size]) == readers
            while sum(each.unread_size > 0 for each in connections_of(server)) < readers:
                await asyncio.sleep(0.01)
            blocks = [trace.size for trace in tracemalloc.take_snapshot().traces if trace.size > MIB]
            tracemalloc.stop()
            assert len(blocks) == 1  # the one message
            for reader, writer in ends:
                line = await read_line(reader)
                assert orjson.loads(line)["params"]["value"] == "x" * size
                writer.write(b'{"jsonrpc":"2.0","id":2,"method":"rpc.ping"}\n')
                assert b"pong" in await reader.readline()
                writer.close()

    runner.run(main())


async def call(host: str, port: str, tls: ssl.SSLContext | None, method: str, params: Any) -> Any:
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    writer.write(orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + b"\n")
    line = await reader.readline()
    writer.close()
    return orjson.loads(line)["result"]


async def read_line(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while not (parts and parts[-1].endswith(b"\n")):
        parts.append(await reader.read(MIB))
        assert parts[-1], "the connection has ended"
    return b"".join(parts)


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_long_and_short_ones_both_ways(runner: asyncio.Runner, scheme: str) -> None:
    values = ["x" * (5 * MIB), 1, "y" * SHARE, "z" * (SHARE + 1), [1, 2], "ö" * MIB, None]
    server = publishing(write_buffer=100_000)

    async def main() -> None:
        async with server.listening(port=0) as address:
            place = address.rpartition("//")[2]
            async with AsyncClient(f"{scheme}://{place}", ca=authority()) as client:
                for _ in range(2):
                    assert await asyncio.gather(*(client.echo(value) for value in values)) == values

    runner.run(main())


def test_a_server_that_stops_delivers_what_waits(runner: asyncio.Runner) -> None:
    server = publishing()
    size = 6 * MIB

    async def main() -> bytes:
        async with server.listening(port=0) as address:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=client_side(), limit=4096)
            question = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x" * size]}
            writer.write(orjson.dumps(question) + b"\n")
            data = await reader.readexactly(1)
            server.stop()
            reading = asyncio.create_task(read_line(reader))
        data += await reading
        writer.close()
        return data

    reply, farewell = map(orjson.loads, runner.run(main()).splitlines())
    assert (reply["result"], farewell["method"]) == ("x" * size, "$/goAway")


def test_a_peer_that_never_reads_is_closed(runner: asyncio.Runner) -> None:
    server = publishing(write_timeout=0.3, max_json_size=64 * MIB)

    async def main() -> None:
        async with server.listening(port=0) as address, asyncio.timeout(60):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=client_side(), limit=4096)
            question = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ["x" * (20 * MIB)]}
            writer.write(orjson.dumps(question) + b"\n")
            await reader.readexactly(1)
            while not server.stats()["closed_for_limits"]:
                await asyncio.sleep(0.02)
            writer.transport.abort()

    runner.run(main())
