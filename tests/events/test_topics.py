"""Topics of a server: who gets which event, in what order, what waits for those who are slow, and all the limits."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Limits, Server, ServerBusy
from rpcstream.errors import EncodeError, MessageTooLarge
from rpcstream.events.patterns import matches
from rpcstream.hub import Hub, Rule
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, RawPeer, request, until
from ..kit.example_count import example_count

#: Of a message that may wait for a peer that does not read.
BUFFER = 2000

BUSY, PARAMS, DENIED = -32002, -32602, -32006


class Subscriber(RawPeer):
    """A raw peer that has subscribed to topics."""

    async def told(self, method: str, topic: str) -> Any:
        """The reply to a call; events that come before it stay in the inbox."""
        self.call(method, topic, id="told")
        await until(lambda: any(b'"id":"told"' in each for each in self.inbox))
        found = next(each for each in self.inbox if b'"id":"told"' in each)
        self.inbox.remove(found)
        return orjson.loads(found)

    async def subscribe(self, *topics: str) -> None:
        for topic in topics:
            assert "result" in await self.told("rpc.subscribe", topic), topic

    async def unsubscribe(self, topic: str) -> Any:
        return (await self.told("rpc.unsubscribe", topic))["result"]

    async def events(self) -> list[tuple[str, Any]]:
        """The topics and values of all events that have come, and that were under way."""
        await asyncio.sleep(1)  # until there is nothing more to do
        found = [orjson.loads(each) for each in self.inbox]
        self.inbox.clear()
        return [(each["params"]["topic"], each["params"]["value"]) for each in found if "method" in each]

    async def values(self) -> list[Any]:
        return [value for topic, value in await self.events() if topic != "fill"]

    def read(self) -> None:
        self.transport.resume_reading()


class Events:
    """A server in memory, and its subscribers."""

    def __init__(self, server: Server, there: Any) -> None:
        self.server = server
        self.publish = server.publish
        self.subscribers: list[Subscriber] = []
        self._there = there

    async def join(self, *topics: str, stalled: bool = False) -> Subscriber:
        """Connect a subscriber; a stalled one has stopped to read, and the server has noticed that."""
        self.subscribers.append(peer := await self._there.join(Subscriber))
        await peer.subscribe(*topics)
        if stalled:
            await peer.subscribe("fill")
            await peer.events()
            peer.transport.pause_reading()
            for _ in range(3):
                self.publish("fill", "x" * 2 * BUFFER)
                await asyncio.sleep(1)
        return peer

    @property
    def counts(self) -> dict[str, int]:
        """Subscriptions, and events that were published, sent and dropped."""
        names = ("events_published", "events_sent", "events_dropped", "subscriptions")
        return {name.removeprefix("events_"): self.server.stats()[name] for name in names}


@asynccontextmanager
async def serving(
    make: type[Server] = Server, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Events]:
    given = Limits(**{"write_buffer": BUFFER, "idle_timeout": None, "write_timeout": None, **(limits or {})})
    server = make(limits=given, **options)
    async with TRANSPORTS["memory"].serving(server, None) as there:
        events = Events(server, there)
        try:
            yield events
        finally:
            for each in events.subscribers:
                each.close()
            await asyncio.sleep(1)
    assert (dict(server.topics), server.stats()["subscriptions"]) == ({}, 0)


async def test_what_cannot_be_sent_is_said_to_the_publisher_and_sent_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcstream.events.topics.MAX_EVENT_SIZE", 1000)
    async with serving(limits={"max_message_size": 5000}) as events:
        assert events.publish("a", object()) == 0, "for nobody it is not looked at"
        peer = await events.join("a")
        with pytest.raises(EncodeError, match="object"):
            events.publish("a", object())
        for options in ({}, {"retain": True}):
            with pytest.raises(MessageTooLarge, match="limit is 1000 bytes"):
                events.publish("a", "x" * 1000, **options)
        with pytest.raises(TypeError):
            events.publish(5, 1)
        assert await peer.values() == []
        events.publish("a", "x" * 900)
        assert [len(each) for each in await peer.values()] == [900]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("room*", "may have '*' only as a whole level, and '>' only as the last one, whole"),
        ("rpc.>", "begins with 'rpc.', which is reserved"),
    ],
)
async def test_what_is_no_topic_is_refused_with_the_reason(topic: str, reason: str) -> None:
    async with serving() as events:
        with pytest.raises(ValueError, match="the topic '"):
            events.publish(topic, 1)
        error = (await (await events.join()).reply("rpc.subscribe", topic))["error"]
        assert error["code"] == PARAMS
        assert error["data"] == {"parameter": "topic", "path": "$.topic", "reason": f"the topic {reason}"}
        assert reason in error["message"]


async def test_topics_of_a_hub_itself_are_for_those_who_ask_for_them() -> None:
    async with serving(Hub, ping_interval=None, keepalive_timeout=None) as events:
        watcher = await events.join("rpc.hub.joined", "rpc.hub.*", "rpc.hub.>")
        other = await events.join(">", "*.hub.joined")
        for topic in ("rpc.hub", "rpc.>", "rpc.*.joined", "rpc.stats", "rpc.hub*"):
            assert (await other.reply("rpc.subscribe", topic))["error"]["code"] == PARAMS
        await other.result("rpc.register", "gpu-1")
        other.close()
        found = await watcher.events()
        assert [(topic, value["name"]) for topic, value in found] == [
            ("rpc.hub.joined", "gpu-1"),
            ("rpc.hub.left", "gpu-1"),
        ]
        with pytest.raises(ValueError, match="reserved"):
            events.publish("rpc.hub.joined", 1)


async def test_what_is_denied_is_not_sent_for_a_subscription() -> None:
    """No last values of it either."""
    rules = [Rule("ada", subscribe=">", deny_subscribe=("a.secret", "a.*.secret")), Rule("*", publish=">")]
    options = {"rules": rules, "authenticate": lambda who: who.token, "ping_interval": None, "keepalive_timeout": None}
    async with serving(Hub, **options) as events:
        for topic in ("a.x", "a.secret"):
            events.publish(topic, f"last {topic}", retain=True)
        peer = await events.join()
        await peer.result("rpc.authenticate", "ada")
        await peer.subscribe("a.>", "*.x")
        for topic in ("a.secret", "a.x", "a.x.secret", "a.x.y"):
            assert events.publish(topic, topic) == ("secret" not in topic)
        assert await peer.unsubscribe("a.>") is True
        assert await peer.values() == ["last a.x", "last a.x", "a.x", "a.x.y"]
        assert (await peer.reply("rpc.subscribe", "a.secret"))["error"]["code"] == DENIED


def queued(policy: str, events: list[tuple[str, int]], most: int, max_bytes: int) -> tuple[list[int], bool]:
    """Which of these events, published in one turn, come to a subscriber; and whether it is disconnected instead."""
    kept: list[tuple[str, int, int]] = []
    for number, (topic, length) in enumerate(events):
        size = length + 500  # an event counts with what it takes besides its value, about
        crowded = sum(each[0] == topic for each in kept) >= most
        too_large = bool(kept) and sum(each[2] for each in kept) + size > max_bytes
        if (crowded or too_large) and policy != "drop_oldest":
            if policy == "disconnect":
                return [], True
            continue
        if crowded:
            kept.remove(next(each for each in kept if each[0] == topic))
        while kept and sum(each[2] for each in kept) + size > max_bytes:
            del kept[0]
        kept.append((topic, number, size))
    return [number for _, number, _ in kept], False


EVENT = st.tuples(st.sampled_from("abc"), st.sampled_from([1, 30_000, 150_000]))


@settings(max_examples=example_count(100), deadline=None)
@given(
    policy=st.sampled_from(["drop_oldest", "drop_newest", "disconnect"]),
    most=st.integers(1, 4),
    bursts=st.lists(st.lists(EVENT, max_size=12), max_size=3),
)
def test_events_of_one_turn_are_bounded_as_in_a_list(policy: Any, most: int, bursts: list[list[Any]]) -> None:
    """By number for each subscription, and by bytes for all of a connection."""

    async def follow() -> None:
        limits = {"max_message_size": 400_000}
        async with serving(limits=limits, event_queue=most, event_policy=policy) as events:
            peer = await events.join("a", "b", "c")
            for burst in bursts:
                expected, is_closed = queued(policy, burst, most, 400_000)
                before = events.counts["dropped"]
                for number, (topic, length) in enumerate(burst):
                    events.publish(topic, [number, "x" * length])
                values = await peer.values()
                assert peer.is_over is is_closed
                if is_closed:
                    return
                assert [number for number, _ in values] == expected
                assert events.counts["dropped"] - before == len(burst) - len(expected)

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(follow())


async def test_who_is_too_slow_may_be_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"event_queue": 0}, {"event_policy": "wait"}):
        with pytest.raises(ValueError, match=r"room for at least|one of drop_oldest"):
            Server(**options)
    async with serving(event_queue=3, event_policy="disconnect") as events:
        peer, other = await events.join("a"), await events.join("b")
        for number in range(6):
            events.publish("a", number)
        events.publish("b", 1)
        assert await peer.rest() == []
        assert "event_queue 3" in caplog.text
        assert await other.values() == [1]
        assert events.counts == {"published": 7, "sent": 1, "dropped": 4, "subscriptions": 1}


async def test_what_waits_for_all_connections_has_a_budget_and_leaves_room_for_each() -> None:
    async with serving(limits={"max_held_total": 400_000}, event_queue=1000) as events:
        slow = [await events.join(f"t{number}", stalled=True) for number in range(9)]
        tracemalloc.start()
        for turn in range(50):
            for number in range(9):
                events.publish(f"t{number}", f"{turn}" + "x" * 1000)
        assert tracemalloc.get_traced_memory()[0] < 400_000
        tracemalloc.stop()
        late = await events.join("late", stalled=True)
        assert [events.publish("late", number) for number in (1, 2)] == [1, 1]
        for peer in (*slow, late):
            peer.read()
        assert await late.values() == [1, 2]
        for peer in slow:
            assert (await peer.values())[-1].startswith("49x")


async def test_one_event_for_many_takes_its_memory_once() -> None:
    async with serving(event_queue=1000) as events:
        slow = [await events.join("t", stalled=True) for _ in range(10)]
        array = np.zeros(100_000)
        tracemalloc.start()
        assert events.publish("t", array) == 10
        await asyncio.sleep(1)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 4_000_000
        tracemalloc.stop()
        slow[0].read()
        assert len(await slow[0].values()) == 1


async def test_one_connection_gets_a_share_a_turn() -> None:
    """The others have their share in the same turn."""
    async with serving(limits={"write_buffer": 10_000_000}, event_queue=1000) as events:
        big, small = await events.join("big"), await events.join("small")
        for _ in range(300):
            events.publish("big", "x" * 10_000)
        events.publish("small", 1)
        while not small.inbox:
            await asyncio.sleep(0)
        assert len(big.inbox) < 300
        assert len(await big.values()) == 300


async def test_a_thread_that_does_not_let_the_loop_run_is_bounded_too() -> None:
    async with serving(event_queue=10) as events:
        peer = await events.join("a")
        thread = threading.Thread(target=lambda: [events.publish("a", number) for number in range(1000)])
        thread.start()
        thread.join()  # the loop stands still meanwhile
        assert await peer.values() == list(range(990, 1000))


async def test_threads_publish_while_patterns_come_and_go() -> None:
    async with serving(event_queue=100_000) as events:
        peer, other = await events.join("a.>"), await events.join()

        def work(name: int) -> None:
            for number in range(300):
                assert events.publish(f"a.{name}.{number % 7}", [name, number], retain=number % 2 == 0) >= 1

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            other.send(request("rpc.subscribe", "a.*.*"), request("rpc.unsubscribe", "a.*.*"))
            await asyncio.sleep(0)
        found = await peer.values()
        for name in range(4):
            assert [number for each, number in found if each == name] == list(range(300))


@settings(max_examples=example_count(50), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "a.b", "a.c", "b.c"]), st.sampled_from([None, 1, 200, 500])), max_size=20
    ),
    st.sampled_from([">", "*", "a.*", "*.c", "a"]),
)
def test_last_values_are_kept_as_in_a_list(steps: list[tuple[str, int | None]], pattern: str) -> None:
    """The newest of each topic, in the order of their publication, up to the limits; None forgets."""

    async def follow() -> None:
        async with serving(limits={"max_retained": 3}) as events:
            kept: list[tuple[str, Any, int]] = []
            for number, (topic, length) in enumerate(steps):
                value = None if length is None else [number, "x" * length]
                message = request("$/event", params={"topic": topic, "value": value})
                size = len(orjson.dumps(message)) - len(b'"id":1,')
                rest = [each for each in kept if each[0] != topic]
                if value is None:
                    events.publish(topic, None, retain=True)
                    kept = rest
                elif len(rest) < 3 and sum(each[2] for each in rest) + size <= 1000:
                    events.publish(topic, value, retain=True)
                    kept = [*rest, (topic, value, size)]
                else:
                    with pytest.raises(ServerBusy):
                        events.publish(topic, value, retain=True)
            peer = await events.join(pattern)
            assert await peer.events() == [(topic, value) for topic, value, _ in kept if matches(pattern, topic)]

    with (
        patch("rpcstream.events.topics.MAX_RETAINED_SIZE", 1000),
        asyncio.Runner(loop_factory=FakeTimeLoop) as runner,
    ):
        runner.run(follow())


async def test_what_is_forgotten() -> None:
    async with serving() as events:
        events.publish("a", 1, retain=True)
        assert (events.server.topics.forget("a"), events.server.topics.forget("a")) == (True, False)
        assert await (await events.join("a")).values() == []


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
async def test_the_newest_last_values_push_nothing_out(policy: Any) -> None:
    async with serving(event_queue=3, event_policy=policy) as events:
        for number in range(10):
            events.publish(f"a.{number}", number, retain=True)
        peer = await events.join("b")
        events.publish("b", "before")
        await peer.subscribe("a.*")
        assert await peer.values() == ["before", 7, 8, 9]


async def test_however_many_patterns_match_no_more_last_values_come_than_may_wait() -> None:
    async with serving(limits={"max_retained": 50}, event_queue=500) as events:
        for number in range(50):
            events.publish(f"x.x.x.x.x.{number}", number, retain=True)
        peer = await events.join()
        peer.send(*(request("rpc.subscribe", ".".join(levels) + ".>") for levels in itertools.product("x*", repeat=5)))
        assert len(await peer.values()) <= 32 * 50


NAMES = ["a", "b", "a.a", "a.b", "b.a"]
ASKED = [*NAMES, "*", ">", "a.*", "*.a", "a.>"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), st.integers(0, 1), st.sampled_from(ASKED)),
        st.tuples(
            st.just("unsubscribe"),
            st.integers(0, 1),
            st.sampled_from(ASKED),
            st.lists(st.sampled_from(NAMES), max_size=3),
        ),
        st.tuples(st.just("publish"), st.sampled_from(NAMES), st.booleans()),
    ),
    max_size=30,
)


@settings(max_examples=example_count(100), deadline=None)
@given(STEPS)
def test_each_subscriber_gets_every_event_of_its_topics_once_in_order(steps: list[Any]) -> None:
    """Those that wait when a subscription ends are sent, too."""

    async def follow() -> None:
        async with serving(event_queue=1000) as events:
            events.server.add(lambda pairs: [events.publish(*each) for each in pairs], name="tell")
            peers = [await events.join(), await events.join()]
            topics: list[set[str]] = [set(), set()]
            expected: list[list[tuple[str, int]]] = [[], []]
            last: dict[str, int] = {}
            for number, (what, *step) in enumerate(steps):
                if what == "publish":
                    name, retain = step
                    wanting = [any(matches(each, name) for each in own) for own in topics]
                    assert events.publish(name, number, retain=retain) == sum(wanting)
                    for who in (0, 1):
                        expected[who] += [(name, number)] * wanting[who]
                    if retain:
                        last.pop(name, None)
                        last[name] = number
                    continue
                who, topic = step[:2]
                await asyncio.sleep(1)
                if what == "subscribe":
                    if topic not in topics[who]:
                        expected[who] += [each for each in last.items() if matches(topic, each[0])]
                    await peers[who].subscribe(topic)
                    topics[who].add(topic)
                    continue
                # In one read, and so in one turn: the events wait still when the subscription ends.
                told = [(name, [number, n]) for n, name in enumerate(step[2])]
                peers[who].send(request("tell", told), request("rpc.unsubscribe", topic))
                for each in (0, 1):
                    expected[each] += [pair for pair in told if any(matches(one, pair[0]) for one in topics[each])]
                topics[who].discard(topic)
                await asyncio.sleep(1)
            for who in (0, 1):
                assert await peers[who].events() == expected[who]
            count = {each: (each in topics[0]) + (each in topics[1]) for each in topics[0] | topics[1]}
            assert dict(events.server.topics) == count

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(follow())


@pytest.mark.parametrize(
    ("limit", "total", "asked", "refused"),
    [
        (2, 100, ["a.*", "b", "a.*", "c"], ["c"]),
        (100, 3, ["a", "b.*", "c", "d"], ["d"]),
    ],
)
async def test_subscriptions_have_a_limit(
    limit: int, total: int, asked: list[str], refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpcstream.events.subscriptions.MAX_SUBSCRIPTIONS_TOTAL", total)
    async with serving(limits={"max_subscriptions": limit}) as events:
        peer = await events.join()
        answers = {topic: await peer.reply("rpc.subscribe", topic) for topic in asked}
        assert [topic for topic, answer in answers.items() if "error" in answer] == refused
        error = answers[refused[0]]["error"]
        assert (error["code"], error["data"]) == (BUSY, {"limit": min(limit, total)})
        assert events.publish(refused[0], 1) == 0
        assert await peer.unsubscribe(asked[0]) is True
        await peer.subscribe(refused[0])


async def test_topics_of_many_levels_leave_no_memory_behind() -> None:
    async with serving() as events:
        sizes = []
        for _ in range(3):
            peer = await events.join()
            peer.send(
                *(request("rpc.subscribe", ".".join(f"{n * 37:07x}" for _ in range(8)) + ".*") for n in range(20))
            )
            await peer.events()
            assert len(events.server.topics) == 20
            peer.close()
            await asyncio.sleep(1)
            events.subscribers.clear()
            del peer
            gc.collect()
            if not tracemalloc.is_tracing():
                tracemalloc.start()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert sizes[2] < 60_000
