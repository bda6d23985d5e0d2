"""Every kind of handler with arrays that come and go as binary frames: in threads, processes, batches, streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Context, Server, Shape

Vector = Annotated[NDArray[np.float64], Shape(None)]

COUNT = 3000
Rows = Annotated[NDArray[np.float64], Shape(None, COUNT)]
VALUES = np.arange(COUNT, dtype=np.float64)


class Seen:
    """Counts the frames that a client sends and receives, and the bytes that it is sent as text."""

    sent = received = text = 0

    def __call__(self, direction: str, message: bytes) -> None:
        if b" + payloads of " in message:
            self.sent += direction == "send"
            self.received += direction == "receive"
        elif direction == "receive":
            self.text += len(message)


def make_server() -> Server:
    server = Server(drain_timeout=0.2)

    @server
    def plain(values: Vector) -> Vector:
        return values * 2

    @server(offload="thread")
    def threaded(values: Vector) -> Vector:
        return values * 2

    @server
    def writable(values: Vector) -> Vector:
        values *= 2  # in the memory that the frame was received into
        return values

    @server
    def read_only(values: Any) -> Any:
        doubled = np.broadcast_to(values[:1] * 2, values.shape) if values[0] else values * 2
        doubled.flags.writeable = False
        return doubled

    @server.batched(max_wait=0.0)
    def batched(values: Rows) -> Rows:
        return values * 2

    @server
    async def reported(values: Vector, ctx: Context) -> Vector:
        ctx.progress({"dropped": values})  # another one follows at once
        ctx.progress(values)
        return values * 2

    @server
    def items(values: Vector, count: int) -> Iterator[Vector]:
        for number in range(count):
            yield values + number

    @server
    async def publish(values: Vector) -> None:
        server.publish("values", values)

    kept: list[set[float]] = []
    server.add(lambda values: kept.append({values.min(), values.max()}), name="keep")
    server.add(lambda: [[*each] for each in kept], name="kept")
    return server


@pytest.fixture
async def seen() -> Seen:
    return Seen()


@pytest.fixture
async def client(seen: Seen) -> AsyncIterator[AsyncClient]:
    """Connected, and both ends know that the other one takes frames."""
    async with make_server().listening(port=0) as address, AsyncClient(address, trace=seen) as client:
        await client.call("plain", VALUES)
        seen.sent = seen.received = seen.text = 0
        yield client


@pytest.mark.parametrize("method", ["plain", "threaded", "writable", "read_only", "batched", "reported"])
async def test_arguments_and_results_are_frames(client: AsyncClient, seen: Seen, method: str) -> None:
    progress: list[Any] = []
    for number in range(2):
        result = await client.call(method, VALUES + number, on_progress=progress.append)
        if method == "read_only" and number:
            assert (result == 2).all()
        else:
            assert (result == 2 * (VALUES + number)).all()
        assert result.flags.writeable
        result += 1
    assert (seen.sent, seen.received) == (2, 4 if method == "reported" else 2)
    assert seen.text == 0
    assert len(progress) == (2 if method == "reported" else 0)


async def test_the_items_of_a_stream_are_frames_or_stand_in_one_reply(client: AsyncClient, seen: Seen) -> None:
    received = [item async for item in client.stream("items", VALUES, 5)]
    assert (seen.sent, seen.received) == (1, 5)
    for count in (1, 70):  # as a frame or as text: that depends on how quickly they are made
        received += (result := await client.call("items", VALUES, count))
        assert len(result) == count
    for number, item in zip([*range(5), *range(1), *range(70)], received, strict=True):
        assert (item == VALUES + number).all()


async def test_events_are_frames_for_those_that_take_them(client: AsyncClient, seen: Seen) -> None:
    plain = Seen()
    async with (
        AsyncClient(client.address, trace=plain, binary=False) as other,
        client.subscribe("values") as mine,
        other.subscribe("values") as theirs,
    ):
        await client.notify("publish", VALUES)
        for events in (mine, theirs):
            assert (await anext(events) == VALUES).all()
    assert (seen.sent, seen.received) == (1, 1)
    assert (plain.sent, plain.received) == (0, 0)


async def test_an_array_that_is_notified_may_be_used_again(client: AsyncClient) -> None:
    notified = np.ones(500_000)
    for number in range(4):
        notified[:] = number
        await client.notify("keep", notified)
        notified[:] = -1
    assert await client.call("kept") == [[0], [1], [2], [3]]
