"""Events over NATS of a server with several workers, which are instances of one service each."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient

from ..kit import until_in_thread
from ..kit.nats_server import NatsServer
from ..supervisor.conftest import APP, WorkersProcess, serve_command
from .service import Service, next_of

pytestmark = [
    pytest.mark.nats,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the workers' processes are looked at"),
]

EVENTS_APP = f"""
{APP}
from typing import Any

server.join_nats(os.environ["NATS"], service="vision")

@server
def announce(topic: str, value: Any, retain: bool = False) -> int:
    return server.publish(topic, value, retain=retain)
"""


class NatsWorkers(WorkersProcess):
    """Listens at a port, and is in the service as well."""

    @property
    def address(self) -> str:
        return super().address.rpartition(", ")[2]


@pytest.fixture
def service(keeping_nats: NatsServer) -> Service:
    return Service(keeping_nats, "vision")


@pytest.fixture
def two(service: Service, tmp_path: Path) -> Iterator[WorkersProcess]:
    """A server with two workers."""
    (tmp_path / "app.py").write_text(EVENTS_APP)
    program = NatsWorkers(serve_command("app.py", "-p", "0", "--workers", "2"), tmp_path, NATS=service.url)
    try:
        yield program
        assert program.end() == 0, program.log
    finally:
        program.close()


async def one_for_each_worker(stack: AsyncExitStack, program: WorkersProcess) -> list[AsyncClient]:
    """A client connected to each of the workers."""
    found: dict[int, AsyncClient] = {}
    while len(found) < 2:
        client = await stack.enter_async_context(AsyncClient(program.address))
        found.setdefault(await client.pid(), client)
    return list(found.values())


async def test_events_and_last_values_of_workers(service: Service, two: WorkersProcess) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        workers = await one_for_each_worker(stack, two)
        client = await enter(service.client())
        readers = [await enter(each.subscribe(name)) for each in (*workers, client) for name in ("a.*", "a.b")]
        for number in range(30):
            await workers[number % 2].announce("a.b", number)
        assert await client.publish("a.b", 30) == 1
        for each in readers:  # each comes once
            values = await next_of(each, 31)
            assert sorted(values) == list(range(31))
            assert [value for value in values if value % 2] == list(range(1, 30, 2))
        await workers[0].announce("s.0", 0, True)
        await workers[1].announce("s.1", 1, True)
        await client.publish("s.2", 2, retain=True)
    before = two.pids()
    two.send(signal.SIGHUP)  # all workers are replaced
    await asyncio.to_thread(until_in_thread, lambda: not (two.pids() & before) and None not in two.pids())
    async with AsyncExitStack() as stack:
        for reader in (*await one_for_each_worker(stack, two), await stack.enter_async_context(service.client())):
            async with reader.subscribe("s.*").with_topics() as events:
                assert dict(await next_of(events, 3)) == {"s.0": 0, "s.1": 1, "s.2": 2}
