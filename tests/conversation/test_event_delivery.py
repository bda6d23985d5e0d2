"""Events through a real server to raw connections: their order, and slow readers. (All rules: tests/events.)"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import Limits, Server

from ..kit import RawPeer, batch, notification, open_peer, raw_peers, request, until


def subscribe(topic: str = "a", call_id: Any = "sub") -> dict[str, Any]:
    return request("rpc.subscribe", id=call_id, params={"topic": topic})


def event(value: Any, topic: str = "a") -> dict[str, Any]:
    return notification("$/event", topic=topic, value=value)


def make_server(**options: Any) -> Server:
    # Whoever waits for it waits longer than a test may take.
    server = Server(drain_timeout=1000, **options)

    def publish(value: Any, topic: str = "a") -> int:
        return server.publish(topic, value)

    @server
    async def publish_async(value: Any, topic: str = "a") -> int:
        return server.publish(topic, value)

    @server
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @server
    def block(seconds: float) -> None:
        time.sleep(seconds)

    server.add(publish)
    server.add(publish, name="publish_in_thread", offload="thread")
    return server


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Server, Any]]:
    """A server, and a function that connects raw peers to it."""
    server = make_server(**options)
    async with raw_peers(server) as connect:
        yield server, connect


def names(messages: list[Any]) -> list[Any]:
    return [each.get("id", "event") for each in messages]


async def read_until(raw: RawPeer, *expected: Any) -> list[Any]:
    """What comes until all of these have come: the ids of replies, the values of events."""
    seen: list[Any] = []
    while not set(expected) <= set(seen):
        message = await raw.receive()
        seen.append(message["id"] if "id" in message else message["params"]["value"])
    return seen


@pytest.mark.parametrize("publisher", ["publish", "publish_async", "publish_in_thread"])
async def test_events_published_in_the_same_read_come_behind_the_reply(publisher: str) -> None:
    async with served() as (_, connect):
        raw = await connect()
        raw.send(request(publisher, "before", id="before"), subscribe(), request(publisher, 1, id="after"))
        raw.send({"jsonrpc": "2.0", "method": publisher, "params": [2]})
        seen = await read_until(raw, "before", "sub", "after", 1, 2)
    assert seen.index("sub") < min(seen.index(1), seen.index(2))
    if publisher == "publish":
        assert seen == ["before", "sub", "after", 1, 2]


async def test_a_turn_that_ends_in_between_changes_nothing() -> None:
    """The server stops in the middle of what it read: behind a slow call, where a reply fills the connection, and where
    no more calls may run."""
    async with served() as (_, connect):
        for order in itertools.permutations(["block", "sub", "publish"]):
            raw = await connect()
            steps = {"block": request("block", 0.021, id="block"), "sub": subscribe()}
            steps["publish"] = request("publish", 1, id="publish")
            raw.send(*(steps[name] for name in order))
            is_subscribed = order.index("sub") < order.index("publish")
            seen = names(await raw.receive_many(3 + is_subscribed))
            assert [name for name in seen if name != "event"] == list(order)
            assert not is_subscribed or seen.index("sub") < seen.index("event")
            raw.close()
    async with served(limits=Limits(write_buffer=1000)) as (server, connect):
        server.add(lambda: "x" * 2000, name="blob")
        raw = await connect()
        raw.send(request("blob", id=0), subscribe(), request("blob", id=1), request("publish", 1, id=2))
        messages = await raw.receive_many(5)
        assert [each["id"] for each in messages if "id" in each] == [0, "sub", 1, 2]
        assert messages.index(event(1)) >= 3
    async with served(limits=Limits(max_calls=1)) as (server, connect):
        raw = await connect()
        raw.send(request("wait", 0.05, id="wait"), subscribe(), request("publish", 1, id="publish"))
        await until(lambda: server.stats()["requests"])
        assert server.publish("a", "nobody is there yet") == 0
        assert names(await raw.receive_many(4)) == ["wait", "sub", "publish", "event"]


async def test_in_a_batch_it_is_refused_and_the_rest_is_done() -> None:
    """As a notification it is carried out, without a reply."""
    async with served() as (server, connect):
        raw = await connect()
        raw.send(batch(subscribe("a", 1), request("publish", 1, id=2), request("wait", 0, id=3)))
        refused, published, waited = sorted(await raw.receive(), key=lambda each: each["id"])
        assert refused["error"]["code"] == -32600
        assert "batch" in refused["error"]["data"]["reason"]
        assert (published["result"], waited["result"], dict(server.topics)) == (0, "waited", {})
        reply = await raw.ask(subscribe())
        assert reply["result"] == {"topic": "a", "queue": 1000, "policy": "drop_oldest"}
        assert (await raw.ask(batch(request("rpc.unsubscribe", "a", id=4))))[0]["result"] is True
        assert server.publish("a", 1) == 0
        raw.send({"jsonrpc": "2.0", "method": "rpc.subscribe", "params": ["a"]}, request("publish", 1))
        assert await raw.receive_many(2) == [{"jsonrpc": "2.0", "id": 1, "result": 1}, event(1)]


async def test_nothing_is_sent_that_is_published_after_unsubscribe() -> None:
    async with served() as (server, connect):
        raw = await connect()
        raw.send(subscribe(), subscribe("b"), request("publish", "a1", id=1))
        raw.send(request("publish", "b1", "b", id=2), request("rpc.unsubscribe", "a", id="bye"))
        raw.send(request("publish", "a2", id=3), request("rpc.unsubscribe", "a", id="again"))
        raw.send(request("publish", "b2", "b", id=4))
        seen = await read_until(raw, 4, "b2")
        assert [value for value in seen if value in ("a1", "a2", "b1", "b2")] == ["a1", "b1", "b2"]
        assert await raw.result("rpc.unsubscribe", "a") is False
        assert dict(server.topics) == {"b": 1}


async def test_a_server_that_stops_does_not_wait_for_subscribers() -> None:
    server = make_server(limits=Limits(idle_timeout=None))
    assert server.publish("a", "before it runs") == 0
    async with server.listening(port=0) as address:
        raw = await open_peer(address)
        await raw.ask(subscribe())
        server.publish("a", "the last")
        await asyncio.sleep(0)
    assert await raw.rest() == [event("the last")]
    assert (dict(server.topics), server.publish("a", "after it ran")) == ({}, 0)
    raw.close()


#: What is no topic, nor a pattern (all that are none: tests/events), and the code of the error.
NO_TOPICS: list[tuple[Any, int]] = [
    *(({"topic": odd}, -32602) for odd in ("", ">.sensors", "rpc.hub", 5, None, ["a"])),
    *((odd, -32602) for odd in ({"topic": "a", "more": 1}, ["a", "b"], [], None)),
    ("a", -32600),
]


async def test_what_is_no_topic_is_refused() -> None:
    async with served() as (server, connect):
        raw = await connect()
        for params, code in NO_TOPICS:
            assert await raw.code("rpc.subscribe", params=params) == code, params
        assert await raw.result("rpc.unsubscribe", ">.sensors") is False
        assert (dict(server.topics), server.stats()["subscriptions"]) == ({}, 0)


COUNT, SIZE = 240, 50_000


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "patterns", "disconnect"])
async def test_a_subscriber_that_does_not_read_stalls_nobody(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What was kept comes in order when it reads again; with patterns that overlap, it is still one queue's worth."""
    caplog.set_level(logging.WARNING, "rpcstream.server")
    options = {} if policy == "patterns" else {"event_policy": policy}
    limits = Limits(write_buffer=64 * 1024, max_message_size=1024 * 1024)
    async with served(limits=limits, event_queue=5, **options) as (server, connect):
        slow, other = await connect(), await connect()
        await other.ask(subscribe(">"))
        for topic in ["a.>", "a.*", "*.*", "*.>", ">"] if policy == "patterns" else ["a"]:
            assert "result" in await slow.ask(subscribe(topic))
        slow.transport.pause_reading()
        tracemalloc.start()
        for number in range(COUNT):  # more than any buffer holds, while another reads it
            topic = f"a.{number}" if policy == "patterns" else "a"
            server.publish(topic, [number, "x" * SIZE], retain=policy == "patterns" and number % 50 == 0)
            assert (await other.receive())["params"]["value"][0] == number
        assert tracemalloc.get_traced_memory()[0] < COUNT * SIZE / 2
        tracemalloc.stop()
        assert await other.result("wait", 0) == "waited", "others are served"
        stats = server.stats()
        if policy != "disconnect":
            slow.call("wait", 0, id="answer")  # which comes all the same
        slow.transport.resume_reading()
        kept = COUNT - stats["events_dropped"]
        messages = await (slow.rest() if policy == "disconnect" else slow.receive_many(kept + 1))
        values = [each["params"]["value"][0] for each in messages if "method" in each]
        assert values == sorted(set(values)), "each once, in order"
        if policy == "disconnect":
            assert values == list(range(len(values))), "what came before the end came whole"
            await until(lambda: server.stats()["connections"] == 1)
            assert stats["closed_for_limits"] == 1
            (reason,) = [message for message in caplog.messages if message.startswith("closed ")]
            assert "event_queue 5" in reason
            return
        assert stats["events_dropped"] > COUNT // 4
        newest = list(range(COUNT - 5, COUNT))
        assert values[-5:] == newest if policy != "drop_newest" else values == list(range(kept))
        assert (stats["events_published"], stats["closed_for_limits"]) == (COUNT, 0)
        assert server.stats()["events_sent"] == COUNT + kept
        server.publish("a", [COUNT])
        if policy != "patterns":
            assert await slow.receive() == event([COUNT])


async def test_last_values_come_right_behind_the_reply() -> None:
    async with served() as (server, connect):
        for number in range(3):
            server.publish(f"state.{number}", number, retain=True)
        raw, late, told = await connect(), await connect(), await connect()
        raw.send(subscribe("state.*"), request("publish", 9, "state.0", id="publish"), subscribe("state.*"))
        seen = names(await raw.receive_many(7))  # whether the requests are read together is up to the system
        assert (seen[0], sorted(seen)) == ("sub", sorted(["sub", "publish", "sub", *["event"] * 4]))
        late.send(subscribe("state.1"), request("rpc.ping", id="ping"))
        reply, *others = await late.receive_many(3)
        assert reply["id"] == "sub"
        assert event(1, "state.1") in others
        told.send({"jsonrpc": "2.0", "method": "rpc.subscribe", "params": ["*.2"]})
        assert await told.receive() == event(2, "state.2")
