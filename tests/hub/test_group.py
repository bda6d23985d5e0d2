"""Several hubs on NATS: clients of each call, and hear, those of all."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Hub, NatsLogin, Rule
from rpcstream.errors import ConnectFailed, InvalidParams, MethodNotFound, NotPermitted, ProviderGone

from ..kit import until
from ..kit.nats_server import NatsServer, skip_without_program
from .restarts import HubProcess

pytestmark = pytest.mark.nats

#: Seconds of real time after which what must come has not.
PATIENCE = 30


class Group:
    """Hubs of one group, and clients of these."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.name = secrets.token_hex(8)
        self.hubs: list[Hub] = []
        self._stack = stack

    async def hub(self, **options: Any) -> tuple[Hub, str]:
        hub = Hub(drain_timeout=5, **options)
        hub.join_nats(self.url, service=self.name)
        address = await hub.start(port=0)
        self._stack.push_async_callback(hub.close)
        self.hubs.append(hub)
        return hub, address

    async def process(self) -> HubProcess:
        process = HubProcess(RPCSTREAM_HUB_NATS_URL=self.url, RPCSTREAM_HUB_NATS_SERVICE=self.name)
        await process.start()
        self._stack.push_async_callback(process.end, signal.SIGKILL)
        return process

    async def two(self, **options: Any) -> tuple[str, str]:
        """The addresses of two hubs that know each other."""
        (_, first), (_, second) = [await self.hub(**options) for _ in range(2)]
        await until(lambda: all(hub.stats()["hubs"] == 1 for hub in self.hubs))
        return first, second

    async def client(self, address: str, **options: Any) -> AsyncClient:
        return await self._stack.enter_async_context(AsyncClient(address, **options))

    async def pair(self, **options: Any) -> tuple[AsyncClient, AsyncClient]:
        """A client p of one hub, and a client of the other one."""
        first, second = await self.two(**options)
        return await self.client(first, name="p"), await self.client(second)


async def offer(client: AsyncClient, elsewhere: Hub, **functions: Any) -> None:
    """Offer functions, and wait until another hub knows of them."""
    known = elsewhere.stats()["methods_elsewhere"]
    for name, function in functions.items():
        client(function, name=name, shared=True)
    await client.offer()
    await until(lambda: elsewhere.stats()["methods_elsewhere"] == known + len(functions))


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    pytest.importorskip("nats")
    skip_without_program()
    with NatsServer() as server:
        yield server


@pytest.fixture
async def group(nats: NatsServer) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        yield Group(nats.url, stack)


async def test_calls_in_all_forms(group: Group) -> None:
    provider, caller = await group.pair()
    begun, cancelled = asyncio.Event(), asyncio.Event()
    notes: asyncio.Queue[Any] = asyncio.Queue()

    async def hold() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def count(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    async def total(numbers: AsyncIterator[int]) -> int:
        return sum([number async for number in numbers])

    def double(a: NDArray[np.float64]) -> NDArray[np.float64]:
        return a * 2

    functions = {"hold": hold, "count": count, "total": total, "double": double, "note": notes.put_nowait}
    await offer(provider, group.hubs[1], **functions)
    with pytest.raises(InvalidParams):
        await caller.count("three")
    with pytest.raises(MethodNotFound):
        await caller.nothing()
    assert [item async for item in caller.stream.count(100)] == list(range(100))
    assert await caller.call("p.total", numbers=count(50)) == sum(range(50))
    for size in (10, 1_000_000, 10_000):  # 8 MB are more than a message of NATS has
        array = np.arange(size, dtype=np.float64)
        assert (await caller.double(array) == array * 2).all()
    await caller.notify("note", "hello")
    assert await caller.notify_client("p", "note", "you") is True
    assert [await asyncio.wait_for(notes.get(), PATIENCE) for _ in range(2)] == ["hello", "you"]
    async with caller.batch() as batch:
        lists = [batch.count(n) for n in range(5)]
    assert [each.result() for each in lists] == [list(range(n)) for n in range(5)]
    running = caller.submit.hold()
    await asyncio.wait_for(begun.wait(), PATIENCE)
    running.cancel()
    await asyncio.wait_for(cancelled.wait(), PATIENCE)


async def test_clients_and_methods_are_those_of_all_hubs(group: Group) -> None:
    provider, caller = await group.pair()
    await offer(provider, group.hubs[1], one=lambda: "there")
    clients = {each["name"]: each for each in await caller.call("rpc.clients")}
    assert clients["p"]["hub"] == group.hubs[0].stats()["nats"]["id"]
    assert clients["p"]["methods"] == ["one"]
    described = [
        next(each for each in (await client.call("rpc.discover"))["methods"] if each["name"] == "one")
        for client in (provider, caller)
    ]
    assert described[0] == described[1]
    with pytest.raises(InvalidParams, match="taken by a client of another hub"):
        await caller.call("rpc.register", name="p")
    caller(lambda: "here", name="one", shared=True)
    await caller.offer()
    assert {await caller.one() for _ in range(5)} == {"here"}  # the providers of one's own hub come first
    assert await caller.call("p.one") == "there"
    await provider.close()
    await until(lambda: group.hubs[1].stats()["methods_elsewhere"] == 0)
    with pytest.raises(MethodNotFound):
        await caller.call("p.one")


async def test_rules_are_those_of_the_hub_of_the_caller(group: Group) -> None:
    rules = [Rule("worker", register="*"), Rule("ada", call="add", publish="free.>")]
    first, second = await group.two(authenticate=lambda who: who.token, rules=rules)
    provider = await group.client(first, name="p", token="worker")
    caller = await group.client(second, token="ada")
    await offer(provider, group.hubs[1], add=lambda a, b: a + b, secret=lambda: None)
    assert await caller.add(1, 2) == 3
    for refused in (caller.call("secret"), caller.call("p.secret"), caller.publish("other", 1)):
        with pytest.raises(NotPermitted):
            await refused


async def test_events_and_last_values_reach_the_subscribers_of_all_hubs(group: Group) -> None:
    one, two = await group.pair()
    async with two.subscribe("sensors.*") as heard, one.subscribe("sensors.cellar") as here:
        assert await one.publish("other", 1) == 0
        for publisher in (one, two):
            assert await publisher.publish("sensors.cellar", {"t": 9.5}) == 2
            for each in (heard, here):
                assert await asyncio.wait_for(anext(each), PATIENCE) == {"t": 9.5}
        for n in range(200):
            await one.publish("sensors.roof", n, retain=True)
        assert [await asyncio.wait_for(anext(heard), PATIENCE) for _ in range(200)] == list(range(200))
    _, third = await group.hub()  # learns the last values when it joins
    await until(lambda: group.hubs[2].stats()["hubs"] == 2)
    late = await group.client(third)
    async with asyncio.timeout(PATIENCE), late.subscribe("sensors.roof") as heard:
        assert await anext(heard) == 199


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_provider_of_a_hub_that_ends_is_called_through_another(group: Group, number: signal.Signals) -> None:
    """Calls that have begun are answered, or fail at once where it was killed; none hangs."""
    second_hub, second = await group.hub()
    process = await group.process()
    provider = await group.client(f"{process.address},{second}", name="gpu-1", reconnect=True)
    begun: list[int] = []
    go_on = asyncio.Event()

    async def work(n: int) -> int:
        begun.append(n)
        await go_on.wait()
        return n

    await offer(provider, second_hub, work=work)
    caller = await group.client(second)
    calls = [caller.submit.work(n) for n in range(10)]
    await until(lambda: len(begun) == 10)
    ending = asyncio.ensure_future(process.end(number))
    await until(lambda: second_hub.stats()["clients"] == 1)
    if number == signal.SIGKILL:
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
        assert {type(outcome) for outcome in outcomes} == {ProviderGone}
    go_on.set()
    if number == signal.SIGTERM:
        assert await asyncio.gather(*calls) == list(range(10))
    await ending
    await until(lambda: second_hub.stats()["hubs"] == 0)
    assert await caller.call("gpu-1.work", 2) == 2


async def test_a_hub_that_is_cut_off_goes_on_and_joins_again(caplog: pytest.LogCaptureFixture) -> None:
    skip_without_program()
    with NatsServer() as own:
        async with AsyncExitStack() as stack:
            group = Group(own.url, stack)
            provider, caller = await group.pair()
            await offer(provider, group.hubs[1], one=lambda: 1)
            own.kill()
            await until(lambda: not any(hub.stats()["nats"]["connected"] for hub in group.hubs))
            stats = await caller.call("rpc.stats")
            assert (stats["hubs"], bool(stats["nats"]["reason"])) == (0, True)
            assert any("cut off from NATS" in record.message for record in caplog.records)
            with pytest.raises(MethodNotFound):
                await caller.one()
            own.restart()
            await until(lambda: group.hubs[1].stats()["methods_elsewhere"] == 1)
            assert await caller.one() == 1


async def test_logins(group: Group) -> None:
    """One that NATS does not take is an error at the start; these permissions are all that a hub needs."""
    permissions = {"publish": {"allow": ["rpc.hub.$hub.>"]}, "subscribe": {"allow": ["rpc.hub.$hub.>"]}}
    with NatsServer(users=[{"user": "hub", "password": "right", "permissions": permissions}]) as own:
        hub = Hub()
        hub.join_nats(own.url, login=NatsLogin(user="hub", password="wrong"))
        with pytest.raises(ConnectFailed, match="does not accept this name and password"):
            await hub.start(port=0)
        hubs = [Hub(drain_timeout=5) for _ in range(2)]
        async with AsyncExitStack() as stack:
            for hub in hubs:
                hub.join_nats(own.url, login=NatsLogin(user="hub", password="right"))
                await hub.start(port=0)
                stack.push_async_callback(hub.close)
            await until(lambda: all(hub.stats()["hubs"] == 1 for hub in hubs))
        assert "Permissions Violation" not in own.log()
