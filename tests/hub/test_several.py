"""Clients whose address names several hubs: providers register at each, and callers use any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rpcstream import AsyncClient, Backoff, Hub
from rpcstream.errors import InvalidParams, MethodNotFound

from ..kit import until

#: Long enough for any machine; the tests never wait for it.
PATIENCE = 30

AT_ONCE = Backoff(first=0.01, longest=0.05)


class Hubs:
    """Two hubs that know nothing of each other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.hubs = [Hub(drain_timeout=1), Hub(drain_timeout=1)]
        self.addresses: list[str] = []
        self._blocks: list[AsyncExitStack] = []

    async def start(self) -> None:
        for number, _ in enumerate(self.hubs):
            self._blocks.append(await self._stack.enter_async_context(AsyncExitStack()))
            self.addresses.append(await self.start_one(number))

    async def start_one(self, number: int, **where: Any) -> str:
        return await self._blocks[number].enter_async_context(self.hubs[number].listening(**{"port": 0, **where}))

    async def stop_one(self, number: int) -> None:
        await self._blocks[number].aclose()

    @property
    def both(self) -> str:
        return ",".join(self.addresses)

    async def client(self, address: str, **options: Any) -> AsyncClient:
        return await self._stack.enter_async_context(AsyncClient(address, **options))

    async def names_at(self, number: int) -> set[str]:
        caller = await self.client(self.addresses[number])
        return {each["name"] for each in await caller.call("rpc.clients")} - {None}


@pytest.fixture
async def hubs() -> AsyncIterator[Hubs]:
    async with AsyncExitStack() as stack:
        hubs = Hubs(stack)
        await hubs.start()
        yield hubs


def double(number: int) -> int:
    return 2 * number


async def test_a_provider_is_called_by_each_hub(hubs: Hubs) -> None:
    provider = await hubs.client(hubs.both, name="p", reconnect=AT_ONCE)
    provider(double)
    assert await provider.offer() == ["double"]
    for address in hubs.addresses:
        caller = await hubs.client(address)
        assert await caller.double(4) == 8
        assert await caller.call("p.double", 4) == 8
    provider(lambda: "more", name="later")
    await provider.offer()
    for address in hubs.addresses:
        assert await (await hubs.client(address)).later() == "more"
    assert await provider.withdraw("later") == ["later"]
    for address in hubs.addresses:
        with pytest.raises(MethodNotFound):
            await (await hubs.client(address)).later()
    await provider.withdraw()
    assert await hubs.names_at(0) == await hubs.names_at(1) == set()


async def test_names_that_the_hubs_make_and_a_name_that_one_has_given_away(hubs: Hubs) -> None:
    async with AsyncClient(hubs.addresses[1], name="taken") as other:
        await other.call("rpc.ping")
        provider = await hubs.client(hubs.both)
        provider(double)
        await provider.offer()
        assert provider.registered_name in await hubs.names_at(0)
        assert len(await hubs.names_at(1)) == 2
        second = await hubs.client(hubs.both, name="taken", reconnect=AT_ONCE)
        second(double, name="triple")
        assert await second.offer() == ["triple"]  # at the first hub; the other one goes on refusing the name
        assert "taken" in await hubs.names_at(0)
    await until(lambda: "triple" in hubs.hubs[1].directory.routes)
    third = await hubs.client(hubs.addresses[0], name="third")
    third(double, name="triple")
    with pytest.raises(InvalidParams, match="triple"):
        await third.offer()


async def test_a_caller_goes_on_when_its_hub_is_gone_and_a_hub_that_comes_back_is_told_again(hubs: Hubs) -> None:
    provider = await hubs.client(hubs.both, name="p", reconnect=AT_ONCE)
    provider(double)
    await provider.offer()
    caller = await hubs.client(hubs.both)
    assert await caller.double(1) == 2
    await hubs.stop_one(0)
    assert await caller.double(2) == 4
    assert await provider.call("rpc.ping") == "pong"  # calls of its own go by the other hub, too
    host, _, port = hubs.addresses[0].rpartition(":")
    await hubs.start_one(0, host=host, port=int(port))
    await until(lambda: "double" in hubs.hubs[0].directory.routes)
    assert await (await hubs.client(hubs.addresses[0])).double(3) == 6


async def test_one_hub_is_enough_at_the_start(hubs: Hubs) -> None:
    await hubs.stop_one(0)
    provider = await hubs.client(hubs.both, reconnect=AT_ONCE)
    provider(double)
    assert await asyncio.wait_for(provider.offer(), PATIENCE) == ["double"]
    assert await (await hubs.client(hubs.addresses[1])).double(3) == 6
