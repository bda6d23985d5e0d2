"""NaN and the infinities come as they were sent: arguments, results, items, progress, events, calls back, batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest

from rpcstream import Context, Server

from ..kit import Network

NAN, INF = math.nan, math.inf


@dataclasses.dataclass
class Point:
    x: float
    others: list[float] = dataclasses.field(default_factory=list)


class Reading(msgspec.Struct):
    value: float
    by_name: dict[str, float] = {}


class Model(pydantic.BaseModel):
    x: float
    more: list[float] = []


#: Values with NaN or an infinity in them, as they arrive without a hint.
VALUES: list[tuple[Any, Any]] = [
    (NAN, NAN),
    (INF, INF),
    (-INF, -INF),
    ([NAN, None, 1.5, "nan", [INF, {"a": (-INF, 2)}]], [NAN, None, 1.5, "nan", [INF, {"a": [-INF, 2]}]]),
    ({"a": np.float32("nan"), "b": np.float64("-inf")}, {"a": NAN, "b": -INF}),
    (Point(NAN, [INF, 1.5]), {"x": NAN, "others": [INF, 1.5]}),
    (Reading(INF, {"a": NAN}), {"value": INF, "by_name": {"a": NAN}}),
    (Model(x=NAN, more=[INF]), {"x": NAN, "more": [INF]}),
    ([NAN, 2**70], [NAN, 2**70]),
    ([NAN, b"x" * 70_000], [NAN, b"x" * 70_000]),
]


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, each NaN being equal to itself."""
    return repr(one) == repr(other)


async def test_without_a_hint(network: Network) -> None:
    server = Server()
    server.add(lambda value: value, name="echo")
    async with network.client(server) as client:
        for sent, arrives in VALUES:
            assert is_same(await client.call("echo", sent), arrives), sent
        sent, arrives = zip(*VALUES, strict=True)
        assert is_same(await client.call("echo", list(sent)), list(arrives))
        assert math.isnan(await client.call("echo", NAN, returns=float))
        assert (await client.call("echo", [INF], returns=list[np.float32]))[0] == INF


async def test_where_a_hint_asks_for_floats(network: Network) -> None:
    server = Server()
    got: list[Any] = []

    @server
    def take(x: float, named: dict[str, float | None], point: Point, reading: Reading, model: Model) -> list[float]:
        got.append((x, named, point, reading, model))
        return [x]

    arguments = (NAN, {"a": -INF, "b": None}, Point(NAN, [INF]), Reading(INF), Model(x=NAN, more=[INF]))
    async with network.client(server) as client:
        assert is_same(await client.call("take", *arguments), [NAN])
    assert is_same(got, [arguments])


@pytest.mark.lasting
async def test_streams_progress_calls_back_and_events(network: Network) -> None:
    server = Server()

    @server
    async def total(items: AsyncIterator[float]) -> list[float]:
        return [each async for each in items]

    @server
    async def ask(ctx: Context) -> Any:
        return await ctx.peer.answer(NAN)

    @server
    def readings(ctx: Context) -> Iterator[float]:
        ctx.progress([NAN, 2])
        yield from (1.5, NAN, -INF)

    async def numbers() -> AsyncIterator[float]:
        yield NAN
        yield INF

    async with network.client(server) as client:

        @client
        def answer(x: float) -> list[float]:
            return [x, -INF]

        assert is_same(await client.total(numbers()), [NAN, INF])
        assert is_same(await client.ask(), [NAN, -INF])
        async with client.subscribe("weather") as events:
            server.publish("weather", {"degrees": NAN})
            event = await anext(events)
        assert is_same(event, {"degrees": NAN})
        seen: list[Any] = []
        assert is_same(await client.call("readings", on_progress=seen.append), [1.5, NAN, -INF])
        assert is_same(seen, [[NAN, 2]])
        assert is_same([each async for each in client.stream.readings(returns=float)], [1.5, NAN, -INF])
