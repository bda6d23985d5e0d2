"""Events by patterns of topics, and last values, over every transport."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import pytest

from rpcstream import AsyncClient, Backoff, ConnectionLost, InternalError, InvalidParams, Server
from rpcstream.peer.context import CallContext

from ..internals import has_subscriptions
from ..kit import LogLines, Network, RawPeer, notification, request, until

pytestmark = pytest.mark.lasting

AT_ONCE = Backoff(first=0.001, longest=0.01)


@dataclass
class Reading:
    celsius: float


def make_server(**options: Any) -> Server:
    server = Server(drain_timeout=1000, **options)

    @server
    def tell(topic: str, value: Any, retain: bool = False) -> int:
        return server.publish(topic, value, retain=retain)

    @server
    def cut(ctx: CallContext) -> None:
        ctx.session.abort("cut off")

    return server


def event(topic: str, value: Any) -> dict[str, Any]:
    return notification("$/event", topic=topic, value=value)


async def take(events: Any, count: int) -> list[Any]:
    return [await anext(events) for _ in range(count)]


@pytest.mark.own_subscribers
async def test_values_and_their_topics(network: Network, errors: LogLines) -> None:
    server = make_server()
    async with network.client(server) as client:
        async with client.subscribe("room.*.heat") as one, client.subscribe("room.>").with_topics() as all_of_them:
            assert (one.topic, all_of_them.topic) == ("room.*.heat", "room.>")
            assert repr(one) == "<subscription to 'room.*.heat', open>"
            assert [await client.tell(f"room.{end}", end) for end in ("1.heat", "2", "2.heat")] == [1, 1, 1]
            assert await take(one, 2) == ["1.heat", "2.heat"]
            assert await take(all_of_them, 3) == [("room.1.heat", "1.heat"), ("room.2", "2"), ("room.2.heat", "2.heat")]
            assert dict(server.topics) == {"room.*.heat": 1, "room.>": 1}
        await until(lambda: not server.topics)
        assert not has_subscriptions(client)


async def test_pairs_in_the_type_that_is_asked_for(network: Network, errors: LogLines) -> None:
    server = make_server()
    async with network.client(server) as client, client.subscribe(">", returns=Reading).with_topics() as events:
        for topic, value in (("a", {"celsius": 1}), ("a.b", 5), ("c", {"celsius": 2})):
            server.publish(topic, value)
        assert await anext(events) == ("a", Reading(1.0))
        with pytest.raises(TypeError, match=r"'a\.b' at .* does not fit returns="):
            await anext(events)
        assert await anext(events) == ("c", Reading(2.0))


@pytest.mark.own_subscribers
async def test_each_reader_is_given_each_event_once(network: Network, errors: LogLines) -> None:
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
        assert await client.tell("a.b", 7) == 1
        assert await take(too, 5) == [3, 4, 5, 6, 7]
        async with client.subscribe("a.b") as narrow:
            await too.aclose()
            assert await client.tell("a.b", 8) == 1
            assert await anext(narrow) == 8
        assert await client.tell("a.b", 9) == 0


@pytest.mark.own_subscribers
async def test_what_waits_when_a_subscription_ends_is_not_lost_for_the_others(
    network: Network, errors: LogLines
) -> None:
    server = make_server()
    async with network.raw(server) as raw:
        publish = [request("tell", "a.b", number, id=number) for number in range(5)]
        raw.send(request("rpc.subscribe", "a.b"), request("rpc.subscribe", "a.*"), *publish)
        raw.send(request("rpc.unsubscribe", "a.b", id="bye"), request("rpc.ping", id="end"))
        messages = await raw.receive_many(2 + 5 + 2 + 5)
        assert [each["params"]["value"] for each in messages if "method" in each] == [0, 1, 2, 3, 4]


@pytest.mark.own_subscribers
async def test_last_values_are_for_whoever_subscribes_later(network: Network, errors: LogLines) -> None:
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


@pytest.mark.own_subscribers
async def test_patterns_are_subscribed_to_again_on_a_new_connection(network: Network, errors: LogLines) -> None:
    server = make_server()
    async with (
        network.client(server, reconnect=AT_ONCE) as client,
        client.subscribe("a.*").with_topics() as wide,
        client.subscribe("a.b") as narrow,
    ):
        server.publish("a.state", "kept", retain=True)
        assert await anext(wide) == ("a.state", "kept")
        for number in range(1, 4):
            await client.notify.cut()
            await until(lambda number=number: wide.reconnects == narrow.reconnects == number)  # type: ignore[misc]
            assert dict(server.topics) == {"a.*": 1, "a.b": 1}
            assert await client.tell("a.b", number) == 1
            assert await take(wide, 2) == [("a.state", "kept"), ("a.b", number)]
            assert await anext(narrow) == number


async def test_what_is_refused_says_why(network: Network, errors: LogLines) -> None:
    server = make_server()
    async with network.client(server) as client:
        for topic, reason in (("room*", "may have '*' only as a whole"), (">.a", "'>' only as its last level, whole")):
            with pytest.raises(InvalidParams, match=re.escape(reason)):
                await anext(client.subscribe(topic))
        assert not has_subscriptions(client)


async def test_a_slow_reader_of_a_pattern_is_bounded_by_itself(network: Network, errors: LogLines) -> None:
    server = make_server()
    async with (
        network.client(server) as client,
        client.subscribe("a.*", max_queue=2, policy="disconnect") as slow,
        client.subscribe("a.*", max_queue=2) as newest,
        client.subscribe("a.b") as other,
    ):
        for number in range(6):
            server.publish("a.b", number)
        assert await take(other, 6) == list(range(6))
        assert await take(slow, 2) == [0, 1]
        with pytest.raises(ConnectionLost, match=r"no more events of 'a\.\*'"):
            await anext(slow)
        assert (await take(newest, 2), newest.dropped) == ([4, 5], 4)


# -- what a server may send --------------------------------------------------------------------------------------------


@pytest.mark.own_subscribers
async def test_topics_that_are_none_and_topics_without_end(network: Network, errors: LogLines) -> None:
    deep = ".".join("*" * 32)
    topics = ["*", ">", "a.*", "a.>", deep, deep[:-1] + ">", "." * 100_000, "rpc.a", "", "a"]

    async def script(raw: RawPeer) -> None:
        for _ in range(3):
            raw.answer(await raw.receive(), {})
        raw.send(*(event(topic, number) for number, topic in enumerate(topics)), event("a.end", "end"))

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        async with client.subscribe("a.*") as one, client.subscribe(deep) as two, client.subscribe("*.>") as three:
            assert await take(one, 3) == [2, 3, "end"]
            assert await take(two, 1) == [4]
            assert await take(three, 6) == [2, 3, 4, 5, 6, "end"]


@pytest.mark.own_subscribers
async def test_what_comes_before_the_reply_is_for_those_who_have_theirs(network: Network, errors: LogLines) -> None:
    """It comes for another subscription, and would stop when that ends: the new reader would have a gap."""

    async def script(raw: RawPeer) -> None:
        raw.answer(await raw.receive(), {})
        asked = await raw.receive()
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {}}
        raw.send(event("a.b", 1), event("a.b", 2), reply, event("a.b", 4))

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        async with client.subscribe("a.b") as one, client.subscribe("a.*") as two:
            assert await take(one, 3) == [1, 2, 4]
            assert await anext(two) == 4


@pytest.mark.own_subscribers
async def test_broken_values_are_raised_with_their_own_topic(network: Network, errors: LogLines) -> None:
    async def script(raw: RawPeer) -> None:
        raw.answer(await raw.receive(), {})
        raw.send(notification("$/event", topic="a.b"), event("a.b", {"$type": "bytes"}), event("a.b", "good"))

    async with network.scripted(script) as endpoint, endpoint.client().subscribe("a.*").with_topics() as events:
        for _ in range(2):
            with pytest.raises(InternalError):
                await anext(events)
        assert await anext(events) == ("a.b", "good")


async def test_readers_come_and_go_while_events_come(network: Network, errors: LogLines) -> None:
    """A subscriber gets what is published between its begin and its end, in order, each event once."""
    server = make_server()

    async def read(client: AsyncClient, topic: str, count: int) -> None:
        async with client.subscribe(topic).with_topics() as events:
            seen = [value for _, value in await take(events, count)]
        assert seen == list(range(seen[0], seen[0] + count)), topic

    async def publish() -> None:
        number = 0
        while True:
            server.publish("a.b", number)
            number += 1
            await asyncio.sleep(0)

    async with network.client(server) as client:
        publishing = asyncio.create_task(publish())
        for count in range(1, 8):
            topics = ("a.b", "a.*", ">", "*.b", "a.b", "a.>")
            await asyncio.gather(*(read(client, topic, count * 3) for topic in topics))
        publishing.cancel()
        await asyncio.wait([publishing])
        await until(lambda: not server.topics)
        assert not has_subscriptions(client)
