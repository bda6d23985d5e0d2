"""Clients at a real hub, providers and callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Backoff, Client, ConnectFailed, Hub, InvalidParams, MethodNotFound, ProviderGone
from rpcstream.testing import serve_in_thread

from ..internals import client_connections, connection_at_hub, share_hub_key
from ..kit import until

AT_ONCE = Backoff(first=0.001, longest=0.01)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with Hub(drain_timeout=0.2).listening(port=0) as address:
        yield address


def cut(client: AsyncClient) -> None:
    """Lose the connection that the client is registered on."""
    link = connection_at_hub(client)
    assert link is not None
    link.abort("cut")


async def test_one_offers_and_another_calls(address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as gpu, AsyncClient(address) as caller:

        @gpu
        async def negative(image: NDArray[np.float32]) -> NDArray[np.float32]:
            return -image

        assert await gpu.offer() == ["negative"]
        image = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(await caller.negative(image), -image)
        np.testing.assert_array_equal(await caller.call("gpu-1.negative", image=image), -image)
        assert "negative" in str(await caller.call("rpc.discover"))
        assert await gpu.withdraw("negative") == ["negative"]
        with pytest.raises(MethodNotFound):
            await caller.negative(image)


async def test_streams_of_methods_that_stream_or_not(address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as gpu, AsyncClient(address) as caller:

        @gpu
        async def look(value: Any) -> Any:
            return value

        @gpu
        async def count(n: int) -> AsyncIterator[int]:
            for number in range(n):
                yield number

        await gpu.offer()
        for value in ([1, 2], None):
            assert [item async for item in caller.stream.look(value)] == [value]
        assert [item async for item in caller.stream_request("gpu-1.look", [3])] == [3]
        assert [item async for item in caller.stream.count(0)] == []
        assert [item async for item in caller.stream_request("gpu-1.count", [0])] == []


async def test_telling_others(address: str) -> None:
    told: asyncio.Queue[Any] = asyncio.Queue()
    async with AsyncClient(address, name="gpu-1") as gpu, AsyncClient(address) as caller:
        gpu(told.put_nowait, name="reload")
        await gpu.offer()
        assert await caller.notify_client("gpu-1", "reload", "model") is True
        assert await told.get() == "model"
        with pytest.raises(InvalidParams):
            await caller.notify_client("gpu-2", "reload")
        assert await caller.publish("sensors.a", 1.5, retain=True) == 0
        async with gpu.subscribe("sensors.*") as sensors:
            assert await anext(sensors) == 1.5
            assert await caller.publish("sensors.b", np.arange(3)) == 1
            np.testing.assert_array_equal(await anext(sensors), np.arange(3))


async def test_a_name_is_taken_over_with_the_key_alone(address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as first, AsyncClient(address, name="gpu-1") as second:
        first(lambda: "first", name="where")
        second(lambda: "second", name="where")
        await first.offer()
        with pytest.raises(ConnectFailed, match="taken"):
            await second.offer()
        assert await first.where() == "first"
        # As if it were the first one, whose connection seems to be there still.
        share_hub_key(second, first)
        waiting = asyncio.create_task(first.wait_closed())
        assert await second.offer() == ["where"]
        with pytest.raises(ConnectionError):
            await waiting
        assert await second.where() == "second"


@pytest.mark.parametrize("name", ["gpu-1", None])
async def test_a_provider_comes_back(address: str, name: str | None) -> None:
    async with (
        AsyncClient(address, name=name, reconnect=AT_ONCE) as gpu,
        AsyncClient(address, retries=1000, retry="all") as caller,
    ):
        gpu(lambda: "here", name="where")
        await gpu.offer()
        before = gpu.registered_name
        for _ in range(5):
            old = connection_at_hub(gpu)
            cut(gpu)
            await until(lambda old=old: connection_at_hub(gpu) not in (None, old))  # type: ignore[misc]
            assert await caller.where() == "here"
        assert gpu.registered_name == before


async def test_another_connection_of_the_pool_takes_over(address: str) -> None:
    async with AsyncClient(address, name="gpu-1", pool=2) as gpu, AsyncClient(address) as caller:
        gpu(lambda: "here", name="where")
        await gpu.offer()
        await asyncio.gather(*(gpu.where() for _ in range(6)))
        assert len(client_connections(gpu)) == 2
        old = connection_at_hub(gpu)
        cut(gpu)
        await until(lambda: connection_at_hub(gpu) not in (None, old))
        assert await caller.where() == "here"
        assert len(client_connections(gpu)) == 1


@pytest.mark.parametrize("face", ["async", "sync"])
async def test_a_call_goes_to_another_provider(address: str, face: str) -> None:
    begun: asyncio.Queue[AsyncClient] = asyncio.Queue()
    go = asyncio.Event()

    async def offer_work(client: AsyncClient) -> None:
        @client(shared=True, idempotent=True)
        async def work() -> str:
            begun.put_nowait(client)
            await go.wait()
            return "done"

        await client.offer()

    options: Any = {"retries": 1, "retry": "idempotent"}
    async with AsyncClient(address) as first, AsyncClient(address) as second, AsyncClient(address, **options) as tasks:
        await offer_work(first)
        await offer_work(second)
        with Client(address, **options) as threads:
            call = asyncio.create_task(tasks.work() if face == "async" else asyncio.to_thread(threads.work))
            busy = await begun.get()
            cut(busy)
            assert await begun.get() is not busy
            go.set()
            assert await call == "done"


async def test_nothing_is_repeated_unasked(address: str) -> None:
    begun = asyncio.Event()
    async with AsyncClient(address) as gpu, AsyncClient(address) as caller:

        @gpu
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        await gpu.offer()
        call = asyncio.create_task(caller.work())
        await begun.wait()
        cut(gpu)
        with pytest.raises(ProviderGone):
            await call


async def test_idle_ends_keep_each_other_alive() -> None:
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message)  # noqa: E731
    async with (
        Hub(keepalive_timeout=1.0, ping_interval=0.3).listening(port=0) as address,
        AsyncClient(address, name="gpu-1", keepalive=0.4, trace=trace) as gpu,
    ):
        await gpu.offer()
        link = connection_at_hub(gpu)
        await until(lambda: sum(b'"rpc.ping"' in message for message in sent) >= 5)
        assert connection_at_hub(gpu) is link


def test_the_sync_client() -> None:
    with serve_in_thread(Hub(drain_timeout=0.2)) as address, Client(address) as caller:
        with Client(address, name="gpu-1") as gpu:

            @gpu
            def add(a: int, b: int) -> int:
                return a + b

            assert gpu.offer() == ["add"]
            assert caller.add(1, 2) == 3
            assert caller.call("gpu-1.add", a=1, b=3) == 4
            assert gpu.add(2, 2) == 4, "its own, by way of the hub"
        with pytest.raises((MethodNotFound, ProviderGone)):  # the hub may still be seeing it off
            caller.add(1, 2)
