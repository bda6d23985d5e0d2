"""Events at the async client: one subscription for all readers of a topic, in order, bounded, renewed after a loss."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import (
    AsyncClient,
    Backoff,
    ConnectionLost,
    InvalidParams,
    Limits,
    Server,
    ServerBusy,
)
from rpcstream.events.event_queue import Policy
from rpcstream.peer.blocking import BlockingStream, Bridge
from rpcstream.peer.context import CallContext
from rpcstream.testing import memory_client
from rpcstream.transports.memory import join

from ..internals import events_wait_for, has_subscriptions, subscribed_topics
from ..kit import until

Scripted = Callable[[Callable[[Any], None]], str]
Joined = tuple[Server, AsyncClient]

AT_ONCE = Backoff(first=0.001, longest=0.01)


@dataclass
class Reading:
    sensor: str
    celsius: float


def make_server(**options: Any) -> Server:
    server = Server(drain_timeout=1000, **options)

    @server
    def publish(value: Any, topic: str = "a") -> int:
        return server.publish(topic, value)

    @server
    def cut(ctx: CallContext) -> None:
        ctx.session.abort("cut off")

    return server


@asynccontextmanager
async def over_tcp(server: Server, **options: Any) -> AsyncIterator[AsyncClient]:
    async with server.listening(port=0) as address, AsyncClient(address, **options) as client:
        yield client


@pytest.fixture(params=[memory_client, over_tcp], ids=["memory", "tcp"])
async def joined(request: pytest.FixtureRequest) -> AsyncIterator[Joined]:
    """A server and a client of it."""
    server = make_server()
    async with request.param(server) as client:
        yield server, client


async def take(events: Any, count: int) -> list[Any]:
    return [await anext(events) for _ in range(count)]


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_what_is_published_from_the_entry_on_comes_in_order(joined: Joined) -> None:
    server, client = joined
    async with client.subscribe("a") as events:
        assert repr(events) == "<subscription to 'a', open>"
        assert [server.publish("a", number) for number in range(100)] == [1] * 100
        assert await take(events, 100) == list(range(100))
        assert await client.call("publish", "from a handler") == 1
        assert await anext(events) == "from a handler"
        assert (events.topic, events.dropped, events.reconnects) == ("a", 0, 0)
    await until(lambda: not server.topics)
    assert not has_subscriptions(client)


async def test_the_first_value_that_is_wanted_subscribes(joined: Joined) -> None:
    server, client = joined
    events = client.subscribe("a")
    assert repr(events) == "<subscription to 'a', not started>"
    task = asyncio.create_task(anext(events))  # type: ignore[arg-type]
    await until(lambda: server.topics)
    server.publish("a", None)
    assert await task is None
    await events.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert repr(events) == "<subscription to 'a', ended>"
    await until(lambda: not server.topics)


async def test_breaking_out_of_the_loop_unsubscribes(joined: Joined) -> None:
    server, client = joined

    async def read() -> Any:
        async for value in client.subscribe("a"):
            return value

    task = asyncio.create_task(read())
    await until(lambda: server.topics)
    server.publish("a", 1)
    assert await task == 1
    gc.collect()
    await until(lambda: not server.topics)
    assert not has_subscriptions(client)


async def test_rich_values_and_exact_integers(joined: Joined) -> None:
    server, client = joined
    async with client.subscribe("a") as events:
        server.publish("a", np.arange(6.0).reshape(2, 3))
        server.publish("a", {"photo": Image.new("RGB", (4, 3)), "raw": b"\0\1"})
        server.publish("a", [2**70, -(2**64), 2**53 + 1])
        server.publish("a", np.zeros(1_000_000, np.uint8))
        array, photo, integers, large = await take(events, 4)
    assert array.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert (photo["photo"].size, photo["raw"]) == ((4, 3), b"\0\1")
    assert integers == [2**70, -(2**64), 2**53 + 1]
    assert (large.dtype, large.shape) == (np.uint8, (1_000_000,))


async def test_values_in_the_type_that_is_asked_for(joined: Joined) -> None:
    server, client = joined
    async with (
        client.subscribe("a", returns=Reading) as events,
        client.subscribe("b", returns=NDArray[np.float32]) as b,
    ):
        server.publish("a", Reading("roof", 21.5))
        server.publish("a", {"sensor": "roof"})
        server.publish("a", {"sensor": "cellar", "celsius": 9})
        assert await anext(events) == Reading("roof", 21.5)
        with pytest.raises(TypeError, match=r"'a' at .* does not fit returns=: .*celsius"):
            await anext(events)
        assert await anext(events) == Reading("cellar", 9.0), "the next one can be read"
        server.publish("b", np.ones(2, np.float32))
        assert (await anext(b)).dtype == np.float32


async def test_giving_up_a_wait_loses_nothing(joined: Joined) -> None:
    server, client = joined
    async with client.subscribe("a") as events:
        for number in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.001)
            server.publish("a", number)
            assert await anext(events) == number


# -- several readers ---------------------------------------------------------------------------------------------------


async def test_readers_of_a_topic_share_one_subscription(joined: Joined) -> None:
    server, client = joined
    async with client.subscribe("a") as one:
        requests = server.counters.requests
        async with client.subscribe("a") as two, client.subscribe("b") as other:
            assert (dict(server.topics), server.counters.requests) == ({"a": 1, "b": 1}, requests + 1)
            assert server.publish("a", 1) == 1
            server.publish("b", 2)
            assert [await anext(events) for events in (one, two, other)] == [1, 1, 2]
        assert await client.call("publish", 3) == 1, "one of the readers is still there"
        assert await anext(one) == 3
        assert dict(server.topics) == {"a": 1}
    assert await client.call("publish", 4) == 0


async def test_readers_that_begin_together_share_one_connection_of_the_pool() -> None:
    server = make_server()
    async with over_tcp(server, pool=3) as client:
        readers = [client.subscribe(topic) for topic in "aaabbb"]
        await asyncio.gather(*(reader.__aenter__() for reader in readers))
        await asyncio.gather(*(client.call("publish", "other calls", "nobody's") for _ in range(20)))
        assert dict(server.topics) == {"a": 1, "b": 1}
        assert (server.publish("a", 1), server.publish("b", 2)) == (1, 1)
        assert await asyncio.gather(*map(anext, readers)) == [1, 1, 1, 2, 2, 2]
        await asyncio.gather(*(reader.aclose() for reader in readers))
        await until(lambda: not server.topics)


async def test_a_reader_joins_while_another_leaves(joined: Joined) -> None:
    server, client = joined
    first = client.subscribe("a")
    await first.__aenter__()
    for number in range(20):
        second = client.subscribe("a")
        await asyncio.gather(first.aclose(), second.__aenter__())
        assert server.publish("a", number) == 1
        assert await anext(second) == number
        first = second
    await first.aclose()
    await until(lambda: not server.topics)


# -- slow readers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "values"), [("drop_oldest", [7, 8, 9, "more"]), ("drop_newest", [0, 1, 2]), ("disconnect", [0, 1, 2])]
)
async def test_a_slow_reader_is_bounded_by_its_own_policy(joined: Joined, policy: Policy, values: list[Any]) -> None:
    server, client = joined
    async with client.subscribe("a", max_queue=3, policy=policy) as slow, client.subscribe("a") as other:
        for number in range(10):
            server.publish("a", number)
        assert await take(other, 10) == list(range(10))
        assert slow.dropped == (1 if policy == "disconnect" else 7)
        if policy == "drop_oldest":
            assert await anext(slow) == 7
            server.publish("a", "more")
            assert await take(slow, 3) == [8, 9, "more"]
        else:
            assert await take(slow, 3) == values
        if policy == "disconnect":
            with pytest.raises(ConnectionLost, match=r"no more events of 'a': the reader was too slow"):
                await anext(slow)
            with pytest.raises(StopAsyncIteration):
                await anext(slow)
        assert other.dropped == 0
        server.publish("a", "for the other")
        assert (await take(other, 2 if policy == "drop_oldest" else 1))[-1] == "for the other"


async def test_what_waits_for_a_reader_is_no_more_than_a_message_may_be() -> None:
    server = make_server()
    limits = Limits(max_message_size=10_000)
    async with memory_client(server, limits=limits) as client, client.subscribe("a") as events:
        for number in range(20):
            server.publish("a", str(number) + "x" * 3000)
        await until(lambda: events.dropped == 17)
        assert [value.strip("x") for value in await take(events, 3)] == ["17", "18", "19"]


async def test_a_reader_that_is_disconnected_was_the_last_one(joined: Joined) -> None:
    server, client = joined
    async with client.subscribe("a", max_queue=1, policy="disconnect") as events:
        for number in range(3):
            server.publish("a", number)
        await until(lambda: not server.topics)
        assert await anext(events) == 0
        with pytest.raises(ConnectionLost):
            await anext(events)


@pytest.mark.parametrize("options", [{"max_queue": 0}, {"policy": "wait"}])
async def test_options_that_make_no_sense(joined: Joined, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"room for at least|policy must be"):
        joined[1].subscribe("a", **options)


async def test_a_topic_is_a_str(joined: Joined) -> None:
    with pytest.raises(TypeError, match="a topic is a str, got list"):
        joined[1].subscribe(["a"])  # type: ignore[arg-type]


# -- refused -----------------------------------------------------------------------------------------------------------


async def test_what_the_server_refuses_is_raised_and_nothing_is_left() -> None:
    server = make_server(limits=Limits(max_subscriptions=1))
    async with memory_client(server) as client:
        async with client.subscribe("a") as events:
            for topic, error in (("", InvalidParams), ("b", ServerBusy), ("rpc.x", InvalidParams)):
                refused = client.subscribe(topic)
                with pytest.raises(error):
                    await anext(refused)
                with pytest.raises(error):
                    await refused.__aenter__()
            server.publish("a", 1)
            assert await anext(events) == 1
            assert subscribed_topics(client) == {"a"}
        assert await client.call("publish", 1) == 0
        async with client.subscribe("b"):
            assert dict(server.topics) == {"b": 1}


# -- what servers may send ---------------------------------------------------------------------------------------------


# -- lost connections --------------------------------------------------------------------------------------------------


async def test_without_reconnect_the_loop_ends_behind_what_waits(joined: Joined) -> None:
    server, client = joined
    one, two = client.subscribe("a"), client.subscribe("b")
    await one.__aenter__()
    await two.__aenter__()
    waiting = asyncio.create_task(anext(two))  # type: ignore[arg-type]
    await client.call("publish", 1)
    await client.notify.cut()
    with pytest.raises(ConnectionLost, match=r"no more events of 'b'.* \(at "):
        await waiting
    assert await anext(one) == 1
    with pytest.raises(ConnectionLost, match=r"no more events of 'a'"):
        await anext(one)
    with pytest.raises(StopAsyncIteration):
        await anext(one)
    assert not has_subscriptions(client)
    # A new subscription makes a new connection.
    async with client.subscribe("a") as events:
        server.publish("a", 2)
        assert await anext(events) == 2


async def test_a_server_that_stops_ends_the_loop() -> None:
    server = make_server()
    async with server.listening(port=0) as address:
        client = AsyncClient(address)
        events = client.subscribe("a")
        await events.__aenter__()
    with pytest.raises(ConnectionLost):
        await anext(events)
    await client.close()


@pytest.mark.parametrize("where", [memory_client, over_tcp], ids=["memory", "tcp"])
async def test_with_reconnect_the_client_subscribes_again(where: Any) -> None:
    server = make_server()
    greeted: list[str] = []
    async with where(server, reconnect=AT_ONCE) as client, client.subscribe("a") as one, client.subscribe("a") as two:
        async with client.subscribe("b") as other:

            @client.on_connect  # also when it was said later than what was subscribed to
            async def hello(peer: Any) -> None:
                greeted.append(dict(server.topics) and "too late")
                await peer.call("rpc.ping")

            await client.call("publish", "before")
            for number in range(1, 4):
                await client.notify.cut()
                await until(lambda number=number: [each.reconnects for each in (one, two, other)] == [number] * 3)
                assert dict(server.topics) == {"a": 1, "b": 1}
                assert await client.call("publish", number) == 1
            assert greeted == [{}, {}, {}]
            assert await take(one, 4) == await take(two, 4) == ["before", 1, 2, 3]
        assert await client.call("publish", "nobody", "b") == 0
    assert client.state == "closed"


# -- the end of the client ---------------------------------------------------------------------------------------------


async def test_closing_the_client_ends_loops_behind_what_waits(joined: Joined) -> None:
    server, client = joined
    one, two = client.subscribe("a"), client.subscribe("b")
    await one.__aenter__()
    await two.__aenter__()

    async def read() -> list[Any]:
        return [value async for value in two]

    task = asyncio.create_task(read())
    await client.call("publish", 1)
    await until(lambda: events_wait_for(one))
    await client.close()
    assert [value async for value in one] == [1]
    assert await task == []
    await until(lambda: not server.topics)
    with pytest.raises(RuntimeError, match="closed client"):
        await anext(client.subscribe("a"))


async def test_closing_a_client_that_has_no_connection_ends_loops_too() -> None:
    server = make_server()
    async with server.listening(port=0) as address:
        client = AsyncClient(address, reconnect=Backoff(first=1000, longest=1000))
        events = client.subscribe("a")
        await events.__aenter__()
        task = asyncio.create_task(anext(events))  # type: ignore[arg-type]
    await until(lambda: client.state == "waiting")
    assert not task.done()
    await client.close()
    with pytest.raises(StopAsyncIteration):
        await events.__anext__()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], StopAsyncIteration)


# -- from elsewhere ----------------------------------------------------------------------------------------------------


async def test_a_thread_reads_through_the_loop(joined: Joined) -> None:
    server, client = joined
    stream = BlockingStream(Bridge(asyncio.get_running_loop()), lambda: client.subscribe("a"))

    def read() -> list[Any]:
        values = []
        for value in stream:
            values.append(value)
            if value == 2:
                break
        stream.close()
        return values

    task = asyncio.create_task(asyncio.to_thread(read))
    await until(lambda: server.topics)
    for number in range(3):
        server.publish("a", number)
    assert await task == [0, 1, 2]
    await until(lambda: not server.topics)


class OneEvent(asyncio.Protocol):
    """A server that answers every request, and a subscription with its topic as the first event."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for line in data.splitlines():
            request = orjson.loads(line)
            params = {**request["params"], "value": request["params"]["topic"]}
            for message in ({"id": request["id"], "result": True}, {"method": "$/event", "params": params}):
                self.transport.write(orjson.dumps({"jsonrpc": "2.0", **message}) + b"\n")


def test_readers_in_an_event_loop_that_is_over_are_left_behind() -> None:
    async def connect(make_stream: Any) -> Any:
        stream = make_stream()
        join(stream, OneEvent())
        return stream

    client = AsyncClient("memory", connect=connect, reconnect=True)
    left_open = []

    async def read(topic: str) -> Any:
        events = client.subscribe(topic)
        left_open.append(events)
        return await anext(events)

    topics = ["a", "b", "a"]
    assert [asyncio.run(read(topic)) for topic in topics] == topics
    assert [events.reconnects for events in left_open] == [0, 0, 0]
    assert subscribed_topics(client) == {"a"}
    assert asyncio.run(client.call("anything", topic="x")) is True
    assert not has_subscriptions(client), "a new connection is not greeted for them"
    asyncio.run(left_open[0].aclose())
    asyncio.run(client.close())
