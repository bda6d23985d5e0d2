"""A server that is asked by HTTP, and what a connection may need of others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import Context, Limits, Server
from rpcstream.transports import listen
from rpcstream.transports.http import HttpConnection

from .asking import Asker, until


class Place:
    """A server with methods to be called.

    Attributes:
        begun, ended: what `hold` was called with; what it has left, and how.
        go: lets `hold` go on.
        sessions: of the calls that are not over.
        connections: all that were made.
    """

    def __init__(self, **limits: Any) -> None:
        self.server = server = Server(limits=Limits(**limits), drain_timeout=5)
        self.address = ""
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.go = asyncio.Event()
        self.connections: list[HttpConnection] = []
        self._askers: list[Asker] = []

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
        async def count(n: int, ctx: Context) -> AsyncIterator[int]:
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
        async def ask_back(ctx: Context) -> Any:
            return await ctx.peer.confirm()

        @server
        async def total(values: AsyncIterator[int]) -> int:
            return sum([value async for value in values])

        @server
        def headers(ctx: Context) -> dict[str, str]:
            return dict(ctx.session.headers)

        @server
        def who(ctx: Context) -> Any:
            return ctx.session.identity

    @property
    def listener(self) -> Any:
        assert self.server._running is not None
        return self.server._running.listener

    async def connect(self) -> Asker:
        host, _, port = self.address.rpartition(":")
        asker = Asker(*await asyncio.open_connection(host, int(port)))
        self._askers.append(asker)
        return asker

    async def close(self) -> None:
        for asker in self._askers:
            await asker.close()
        await until(lambda: not self.listener._sessions and not self.listener._streams)


Serve = Callable[..., Awaitable[Place]]


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """`place = await serve(access=…, max_message_size=…)`: a server with these hooks and limits.

    After the test, no session and no connection may be left, once the clients have closed theirs.
    """
    made = HttpConnection
    async with contextlib.AsyncExitStack() as stack:

        async def begin(
            *, access: Any = None, routes: Any = None, authenticator: Any = None, websocket: Any = None, **limits: Any
        ) -> Place:
            place = Place(**limits)

            def make(new_session: Any, *, limits: Any, on_close: Any, **_: Any) -> HttpConnection:
                connection = made(
                    new_session,
                    limits=limits,
                    on_close=on_close,
                    on_known=place.listener._known,
                    access=access,
                    routes=routes,
                    authenticator=authenticator,
                    websocket=websocket,
                )
                place.connections.append(connection)
                return connection

            monkeypatch.setattr(listen, "HttpConnection", make)
            place.address = await stack.enter_async_context(place.server.listening(port=0))
            stack.push_async_callback(place.close)
            return place

        yield begin


@pytest.fixture
async def place(serve: Serve) -> Place:
    return await serve()


@pytest.fixture
async def asker(place: Place) -> Asker:
    return await place.connect()


@pytest.fixture
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test makes the server fail, but for those that look what it says, and clear that."""
    yield
    assert not [each.getMessage() for each in caplog.get_records("call") if each.levelname == "ERROR"]
