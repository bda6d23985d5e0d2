"""NATS servers played by the test: too old, without TLS, gone mad, or with many others beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, NatsLogin, Retry, Server

from ..kit import until
from .conftest import Clock

pytestmark = pytest.mark.nats

INFO = b'INFO {"server_id":"x","version":"2.11.0","headers":true,"max_payload":1048576%b}\r\n'


@asynccontextmanager
async def played(
    info: bytes = INFO % b"", after: bytes = b"", *, seen: bytearray | None = None, pings: int = 1000
) -> AsyncIterator[str]:
    """The address of a server that answers up to `pings` pings, and each call with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = pings
        writer.write(info)
        while line := await reader.readline():
            if seen is not None:
                seen.extend(line)
            if line == b"PING\r\n":
                left -= 1
                writer.write(b"PONG\r\n" if left >= 0 else b"")
            elif after and line.startswith(b"PUB"):
                writer.write(after)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


OLD = b'INFO {"server_id":"old","version":"2.1.9","max_payload":1048576,"proto":1}\r\n'


@pytest.mark.parametrize(
    ("info", "scheme", "why"),
    [
        (OLD, "nats", r"too old: 2\.1\.9 has no headers.*2\.2 or later is needed"),
        (INFO % b',"auth_required":true', "nats+tls", "has no TLS: begin the address with nats://"),
    ],
)
async def test_what_a_server_lacks_is_said_at_once_at_both_ends(info: bytes, scheme: str, why: str) -> None:
    seen, login = bytearray(), NatsLogin(user="a", password="secret")
    async with played(info, seen=seen) as address:
        async with AsyncClient(f"{scheme}://{address}/service", wait_for=5, nats=login) as client:
            with pytest.raises(ConnectFailed, match=why) as raised:
                await client.call("add")
            assert raised.value.is_permanent
        server = Server()
        server.join_nats(f"{scheme}://{address}", service="service", only=True, login=login)
        with pytest.raises(ConnectFailed, match=why):
            async with server.listening():
                pass
    assert scheme == "nats" or b"secret" not in seen


@pytest.mark.parametrize(
    "after", [b"MSG a 1 x\r\n", b"MSG a 1\r\n", b"HMSG a 1 9\r\n", b"hello\r\n", b"INFO {\r\n", b"x" * (1 << 21)]
)
async def test_bytes_that_are_no_protocol_end_the_connection(after: bytes) -> None:
    async with played(after=after) as address, AsyncClient(f"nats://{address}/service", timeout=20) as client:
        with pytest.raises(ConnectionLost):
            await client.call("add")


async def test_pings_of_the_server_are_answered() -> None:
    seen = bytearray()
    async with (
        played(after=b"PING\r\n", seen=seen) as address,
        AsyncClient(f"nats://{address}/service", timeout=20) as client,
    ):
        call = asyncio.create_task(client.call("add"))
        await until(lambda: b"PONG\r\n" in seen)
        call.cancel()


async def test_a_server_that_answers_no_pings_is_noticed(clock: Clock) -> None:
    async with played(pings=2) as address, AsyncClient(f"nats://{address}/service", timeout=None) as client:
        call = asyncio.create_task(client.call("add"))
        await clock.until(call.done, step=1)
        with pytest.raises(ConnectionLost, match="does not answer"):
            await call


async def test_nothing_is_read_that_came_before_the_handshake_of_tls() -> None:
    info = INFO % b',"tls_required":true' + b"MSG a 1 "
    async with played(info) as address, AsyncClient(f"nats+tls://{address}/service", wait_for=None) as client:
        with pytest.raises(ConnectFailed, match="before the TLS handshake"):
            await client.call("add")


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(("repeats", "count"), [("idempotent", 1), ("all", 3)])
async def test_a_publication_that_may_have_arrived_is_not_repeated_unless_all_calls_are(
    repeats: Literal["idempotent", "all"], count: int, retain: bool
) -> None:
    seen, subject = bytearray(), b"PUB rpc.service.$%b.news " % (b"retain" if retain else b"event")
    again = Retry(times=2, repeats=repeats)
    async with (
        played(after=b"hello\r\n", seen=seen) as address,
        AsyncClient(f"nats://{address}/service", retry=again, wait_for=5) as client,
    ):
        with pytest.raises(ConnectionLost):
            await client.publish("news", 1, retain=retain)
    assert seen.count(subject) == count
