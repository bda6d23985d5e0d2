"""Real NATS servers for the tests of this folder, which are skipped where there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rpcstream.testing import FakeTimeLoop

from ..kit.nats_server import NatsCluster, NatsServer, skip_without_program
from .service import Service


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]] | None:
    return {"fake-time": FakeTimeLoop} if "clock" in getattr(item, "fixturenames", ()) else None


class Clock:
    """The time of a test's event loop: it passes as fast as that of NATS, and faster when it is told to."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.autojump = False
        self.jump = loop.jump

    async def tick(self) -> None:
        while True:
            await asyncio.to_thread(time.sleep, 0.02)
            self.jump(0.02)

    async def turn(self) -> None:
        """Let NATS, and other threads, answer what was sent."""
        await asyncio.to_thread(time.sleep, 0.01)

    async def until(self, condition: Callable[[], object], step: float = 0.25) -> None:
        """Let seconds pass until the condition holds."""
        passed = 0.0
        while not condition():
            assert passed < 300, "waited for something that did not happen"
            self.jump(step)
            passed += step
            await self.turn()


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    """Time of its own for the test that asks for it."""
    clock = Clock()
    ticking = asyncio.ensure_future(clock.tick())
    yield clock
    ticking.cancel()


@pytest.fixture(scope="session")
def shared_nats() -> Iterator[NatsServer]:
    """A server for all tests of one process: each uses subjects of its own."""
    pytest.importorskip("nats")
    skip_without_program()
    with NatsServer() as server:
        yield server


@pytest.fixture
def service(shared_nats: NatsServer) -> Service:
    return Service(shared_nats)


def started(kind: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A function that starts servers of the test's own, which are stopped with it."""
    pytest.importorskip("nats")
    skip_without_program()
    running: list[Any] = []

    def start(*args: Any, **options: Any) -> Any:
        running.append(kind(*args, **options))
        return running[-1]

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def start_nats() -> Iterator[Callable[..., NatsServer]]:
    """`server = start_nats(max_payload=8192)`."""
    yield from started(NatsServer)


@pytest.fixture
def start_cluster() -> Iterator[Callable[..., NatsCluster]]:
    """`cluster = start_cluster(3)`: so many nodes."""
    yield from started(NatsCluster)
