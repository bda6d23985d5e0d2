"""A server that stops with requests in line: those that it cannot begin in time are made again at the next one."""

from __future__ import annotations

import asyncio

import pytest

from rpcstream import AsyncClient, ConnectionLost, Limits, Server

from ..kit import until
from ..observe.reading import value


def make(begun: list[int], **options: float) -> Server:
    server = Server(limits=Limits(max_calls=1), metrics=True, **options)

    @server
    async def work(number: int) -> int:
        begun.append(number)
        if options:
            await asyncio.Event().wait()
        return number

    return server


async def test_what_is_in_line_when_the_time_is_up_is_made_again() -> None:
    first, second = [], []
    server = make(first, drain_timeout=0.05)
    async with server.listening(port=0) as address:
        client = AsyncClient(address, reconnect=True)
        calls = [asyncio.ensure_future(client.call("work", number)) for number in range(4)]
        await until(lambda: value(server.metrics_text(), "rpcstream_requests_waiting") == 3)
    async with make(second).listening(port=int(address.rpartition(":")[2])):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
    assert isinstance(outcomes[0], ConnectionLost)
    assert outcomes[0].executed is None
    assert outcomes[1:] == [1, 2, 3]
    assert (first, second) == ([0], [1, 2, 3])


async def test_a_second_stop_does_not_wait_for_that() -> None:
    begun: list[int] = []
    server = make(begun, drain_timeout=1000)
    async with server.listening(port=0) as address:
        client = AsyncClient(address)
        calls = [asyncio.ensure_future(client.call("work", number)) for number in range(2)]
        await until(lambda: begun)
        server.abort()
    for call in calls:
        with pytest.raises(ConnectionError):
            await call
    await client.close()


async def test_a_websocket_that_is_made_while_the_server_stops_is_told_so() -> None:
    """Its handshake comes on a connection that had sent nothing when the server began to stop."""
    server = Server()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(server.serve(port=0, on_listening=listening.set_result))
    host, _, port = (await listening).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await until(lambda: server.counters.connections == 1)
    server.stop()
    await until(lambda: not server.addresses)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    received = await asyncio.wait_for(reader.readuntil(b"$/goAway"), 5)
    assert received.startswith(b"HTTP/1.1 101 ")
    writer.write(b"\x88\x80" + bytes(4))  # the answer to its close frame
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await asyncio.wait_for(serving, 5)
