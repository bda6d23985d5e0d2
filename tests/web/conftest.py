"""A server whose pages are asked for in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self
from urllib.parse import unquote

import pytest

from rpcstream import Server

from ..kit.asgi import Driver, http_scope


class RoutesClient:
    """A server that is an ASGI application, and its caller; it runs within `async with`."""

    def __init__(self, server: Server | None = None, **options: Any) -> None:
        self.server = Server(**options) if server is None else server
        self.app = self.server.asgi()
        self.static = self.server.static
        self.get = self.server.get

    async def __aenter__(self) -> Self:
        self._life = self.app.lifespan()
        await self._life.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._life.__aexit__(*error)

    def begin(self, target: str, method: str = "GET", **headers: str) -> Driver:
        """Send a request; headers have `_` for `-` in their names."""
        path, _, query = target.partition("?")
        scope = http_scope(method, path, **headers)
        driver = Driver(self.app, {**scope, "path": unquote(path), "query_string": query.encode()})
        driver.body(b"")
        return driver

    async def page(self, target: str, method: str = "GET", **headers: str) -> Driver:
        """The whole response."""
        return await self.begin(target, method, **headers).ended()

    async def text(self, target: str, **headers: str) -> tuple[int, str]:
        response = await self.page(target, **headers)
        return response.status, response.content.decode()


@pytest.fixture
async def site() -> AsyncIterator[RoutesClient]:
    async with RoutesClient(processes=1) as site:
        yield site
