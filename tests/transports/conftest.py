"""A server that runs for a test, raw connections to it, and what must not be left of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rpcstream import Context, Limits, Server
from rpcstream.testing import FakeTimeLoop, connections_of

from ..kit import RawPeer, UsualServer, until
from ..kit.http import RawHttpConnection
from ..kit.websocket import RawWebSocket


class Served:
    """A running server, and raw connections to it, which end with the test."""

    def __init__(self, server: Any, address: str) -> None:
        self.server = server
        self.address = address.rpartition("//")[2]
        self._streams: list[RawHttpConnection | RawWebSocket] = []
        self._lines: list[Any] = []

    async def http(self) -> RawHttpConnection:
        host, _, port = self.address.rpartition(":")
        made = RawHttpConnection(*await asyncio.open_connection(host, int(port)))
        self._streams.append(made)
        return made

    async def websocket(self, *lines: str, **options: Any) -> RawWebSocket:
        made = await RawWebSocket.open(self.address, *lines, **options)
        self._streams.append(made)
        return made

    async def line(self, make: Callable[[], Any] = RawPeer, *, source: str = "127.0.0.1", tls: Any = None) -> Any:
        """A raw peer, or whatever protocol a function makes, with this address of its own."""
        host, _, port = self.address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(make, host, int(port), local_addr=(source, 0), ssl=tls)
        self._lines.append(made)
        return made

    @property
    def connections(self) -> list[Any]:
        return connections_of(self.server)

    async def has_read_all(self, tls: Any = None) -> None:
        """Wait until the server has read what was sent before."""
        other = await self.line(tls=tls)
        for _ in range(20):
            assert await other.result("rpc.ping") == "pong"
        other.close()

    async def close(self) -> None:
        for raw in self._streams:
            raw.writer.transport.abort()
        for line in self._lines:
            line.close()
        await until(lambda: self.server.stats()["connections"] == 0)
        assert not (self.server.is_running and self.connections)


Serve = Callable[..., Awaitable[Served]]


def usual_server(**options: Any) -> UsualServer:
    """The usual server, and methods that tell what they see of their caller. Limits may stand among the options."""
    limits = {name: options.pop(name) for name in list(options) if name in LIMITS}
    server = UsualServer(limits=Limits(**limits), **{"drain_timeout": 5, **options})

    @server
    def headers(ctx: Context) -> dict[str, str]:
        return dict(ctx.headers)

    @server
    def who(ctx: Context) -> Any:
        return ctx.identity

    @server
    def total_of(values: np.ndarray) -> int:
        return int(values.sum())

    @server
    def fill(size: int) -> str:
        return "x" * size

    @server
    async def endless(size: int) -> AsyncIterator[str]:
        """Texts without end; each is noted by its size, and at the end "endless"."""
        try:
            while True:
                server.noted.append(size)
                yield "x" * size
        finally:
            server.ended.append(("endless", "whole"))

    return server


def array_at(number: int, size: int, **changes: Any) -> dict[str, Any]:
    """An array of so many bytes, which stand in the payload of this number of a binary frame."""
    return {"$type": "ndarray", "dtype": "|u1", "shape": [size], "data": {"$bin": number}, **changes}


LIMITS = set(Limits.__dataclass_fields__)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`served = await serve(token=…, max_message_size=…)`, or `serve(server)`: runs while the test does."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(server: Server | None = None, **options: Any) -> Served:
            server = usual_server(**options) if server is None else server
            served = Served(server, await stack.enter_async_context(server.listening(port=0)))
            stack.push_async_callback(served.close)
            return served

        yield begin


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


@pytest.fixture
async def http(served: Served) -> RawHttpConnection:
    return await served.http()


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test in which an error is logged; tests that expect one clear `caplog`."""
    yield
    assert not [each.getMessage() for each in caplog.get_records("call") if each.levelname == "ERROR"]


@pytest.fixture(params=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Runs in a loop of each kind."""
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def in_steps(main: Callable[[FakeTimeLoop, Served], Awaitable[None]], **options: Any) -> None:
    """Run with a server behind real sockets, in time that passes with `loop.jump` alone."""

    async def run(loop: FakeTimeLoop) -> None:
        server = usual_server(**options)
        async with server.listening(port=0) as address:
            served = Served(server, address)
            loop.autojump = False
            try:
                await main(loop, served)
            finally:
                loop.autojump = True
                await served.close()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(run(runner.get_loop()))  # type: ignore[arg-type]
