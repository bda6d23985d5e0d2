"""Our own clients at a hub: arrays go as binary frames after the first, everywhere, to those who read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, ConnectFailed, ConnectionLost, Context, Limits, ProviderGone
from rpcstream.hub import Hub

Array = NDArray[np.float32]

#: 64 KiB, and not the same anywhere.
ARRAY = np.arange(16_384, dtype=np.float32)


class Trace:
    """Counts what a client has sent and received as binary frames."""

    def __init__(self) -> None:
        self.frames: dict[str, int] = {"send": 0, "receive": 0}

    def __call__(self, direction: str, message: bytes) -> None:
        self.frames[direction] += message.startswith(b"@")


@asynccontextmanager
async def provided(address: str, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client that offers methods with arrays in every place where these may stand."""
    provider = AsyncClient(address, name="p", **options)

    @provider
    def double(a: Array) -> Array:
        return a * 2

    @provider
    async def count(a: Array, n: int, ctx: Context) -> AsyncIterator[Array]:
        for number in range(n):
            ctx.progress(a - number)
            yield a + number

    @provider
    async def total(items: AsyncIterator[Array]) -> Array:
        result = np.zeros_like(ARRAY)
        async for item in items:
            result += item
        return result

    async with provider:
        await provider.offer()
        yield provider


async def items() -> AsyncIterator[Array]:
    for number in range(5):
        yield ARRAY + number


def same(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype == np.float32 and bool((a == b).all())


@pytest.mark.parametrize(("theirs", "ours"), [(True, True), (True, False), (False, True), (False, False)])
async def test_arrays_in_every_place(theirs: bool, ours: bool) -> None:
    async with Hub().listening(port=0) as address:
        there, here = Trace(), Trace()
        async with (
            provided(address, binary=theirs, trace=there),
            AsyncClient(address, binary=ours, trace=here) as caller,
        ):
            for _ in range(3):
                assert same(await caller.double(ARRAY), ARRAY * 2)
            reports: list[Any] = []
            stream = caller.stream_request("count", [ARRAY, 4], on_progress=reports.append)
            for number, item in enumerate([item async for item in stream]):
                assert same(item, ARRAY + number)
            # Of reports that follow each other too fast the last one comes.
            assert all(same(report, ARRAY + report[0]) for report in reports)
            assert reports[-1][0] == -3
            assert same(await caller.total(items()), ARRAY * 5 + 10)
            async with caller.batch() as batch:
                results = [batch.double(ARRAY + number) for number in range(3)]
            assert all(same(each.result(), (ARRAY + number) * 2) for number, each in enumerate(results))
        # In the first calls text goes, before each end has said that it reads frames.
        for trace, reads in ((there, theirs), (here, ours)):
            assert (trace.frames["send"] >= 5) is reads, trace.frames
            # What has come to the hub as text goes on as text.
            assert (trace.frames["receive"] >= 5) is (theirs and ours), trace.frames


async def test_the_sync_client() -> None:
    async with Hub().listening(port=0) as address, provided(address):
        trace = Trace()

        def run() -> None:
            with Client(address, trace=trace) as caller:
                for number in range(4):
                    assert same(caller.double(ARRAY + number), (ARRAY + number) * 2)
                for number, item in enumerate(caller.stream.count(ARRAY, 3)):
                    assert same(item, ARRAY + number)

        await asyncio.to_thread(run)
        assert trace.frames["send"] >= 2
        assert trace.frames["receive"] >= 2


async def test_events_and_their_last_values() -> None:
    """A client that reads frames, one that does not, and both of them later."""
    async with Hub().listening(port=0) as address, AsyncClient(address) as publisher:
        trace = Trace()
        async with (
            AsyncClient(address, trace=trace) as one,
            AsyncClient(address, binary=False) as other,
            one.subscribe("arrays.*") as frames,
            other.subscribe("arrays.*") as texts,
        ):
            for number in range(4):
                assert await publisher.publish(f"arrays.{number}", ARRAY + number, retain=True) == 2
                for events in (frames, texts):
                    assert same(await anext(aiter(events)), ARRAY + number)
            assert trace.frames["receive"] >= 2
        for binary in (True, False):
            async with AsyncClient(address, binary=binary) as late, late.subscribe("arrays.>") as events:
                last = [await anext(aiter(events)) for _ in range(4)]
                assert sorted(float(event[0]) for event in last) == [0, 1, 2, 3]
                assert all(same(event, ARRAY + event[0]) for event in last)


async def test_a_hub_that_stops_ends_calls_with_an_error_or_their_array() -> None:
    results: list[Any] = []

    async def load(address: str) -> None:
        async with AsyncClient(address) as caller:
            try:
                while True:
                    assert same(await caller.double(ARRAY), ARRAY * 2)
                    results.append(True)
            except (ConnectionLost, ConnectFailed, ProviderGone):
                results.append(False)

    hub = Hub(drain_timeout=5)
    async with AsyncExitStack() as stack:
        async with hub.listening(port=0) as address:
            await stack.enter_async_context(provided(address, reconnect=False))
            callers = [asyncio.ensure_future(load(address)) for _ in range(3)]
            while len(results) < 20:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(asyncio.gather(*callers), 30)
    assert results.count(False) == 3


async def test_events_that_wait_at_a_client_count_with_their_payloads() -> None:
    async with (
        Hub().listening(port=0) as address,
        AsyncClient(address) as publisher,
        AsyncClient(address, limits=Limits(max_message_size=4 * ARRAY.nbytes)) as client,
        client.subscribe("arrays") as events,
    ):
        for _ in range(2):  # text, and rpc.hello
            await publisher.publish("arrays", ARRAY)
            await anext(aiter(events))
        for number in range(8):
            await publisher.publish("arrays", ARRAY + number)
        async with asyncio.timeout(15):
            while events.dropped < 5:
                await asyncio.sleep(0.001)
        assert same(await anext(aiter(events)), ARRAY + 5)
