"""`start`, `close` and `async with`: a server in an event loop that others run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, ConnectFailed, Hub, Server


def adder(**options: Any) -> Server:
    server = Server(**options)

    @server
    def add(a: int, b: int) -> int:
        return a + b

    return server


@pytest.mark.parametrize("kind", [Server, Hub])
async def test_start_serves_until_close_and_may_start_again(kind: type[Server]) -> None:
    server = kind()
    server.add(lambda a, b: a + b, name="add")
    for _ in range(2):
        address = await server.start(port=0)
        assert server.addresses == (address,)
        async with AsyncClient(address) as client:
            assert await client.add(2, 3) == 5
        await server.close()
        assert server.addresses == ()
        async with AsyncClient(address) as client:
            with pytest.raises(ConnectFailed):
                await client.add(2, 3)


async def test_start_at_a_unix_socket(tmp_path: Path) -> None:
    server = adder()
    assert await server.start(unix=tmp_path / "sock", unix_mode=0o600) == f"unix://{tmp_path / 'sock'}"
    assert (tmp_path / "sock").stat().st_mode & 0o777 == 0o600
    await server.close()
    assert not (tmp_path / "sock").exists()


async def test_close_lets_calls_in_flight_finish() -> None:
    server, begun = Server(), asyncio.Event()

    @server
    async def work() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        return "done"

    async with AsyncClient(await server.start(port=0)) as client:
        call = client.submit.work()
        await begun.wait()
        await server.close()
        assert await call == "done"


async def test_the_lifespan_is_entered_and_left_in_one_task() -> None:
    tasks = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60):  # which must be left in the task that has entered it
            yield
        tasks.append(asyncio.current_task())

    server = adder(lifespan=lifespan)
    await server.start(port=0)
    await asyncio.create_task(server.close())
    assert tasks[0] is tasks[1]
    assert tasks[0] is not asyncio.current_task()


async def test_what_keeps_it_from_starting_is_raised_by_start() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise LookupError("no model")
        yield

    server = adder(lifespan=lifespan)
    with pytest.raises(LookupError, match="no model"):
        await server.start(port=0)
    await server.close()
    other = adder()
    port = int((await other.start(port=0)).rpartition(":")[2])
    one = adder()
    with pytest.raises(OSError, match=r"cannot listen at 127\.0\.0\.1"):
        await one.start(port=port)
    await other.close()
    await one.start(port=0)
    await one.close()


async def test_what_the_lifespan_raises_at_the_end_is_raised_by_close() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        raise LookupError("not closed")

    server = adder(lifespan=lifespan)
    await server.start(port=0)
    with pytest.raises(LookupError, match="not closed"):
        await server.close()


async def test_a_server_starts_once_at_a_time() -> None:
    server = adder()
    await server.start(port=0)
    with pytest.raises(RuntimeError, match="running already"):
        await server.start(port=0)
    with pytest.raises(RuntimeError, match="running already"):
        await server.serve(port=0)
    await server.close()
    async with server.listening(port=0):
        with pytest.raises(RuntimeError, match="running already"):
            await server.start(port=0)
        await server.close()  # which has nothing to do with it
        assert server.is_serving


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    left = asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(1000)
            yield
        finally:
            left.set()

    server = adder(lifespan=lifespan)
    starting = asyncio.create_task(server.start(port=0))
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert left.is_set()
    assert not server.is_serving


async def test_close_before_it_listens_ends_the_start() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        entered.set()
        await go_on.wait()
        yield

    server = adder(lifespan=lifespan)
    starting = asyncio.create_task(server.start(port=0))
    await entered.wait()
    closing = asyncio.create_task(server.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    await starting
    assert server.addresses == ()


async def test_a_close_that_is_cancelled_ends_at_once() -> None:
    server, begun = Server(drain_timeout=1000), asyncio.Event()

    @server
    async def work() -> None:
        begun.set()
        await asyncio.sleep(1000)

    async with AsyncClient(await server.start(port=0)) as client:
        call = client.submit.work()
        await begun.wait()
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not server.is_serving
        call.cancel()


async def test_a_server_that_has_stopped_itself_is_closed() -> None:
    server = adder()

    @server
    def leave() -> None:
        server.stop()

    async with AsyncClient(await server.start(port=0)) as client:
        await client.leave()
    await server.close()
    await server.start(port=0)
    await server.close()


async def test_async_with_serves_where_start_was_told_to() -> None:
    server = adder()
    await server.start(port=0)
    async with server as same:
        assert same is server
        async with AsyncClient(server.addresses[0]) as client:
            assert await client.add(1, 2) == 3
    assert not server.is_serving
