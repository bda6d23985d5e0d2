"""NATS was lost or restarted, and the instances of a service join again, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, MethodNotFound, Retry

from ..kit import UsualServer, until
from ..kit.nats_server import NatsCluster, NatsServer
from .conftest import Clock
from .service import Service

pytestmark = pytest.mark.nats


@pytest.mark.slow
async def test_a_call_that_was_under_way_at_a_lost_node_is_lost_and_others_go_on_at_another(
    start_cluster: Callable[..., NatsCluster],
) -> None:
    of_client, of_instance = (Service(node, "rejoining") for node in start_cluster(2).nodes)
    server, again = UsualServer(), {"retry": Retry(times=5, repeats="all")}

    @server
    async def begin() -> Any:
        yield 0
        await asyncio.Event().wait()

    async with of_instance.serving(server), of_client.client(wait_for=30, timeout=30, **again) as client:
        items = client.stream("begin")
        assert await anext(items) == 0  # the client knows which instance has it
        of_instance.nats.kill()
        await asyncio.to_thread(of_instance.nats.restart)
        assert await client.call("add", 1, 2) == 3  # the same instance is there again, with the same subject
        with pytest.raises(ConnectionLost, match="gone"):
            await asyncio.wait_for(anext(items), 30)
        of_client.nats.kill()
        await asyncio.to_thread(of_client.nats.restart)
        assert await client.call("add", 3, 3) == 6


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
        await asyncio.wait(self._tasks)
        assert all(task.cancelled() for task in self._tasks), self._tasks


@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_no_call_finds_its_method_missing_when_nats_was_restarted(
    start_nats: Callable[..., NatsServer], waits: bool
) -> None:
    """One that waits is answered; another fails as where no server listens: not carried out, worth another attempt."""
    service = Service(nats := start_nats())
    options: dict[str, Any] = {"wait_for": 30, "retry": Retry(times=5, repeats="all")} if waits else {}
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(service.serving())
        client = await stack.enter_async_context(service.client(**options))
        outcomes = Outcomes(client)
        await outcomes.until_answered()
        for _ in range(1 if waits else 15):  # it is by chance that a call comes before the first instance is back
            nats.kill()
            await asyncio.to_thread(nats.restart)
            await outcomes.until_answered()
            if any("no instance of the service" in str(error) for error in outcomes.errors):
                break
        await outcomes.stop()
        with pytest.raises(MethodNotFound):
            await client.call("nothing", wait_for=None)

        def joined() -> int:
            names = [each["name"] for each in nats.monitor("/connz")["connections"]]
            return len([each for each in names if each.startswith(f"rpcstream {service.name}")])

        await until(lambda: joined() >= 3)  # the last of them may be back after the first answer
        assert joined() == 3, "each joins once"
    assert outcomes.counts["MethodNotFound"] == 0, outcomes.counts
    assert waits == (set(outcomes.counts) == {"answered"}), outcomes.counts
    for error in outcomes.errors:
        if isinstance(error, ConnectFailed):
            assert (error.executed, error.is_permanent) == (False, False)


async def test_a_method_that_is_offered_a_moment_later_is_not_missing(clock: Clock, service: Service) -> None:
    async with service.client() as client, service.raw(f"{service.root}$inquiry") as raw:
        call = asyncio.create_task(client.call("add", 1, 2))
        asked = await raw.next()
        await raw.subscribe(f"{service.root}add", "rpc")
        raw.publish(asked.reply, b"[]")
        probe = await raw.next()
        assert (probe.subject, probe.data) == (f"{service.root}add", b"0")  # no call
        raw.publish(probe.reply, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}')
        await clock.until(call.done)
        with pytest.raises(ConnectFailed, match="no instance"):
            await call
