"""Events and last values on a server with several workers, each a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

from rpcstream import AsyncClient, ServerBusy

from ..kit import until_in_thread
from .conftest import APP, StartWorkers, WorkersProcess, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the workers' processes are looked at"),
]

EVENTS_APP = (
    APP
    + """
from typing import Any

import numpy as np

@server
def announce(topic: str, value: Any, retain: bool = False) -> int:
    return server.publish(topic, value, retain=retain)

@server
def publish_many(topic: str, count: int) -> list[int]:
    return [server.publish(topic, number) for number in range(count)]

@server
def publish_array(topic: str, side: int) -> int:
    return server.publish(topic, np.arange(side * side, dtype=np.float64).reshape(side, side), retain=True)

@server
def topics() -> dict[str, int]:
    return dict(server.topics)

@server
def place() -> str:
    return os.environ["RPCSTREAM_WORKER"]
"""
)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersProcess]:
    with running(tmp_path_factory.mktemp("events"), "--workers", "3", app=EVENTS_APP) as program:
        yield program
        assert program.end() == 0, program.log


async def one_for_each_worker(stack: AsyncExitStack, program: WorkersProcess) -> list[AsyncClient]:
    """A client connected to each of the workers; each has one connection, so its events come from that worker."""
    found: dict[int, AsyncClient] = {}
    count = len(program.workers())
    while len(found) < count:
        client = await stack.enter_async_context(AsyncClient(program.address))
        found.setdefault(await client.pid(), client)
    return list(found.values())


async def test_an_event_reaches_subscribers_at_all_workers_in_order(three: WorkersProcess) -> None:
    async with AsyncExitStack() as stack:
        clients = await one_for_each_worker(stack, three)
        assert sorted([await client.place() for client in clients]) == ["1", "2", "3"]
        events = [await stack.enter_async_context(client.subscribe("news.*")) for client in clients]
        for pattern in ("news.0", "news.>"):  # a connection with several subscriptions counts once
            await stack.enter_async_context(clients[0].subscribe(pattern))
        for number, client in enumerate(clients):
            assert await client.announce(f"news.{number}", number) == 3
            assert (await client.topics())["news.*"] == 3
        for each in events:
            assert sorted([await anext(each) for _ in range(3)]) == [0, 1, 2]
        assert await clients[0].publish_many("news.many", 200) == [3] * 200
        for each in events:
            assert [await anext(each) for _ in range(200)] == list(range(200))
    async with AsyncClient(three.address) as client:
        while await client.topics():
            await asyncio.sleep(0.001)
        assert await client.announce("news.1", 1) == 0


async def test_a_subscriber_that_has_its_reply_misses_nothing_wherever_it_is_published(three: WorkersProcess) -> None:
    async with AsyncExitStack() as stack:
        clients = await one_for_each_worker(stack, three)
        for number in range(60):
            subscriber, publisher = clients[number % 3], clients[(number + 1) % 3]
            async with subscriber.subscribe(f"once.{number}") as events:
                assert await publisher.announce(f"once.{number}", number) == 1
                assert await anext(events) == number


async def test_last_values_reach_later_subscribers_at_all_workers(three: WorkersProcess) -> None:
    async with AsyncExitStack() as stack:
        clients = await one_for_each_worker(stack, three)
        await clients[0].announce("state.door", "open", True)
        await clients[1].publish_array("state.map", 300)
        for client in clients:
            # By now or a moment later: then it comes as an event.
            async with client.subscribe("state.door") as events:
                assert await anext(events) == "open"
            async with client.subscribe("state.map", returns=np.ndarray) as events:
                array = await anext(events)
                assert (array.shape, array.dtype, array[299, 299]) == ((300, 300), np.float64, 89_999)


async def test_all_workers_come_to_the_same_last_values_and_keep_the_order_of_each_publisher(
    three: WorkersProcess,
) -> None:
    async with AsyncExitStack() as stack:
        clients = await one_for_each_worker(stack, three)
        subscriptions = [await stack.enter_async_context(client.subscribe("race.>")) for client in clients]
        topics = [f"race.{name}" for name in "xyz"]
        calls = [
            client.announce(topics[number % 3], [index, number], True)
            for number in range(60)
            for index, client in enumerate(clients)
        ]
        await asyncio.gather(*calls)
        for subscription in subscriptions:
            got = [await anext(subscription) for _ in calls]
            for index in range(3):
                own = [number for publisher, number in got if publisher == index]
                assert len(own) == 60
                for name in range(3):  # the calls for one topic were made in this order
                    assert [each for each in own if each % 3 == name] == list(range(name, 60, 3))
        for topic in topics:
            values = []
            for client in clients:
                async with client.subscribe(topic) as events:
                    values.append(await anext(events))
            assert values[0] == values[1] == values[2]
            await clients[0].announce(topic, None, True)


async def test_the_limit_of_subscriptions_is_that_of_all_workers_together(start: StartWorkers) -> None:
    small = "from rpcstream.events import subscriptions\nsubscriptions.MAX_SUBSCRIPTIONS_TOTAL = 5\n"
    program = start("--workers", "2", app=EVENTS_APP.replace("server = ", f"{small}server = ", 1))
    async with AsyncExitStack() as stack:
        one, two = await one_for_each_worker(stack, program)
        for number in range(5):
            await stack.enter_async_context(two.subscribe(f"topic.{number}"))
        while len(await one.topics()) < 5:
            await asyncio.sleep(0.001)
        with pytest.raises(ServerBusy, match="5 subscriptions of all connections"):
            await stack.enter_async_context(one.subscribe("topic.6"))
    assert program.end() == 0, program.log


async def test_a_killed_worker_and_a_reload_lose_no_last_value_and_no_other_subscriber(start: StartWorkers) -> None:
    program = start("--workers", "2", app=EVENTS_APP)
    async with AsyncExitStack() as stack:
        one, two = await one_for_each_worker(stack, program)
        await two.announce("state", "kept", True)
        async with one.subscribe("news") as events:
            async with AsyncClient(program.address, reconnect=False) as lost:
                while await lost.pid() == await one.pid():
                    lost = await stack.enter_async_context(AsyncClient(program.address, reconnect=False))
                await stack.enter_async_context(lost.subscribe("news"))
                assert await one.announce("news", 1) == 2
                os.kill(await two.pid(), signal.SIGKILL)
            program.wait_until_whole()
            while await one.topics() != {"news": 1}:
                await asyncio.sleep(0.001)
            async with AsyncClient(program.address) as three:
                assert await three.announce("news", 2) == 1
            assert [await anext(events), await anext(events)] == [1, 2]
        before = program.pids()
        program.send(signal.SIGHUP)
        until_in_thread(lambda: not before & program.pids() and None not in program.pids())
        async with AsyncClient(program.address) as client, client.subscribe("state") as events:
            assert await anext(events) == "kept"
    assert program.end() == 0, program.log


async def test_what_a_lifespan_publishes_reaches_other_workers_and_later_ones(start: StartWorkers) -> None:
    app = EVENTS_APP.replace(
        "server = Server(drain_timeout=5)",
        """
from contextlib import asynccontextmanager

@asynccontextmanager
async def life(server):
    server.publish("boot", os.getpid())
    server.publish(f"booted.{os.environ['RPCSTREAM_WORKER']}", True, retain=True)
    yield

server = Server(drain_timeout=5, lifespan=life)
""",
    )
    program = start("--workers", "2", app=app)
    async with AsyncClient(program.address) as client:
        async with client.subscribe("booted.*") as events:
            assert [await anext(events), await anext(events)] == [True, True]
        async with client.subscribe("boot") as events:
            own = await client.pid()
            (other,) = program.pids() - {own}
            os.kill(other, signal.SIGKILL)
            assert await anext(events) not in (own, other)
    assert program.end() == 0, program.log


async def test_a_slow_worker_misses_events_and_gets_the_last_values_when_it_takes_them(start: StartWorkers) -> None:
    app = EVENTS_APP + (
        "\n@server\ndef block() -> None:\n    open('blocked', 'w').close()\n"
        "    while os.path.exists('blocked'):\n        time.sleep(0.01)\n"
        "\n@server\ndef publish_arrays(topic: str, count: int) -> int:\n"
        "    large = np.zeros(1 << 17)\n"
        "    return sum(server.publish(topic, large) for _ in range(count))\n"
        "\n@server\ndef retain_arrays(count: int) -> None:\n"
        "    for number in range(count):\n"
        "        server.publish(f'kept.{number}', np.full(1 << 17, float(number)), retain=True)\n"
    )
    program = start("--workers", "2", app=app)
    blocked = program.folder / "blocked"
    async with AsyncExitStack() as stack:
        fast, slow = await one_for_each_worker(stack, program)
        events, reached = await stack.enter_async_context(slow.subscribe("large")), 0
        for publish in (lambda: fast.publish_arrays("large", 60), lambda: fast.retain_arrays(40)):
            block = asyncio.ensure_future(slow.block())
            while not blocked.exists():
                await asyncio.sleep(0.001)
            count = await publish()
            reached = reached if count is None else count
            blocked.unlink()
            await block
        assert 0 < reached < 60
        for _ in range(reached):
            await asyncio.wait_for(anext(events), 20)
        assert (await fast.call("rpc.stats"))["events_dropped"] >= 60 - reached
        async with slow.subscribe("kept.*", returns=np.ndarray) as kept:
            async with asyncio.timeout(20):
                found: set[float] = set()
                while len(found) < 40:  # each as the last value, or as an event a moment later
                    found.add(float((await anext(kept))[0]))
    assert program.end() == 0, program.log
