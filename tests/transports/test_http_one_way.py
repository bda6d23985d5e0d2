"""What HTTP cannot do: calls back and events get an error that names the alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rpcstream import AsyncClient, Context, InvalidRequest, Server


@pytest.fixture
def server() -> Server:
    server = Server()

    @server
    async def ask(ctx: Context) -> Any:
        return await ctx.peer.confirm("sure?")

    @server(offload="thread")
    def ask_in_thread(ctx: Context) -> Any:
        return ctx.peer.confirm("sure?")

    @server
    async def tell(ctx: Context) -> None:
        ctx.peer.notify.news("there are some")

    @server
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    return server


@pytest.mark.parametrize("method", ["ask", "ask_in_thread", "tell"])
async def test_a_handler_that_asks_its_caller(server: Server, method: str) -> None:
    async with server.listening(port=0) as address, AsyncClient(f"http://{address}") as client:
        with pytest.raises(InvalidRequest, match="over a WebSocket or the line stream"):
            await client.call(method)
        assert await client.call("rpc.ping") == "pong"


async def test_events(server: Server) -> None:
    async with server.listening(port=0) as address, AsyncClient(f"http://{address}") as client:
        with pytest.raises(InvalidRequest, match="a WebSocket or the line stream"):
            await client.call("rpc.subscribe", "ticks")
        assert not server.topics


async def test_streams_and_arrays_of_all_items(server: Server) -> None:
    async with server.listening(port=0) as address, AsyncClient(f"http://{address}") as client:
        assert [each async for each in client.stream.count(100)] == list(range(100))
        assert await client.count(3) == [0, 1, 2]
        assert server.counters.connections_total == 1
