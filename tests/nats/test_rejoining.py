"""An instance whose connection to NATS was lost, and which has joined its service again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from rpcstream import AsyncClient, ConnectionLost, Server

from ..nats_server import NatsCluster, NatsServer

SERVICE = "rejoining"


@contextlib.asynccontextmanager
async def instance_at(node: NatsServer) -> AsyncIterator[None]:
    """An instance of the service that knows one node alone."""
    server = Server()

    @server
    async def begin() -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    listening = asyncio.Event()
    server.join_nats(f"{node.url}/{SERVICE}", only=True)
    serving = asyncio.create_task(server.serve(on_listening=lambda address: listening.set()))
    await listening.wait()
    try:
        yield
    finally:
        server.stop()
        await serving


async def test_a_call_that_was_under_way_there_is_lost(start_cluster: Callable[..., NatsCluster]) -> None:
    cluster = start_cluster(2)
    of_client, of_instance = cluster.nodes
    async with instance_at(of_instance), AsyncClient(f"{of_client.url}/{SERVICE}", wait_for=30, timeout=30) as client:
        items = client.stream("begin")
        assert await anext(items) == 0  # the client knows which instance has it
        of_instance.kill()
        await asyncio.to_thread(of_instance.restart)
        assert await client.call("add", 1, 2) == 3  # the same instance is there again, with the same subject
        with pytest.raises(ConnectionLost, match="gone"):
            await asyncio.wait_for(anext(items), 30)
