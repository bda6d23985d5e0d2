"""Events at the async client: one subscription for all readers of a topic, in order, bounded, renewed after a loss."""

from __future__ import annotations

import asyncio
import gc
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import Backoff, ConnectionLost, InvalidParams, Limits, Server, ServerBusy

from ..kit import Network, RawPeer, notification, reply, until
from ..kit.matrix import cut_connections

pytestmark = [pytest.mark.lasting, pytest.mark.own_subscribers]

AT_ONCE = Backoff(first=0.001, longest=0.01)


@dataclass
class Reading:
    sensor: str
    celsius: float


def make_server(**options: Any) -> Server:
    server = Server(drain_timeout=1000, **options)

    @server
    def tell(topic: str, value: Any, retain: bool = False) -> int:
        return server.publish(topic, value, retain=retain)

    return server


async def take(events: Any, count: int) -> list[Any]:
    return [await anext(events) for _ in range(count)]


async def test_what_is_published_from_the_entry_on_comes_in_order(network: Network) -> None:
    server = make_server()
    async with network.client(server) as client:
        async with client.subscribe("a") as events:
            assert [server.publish("a", number) for number in range(100)] == [1] * 100
            assert await take(events, 100) == list(range(100))
            assert await client.tell("a", "from a handler") == 1
            assert await anext(events) == "from a handler"
            assert (events.topic, events.dropped, events.reconnects) == ("a", 0, 0)
            for number in range(5):  # giving up a wait loses nothing
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.001)
                server.publish("a", number)
                assert await anext(events) == number
        await until(lambda: not server.topics)


async def test_the_first_value_that_is_wanted_subscribes_and_leaving_the_loop_ends_it(network: Network) -> None:
    server = make_server()
    async with network.client(server) as client:

        async def read() -> Any:
            async for value in client.subscribe("a"):
                return value

        task = asyncio.create_task(read())
        await until(lambda: server.topics)
        server.publish("a", None)
        assert await task is None
        gc.collect()
        await until(lambda: not server.topics)


async def test_values_of_every_kind_and_in_the_type_that_is_asked_for(network: Network) -> None:
    server = make_server()
    async with network.client(server) as client:
        async with client.subscribe("a") as events:
            server.publish("a", {"raw": b"\0\1", "integers": [2**70, 2**53 + 1]})
            server.publish("a", np.zeros(1_000_000, np.uint8))
            found, large = await take(events, 2)
            assert found == {"raw": b"\0\1", "integers": [2**70, 2**53 + 1]}
            assert (large.dtype, large.shape) == (np.uint8, (1_000_000,))
        async with (
            client.subscribe("a.>", returns=Reading).with_topics() as pairs,
            client.subscribe("b", returns=NDArray[np.float32]) as b,
        ):
            server.publish("a.one", Reading("roof", 21.5))
            server.publish("a.two", {"sensor": "roof"})
            server.publish("a.two", {"sensor": "cellar", "celsius": 9})
            assert await anext(pairs) == ("a.one", Reading("roof", 21.5))
            with pytest.raises(TypeError, match=r"'a\.two' at .* does not fit returns=: .*celsius"):
                await anext(pairs)
            assert await anext(pairs) == ("a.two", Reading("cellar", 9.0)), "the next one can be read"
            server.publish("b", np.ones(2, np.float32))
            assert (await anext(b)).dtype == np.float32


async def test_each_reader_is_given_each_event_once(network: Network) -> None:
    server = make_server()
    async with network.client(server) as client, client.subscribe("a.*") as wide, client.subscribe("a.*") as too:
        async with client.subscribe("a.b") as narrow, client.subscribe(">") as all_of_them:
            for number in range(3):
                assert server.publish("a.b", number) == 1
            server.publish("a.c", "c")
            assert await take(wide, 4) == await take(too, 4) == await take(all_of_them, 4) == [0, 1, 2, "c"]
            assert await take(narrow, 3) == [0, 1, 2]
            for number in range(3, 6):
                server.publish("a.b", number)
            await narrow.aclose()  # while they are on their way
            assert await take(wide, 3) == await take(all_of_them, 3) == [3, 4, 5]
        assert await client.tell("a.b", 6) == 1
        assert await take(wide, 1) == [6]
        await until(lambda: dict(server.topics) == {"a.*": 1})
        await wide.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(wide)
        assert await client.tell("a.b", 7) == 1
        assert await take(too, 5) == [3, 4, 5, 6, 7]
        await too.aclose()
        assert await client.tell("a.b", 9) == 0


async def test_readers_that_begin_together_share_one_connection_of_the_pool(network: Network) -> None:
    server = make_server()
    async with network.client(server, pool=3) as client:
        readers = [client.subscribe(topic) for topic in "aaabbb"]
        await asyncio.gather(*(reader.__aenter__() for reader in readers))
        await asyncio.gather(*(client.tell("nobody's", "other calls") for _ in range(20)))
        assert (server.publish("a", 1), server.publish("b", 2)) == (1, 1)
        assert await asyncio.gather(*map(anext, readers)) == [1, 1, 1, 2, 2, 2]
        await asyncio.gather(*(reader.aclose() for reader in readers))
        await until(lambda: not server.topics)


async def test_what_comes_before_the_reply_is_for_those_who_have_theirs(network: Network) -> None:
    """It comes for another subscription, and would stop when that ends: the new reader would have a gap."""

    def event(value: int) -> dict[str, Any]:
        return notification("$/event", topic="a.b", value=value)

    async def script(raw: RawPeer) -> None:
        raw.answer(await raw.receive(), {})
        asked = await raw.receive()
        raw.send(event(1), event(2), reply(asked["id"], {}), event(4))

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        async with client.subscribe("a.b") as one, client.subscribe("a.*") as two:
            assert (await take(one, 3), await anext(two)) == ([1, 2, 4], 4)


async def test_last_values_are_for_whoever_subscribes_later(network: Network) -> None:
    server = make_server()
    async with network.serve(server) as endpoint:
        client, other = endpoint.client(), endpoint.client()
        for topic, value in (("state.door", "open"), ("state.light", "on"), ("state.door", "shut"), ("x", 1)):
            await client.tell(topic, value, True)
        async with client.subscribe("state.*").with_topics() as states:
            assert await take(states, 2) == [("state.light", "on"), ("state.door", "shut")]
            async with other.subscribe("state.door") as door:
                assert await anext(door) == "shut"
                async with other.subscribe("state.door") as again:
                    await client.tell("state.door", None, True)
                    assert (await anext(door), await anext(states)) == (None, ("state.door", None))
                    assert await anext(again) is None, "the connection had the last value already"
        async with client.subscribe("state.>") as events:
            assert await anext(events) == "on"


@pytest.mark.parametrize("topic", ["a.b", "a.*"])
@pytest.mark.parametrize(
    ("policy", "values"), [("drop_oldest", [7, 8, 9]), ("drop_newest", [0, 1, 2]), ("disconnect", [0, 1, 2])]
)
async def test_a_slow_reader_is_bounded_by_its_own_policy(
    network: Network, policy: Any, values: list[Any], topic: str
) -> None:
    server = make_server()
    async with (
        network.client(server) as client,
        client.subscribe(topic, max_queue=3, policy=policy) as slow,
        client.subscribe("a.b") as other,
    ):
        for number in range(10):
            server.publish("a.b", number)
        assert await take(other, 10) == list(range(10))
        assert slow.dropped == (1 if policy == "disconnect" else 7)
        assert await take(slow, 3) == values
        if policy == "disconnect":
            with pytest.raises(ConnectionLost, match=rf"no more events of '{re.escape(topic)}': the reader was too"):
                await anext(slow)
            with pytest.raises(StopAsyncIteration):
                await anext(slow)
        assert other.dropped == 0
        server.publish("a.b", "more")
        assert await anext(other) == "more"
        assert policy == "disconnect" or await anext(slow) == "more"


async def test_what_waits_for_a_reader_is_no_more_than_a_message_may_be(network: Network) -> None:
    server = make_server()
    async with (
        network.client(server, limits=Limits(max_message_size=10_000)) as client,
        client.subscribe("a") as events,
    ):
        for number in range(20):
            server.publish("a", str(number) + "x" * 3000)
        await until(lambda: events.dropped == 17)
        assert [value.strip("x") for value in await take(events, 3)] == ["17", "18", "19"]


async def test_what_makes_no_sense_or_is_refused(network: Network) -> None:
    server = make_server(limits=Limits(max_subscriptions=1))
    async with network.client(server) as client:
        for topic, options in (("a", {"max_queue": 0}), ("a", {"policy": "wait"}), (["a"], {})):
            with pytest.raises((ValueError, TypeError), match=r"room for at least|policy must be|a topic is a str"):
                client.subscribe(topic, **options)
        async with client.subscribe("a") as events:
            for topic, error in [("", InvalidParams), ("room*", InvalidParams), ("b", ServerBusy)]:
                refused = client.subscribe(topic)
                for begin in (refused.__anext__, refused.__aenter__):
                    with pytest.raises(error):
                        await begin()
            server.publish("a", 1)
            assert await anext(events) == 1
            assert dict(server.topics) == {"a": 1}
        assert await client.tell("a", 1) == 0
        async with client.subscribe("b"):
            assert dict(server.topics) == {"b": 1}


@pytest.mark.one_peer
async def test_without_reconnect_the_loop_ends_behind_what_waits(network: Network) -> None:
    server = make_server()
    async with network.client(server) as client:
        one, two = client.subscribe("a"), client.subscribe("b")
        await one.__aenter__()
        await two.__aenter__()
        waiting = asyncio.ensure_future(two.__anext__())
        await client.tell("a", 1)
        await client.call("rpc.ping")
        cut_connections()
        with pytest.raises(ConnectionLost, match=r"no more events of 'b'.* \(at "):
            await waiting
        assert await anext(one) == 1
        with pytest.raises(ConnectionLost, match=r"no more events of 'a'"):
            await anext(one)
        with pytest.raises(StopAsyncIteration):
            await anext(one)
        async with client.subscribe("a"):  # which makes a new connection
            assert dict(server.topics) == {"a": 1}


async def test_with_reconnect_the_client_subscribes_again(network: Network) -> None:
    server = make_server()
    greeted: list[Any] = []
    async with (
        network.client(server, reconnect=AT_ONCE) as client,
        client.subscribe("a.b") as one,
        client.subscribe("a.b") as two,
        client.subscribe("a.*").with_topics() as wide,
    ):

        @client.on_connect  # also when it was said later than what was subscribed to
        async def hello(peer: Any) -> None:
            greeted.append(dict(server.topics))
            await peer.call("rpc.ping")

        server.publish("a.state", "kept", retain=True)
        assert await anext(wide) == ("a.state", "kept")
        for number in range(1, 4):
            cut_connections()
            await until(lambda number=number: [each.reconnects for each in (one, two, wide)] == [number] * 3)  # type: ignore[misc]
            assert dict(server.topics) == {"a.b": 1, "a.*": 1}
            assert await client.tell("a.b", number) == 1
            assert await take(wide, 2) == [("a.state", "kept"), ("a.b", number)]
        assert greeted == [{}, {}, {}]
        assert await take(one, 3) == await take(two, 3) == [1, 2, 3]


async def test_closing_the_client_ends_loops_behind_what_waits(network: Network) -> None:
    server = make_server()
    async with network.client(server) as client:
        one, two = client.subscribe("a"), client.subscribe("b")
        await one.__aenter__()
        await two.__aenter__()

        async def read() -> list[Any]:
            return [value async for value in two]

        task = asyncio.create_task(read())
        server.publish("a", 1)
        await client.call("rpc.ping")
        await client.close()
        assert [value async for value in one] == [1]
        assert await task == []
        await until(lambda: not server.topics)
        with pytest.raises(RuntimeError, match="closed client"):
            await anext(client.subscribe("a"))
