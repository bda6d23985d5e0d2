"""`rpcstream.testing`: servers in memory and in threads, dropped connections, the fake clock."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from rpcstream import Client, ConnectFailed, ConnectionLost, Context, Limits, Server
from rpcstream.errors import MessageTooLarge
from rpcstream.peer import deadline
from rpcstream.testing import (
    FakeTimeLoop,
    drop_connections,
    is_idle,
    memory_client,
    serve_in_thread,
    wait_until_idle,
)

from .kit import UsualServer, until, until_in_thread


async def test_memory_client_enters_the_lifespan_and_takes_options() -> None:
    events = []

    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        events.append("open")
        yield
        events.append("close")

    server = UsualServer(lifespan=lifespan)
    async with memory_client(server, limits=Limits(max_message_size=200)) as client:
        assert (await client.echo(np.arange(3.0))).tolist() == [0, 1, 2]
        assert events == ["open"]
        with pytest.raises(MessageTooLarge):
            await client.echo("x" * 200)
    assert events == ["open", "close"]


def test_serve_in_thread() -> None:
    before = threading.active_count()
    with serve_in_thread(UsualServer()) as address, Client(address) as client:
        assert client.echo(np.ones(2)).tolist() == [1, 1]
        port = int(address.rpartition(":")[2])
        with pytest.raises(OSError, match=address), serve_in_thread(UsualServer(), port=port):
            raise AssertionError("it did not start")
    assert threading.active_count() == before
    with pytest.raises(ConnectFailed, match=address):
        Client(address).echo("x")


def test_plain_asyncio_where_there_is_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ImportError), serve_in_thread(UsualServer(), loop="uvloop"):
        raise AssertionError("it did not start")
    with serve_in_thread(UsualServer()) as address, Client(address) as client:
        assert client.echo("x") == "x"


# -- fake time ------------------------------------------------------------------------------------------------------


def in_fake_time(test: Callable[[FakeTimeLoop], Coroutine[Any, Any, None]]) -> None:
    """Run it, in far less real time than it takes by its own clock."""
    began = time.monotonic()
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, FakeTimeLoop)
        runner.run(test(loop))
        assert loop.time() > 4 * (time.monotonic() - began)


def test_time_stands_still_while_anything_is_ready_and_jumps_to_what_is_due_next() -> None:
    async def test(loop: FakeTimeLoop) -> None:
        order: list[tuple[str, float]] = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append((name, loop.time()))

        alarm = loop.create_task(sleep("second", 1))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert (loop.time(), alarm.done()) == (0, False)
        await asyncio.gather(sleep("day", 86_400), sleep("hour", 3_600), sleep("now", 0))
        assert order == [("now", 0), ("second", 1), ("hour", 3_600), ("day", 86_400)]

    in_fake_time(test)


def test_deadlines_follow_fake_time() -> None:
    server = Server()

    @server
    async def left(ctx: Context, after: float) -> tuple[float | None, float | None]:
        await asyncio.sleep(after)
        return ctx.remaining, ctx.deadline

    async def test(loop: FakeTimeLoop) -> None:
        async with memory_client(server) as client:
            assert await client.left(100, timeout=150) == [50, 150]
            with pytest.raises(TimeoutError):
                await client.left(100, timeout=99.5)
            assert loop.time() == 199.5

    in_fake_time(test)
    assert abs(deadline.now() - time.monotonic()) < 60, "the real clock is back"


def test_time_that_moves_by_hand_alone() -> None:
    """Then what happens in threads is not overtaken by the next timer."""
    server = Server()
    begun, go = threading.Event(), threading.Event()

    @server(offload="thread")
    def work(ctx: Context) -> float | None:
        begun.set()
        assert go.wait(20)
        return ctx.remaining

    async def test(loop: FakeTimeLoop) -> None:
        loop.autojump = False
        assert not loop.autojump
        async with memory_client(server) as client:
            call = client.submit.work(timeout=100)
            while not begun.is_set():
                await asyncio.sleep(0)
            loop.jump(40)
            go.set()
            assert await call == 60
            begun.clear()
            go.clear()
            call = client.submit.work(timeout=100)
            while not begun.is_set():
                await asyncio.sleep(0)
            loop.jump(100)
            with pytest.raises(TimeoutError):
                await call
            go.set()
            with pytest.raises(ValueError, match="does not go back"):
                loop.jump(-1)
            loop.autojump = True

    in_fake_time(test)


def test_a_memory_connection_ends_as_a_socket_does() -> None:
    """Nobody is left waiting when the other end is closed with what it had not read."""
    server = Server(limits=Limits(write_buffer=10_000, write_timeout=None))
    ended: list[str] = []

    @server
    async def stream() -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 1_000
        finally:
            ended.append("stream")

    async def test(loop: FakeTimeLoop) -> None:
        async with memory_client(server) as client:
            items = client.stream.stream()
            assert len(await anext(items)) == 1_000
            await client.close()
            with pytest.raises(ConnectionLost):
                async for _ in items:
                    pass
            while not ended:
                await asyncio.sleep(0)
            await asyncio.sleep(100)

    in_fake_time(test)


# -- connections ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["server", "client"])
def test_connections_are_dropped_as_by_a_network_that_fails(end: str) -> None:
    server = UsualServer()

    async def test(loop: FakeTimeLoop) -> None:
        async with memory_client(server) as client:
            call = client.submit.wait()
            await until(lambda: not is_idle(server))
            with pytest.raises(TimeoutError):
                await wait_until_idle(server, timeout=0.01)
            assert drop_connections(server if end == "server" else client) == 1
            with pytest.raises(ConnectionLost):
                await call
            await wait_until_idle(server)
            assert await client.add(1, 2) == 3
            await asyncio.sleep(100)

    in_fake_time(test)
    with pytest.raises(RuntimeError, match="not running"):
        is_idle(server)


def test_connections_of_a_server_in_a_thread_are_dropped() -> None:
    server = UsualServer(drain_timeout=1)
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.call("rpc.ping") == "pong"
        call = client.submit.wait()
        until_in_thread(lambda: not is_idle(server))
        assert drop_connections(server) >= 1
        with pytest.raises(ConnectionLost):
            call.result()
