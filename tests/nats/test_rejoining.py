"""NATS was lost or restarted, and the instances of a service join again, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, MethodNotFound, Server

from ..kit import until
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsCluster, NatsServer

pytestmark = pytest.mark.nats

StartNats = Callable[..., NatsServer]

SERVICE = "rejoining"


@contextlib.asynccontextmanager
async def instance_at(node: NatsServer) -> AsyncIterator[None]:
    """An instance of the service that knows one node alone."""
    server = Server()

    @server
    async def begin() -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    server.join_nats(f"{node.url}/{SERVICE}", only=True)
    await server.start()
    try:
        yield
    finally:
        await server.close()


async def test_a_call_that_was_under_way_there_is_lost(start_cluster: Callable[..., NatsCluster]) -> None:
    cluster = start_cluster(2)
    of_client, of_instance = cluster.nodes
    async with instance_at(of_instance), AsyncClient(f"{of_client.url}/{SERVICE}", wait_for=30, timeout=30) as client:
        items = client.stream("begin")
        assert await anext(items) == 0  # the client knows which instance has it
        of_instance.kill()
        await asyncio.to_thread(of_instance.restart)
        assert await client.call("add", 1, 2) == 3  # the same instance is there again, with the same subject
        with pytest.raises(ConnectionLost, match="gone"):
            await asyncio.wait_for(anext(items), 30)


class Outcomes:
    """Calls `add` again and again, from several places at once, and counts what becomes of the calls."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.counts: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._tasks = [asyncio.create_task(self._call()) for _ in range(8)]

    async def _call(self) -> None:
        while True:
            try:
                assert await self._client.call("add", 1, 2) == 3
            except (ConnectionError, MethodNotFound) as error:
                self.errors.append(error)
                self.counts[type(error).__name__] += 1
                await asyncio.sleep(0.005)
            else:
                self.counts["answered"] += 1

    async def until_answered(self, more: int = 100) -> None:
        goal = self.counts["answered"] + more
        await until(lambda: self.counts["answered"] >= goal)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        done, _ = await asyncio.wait(self._tasks)
        assert all(task.cancelled() for task in done), [task for task in done if not task.cancelled()]


@contextlib.asynccontextmanager
async def instances_of(nats: NatsServer, count: int) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(instance_at(nats))
        yield


@pytest.mark.slow
async def test_no_call_finds_its_method_missing_when_nats_was_restarted(start_nats: StartNats) -> None:
    """It fails as where no server listens: not carried out, and worth another attempt."""
    nats = start_nats()
    async with instances_of(nats, 3), AsyncClient(f"{nats.url}/{SERVICE}", timeout=30) as client:
        outcomes = Outcomes(client)
        await outcomes.until_answered()
        for _ in range(15):  # it is by chance that a call comes before the first instance is back
            nats.kill()
            await asyncio.to_thread(nats.restart)
            await outcomes.until_answered()
            if any("no instance of the service" in str(error) for error in outcomes.errors):
                break
        await outcomes.stop()
        assert outcomes.counts["MethodNotFound"] == 0, outcomes.counts
        assert any("no instance of the service" in str(error) for error in outcomes.errors), outcomes.errors
        for error in outcomes.errors:
            if isinstance(error, ConnectFailed):
                assert (error.executed, error.is_permanent) == (False, False)
    # And what no instance has is still not found.
    async with instances_of(nats, 1), AsyncClient(f"{nats.url}/{SERVICE}", timeout=30, retries=5) as client:
        with pytest.raises(MethodNotFound):
            await client.call("nothing")


async def test_no_call_that_waits_fails_when_nats_is_restarted(start_nats: StartNats) -> None:
    nats = start_nats()
    async with (
        instances_of(nats, 2),
        AsyncClient(f"{nats.url}/{SERVICE}", timeout=60, wait_for=30, retries=5, retry="all") as client,
    ):
        outcomes = Outcomes(client)
        await outcomes.until_answered()
        nats.kill()
        await asyncio.to_thread(nats.restart)
        await outcomes.until_answered()
        await outcomes.stop()
        assert set(outcomes.counts) == {"answered"}, outcomes.counts


async def test_an_instance_that_joins_says_nothing_of_methods(start_nats: StartNats) -> None:
    """It is heard at the subject of inquiries before all of its methods are offered."""
    nats = start_nats()
    raw = await RawClient.connect(nats.port)
    await raw.subscribe(f"rpc.{SERVICE}.$inquiry")
    async with contextlib.AsyncExitStack() as stack, AsyncClient(f"{nats.url}/{SERVICE}", timeout=30) as client:
        stack.push_async_callback(raw.close)
        call = asyncio.create_task(client.call("add", 1, 2))
        asked = await raw.next()
        assert asked.json == []
        with pytest.raises(ConnectFailed, match="no instance"):
            await call

        # Its method is offered a moment later: the call was not lost for want of one.
        call = asyncio.create_task(client.call("add", 1, 2))
        asked = await raw.next()
        await raw.subscribe(f"rpc.{SERVICE}.add", "rpc")
        inbox, _, token = asked.reply.rpartition(".")
        raw.publish(f"{inbox}.have", b'["%b",[]]' % token.encode(), f"rpc.{SERVICE}.$instance.x.1")
        probe = await raw.next()
        assert (probe.subject, probe.data) == (f"rpc.{SERVICE}.add", b"0")  # no call
        raw.publish(probe.reply, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}')
        with pytest.raises(ConnectFailed, match="no instance"):
            await call


async def test_a_server_that_joins_or_leaves_does_not_answer_for_its_service(start_nats: StartNats) -> None:
    nats, server = start_nats(), Server()
    begun, may_end = asyncio.Event(), asyncio.Event()

    @server
    async def wait() -> str:
        begun.set()
        await may_end.wait()
        return "waited"

    server.join_nats(f"{nats.url}/{SERVICE}", only=True)
    await server.start()
    async with AsyncClient(f"{nats.url}/{SERVICE}", timeout=30) as client:
        call = asyncio.create_task(client.call("wait"))
        await begun.wait()
        closing = asyncio.create_task(server.close())

        async def call_on() -> None:
            while True:
                await client.call("rpc.ping")

        try:
            with pytest.raises(ConnectFailed, match="no instance"):
                await call_on()
        finally:
            may_end.set()
            assert await call == "waited"
            await closing
