"""A server for requests over HTTP, and raw connections to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import Limits, Server
from rpcstream.peer.context import CallContext
from rpcstream.transports import listen
from rpcstream.transports.http import HttpConnection
from rpcstream.transports.http_router import HttpRouter

from ..internals import connection_table, listener_of
from ..kit import until
from ..kit.http import RawHttpConnection


class HttpService:
    """A server with methods for the tests of HTTP.

    Attributes:
        begun, ended: the values that `hold` was called with; how its calls ended.
        go: lets `hold` go on.
        connections: all that the server has made.
    """

    def __init__(self, **limits: Any) -> None:
        self.server = server = Server(limits=Limits(**limits), drain_timeout=5)
        self.address = ""
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.go = asyncio.Event()
        self.connections: list[HttpConnection] = []
        self._connections: list[RawHttpConnection] = []

        @server
        def add(a: int, b: int) -> int:
            return a + b

        @server
        def echo(value: Any) -> Any:
            return value

        @server
        def note(value: Any) -> None:
            self.begun.append(value)

        @server
        def ones(count: int) -> NDArray[np.uint8]:
            return np.ones(count, np.uint8)

        @server
        async def hold(value: Any) -> Any:
            self.begun.append(value)
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append(value)
            return value

        @server
        async def count(n: int, ctx: CallContext) -> AsyncIterator[int]:
            ctx.progress("begun")
            try:
                for i in range(n):
                    yield i
            finally:
                self.ended.append("count")

        @server
        async def endless(size: int) -> AsyncIterator[str]:
            try:
                while True:
                    self.begun.append(size)
                    yield "x" * size
            finally:
                self.ended.append("endless")

        @server
        async def ask_back(ctx: CallContext) -> Any:
            return await ctx.peer.confirm()

        @server
        async def total(values: AsyncIterator[int]) -> int:
            return sum([value async for value in values])

        @server
        def headers(ctx: CallContext) -> dict[str, str]:
            return dict(ctx.session.headers)

        @server
        def who(ctx: CallContext) -> Any:
            return ctx.session.identity

    @property
    def listener(self) -> Any:
        return listener_of(self.server)

    async def connect(self) -> RawHttpConnection:
        host, _, port = self.address.rpartition(":")
        raw_http = RawHttpConnection(*await asyncio.open_connection(host, int(port)))
        self._connections.append(raw_http)
        return raw_http

    async def close(self) -> None:
        for raw_http in self._connections:
            await raw_http.close()
        await until(lambda: not self.listener.sessions and not self.listener.connections)


ServeHttp = Callable[..., Awaitable[HttpService]]


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServeHttp]:
    """`service = await serve(access=…, max_message_size=…)`: a server with these hooks and limits.

    After the test, no session and no connection may be left, once the clients have closed theirs.
    """
    made = HttpConnection
    async with contextlib.AsyncExitStack() as stack:

        async def begin(
            *, access: Any = None, routes: Any = None, authenticator: Any = None, websocket: Any = None, **limits: Any
        ) -> HttpService:
            service = HttpService(**limits)

            def make(new_session: Any, *, limits: Any, on_close: Any, **_: Any) -> HttpConnection:
                connection = made(
                    new_session,
                    limits=limits,
                    on_close=on_close,
                    on_known=connection_table(service.server).replaced,
                    router=HttpRouter(access, routes, websocket),
                    authenticator=authenticator,
                )
                service.connections.append(connection)
                return connection

            monkeypatch.setattr(listen, "HttpConnection", make)
            service.address = await stack.enter_async_context(service.server.listening(port=0))
            stack.push_async_callback(service.close)
            return service

        yield begin


@pytest.fixture
async def service(serve: ServeHttp) -> HttpService:
    return await serve()


@pytest.fixture
async def raw_http(service: HttpService) -> RawHttpConnection:
    return await service.connect()


@pytest.fixture
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test in which the server logs an error; tests that expect one clear `caplog`."""
    yield
    assert not [each.getMessage() for each in caplog.get_records("call") if each.levelname == "ERROR"]
