"""A server with methods for large messages, and how it joins a service: for the tests of direct connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nats")

from rpcstream import (
    AsyncClient,
    Context,
    Server,
)

from ..kit.nats_server import NatsServer

SERVICE = "tickets"

#: Over the default `max_payload` of 1 MiB.
SIZE = 3 * 1024 * 1024

StartNats = Callable[..., NatsServer]


def array(size: int = SIZE, start: int = 0) -> np.ndarray:
    return (np.arange(size) + start).astype(np.uint8)


def make_server(**options: Any) -> Server:
    server = Server(**options)

    @server
    def echo(values: np.ndarray) -> np.ndarray:
        return values

    @server(idempotent=True)
    def size_of(values: np.ndarray) -> int:
        return values.size

    @server(idempotent=True)
    def make(size: int) -> np.ndarray:
        return array(size)

    @server
    def repeat(text: str) -> str:
        return text

    @server
    async def arrays(count: int) -> AsyncIterator[np.ndarray]:
        for number in range(count):
            yield array(SIZE if number % 2 else 10, number)

    @server
    async def total(parts: AsyncIterator[np.ndarray]) -> list[int]:
        return [int(part[0]) async for part in parts]

    @server
    async def ask_back(ctx: Context, size: int) -> np.ndarray:
        return await ctx.peer.call("mirror", array(size))

    @server
    async def make_with_progress(ctx: Context, size: int) -> np.ndarray:
        for number in range(3):
            ctx.progress(number)
        return array(size)

    return server


@contextlib.asynccontextmanager
async def joined(server: Server, nats: NatsServer, **options: Any) -> AsyncIterator[Server]:
    server.join_nats(nats.url, service=SERVICE, only=True, **options)
    listening = asyncio.Event()
    serving = asyncio.create_task(server.serve(on_listening=lambda address: listening.set()))
    started = asyncio.create_task(listening.wait())
    await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if serving.done():
        serving.result()
    try:
        yield server
    finally:
        server.stop()
        await serving


@pytest.fixture
def nats(start_nats: StartNats) -> NatsServer:
    return start_nats()


def client_of(nats: NatsServer, **options: Any) -> AsyncClient:
    return AsyncClient(f"{nats.url}/{SERVICE}", timeout=20, **options)


def tickets(server: Server) -> dict[str, int]:
    found = server.counters.as_dict()
    return {name.removeprefix("tickets_"): found[name] for name in found if name.startswith("tickets_")}
