"""`client.run()`: methods are served until a signal, then withdrawn; what has begun is finished; the client leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, ConnectionLost, Limits, MethodNotFound, ProviderGone, Server
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread

from ..internals import serving_client
from ..kit import until, until_in_thread

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Work:
    """A method that begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()

    async def __call__(self, number: int) -> int:
        self.begun += 1
        await self.go_on.wait()
        return number


async def provider(address: str, name: str, work: Any, **options: Any) -> AsyncClient:
    client = AsyncClient(address, name=name, **options)
    client(name="work", shared=True)(work)
    await client.offer()
    return client


async def test_what_has_begun_is_finished_and_no_more_is_begun() -> None:
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work)
        serving = serving_client(first)
        running = asyncio.ensure_future(serving.serve())
        begun = asyncio.ensure_future(caller.call("first.work", 1))
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        serving.stop()
        await until(lambda: first.registered_name is None or not serving.is_serving or first.state == "idle")
        later = [asyncio.ensure_future(caller.call("work", number)) for number in range(2, 6)]
        await until(lambda: other.begun == 4)
        with pytest.raises(MethodNotFound):
            await caller.call("first.work", 6)
        assert not running.done()
        work.go_on.set()
        other.go_on.set()
        assert await begun == 1
        await running
        assert await asyncio.gather(*later) == [2, 3, 4, 5]
        assert work.begun == 1
        await first.close()
        await second.close()


async def test_what_is_not_finished_in_time_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Calls that wait in line go to another provider; the one that has begun ends with its connection."""
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work, limits=Limits(max_calls=1))
        serving = serving_client(first, 0.05)
        running = asyncio.ensure_future(serving.serve())
        calls = [asyncio.ensure_future(caller.call("work", number)) for number in range(3)]
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        other.go_on.set()
        caplog.set_level(logging.WARNING, "rpcstream.client")
        serving.stop()
        await running
        await first.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], ProviderGone)
        assert outcomes[0].executed is None
        assert outcomes[1:] == [1, 2]
        assert (work.begun, other.begun) == (1, 2)
        assert "calls had not finished in time; methods at work: 'work'" in caplog.text
        await second.close()


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work = Work()
        client = await provider(address, "first", work, reconnect=True)
        running = asyncio.ensure_future(client.run())
        begun = asyncio.ensure_future(caller.call("work", 1))
        await until(lambda: work.begun)
        os.kill(os.getpid(), number)
        work.go_on.set()
        assert await begun == 1
        await running
        assert client.state == "closed"
        with pytest.raises(MethodNotFound):
            await caller.call("work", 2)
    assert signal.getsignal(number) is before


def kill_once_handled() -> None:
    """Send SIGTERM to this process, once `run` handles it."""
    until_in_thread(lambda: callable(signal.getsignal(signal.SIGTERM)))
    os.kill(os.getpid(), signal.SIGTERM)


@needs_signals
def test_a_signal_ends_the_sync_one() -> None:
    """It is the main thread that waits; functions run in others."""
    begun, go_on = threading.Event(), threading.Event()
    results: list[Any] = []

    def work(number: int) -> int:
        begun.set()
        assert go_on.wait(20)
        return number

    with serve_in_thread(Hub()) as address:
        client = Client(address, reconnect=True)
        client(work)
        client.offer()

        def call() -> None:
            with Client(address) as caller:
                results.append(caller.call("work", 1))

        def stop() -> None:
            assert begun.wait(20)
            kill_once_handled()
            with Client(address) as caller:
                until_in_thread(lambda: "work" not in [each["name"] for each in caller.call("rpc.methods")])
            go_on.set()

        threads = [threading.Thread(target=each) for each in (call, stop)]
        for thread in threads:
            thread.start()
        client.run()
        for thread in threads:
            thread.join()
        assert (results, client.state) == ([1], "closed")
        with pytest.raises(RuntimeError, match="closed client"):
            client.run()


@needs_signals
async def test_a_second_signal_ends_the_async_one_at_once() -> None:
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work = Work()
        client = await provider(address, "first", work)

        async def run() -> None:
            with pytest.raises(SystemExit) as caught:
                await client.run(drain_timeout=1000)
            assert caught.value.code == 128 + signal.SIGTERM

        running = asyncio.ensure_future(run())
        begun = asyncio.ensure_future(caller.call("work", 1))
        await until(lambda: work.begun)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: client.state == "idle")
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(ProviderGone):
            await begun
        await running


@needs_signals
def test_a_second_signal_ends_it_at_once() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(20)

    with serve_in_thread(Hub()) as address:
        client = Client(address)
        client(work)
        client.offer()

        def stop() -> None:
            with Client(address) as caller:
                caller.notify.work()
                assert begun.wait(20)
                kill_once_handled()
                until_in_thread(lambda: not caller.call("rpc.methods"))
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=stop)
        thread.start()
        with pytest.raises(SystemExit) as caught:
            client.run(drain_timeout=1000)
        assert caught.value.code == 128 + signal.SIGTERM
        go_on.set()
        thread.join()


async def test_it_ends_when_the_client_is_closed_or_its_connection_is_lost() -> None:
    server = Server()
    async with server.listening(port=0) as address:
        async with AsyncClient(address) as client:
            await client.call("rpc.ping")
            running = asyncio.ensure_future(client.run())
            await asyncio.sleep(0)
            await client.close()
            await running
        lost = AsyncClient(address)
        await lost.call("rpc.ping")
        losing = asyncio.ensure_future(lost.run())
        await asyncio.sleep(0)
    with pytest.raises(ConnectionLost):
        await losing


async def test_wrong_use() -> None:
    client = AsyncClient("http://127.0.0.1:1")
    with pytest.raises(RuntimeError, match="run"):
        await client.run()
    with pytest.raises(ValueError, match="drain_timeout"):
        await AsyncClient("127.0.0.1:1").run(drain_timeout=-1)
    with pytest.raises(ConnectionLost, match="no connection"):
        await AsyncClient("127.0.0.1:1").run()


async def test_a_provider_that_is_closed_has_others_do_what_it_has_not_begun() -> None:
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work, limits=Limits(max_calls=1))
        calls = [asyncio.ensure_future(caller.call("work", number)) for number in range(3)]
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        other.go_on.set()
        await first.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], ProviderGone)
        assert outcomes[0].executed is None
        assert outcomes[1:] == [1, 2]
        assert (work.begun, other.begun) == (1, 2)
        await second.close()
