"""A provider that is killed under load: its callers are told at once, and reach it again when it is back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from rpcstream import AsyncClient, RpcError
from rpcstream.errors import CallTimeout, ProviderGone
from rpcstream.hub import Hub

from .conftest import OpenHub

PROVIDER = """
import asyncio, sys
from rpcstream import AsyncClient


async def main():
    async with AsyncClient(sys.argv[1], name="gpu-1", reconnect=True) as client:

        @client
        async def work(n: int) -> int:
            return n

        @client
        async def hold(n: int) -> int:
            await asyncio.sleep(3600)
            return n

        await client.offer()
        await client.wait_closed()


asyncio.run(main())
"""

#: Seconds of real time after which what must come has not.
PATIENCE = 30


@asynccontextmanager
async def provider(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROVIDER, address)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Load:
    """Callers that call again and again, whatever comes.

    Attributes:
        answered: calls that were; `failed`: those that were answered with an error.
        wrong: answers that are not the call's own, and errors that should not be.
    """

    def __init__(self) -> None:
        self.answered = self.failed = 0
        self.wrong: list[object] = []

    async def call(self, client: AsyncClient, number: int) -> None:
        n = number
        while True:
            n += 1000
            try:
                async with asyncio.timeout(PATIENCE):  # no call hangs, whatever becomes of its provider
                    if await client.call("work", n) != n:
                        self.wrong.append(n)
                self.answered += 1
            except RpcError as error:
                self.failed += 1
                if error.code not in (-32007, -32601):
                    self.wrong.append(error)
                await asyncio.sleep(0.01)
            except (CallTimeout, TimeoutError, OSError) as error:
                self.wrong.append(error)
                return


async def test_kill_under_load(open_hub: OpenHub) -> None:
    """Without time-outs and pings: the calls fail because the connection is lost."""
    running_hub = await open_hub(Hub(drain_timeout=5, keepalive_timeout=None, ping_interval=None))
    names = running_hub.hub.directory.by_name
    load = Load()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(provider(running_hub.address))
        async with asyncio.timeout(PATIENCE):
            while "gpu-1" not in names:
                await asyncio.sleep(0.01)
        addresses = [
            running_hub.address,
            running_hub.address,
            f"ws://{running_hub.address}/",
            f"http://{running_hub.address}/",
        ]
        clients = [await stack.enter_async_context(AsyncClient(address)) for address in addresses]
        calls = [
            asyncio.ensure_future(load.call(client, 8 * at + number))
            for at, client in enumerate(clients)
            for number in range(8)
        ]
        stack.callback(lambda: [call.cancel() for call in calls])
        posting = await stack.enter_async_context(AsyncClient(addresses[-1]))  # which has few connections
        held = [client.submit.hold(n) for client in clients[:-1] for n in range(30)]
        held += [posting.submit.hold(n) for n in range(4)]
        waiting = names["gpu-1"].session.pending
        await running_hub.until(lambda: sum(call.method == "hold" for _, call in waiting.items()) == len(held))
        await running_hub.until(lambda: load.answered > 500)

        first.kill()
        since = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            outcomes = await asyncio.gather(*held, return_exceptions=True)
        print(f"{len(held)} held calls were answered {time.monotonic() - since:.3f} s after the kill")
        assert {type(outcome) for outcome in outcomes} == {ProviderGone}
        await running_hub.until(lambda: load.failed > 0)
        assert "gpu-1" not in names
        assert not running_hub.hub.directory.routes

        answered = load.answered
        await stack.enter_async_context(provider(running_hub.address))
        async with asyncio.timeout(PATIENCE):
            while load.answered < answered + 500:
                await asyncio.sleep(0.01)
        assert not load.wrong
        for call in calls:
            assert not call.done()
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_connection_that_is_lost_is_made_anew(open_hub: OpenHub) -> None:
    """Nobody but the client itself does anything, and its name is its own still."""
    running_hub = await open_hub(Hub(drain_timeout=5))
    names = running_hub.hub.directory.by_name
    async with AsyncClient(running_hub.address, name="gpu-1", reconnect=True) as worker:

        @worker
        async def work(n: int) -> int:
            return n

        await worker.offer()
        async with AsyncClient(running_hub.address) as caller:
            for n in range(3):
                before = names["gpu-1"]
                before.session.abort("the test says so")
                async with asyncio.timeout(PATIENCE):
                    while names.get("gpu-1") in (before, None) or "work" not in running_hub.hub.directory.routes:
                        await asyncio.sleep(0.01)
                assert await caller.call("work", n) == n
            with pytest.raises(RpcError):
                await caller.call("rpc.register", {"name": "gpu-1", "methods": []})
