"""Events through a real server to raw connections: their order, and slow readers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
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

    @server
    def publish(value: Any, topic: str = "a") -> int:
        return server.publish(topic, value)

    @server
    async def publish_async(value: Any, topic: str = "a") -> int:
        return server.publish(topic, value)

    @server(offload="thread")
    def publish_in_thread(value: Any, topic: str = "a") -> int:
        return server.publish(topic, value)

    @server
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @server
    def block(seconds: float) -> str:
        time.sleep(seconds)
        return "blocked"

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
    """The server stops in the middle of what it read, wherever that is."""
    async with served() as (_, connect):
        steps = {"block": request("block", 0.021, id="block"), "subscribe": subscribe()}
        steps["publish"] = request("publish", 1, id="publish")
        for order in itertools.permutations(["block", "block", "subscribe", "publish"]):
            raw = await connect()
            raw.send(*(steps[name] for name in order))
            is_subscribed = order.index("subscribe") < order.index("publish")
            seen = names(await raw.receive_many(4 + is_subscribed))
            ids = ["sub" if name == "subscribe" else name for name in order]
            assert [name for name in seen if name != "event"] == ids
            if is_subscribed:
                assert seen.index("sub") < seen.index("event")
            raw.close()


async def test_a_reply_that_fills_the_connection_ends_the_turn() -> None:
    async with served(limits=Limits(write_buffer=1000)) as (server, connect):
        server.add(lambda: "x" * 2000, name="blob")
        raw = await connect()
        blobs = [request("blob", id=n) for n in (0, 1, 3)]
        raw.send(blobs[0], subscribe(), blobs[1], request("publish", 1, id=2), blobs[2])
        messages = await raw.receive_many(6)
        assert [each["id"] for each in messages if "id" in each] == [0, "sub", 1, 2, 3]
        assert messages.index(event(1)) >= 3


async def test_at_the_cap_of_calls_the_subscription_waits_and_is_answered_first() -> None:
    async with served(limits=Limits(max_calls=1)) as (server, connect):
        raw = await connect()
        raw.send(request("wait", 0.05, id="wait"), subscribe(), request("publish", 1, id="publish"))
        await until(lambda: server.stats()["requests"])
        assert server.publish("a", "nobody is there yet") == 0
        assert names(await raw.receive_many(4)) == ["wait", "sub", "publish", "event"]


async def test_somebody_else_publishes_all_the_time() -> None:
    async with served() as (server, connect):

        async def publish() -> None:
            for number in itertools.count():
                server.publish("a", number)
                await asyncio.sleep(0)

        task = asyncio.create_task(publish())
        for _ in range(20):
            raw = await connect()
            raw.send(subscribe())
            first, *events = await raw.receive_many(20)
            assert first["id"] == "sub"
            values = [each["params"]["value"] for each in events]
            assert values == list(range(values[0], values[0] + 19))
            raw.close()
        task.cancel()
        await asyncio.wait([task])


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


async def test_behind_the_reply_to_unsubscribe_nothing_comes() -> None:
    async with served() as (server, connect):
        raw = await connect()
        raw.send(subscribe(), subscribe("b"), request("publish", "a1", id=1))
        raw.send(request("publish", "b1", "b", id=2), request("rpc.unsubscribe", "a", id="bye"))
        raw.send(request("publish", "a2", id=3), request("rpc.unsubscribe", "a", id="again"))
        raw.send(request("publish", "b2", "b", id=4))
        seen = await read_until(raw, 4, "b2")
        assert "a1" not in seen[seen.index("bye") :]
        assert [value for value in seen if value in ("a2", "b1", "b2")] == ["b1", "b2"]
        assert await raw.result("rpc.unsubscribe", "a") is False
        assert dict(server.topics) == {"b": 1}


@pytest.mark.parametrize("how", ["close", "half-close", "empty line"])
async def test_a_subscriber_that_leaves_is_forgotten(how: str) -> None:
    async with served() as (server, connect):
        raw = await connect()
        await raw.ask(subscribe())
        assert dict(server.topics) == {"a": 1}
        if how == "close":
            raw.close()
        else:
            raw.end() if how == "half-close" else raw.write(b"\n")
            assert await raw.rest() == []
        await until(lambda: not server.topics)
        assert (server.publish("a", 1), server.stats()["subscriptions"]) == (0, 0)


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


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"topic": ""}, -32602),
        ({"topic": "x" * 257}, -32602),
        ({"topic": "sensors*"}, -32602),
        ({"topic": ">.sensors"}, -32602),
        ({"topic": "*" * 256}, -32602),
        ({"topic": ".".join("*" * 33)}, -32602),
        ({"topic": "rpc.hub"}, -32602),
        ({"topic": "rpc.>"}, -32602),
        ({"topic": 5}, -32602),
        ({"topic": None}, -32602),
        ({"topic": ["a"]}, -32602),
        ({"topic": {"$type": "bytes", "data": "AA=="}}, -32602),
        ({"topic": "a", "more": 1}, -32602),
        ({"ctx": 1, "topic": "a"}, -32602),
        (["a", "b"], -32602),
        ([], -32602),
        (None, -32602),
        ("a", -32600),
    ],
)
async def test_what_is_no_topic_is_refused(params: Any, code: int) -> None:
    async with served() as (server, connect):
        raw = await connect()
        for method in ("rpc.subscribe", "rpc.unsubscribe"):
            reply = await raw.reply(method, params=params)
            is_fine = method == "rpc.unsubscribe" and isinstance(params, dict) and isinstance(params.get("topic"), str)
            if is_fine and len(params) == 1:
                assert reply["result"] is False
            else:
                assert reply["error"]["code"] == code
        assert (dict(server.topics), server.stats()["subscriptions"]) == ({}, 0)
        assert await raw.result("publish", 1) == 0


async def test_too_many_subscriptions_are_refused_and_the_others_stay() -> None:
    async with served(limits=Limits(max_subscriptions=3)) as (server, connect):
        raw, other = await connect(), await connect()
        replies = [await raw.ask(subscribe(f"t{number}")) for number in (1, 2, 3, 3, 4)]
        assert [each.get("error", {}).get("code") for each in replies] == [None, None, None, None, -32002]
        assert replies[-1]["error"]["data"] == {"limit": 3}
        assert "result" in await other.ask(subscribe("t2"))
        server.publish("nobody's", 1)
        server.publish("t2", 1)
        assert await raw.receive() == await other.receive() == event(1, "t2")
        stats = await raw.result("rpc.stats")
        counted = ("subscriptions", "events_published", "events_sent", "events_dropped")
        assert [stats[name] for name in counted] == [4, 2, 2, 0]
        assert server.topics == {"t1": 1, "t2": 2, "t3": 1}


SMALL = Limits(write_buffer=64 * 1024, max_message_size=1024 * 1024)
SIZE = 50_000
COUNT = 400


@asynccontextmanager
async def not_reading(connect: Any, *topics: str) -> AsyncIterator[RawPeer]:
    """A subscriber that has read its replies, and then nothing more."""
    slow = await connect()
    for topic in topics or ("a",):
        assert "result" in await slow.ask(subscribe(topic))
    slow.transport.pause_reading()
    yield slow
    slow.close()


async def publish_much(server: Server, other: RawPeer, *, apart: bool = False) -> None:
    """Publish more than any buffer holds while `other`, a subscriber, reads it."""
    for number in range(COUNT):
        topic = f"a.{number}" if apart else "a"
        server.publish(topic, {"number": number, "fill": "x" * SIZE}, retain=apart and number % 50 == 0)
        received = await other.receive()
        assert received["params"]["value"]["number"] == number


async def values_of(slow: RawPeer, count: int) -> list[int]:
    """It reads again: the numbers of the events that come next."""
    slow.transport.resume_reading()
    return [each["params"]["value"]["number"] for each in await slow.receive_many(count)]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "patterns"])
async def test_a_subscriber_that_does_not_read_stalls_nobody(policy: Any) -> None:
    """What was kept comes in order when it reads again; with patterns that overlap, it is still one queue's worth."""
    options = {} if policy == "patterns" else {"event_policy": policy}
    topics = ["a.>", "a.*", "*.*", "*.>", ">"] if policy == "patterns" else ["a"]
    async with served(limits=SMALL, event_queue=5, **options) as (server, connect):
        other = await connect()
        await other.ask(subscribe(">"))
        async with not_reading(connect, *topics) as slow:
            tracemalloc.start()
            await publish_much(server, other, apart=policy == "patterns")
            assert tracemalloc.get_traced_memory()[0] < COUNT * SIZE / 2
            tracemalloc.stop()
            assert await other.result("wait", 0) == "waited", "others are served"
            dropped = server.stats()["events_dropped"]
            assert dropped > COUNT // 4
            values = await values_of(slow, COUNT - dropped)
            newest = list(range(COUNT - 5, COUNT))
            assert values[-5:] == newest if policy != "drop_newest" else values == list(range(COUNT - dropped))
            assert values == sorted(set(values)), "each once, in order"
            server.publish("a.more" if policy == "patterns" else "a", {"number": COUNT, "fill": ""})
            assert await values_of(slow, 1) == [COUNT]
        stats = server.stats()
        assert (stats["events_published"], stats["events_dropped"]) == (COUNT + 1, dropped)
        assert (stats["events_sent"], stats["closed_for_limits"]) == (2 * (COUNT + 1) - dropped, 0)
        await until(lambda: dict(server.topics) == {">": 1})


async def test_a_subscriber_that_does_not_read_may_be_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rpcstream.server")
    async with served(limits=SMALL, event_queue=5, event_policy="disconnect") as (server, connect):
        other = await connect()
        await other.ask(subscribe())
        async with not_reading(connect) as slow:
            await publish_much(server, other)
            assert server.topics == {"a": 1}
            slow.transport.resume_reading()
            values = [each["params"]["value"]["number"] for each in await slow.rest()]
            assert values == list(range(len(values))), "what came before the end came whole and in order"
        stats = await other.result("rpc.stats")
        assert (stats["closed_for_limits"], stats["connections"]) == (1, 1)
        (reason,) = [message for message in caplog.messages if message.startswith("closed ")]
        assert "event_queue 5" in reason


async def test_a_subscriber_that_never_reads_again_is_closed_in_its_time(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(write_buffer=64 * 1024, write_timeout=0.2)
    async with served(limits=limits, event_queue=5) as (server, connect), not_reading(connect):
        while server.topics:
            server.publish("a", {"number": 0, "fill": "x" * SIZE})
            await asyncio.sleep(0.005)
        assert server.stats()["closed_for_limits"] == 1
        assert "write_timeout" in caplog.text


async def test_a_slow_subscriber_still_gets_its_answers() -> None:
    async with served(limits=SMALL, event_queue=5) as (server, connect), not_reading(connect) as slow:
        while not server.stats()["events_dropped"]:
            server.publish("a", {"number": server.stats()["events_published"], "fill": "x" * SIZE})
            await asyncio.sleep(0)
        slow.call("wait", 0, id="answer")
        kept = server.stats()["events_published"] - server.stats()["events_dropped"]
        slow.transport.resume_reading()
        messages = await slow.receive_many(kept + 1)
        values = [each["params"]["value"]["number"] for each in messages if "method" in each]
        assert (len(values), values) == (kept, sorted(values))
        assert [each["result"] for each in messages if "id" in each] == ["waited"]


async def test_more_events_than_may_wait_in_one_call_of_a_handler() -> None:
    async with served(event_queue=100) as (server, connect):
        server.add(lambda: sum(server.publish("a", number) for number in range(20_000)), name="flood")
        raw = await connect()
        await raw.ask(subscribe())
        raw.call("flood")
        reply, *events = await raw.receive_many(101)
        assert reply["result"] == 20_000
        assert [each["params"]["value"] for each in events] == list(range(19_900, 20_000))
        assert server.stats()["events_dropped"] == 19_900


async def test_last_values_come_right_behind_the_reply() -> None:
    async with served() as (server, connect):
        for number in range(3):
            server.publish(f"state.{number}", number, retain=True)
        raw, late, told = await connect(), await connect(), await connect()
        raw.send(subscribe("state.*"), request("publish", 9, "state.0", id="publish"), subscribe("state.*"))
        assert names(await raw.receive_many(7)) == ["sub", "publish", "sub", *["event"] * 4]
        late.send(subscribe("state.1"), request("rpc.ping", id="ping"))
        reply, pong, value = await late.receive_many(3)
        assert (reply["id"], pong["id"], value) == ("sub", "ping", event(1, "state.1"))
        told.send({"jsonrpc": "2.0", "method": "rpc.subscribe", "params": ["*.2"]})
        assert await told.receive() == event(2, "state.2")


async def test_all_the_patterns_that_one_connection_may_have_and_then_it_is_gone() -> None:
    async with served() as (server, connect):
        raw, other = await connect(), await connect()
        await other.ask(subscribe("x.>"))
        patterns = [f"{'x' * 200}{number:04}{'.*' * 20}{'.y' * 5}.>" for number in range(1024)]
        assert {len(pattern) for pattern in patterns} == {256}
        raw.send(*(subscribe(pattern, number) for number, pattern in enumerate(patterns)))
        assert all("result" in reply for reply in await raw.receive_many(len(patterns)))
        assert len(server.topics) == len(patterns) + 1
        assert server.publish("x.y", 1) == 1
        assert await other.receive() == event(1, "x.y")
        raw.close()
        await until(lambda: dict(server.topics) == {"x.>": 1})


async def test_subscribers_that_leave_while_events_are_due() -> None:
    async with served() as (server, connect):
        for number in range(20):
            raws = [await connect() for _ in range(5)]
            await asyncio.gather(*(raw.ask(subscribe("a.*")) for raw in raws))
            for _ in range(10):
                server.publish("a.b", "x" * 10_000, retain=True)
            for raw in raws[number % 5 :]:
                raw.close()
            server.publish("a.c", number)
            await asyncio.sleep(0)
            for raw in raws:
                raw.close()
        await until(lambda: not server.topics)
        assert server.publish("a.b", 1) == 0


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of 1,000 connections in one process."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_subscribers() -> None:
    async with served() as (server, connect):
        raws = [await connect() for _ in range(1000)]
        for number, raw in enumerate(raws):
            raw.send(subscribe(), subscribe(str(number)))
        await asyncio.gather(*(raw.receive_many(2) for raw in raws))
        assert (len(server.topics), server.stats()["subscriptions"]) == (1001, 2000)
        for value in range(5):
            assert server.publish("a", value) == 1000
        assert [server.publish(str(number), "own") for number in range(1000)] == [1] * 1000
        for number, messages in enumerate(await asyncio.gather(*(raw.receive_many(6) for raw in raws))):
            assert messages == [*map(event, range(5)), event("own", str(number))]
        for raw in raws:
            raw.close()
        await until(lambda: not server.topics)
        assert server.stats()["events_sent"] == 6000
