"""Events through a real server to raw connections: their order, and slow readers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from rpcstream import Limits, Server
from rpcstream.events.event_queue import Policy
from rpcstream.events.subscriptions import SHARE

from ..internals import events_waiting, open_connections, pattern_beginnings, remains_of, unsent_messages
from ..kit import until


def message(method: str, params: Any = None, **members: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params, **members}) + b"\n"


def subscribe(topic: str = "a", call_id: Any = "sub") -> bytes:
    return message("rpc.subscribe", {"topic": topic}, id=call_id)


def event(value: Any, topic: str = "a") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": value}}


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
async def served(**options: Any) -> AsyncIterator[tuple[Server, str]]:
    server = make_server(**options)
    async with server.listening(port=0) as address:
        yield server, address


async def read(raw: Any, count: int) -> list[Any]:
    return [await raw.reply() for _ in range(count)]


async def read_until(raw: Any, *expected: Any) -> list[Any]:
    """What comes until all of these have come: the ids of replies, the values of events."""
    seen: list[Any] = []
    while not set(expected) <= set(seen):
        reply = await raw.reply()
        seen.append(reply["id"] if "id" in reply else reply["params"]["value"])
    return seen


# -- the reply comes first ---------------------------------------------------------------------------------------------


async def test_reply_then_events_in_order(connect: Any) -> None:
    async with served() as (server, address):
        raw = await connect(address)
        reply = await raw.ask(subscribe().strip())
        assert (reply["id"], reply["result"]) == ("sub", {"topic": "a", "queue": 1000, "policy": "drop_oldest"})
        assert [server.publish("a", number) for number in range(100)] == [1] * 100
        assert await read(raw, 100) == [event(number) for number in range(100)]


@pytest.mark.parametrize("publisher", ["publish", "publish_async", "publish_in_thread"])
async def test_events_published_in_the_same_read_come_behind_the_reply(connect: Any, publisher: str) -> None:
    async with served() as (_, address):
        raw = await connect(address)
        before = message(publisher, ["before"], id="before")
        await raw.send(before + subscribe() + message(publisher, [1], id="after") + message(publisher, [2]))
        seen = await read_until(raw, "before", "sub", "after", 1, 2)
    assert seen.index("sub") < min(seen.index(1), seen.index(2))
    if publisher == "publish":
        assert seen == ["before", "sub", "after", 1, 2]


async def test_a_turn_that_ends_in_between_changes_nothing(connect: Any) -> None:
    """The server stops in the middle of what it read, wherever that is."""
    async with served() as (_, address):
        steps = {"block": message("block", [0.021], id="block"), "subscribe": subscribe()}
        steps["publish"] = message("publish", [1], id="publish")
        for order in itertools.permutations(["block", "block", "subscribe", "publish"]):
            raw = await connect(address)
            await raw.send(b"".join(steps[name] for name in order))
            is_subscribed = order.index("subscribe") < order.index("publish")
            messages = await read(raw, 4 + is_subscribed)
            seen = [each.get("id", "event") for each in messages]
            names = ["sub" if name == "subscribe" else name for name in order]
            assert [name for name in seen if name != "event"] == names
            if is_subscribed:
                assert messages[seen.index("event")] == event(1)
                assert seen.index("sub") < seen.index("event")
            await raw.close()


async def test_a_reply_that_fills_the_connection_ends_the_turn(connect: Any) -> None:
    server = Server(limits=Limits(write_buffer=1000), drain_timeout=1000)

    @server
    def blob() -> str:
        return "x" * 2000

    @server
    def publish() -> int:
        return server.publish("a", 1)

    async with server.listening(port=0) as address:
        raw = await connect(address)
        parts = [message("blob", id=0), subscribe(), message("blob", id=1), message("publish", id=2)]
        await raw.send(b"".join([*parts, message("blob", id=3)]))
        messages = await read(raw, 6)
        assert [each["id"] for each in messages if "id" in each] == [0, "sub", 1, 2, 3]
        assert messages.index(event(1)) >= 3


async def test_at_the_cap_of_calls_the_subscription_waits_and_is_answered_first(connect: Any) -> None:
    async with served(limits=Limits(max_calls=1)) as (server, address):
        raw = await connect(address)
        await raw.send(message("wait", [0.05], id="wait") + subscribe() + message("publish", [1], id="publish"))
        await until(lambda: server.counters.requests)
        assert server.publish("a", "nobody is there yet") == 0
        assert [each.get("id", "event") for each in await read(raw, 4)] == ["wait", "sub", "publish", "event"]


async def test_somebody_else_publishes_all_the_time(connect: Any) -> None:
    async with served() as (server, address):

        async def publish() -> None:
            for number in itertools.count():
                server.publish("a", number)
                await asyncio.sleep(0)

        task = asyncio.create_task(publish())
        for _ in range(20):
            raw = await connect(address)
            await raw.send(subscribe())
            first, *events = await read(raw, 20)
            assert first["id"] == "sub"
            values = [each["params"]["value"] for each in events]
            assert values == list(range(values[0], values[0] + 19))
            await raw.close()
        task.cancel()
        await asyncio.wait([task])


async def test_in_a_batch_it_is_refused_and_the_rest_is_done(connect: Any) -> None:
    async with served() as (server, address):
        raw = await connect(address)
        parts = [subscribe("a", 1), message("publish", [1], id=2), message("wait", [0], id=3)]
        await raw.send(b"[" + b",".join(part.strip() for part in parts) + b"]\n")
        refused, published, waited = sorted(await raw.reply(), key=lambda each: each["id"])
        assert refused["error"]["code"] == -32600
        assert "batch" in refused["error"]["data"]["reason"]
        assert (published["result"], waited["result"]) == (0, "waited")
        assert dict(server.topics) == {}
        await raw.ask(subscribe().strip())
        await raw.send(b"[" + message("rpc.unsubscribe", ["a"], id=4).strip() + b"]\n")
        assert (await raw.reply())[0]["result"] is True
        assert server.publish("a", 1) == 0


async def test_a_notification_subscribes_without_a_reply(connect: Any) -> None:
    async with served() as (_, address):
        raw = await connect(address)
        await raw.send(message("rpc.subscribe", ["a"]) + message("publish", [1], id=1))
        assert await read(raw, 2) == [{"jsonrpc": "2.0", "id": 1, "result": 1}, event(1)]


# -- coming and going --------------------------------------------------------------------------------------------------


async def test_behind_the_reply_to_unsubscribe_nothing_comes(connect: Any) -> None:
    async with served() as (server, address):
        raw = await connect(address)
        await raw.send(subscribe() + subscribe("b") + message("publish", ["a1"], id=1))
        await raw.send(message("publish", ["b1", "b"], id=2) + message("rpc.unsubscribe", ["a"], id="bye"))
        await raw.send(message("publish", ["a2"], id=3) + message("rpc.unsubscribe", ["a"], id="again"))
        await raw.send(message("publish", ["b2", "b"], id=4))
        seen = await read_until(raw, 4, "b2")
        assert seen[seen.index("bye") :].count("a1") == 0
        assert [value for value in seen if value in ("a2", "b1", "b2")] == ["b1", "b2"]
        assert (await raw.call("rpc.unsubscribe", ["a"]))["result"] is False
        assert dict(server.topics) == {"b": 1}


@pytest.mark.parametrize("how", ["close", "reset", "half-close", "empty line"])
async def test_a_subscriber_that_leaves_is_forgotten(connect: Any, how: str) -> None:
    async with served() as (server, address):
        raw = await connect(address)
        await raw.ask(subscribe().strip())
        assert dict(server.topics) == {"a": 1}
        if how == "close":
            await raw.close()
        elif how == "reset":
            raw.writer.transport.abort()
        elif how == "half-close":
            raw.end()
            assert await raw.rest() == []
        else:
            await raw.send(b"\n")
            assert await raw.rest() == []
        await until(lambda: not server.topics)
        assert server.publish("a", 1) == 0
        assert server.counters.subscriptions == 0


async def test_a_server_that_stops_does_not_wait_for_subscribers(connect: Any) -> None:
    server = make_server(limits=Limits(idle_timeout=None))
    assert server.publish("a", "before it runs") == 0
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.ask(subscribe().strip())
        server.publish("a", "the last")
        await asyncio.sleep(0)
    assert await raw.rest() == [event("the last")]
    assert (dict(server.topics), server.publish("a", "after it ran")) == ({}, 0)


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
async def test_what_is_no_topic_is_refused(connect: Any, params: Any, code: int) -> None:
    async with served() as (server, address):
        raw = await connect(address)
        for method in ("rpc.subscribe", "rpc.unsubscribe"):
            reply = await raw.call(method, params)
            is_fine = method == "rpc.unsubscribe" and isinstance(params, dict) and isinstance(params.get("topic"), str)
            if is_fine and len(params) == 1:
                assert reply["result"] is False
            else:
                assert reply["error"]["code"] == code
        assert (dict(server.topics), server.counters.subscriptions) == ({}, 0)
        assert (await raw.call("publish", [1]))["result"] == 0


async def test_too_many_subscriptions_are_refused_and_the_others_stay(connect: Any) -> None:
    async with served(limits=Limits(max_subscriptions=3)) as (server, address):
        raw, other = await connect(address), await connect(address)
        replies = [await raw.ask(subscribe(f"t{number}").strip()) for number in (1, 2, 3, 3, 4)]
        assert [each.get("error", {}).get("code") for each in replies] == [None, None, None, None, -32002]
        assert replies[-1]["error"]["data"] == {"limit": 3}
        assert "result" in await other.ask(subscribe("t4").strip())
        server.publish("t2", 1)
        assert await raw.reply() == event(1, "t2")


async def test_counts_are_there_to_be_asked_for(connect: Any) -> None:
    async with served() as (server, address):
        raw, other = await connect(address), await connect(address)
        await raw.ask(subscribe().strip())
        await other.ask(subscribe().strip())
        for number in range(3):
            server.publish("a", number)
        server.publish("nobody's", 1)
        await read(raw, 3)
        stats = (await raw.call("rpc.stats"))["result"]
        names = ("subscriptions", "events_published", "events_sent", "events_dropped")
        assert [stats[name] for name in names] == [2, 4, 6, 0]
        assert server.topics == {"a": 2}


# -- those who do not read ---------------------------------------------------------------------------------------------

SMALL = Limits(write_buffer=64 * 1024, max_message_size=1024 * 1024)
SIZE = 50_000
COUNT = 200


def waiting_bytes(server: Server) -> int:
    """What the server holds for its connections: events that wait, and what the transports have not sent."""
    streams = open_connections(server)
    unsent = sum(stream.unread_size for stream in streams)
    outboxes = sum(sum(map(len, unsent_messages(stream.session))) for stream in streams)
    return unsent + outboxes + events_waiting(server.topics)


@asynccontextmanager
async def not_reading(address: str) -> AsyncIterator[socket.socket]:
    """A subscriber to "a" that has read its reply, and then nothing more."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(sock, (host, int(port)))
        await loop.sock_sendall(sock, subscribe())
        received = b""
        while not received.endswith(b"\n"):
            received += await loop.sock_recv(sock, 1000)
        yield sock
    finally:
        sock.close()


async def read_messages(sock: socket.socket, count: int) -> list[Any]:
    """The next so many messages, or those until the end of the stream."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    while received.count(b"\n") < count:
        try:
            data = await loop.sock_recv(sock, 1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            break
        received += data
    return [orjson.loads(line) for line in received.split(b"\n")[:-1]]


async def read_values(sock: socket.socket, count: int) -> list[int]:
    """The numbers of the events that come next."""
    return [each["params"]["value"]["number"] for each in await read_messages(sock, count)]


async def publish_much(server: Server, other: Any) -> int:
    """Publish more than any buffer holds while `other`, a subscriber, reads it; the most that the server held."""
    most = 0
    for number in range(COUNT):
        server.publish("a", {"number": number, "fill": "x" * SIZE})
        received = await other.reply()
        assert received["params"]["value"]["number"] == number
        most = max(most, waiting_bytes(server))
    return most


#: Five events wait; the transport has its buffer and one share more, each with the event that filled it.
HELD_MAX = 5 * (SIZE + 100) + (SMALL.write_buffer + SIZE + 100) + (SHARE + SIZE + 100)


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
async def test_a_subscriber_that_does_not_read_stalls_nobody(connect: Any, policy: Policy) -> None:
    async with served(limits=SMALL, event_queue=5, event_policy=policy) as (server, address):
        other = await connect(address)
        await other.ask(subscribe().strip())
        async with not_reading(address) as slow:
            assert await publish_much(server, other) < HELD_MAX < COUNT * SIZE / 10
            assert (await other.call("publish", [1, "b"]))["result"] == 0, "others are served"
            dropped = server.counters.events_dropped
            assert dropped > COUNT // 2
            # It reads again: what was kept comes, in order; then all goes on.
            values = await read_values(slow, COUNT - dropped)
            newest = list(range(COUNT - 5, COUNT))
            assert values[-5:] == newest if policy == "drop_oldest" else values == list(range(COUNT - dropped))
            assert values == sorted(set(values))
            server.publish("a", {"number": COUNT, "fill": ""})
            assert await read_values(slow, 1) == [COUNT]
        counters = server.counters
        assert (counters.events_published, counters.events_dropped) == (COUNT + 2, dropped)
        assert counters.events_sent == 2 * (COUNT + 1) - dropped
        assert counters.closed_for_limits == 0


async def test_a_subscriber_that_does_not_read_may_be_disconnected(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rpcstream.server")
    async with served(limits=SMALL, event_queue=5, event_policy="disconnect") as (server, address):
        other = await connect(address)
        await other.ask(subscribe().strip())
        async with not_reading(address) as slow:
            assert await publish_much(server, other) < HELD_MAX
            assert server.topics == {"a": 1}
            values = await read_values(slow, COUNT)
            assert values == list(range(len(values))), "what came before the end came whole and in order"
        stats = (await other.call("rpc.stats"))["result"]
        assert (stats["closed_for_limits"], stats["connections"]) == (1, 1)
        assert stats["events_sent"] + stats["events_dropped"] <= 2 * COUNT
        (reason,) = [message for message in caplog.messages if message.startswith("closed ")]
        assert "event_queue 5" in reason


async def test_a_subscriber_that_never_reads_again_is_closed_in_its_time(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(write_buffer=64 * 1024, write_timeout=0.2)
    async with served(limits=limits, event_queue=5) as (server, address), not_reading(address):
        while server.topics:
            server.publish("a", {"number": 0, "fill": "x" * SIZE})
            await asyncio.sleep(0.005)
        assert server.counters.closed_for_limits == 1
        assert "write_timeout" in caplog.text


async def test_a_slow_subscriber_still_gets_its_answers() -> None:
    async with served(limits=SMALL, event_queue=5) as (server, address), not_reading(address) as slow:
        while not server.counters.events_dropped:
            server.publish("a", {"number": server.counters.events_published, "fill": "x" * SIZE})
            await asyncio.sleep(0)
        await asyncio.get_running_loop().sock_sendall(slow, message("wait", [0], id="answer"))
        kept = server.counters.events_published - server.counters.events_dropped
        messages = await read_messages(slow, kept + 1)
        values = [each["params"]["value"]["number"] for each in messages if "method" in each]
        assert (len(values), values) == (kept, sorted(values))
        assert [each["result"] for each in messages if "id" in each] == ["waited"]


async def test_more_events_than_may_wait_in_one_call_of_a_handler(connect: Any) -> None:
    server = Server(event_queue=100, drain_timeout=1000)

    @server
    def flood() -> int:
        return sum(server.publish("a", number) for number in range(20_000))

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.ask(subscribe().strip())
        await raw.send(message("flood", id=1))
        reply, *events = await read(raw, 101)
        assert reply["result"] == 20_000
        assert [each["params"]["value"] for each in events] == list(range(19_900, 20_000))
        assert server.counters.events_dropped == 19_900


# -- patterns ----------------------------------------------------------------------------------------------------------


async def test_last_values_come_right_behind_the_reply(connect: Any) -> None:
    async with served() as (server, address):
        for number in range(3):
            server.publish(f"state.{number}", number, retain=True)
        raw, late = await connect(address), await connect(address)
        await raw.send(subscribe("state.*") + message("publish", [9, "state.0"], id="publish") + subscribe("state.*"))
        assert [each.get("id", "event") for each in await read(raw, 7)] == ["sub", "publish", "sub"] + ["event"] * 4
        await late.send(subscribe("state.1") + message("rpc.ping", id="ping"))
        reply, pong, value = await read(late, 3)
        assert (reply["id"], pong["id"], value) == ("sub", "ping", event(1, "state.1"))


async def test_a_notification_is_enough_for_last_values(connect: Any) -> None:
    async with served() as (server, address):
        server.publish("state", 1, retain=True)
        raw = await connect(address)
        await raw.send(message("rpc.subscribe", [">"]))
        assert await raw.reply() == event(1, "state")


async def test_floods_to_patterns_of_a_subscriber_that_does_not_read(connect: Any) -> None:
    """Topics without number, and patterns that overlap: what is held is still what one queue holds."""
    async with served(limits=SMALL, event_queue=5) as (server, address):
        other = await connect(address)
        for topic in ("a", "a.>"):
            await other.ask(subscribe(topic).strip())
        async with not_reading(address) as slow:
            loop = asyncio.get_running_loop()
            patterns = ["a.>", "a.*", "*.*", "*.>", ">"]
            await loop.sock_sendall(slow, b"".join(map(subscribe, patterns)))
            assert len(await read_messages(slow, 5)) == 5
            most = 0
            for number in range(COUNT):
                server.publish(f"a.{number}", {"number": number, "fill": "x" * SIZE}, retain=number % 50 == 0)
                assert (await other.reply())["params"]["topic"] == f"a.{number}"
                most = max(most, waiting_bytes(server))
            assert most < HELD_MAX < COUNT * SIZE / 10
            dropped = server.counters.events_dropped
            values = await read_values(slow, COUNT - dropped)
            assert values == sorted(set(values)), "each once, in order"
            assert values[-5:] == list(range(COUNT - 5, COUNT))
        await until(lambda: dict(server.topics) == {"a": 1, "a.>": 1})


async def test_all_the_patterns_that_one_connection_may_have_and_then_it_is_gone(connect: Any) -> None:
    async with served() as (server, address):
        raw, other = await connect(address), await connect(address)
        await other.ask(subscribe("x.>").strip())
        patterns = [f"{'x' * 200}{number:04}{'.*' * 20}{'.y' * 5}.>" for number in range(1024)]
        assert {len(pattern) for pattern in patterns} == {256}
        await raw.send(b"".join(subscribe(pattern, number) for number, pattern in enumerate(patterns)))
        assert all("result" in reply for reply in await read(raw, len(patterns)))
        assert len(server.topics) == len(patterns) + 1
        assert server.publish("x.y", 1) == 1
        assert (await other.reply()) == event(1, "x.y")
        raw.writer.transport.abort()
        await until(lambda: dict(server.topics) == {"x.>": 1})
        assert pattern_beginnings(server.topics) == {"x"}


async def test_subscribers_that_leave_while_events_are_due(connect: Any) -> None:
    async with served() as (server, address):
        for number in range(20):
            raws = [await connect(address) for _ in range(5)]
            await asyncio.gather(*(raw.ask(subscribe("a.*").strip()) for raw in raws))
            for _ in range(10):
                server.publish("a.b", "x" * 10_000, retain=True)
            for raw in raws[number % 5 :]:
                raw.writer.transport.abort()
            server.publish("a.c", number)
            await asyncio.sleep(0)
            await asyncio.gather(*(raw.close() for raw in raws))
        await until(lambda: not server.topics)
        assert remains_of(server.topics) == []


# -- many --------------------------------------------------------------------------------------------------------------


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
async def test_a_thousand_subscribers(connect: Any) -> None:
    async with served() as (server, address):
        raws = [await connect(address) for _ in range(1000)]
        await asyncio.gather(*(raw.send(subscribe() + subscribe(str(number))) for number, raw in enumerate(raws)))
        await asyncio.gather(*(read(raw, 2) for raw in raws))
        assert (len(server.topics), server.counters.subscriptions) == (1001, 2000)
        for value in range(5):
            assert server.publish("a", value) == 1000
        assert [server.publish(str(number), "own") for number in range(1000)] == [1] * 1000
        for number, messages in enumerate(await asyncio.gather(*(read(raw, 6) for raw in raws))):
            assert messages == [*map(event, range(5)), event("own", str(number))]
        await asyncio.gather(*(raw.close() for raw in raws))
        await until(lambda: not server.topics)
        assert server.counters.events_sent == 6000
        assert remains_of(server.topics) == []
