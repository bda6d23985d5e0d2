"""`client.run()`: methods are served until a signal, then withdrawn; what has begun is finished; the client leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, ConnectionLost, Hub, Limits, MethodNotFound, ProviderGone, Server
from rpcstream.testing import serve_in_thread

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


def kill(number: int = signal.SIGTERM) -> None:
    """Send a signal to this process, which `run` handles by now."""
    assert callable(signal.getsignal(number))
    os.kill(os.getpid(), number)


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_has_begun_is_finished_and_no_more_is_begun(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work, reconnect=True)
        running = asyncio.ensure_future(first.run())
        begun = asyncio.ensure_future(caller.call("first.work", 1))
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        kill(number)
        await until(lambda: first.registered_name is None or first.state == "idle")
        later = [asyncio.ensure_future(caller.call("work", each)) for each in range(2, 6)]
        await until(lambda: other.begun == 4)
        with pytest.raises(MethodNotFound):
            await caller.call("first.work", 6)
        assert not running.done()
        work.go_on.set()
        other.go_on.set()
        assert await begun == 1
        await running
        assert await asyncio.gather(*later) == [2, 3, 4, 5]
        assert (work.begun, first.state) == (1, "closed")
        await second.close()
    assert signal.getsignal(number) is before


@needs_signals
@pytest.mark.parametrize("how", ["run", "run, second signal", "close"])
async def test_what_waits_in_line_goes_to_another_provider(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """What has begun, and is not finished in time, ends with the connection, and is named."""
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work, limits=Limits(max_calls=1))

        async def run() -> None:
            if how == "run":
                return await first.run(drain_timeout=0.05)
            with pytest.raises(SystemExit) as caught:
                await first.run(drain_timeout=1000)
            assert caught.value.code == 128 + signal.SIGTERM

        running = asyncio.ensure_future(run()) if how != "close" else None
        calls = [asyncio.ensure_future(caller.call("work", number)) for number in range(3)]
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        other.go_on.set()
        caplog.set_level(logging.WARNING, "rpcstream.client")
        if running is not None:
            kill()
            if how != "run":
                await until(lambda: first.registered_name is None or first.state == "idle")
                kill()
            await running
        await first.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], ProviderGone)
        assert outcomes[0].executed is None
        assert outcomes[1:] == [1, 2]
        assert (work.begun, other.begun) == (1, 2)
        said = "calls had not finished in time; methods at work: 'work'"
        assert (said in caplog.text) is (how == "run")
        await second.close()


@needs_signals
def test_a_signal_ends_the_sync_one() -> None:
    """It is the main thread that waits; functions run in others."""
    begun, go_on = threading.Event(), threading.Event()

    def work(number: int) -> int:
        begun.set()
        assert go_on.wait(20)
        return number

    with serve_in_thread(Hub()) as address, Client(address) as caller, ThreadPoolExecutor(1) as executor:
        client = Client(address)
        client(work)
        client.offer()
        calling = caller.submit("work", 1)

        def stop() -> None:
            assert begun.wait(20)
            until_in_thread(lambda: callable(signal.getsignal(signal.SIGTERM)))
            kill()
            until_in_thread(lambda: not caller.call("rpc.methods"))
            go_on.set()

        stopping = executor.submit(stop)
        client.run()
        stopping.result()
        assert calling.result(20) == 1
        client.close()
        with pytest.raises(RuntimeError, match="closed client"):
            client.run()


async def test_it_ends_when_the_client_is_closed_or_its_connection_is_lost() -> None:
    async with Server().listening(port=0) as address:
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
    with pytest.raises(ValueError, match="drain_timeout"):
        await AsyncClient("127.0.0.1:1").run(drain_timeout=-1)
    with pytest.raises(ConnectionLost, match="no connection"):
        await AsyncClient("127.0.0.1:1").run()
