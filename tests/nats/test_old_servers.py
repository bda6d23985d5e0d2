"""A NATS server of before 2.2, played by the test: what it lacks is said at once, at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, Server

pytestmark = pytest.mark.nats

INFO = b'INFO {"server_id": "old", "version": "2.1.9", "max_payload": 1048576, "proto": 1}\r\n'


@pytest.fixture
async def old() -> AsyncIterator[str]:
    """The address of a server that speaks as versions before 2.2 do."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while line := await reader.readline():
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


async def test_a_client_says_what_is_needed(old: str) -> None:
    async with AsyncClient(f"{old}/service", wait_for=5) as client:
        with pytest.raises(ConnectFailed, match=r"too old: 2\.1\.9 has no headers.*2\.2 or later is needed") as raised:
            await client.call("add")
        assert raised.value.is_permanent


async def test_a_server_says_what_is_needed(old: str) -> None:
    server = Server()
    server.join_nats(old, service="service", only=True)
    with pytest.raises(ConnectFailed, match=r"too old: 2\.1\.9"):
        async with server.listening():
            pass
