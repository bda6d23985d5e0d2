"""Connections that send nothing to a server that requires authentication."""

from __future__ import annotations

import asyncio

import pytest

from rpcstream import Limits, Server


@pytest.mark.parametrize("said", [b"", b"PO"])
async def test_a_connection_that_does_not_say_who_it_is(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(token="secret", limits=Limits(auth_timeout=0.1))
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(20):
            try:
                assert await reader.read() == b""
            except ConnectionError:
                pass
        writer.close()
        assert server.counters.closed_for_limits == 1
        assert "not authenticated after 0.1 s (auth_timeout)" in caplog.text


async def test_without_authentication_it_may_wait() -> None:
    async with Server(limits=Limits(auth_timeout=0.05)).listening(port=0) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.sleep(0.2)
        writer.write(b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}\n')
        assert b"pong" in await asyncio.wait_for(reader.readline(), 20)
        writer.close()
