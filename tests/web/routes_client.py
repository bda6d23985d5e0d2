"""Sends requests to routes without a server, as the HTTP transport does."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

from rpcstream import Codec
from rpcstream.methods.invoke import Invoker
from rpcstream.web import Request, Response, Routes
from rpcstream.wire.buffers import parts_of


def request(target: str, method: str = "GET", **headers: str) -> Request:
    """A request as the transport makes it; headers have `_` for `-` in their names."""
    path, _, query = target.partition("?")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, target, named, path=unquote(path), query=query)


def body_of(response: Response) -> bytes:
    return b"".join(parts_of(response.body))


def headers_of(response: Response) -> dict[str, str]:
    """By lower-case name, as they are sent."""
    lines = response.head(len(response.body), True).decode("latin-1").split("\r\n")[1:-2]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


class RoutesClient:
    """Routes, and methods that send them requests."""

    def __init__(self, invoker: Invoker, **options: Any) -> None:
        self.routes = Routes(codec=Codec(), **options)
        self.routes.open(invoker)
        self.static = self.routes.static
        self.get = self.routes.get

    async def ask(self, target: str | Request, method: str = "GET", **headers: str) -> Response | None:
        asked = target if isinstance(target, Request) else request(target, method, **headers)
        found = self.routes.find(asked)
        if found is None or isinstance(found, Response):
            return found
        return await asyncio.wait_for(found.respond(), 30)

    async def page(self, target: str | Request, method: str = "GET", **headers: str) -> Response:
        response = await self.ask(target, method, **headers)
        assert response is not None
        return response

    async def text(self, target: str | Request) -> tuple[int, str]:
        response = await self.page(target)
        return response.status, body_of(response).decode()
