"""ASGI servers for tests: uvicorn in the running loop, with a server mounted in a FastAPI application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import Server

#: Bytes of a message that uvicorn takes over a WebSocket: more than ours does.
WS_MAX_SIZE = 256 * 1024 * 1024


@asynccontextmanager
async def under_uvicorn(application: Any, **options: Any) -> AsyncIterator[str]:
    """Run an ASGI application in uvicorn while the block runs; gives the address.

    Args:
        options: of uvicorn's `Config`.
    """
    uvicorn = pytest.importorskip("uvicorn")
    options = {"log_config": None, "log_level": "error", "ws_max_size": WS_MAX_SIZE, **options}
    config = uvicorn.Config(application, **options)
    config.load()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        main = uvicorn.Server(config)
        main.lifespan = config.lifespan_class(config)
        await main.startup(sockets=[listening])
        assert main.started
        try:
            host, port = listening.getsockname()
            yield f"{host}:{port}"
        finally:
            await main.shutdown(sockets=[listening])


@asynccontextmanager
async def mounted(server: Server, path: str = "/rpc", **options: Any) -> AsyncIterator[str]:
    """Mount a server in a FastAPI application under uvicorn while the block runs; gives the address."""
    fastapi = pytest.importorskip("fastapi")
    rpc = server.asgi()
    application = fastapi.FastAPI(lifespan=rpc.lifespan)
    application.mount(path, rpc)
    async with under_uvicorn(application, **options) as address:
        try:
            yield address
        finally:
            server.stop()
            while server.is_running:
                await asyncio.sleep(0.001)
