"""Long messages that are written in shares, over TLS, and with asyncio's transports."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from rpcstream import AsyncClient, Limits
from rpcstream.testing import connections_of

from ..kit import RawPeer, UsualServer, notification, raw_peers, reply, until
from ..kit.certificates import authority, client_side, server_tls

MIB = 1024 * 1024
#: About as much as is given to the system at once.
SHARE = 256 * 1024


def server_of(is_tls: bool = True, **limits: Any) -> UsualServer:
    return UsualServer(tls=server_tls() if is_tls else None, limits=Limits(**limits))


@pytest.mark.parametrize("is_tls", [True, False])
def test_readers_that_stall_share_one_message(runner: asyncio.Runner, is_tls: bool) -> None:
    """Subscribers stall: the server has the message once, not a copy for each; and then each gets all of it."""
    size, readers = 8 * MIB, 3
    server = server_of(is_tls)

    async def main() -> None:
        async with raw_peers(server, tls=client_side() if is_tls else None) as connect:
            peers = [await connect() for _ in range(readers)]
            for peer in peers:
                await peer.result("rpc.subscribe", "big")
                peer.transport.pause_reading()
            tracemalloc.start()
            assert server.publish("big", "x" * size) == readers
            await until(lambda: sum(each.unread_size > 0 for each in connections_of(server)) == readers)
            blocks = [trace.size for trace in tracemalloc.take_snapshot().traces if trace.size > MIB]
            tracemalloc.stop()
            assert len(blocks) == 1  # the one message
            for peer in peers:
                peer.transport.resume_reading()
                assert await peer.receive() == notification("$/event", topic="big", value="x" * size)
                assert await peer.result("rpc.ping") == "pong"

    runner.run(main())


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_long_and_short_ones_both_ways(runner: asyncio.Runner, scheme: str) -> None:
    values = ["x" * (2 * MIB), 1, "y" * SHARE, "z" * (SHARE + 1), [1, 2], "ö" * MIB, None]
    server = server_of(write_buffer=100_000)

    async def main() -> None:
        async with server.listening(port=0) as address:
            place = address.rpartition("//")[2]
            async with AsyncClient(f"{scheme}://{place}", tls=authority()) as client:
                assert await asyncio.gather(*(client.echo(value) for value in values)) == values

    runner.run(main())


def test_a_server_that_stops_delivers_what_waits(runner: asyncio.Runner) -> None:
    server, value = server_of(), "x" * (6 * MIB)

    async def main() -> None:
        async with server.listening(port=0) as address:
            peer = await RawPeer.open(address, tls=client_side())
            peer.call("echo", value)
            await until(lambda: any(each.unread_size for each in connections_of(server)))
            server.stop()
            assert await peer.receive() == reply(1, value)
            await until(lambda: peer.farewells)
            peer.close()

    runner.run(main())


def test_a_peer_that_never_reads_is_closed(runner: asyncio.Runner) -> None:
    server = server_of(write_timeout=0.1, max_json_size=64 * MIB)

    async def main() -> None:
        async with raw_peers(server, tls=client_side()) as connect:
            peer = await connect()
            peer.call("echo", "x" * (12 * MIB))
            await until(lambda: any(each.unread_size for each in connections_of(server)))
            peer.transport.pause_reading()
            await until(lambda: server.stats()["closed_for_limits"])

    runner.run(main())
