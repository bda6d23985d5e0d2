"""Subscriptions without a socket: patterns, events that are denied, subscriptions that end, and all their limits."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import InvalidParams, NotPermitted, ServerBusy
from rpcstream.events import event_queue
from rpcstream.events.patterns import is_pattern, matches
from rpcstream.events.subscriptions import HEIRS_MAX

from ..internals import remains_of, subscription_table
from .event_setup import EventSetup, FakeConnection, turns

# -- patterns ----------------------------------------------------------------------------------------------------------


async def test_what_is_published_goes_to_those_whose_pattern_matches_with_its_own_topic() -> None:
    setup = EventSetup()
    one, two, three = setup.join("room.*.heat"), setup.join("room.>"), setup.join("room.1.heat", "door")
    assert dict(setup.topics) == {"room.*.heat": 1, "room.>": 1, "room.1.heat": 1, "door": 1}
    assert [setup.publish(f"room.{end}", end) for end in ("1.heat", "2.heat", "1", "1.heat.max")] == [3, 2, 1, 1]
    assert setup.publish("room", 0) == setup.publish("other.1.heat", 0) == 0
    await turns()
    assert (one.values, three.values) == (["1.heat", "2.heat"], ["1.heat"])
    assert two.topics == ["room.1.heat", "room.2.heat", "room.1", "room.1.heat.max"]
    assert one.sent[0] is two.sent[0] is three.sent[0], "encoded once"
    assert setup.counts == (6, 7, 0, 4)


async def test_an_event_comes_once_however_many_subscriptions_match() -> None:
    setup = EventSetup()
    connection = setup.join("a.b", "a.*", "*.b", "a.>", ">", "*.*")
    assert setup.publish("a.b", 1) == 1
    await turns()
    assert connection.values == [1]
    for topic in ("a.b", "a.*", ">", "*.b", "a.>"):
        assert setup.unsubscribe(connection, topic)
        assert setup.publish("a.b", topic) == 1
    assert setup.unsubscribe(connection, "*.*")
    assert setup.publish("a.b", 2) == 0
    await turns()
    assert connection.values == [1], "what waited went with the last one"
    assert (dict(setup.topics), subscription_table(setup.topics).has_patterns) == ({}, False)


async def test_a_value_for_nobodys_pattern_is_not_looked_at() -> None:
    setup = EventSetup()
    setup.join("a.*")
    assert setup.publish("b.c", object()) == 0
    with pytest.raises(TypeError):
        setup.publish("a.c", object())


async def test_each_subscription_is_bounded_by_itself() -> None:
    setup = EventSetup(max_events=3)
    connection = setup.join("a.*", "b.>", "c")
    for number in range(10):
        for topic in ("a.1", "a.2", "b.x.y", "c"):
            setup.publish(topic, number)
    await turns()
    counts = {topic: connection.topics.count(topic) for topic in ("a.1", "a.2", "b.x.y", "c")}
    assert counts == {"a.1": 1, "a.2": 2, "b.x.y": 3, "c": 3}
    assert connection.values[-4:] == [9] * 4
    assert setup.counters.events_dropped == 40 - 9


async def test_a_pattern_counts_as_a_subscription() -> None:
    setup = EventSetup(max_subscriptions=2)
    connection = setup.join("a.*", "b", "a.*")
    with pytest.raises(ServerBusy):
        setup.subscribe(connection, ">")
    assert dict(setup.topics) == {"a.*": 1, "b": 1}
    assert setup.publish("c", 1) == 0


async def test_a_lost_connection_leaves_no_pattern_behind() -> None:
    setup = EventSetup()
    connection, other = setup.join("a.*", ">", "a", stalled=True), setup.join("a.*")
    setup.publish("a.b", 1)
    connection.lose()
    assert (dict(setup.topics), setup.publish("a.b", 2)) == ({"a.*": 1}, 1)
    other.lose()
    assert (
        dict(setup.topics),
        len(subscription_table(setup.topics).patterns),
        subscription_table(setup.topics).has_patterns,
    ) == ({}, 0, False)
    await turns()
    assert setup.counts == (2, 0, 3, 0)


async def test_topics_of_our_own_are_for_those_who_may_have_them() -> None:
    setup = EventSetup(system="rpc.hub.")
    connection, other = setup.join("rpc.hub.joined", "rpc.hub.*", "rpc.hub.>"), setup.join(">", "*.hub.joined")
    for topic in ("rpc.hub", "rpc.>", "rpc.*.joined", "rpc.stats", "rpc.hub*"):
        with pytest.raises(InvalidParams):
            setup.join(topic)
    assert setup.topics.announce("rpc.hub.joined", {"name": "gpu-1"}) == 1
    assert setup.topics.announce("rpc.hub.left", {"name": "gpu-1"}) == 1
    with pytest.raises(ValueError, match="reserved"):
        setup.publish("rpc.hub.joined", 1)
    with pytest.raises(ValueError, match="reserved"):
        setup.topics.forward("rpc.hub.joined", b"{}")
    await turns()
    assert (connection.topics, other.topics) == (["rpc.hub.joined", "rpc.hub.left"], [])
    assert connection.values[0] == {"name": "gpu-1"}


# -- what is denied ----------------------------------------------------------------------------------------------------


async def test_what_is_denied_is_not_sent_for_that_subscription() -> None:
    setup = EventSetup()
    connection = FakeConnection()
    setup.subscribe(connection, "a.>", "a.secret", "a.*.secret")
    for topic in ("a.secret", "a.x", "a.x.secret", "a.x.y"):
        setup.publish(topic, topic)
    await turns()
    assert connection.values == ["a.x", "a.x.y"]
    setup.subscribe(connection, "*.secret")
    assert setup.publish("a.secret", "by the other") == 1
    assert setup.publish("a.x.secret", 1) == 0
    setup.subscribe(connection, "*.secret", "a.secret")
    assert setup.publish("a.secret", "no more") == 0, "subscribing again is the same but for that"
    setup.subscribe(connection, "a.>")
    assert setup.publish("a.secret", "all") == 1
    await turns()
    assert connection.values == ["a.x", "a.x.y", "by the other", "all"]


async def test_a_topic_that_is_denied_is_not_subscribed_to() -> None:
    setup = EventSetup()
    with pytest.raises(NotPermitted) as caught:
        setup.subscribe(FakeConnection(), "a.secret", "*.secret")
    assert caught.value.data == {"topic": "a.secret"}
    assert dict(setup.topics) == {}
    setup.subscribe(FakeConnection(), "a.open", "*.secret")
    assert setup.publish("a.open", 1) == 1


# -- a subscription ends while events wait -----------------------------------------------------------------------------


async def test_what_waits_goes_to_another_subscription_that_matches() -> None:
    setup = EventSetup()
    connection = FakeConnection()
    setup.subscribe(connection, "a.b")
    setup.subscribe(connection, "b.*")
    setup.subscribe(connection, ">", "a.secret")
    for number, topic in enumerate(["a.b", "b.x", "c", "b.y", "a.b"]):
        setup.publish(topic, number)
    assert setup.unsubscribe(connection, "a.b")
    assert setup.unsubscribe(connection, "b.*")
    await turns()
    assert connection.values == [0, 1, 2, 3, 4]
    setup.subscribe(connection, "*.secret")
    setup.publish("a.secret", 5)
    setup.publish("c.secret", 6)
    assert setup.unsubscribe(connection, "*.secret")
    await turns()
    assert connection.values[5:] == [6]
    assert setup.counts == (7, 6, 1, 1)


async def test_only_so_many_subscriptions_are_asked_whether_they_want_it() -> None:
    setup = EventSetup(max_events=10)
    connection = setup.join("x.0")
    for number in range(HEIRS_MAX):
        setup.subscribe(connection, f"x.{'*.' * (number + 1)}>")  # overlap with the last one, and do not match
    setup.subscribe(connection, "x.>")
    assert setup.unsubscribe(connection, "x.>")
    setup.subscribe(connection, "x.>")
    setup.publish("x.1", 1)
    setup.subscribe(connection, ">")
    assert setup.unsubscribe(connection, "x.>")
    await turns()
    assert connection.values == []
    assert setup.counts == (1, 0, 1, HEIRS_MAX + 2)


NAMES = ["a", "b", "a.a", "a.b", "b.a"]
ASKED = [*NAMES, "*", ">", "a.*", "*.a", "a.>"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), st.integers(0, 1), st.sampled_from(ASKED)),
        st.tuples(st.just("unsubscribe"), st.integers(0, 1), st.sampled_from(ASKED)),
        st.tuples(st.just("publish"), st.sampled_from(NAMES)),
        st.tuples(st.just("retain"), st.sampled_from(NAMES)),
        st.tuples(st.just("send")),
    ),
    max_size=40,
)


@given(STEPS)
def test_it_does_what_the_model_does(steps: list[Any]) -> None:
    """Each subscriber gets every event of its topics once, in order, and no other event."""

    async def follow() -> None:
        setup = EventSetup(max_events=1000)
        connections = [FakeConnection(), FakeConnection()]
        topics: list[set[str]] = [set(), set()]
        waiting: list[list[tuple[str, int]]] = [[], []]
        expected: list[list[tuple[str, int]]] = [[], []]
        last: dict[str, int] = {}
        for number, (name, *args) in enumerate(steps):
            if name == "subscribe":
                who, topic = args
                setup.subscribe(connections[who], topic)
                if topic not in topics[who]:
                    topics[who].add(topic)
                    waiting[who] += [each for each in last.items() if matches(topic, each[0])]
            elif name == "unsubscribe":
                who, topic = args
                assert setup.unsubscribe(connections[who], topic) is (topic in topics[who])
                topics[who].discard(topic)
                wanted = [any(matches(each, event[0]) for each in topics[who]) for event in waiting[who]]
                waiting[who] = list(itertools.compress(waiting[who], wanted))
            elif name == "send":
                await turns()
                for who in (0, 1):
                    expected[who] += waiting[who]
                    waiting[who] = []
            else:
                topic = args[0]
                count = 0
                for who in (0, 1):
                    if any(matches(each, topic) for each in topics[who]):
                        waiting[who].append((topic, number))
                        count += 1
                assert setup.publish(topic, number, retain=name == "retain") == count
                if name == "retain":
                    last.pop(topic, None)
                    last[topic] = number
        await turns()
        for who in (0, 1):
            seen = list(zip(connections[who].topics, connections[who].values, strict=True))
            assert seen == expected[who] + waiting[who]
        assert dict(setup.topics) == {each: (each in topics[0]) + (each in topics[1]) for each in topics[0] | topics[1]}
        assert setup.counters.subscriptions == len(topics[0]) + len(topics[1])
        assert len(subscription_table(setup.topics).patterns) == sum(map(is_pattern, topics[0] | topics[1]))

    asyncio.run(follow())


# -- many, and hostile -------------------------------------------------------------------------------------------------


async def test_a_thousand_patterns_that_all_match() -> None:
    setup = EventSetup(max_events=10, max_pattern_steps=2048)
    connection, other = FakeConnection(stalled=True), setup.join("x.>")
    for levels in itertools.product("x*", repeat=10):
        setup.subscribe(connection, ".".join(levels))
    topic = ".".join("x" * 10)
    for number in range(100):
        assert setup.publish(topic, number) == 2
        await turns(1)
    queue = subscription_table(setup.topics).subscribers[connection].queue
    assert len(queue) == 10, "of one subscription, whichever that is"
    assert other.values == list(range(100))
    for levels in itertools.product("x*", repeat=10):
        assert setup.unsubscribe(connection, ".".join(levels))
    assert (len(queue), dict(setup.topics), setup.publish(topic, 1)) == (0, {"x.>": 1}, 1)


async def test_patterns_that_overlap_have_a_budget_for_each_connection_and_for_all() -> None:
    setup = EventSetup(max_pattern_steps=20, max_pattern_steps_total=30)
    connections = [setup.join() for _ in range(5)]
    refused = 0
    for number, connection in enumerate(connections):
        for levels in itertools.product("x*", repeat=5):
            try:
                setup.subscribe(connection, ".".join([*levels, str(number)]))
            except ServerBusy:
                refused += 1
    assert refused > 100
    assert subscription_table(setup.topics).patterns.steps <= 30
    for connection in connections:
        setup.subscribe(connection, "x.x.x.x.x.0")  # no pattern, so no steps
    assert setup.publish("x.x.x.x.x.0", 1) == 5
    for connection in connections:
        connection.lose()
    assert (
        len(setup.topics),
        subscription_table(setup.topics).weight,
        subscription_table(setup.topics).patterns.steps,
    ) == (0, 0, 1)


async def test_subscriptions_of_all_connections_have_a_limit() -> None:
    setup = EventSetup(max_subscriptions_total=10)
    first, second = setup.join("a", "b", "c.d.e.*"), setup.join("a", "b.*")
    assert subscription_table(setup.topics).weight == 2 + 4 + 1 + 2
    setup.subscribe(second, "c.d")
    with pytest.raises(ServerBusy, match="all connections may have 10 subscriptions") as caught:
        setup.subscribe(second, "x")
    assert caught.value.data == {"limit": 10}
    assert setup.publish("x", 1) == 0
    first.lose()
    setup.subscribe(second, "x.y.*")
    assert subscription_table(setup.topics).weight == 4 + 3


async def test_what_is_moved_when_subscriptions_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue, "MOVED_MAX", 20)
    setup = EventSetup(max_events=10)
    connection = setup.join(*(f"x.{number}" for number in range(5)), stalled=True)
    for number in range(50):
        setup.publish(f"x.{number % 5}", number)
    queue = subscription_table(setup.topics).subscribers[connection].queue
    assert len(queue) == 50
    setup.subscribe(connection, "x.*")
    for number in range(5):
        assert setup.unsubscribe(connection, f"x.{number}")
    assert len(queue) == 20
    connection.write_gate.set_stalled(False)
    await turns()
    assert connection.values == sorted(connection.values)
    assert setup.counters.events_sent + setup.counters.events_dropped == 50


async def test_long_patterns_of_many_levels_leave_nothing_behind() -> None:
    setup = EventSetup()
    connection = FakeConnection()
    for number in range(1024):
        setup.subscribe(connection, ".".join(f"{number * 37 % 1024:07x}"[-7:] for _ in range(31)) + ".*")
    assert len(setup.topics) == 1024
    connection.lose()
    assert remains_of(setup.topics) == []


async def test_threads_publish_while_patterns_come_and_go() -> None:
    setup = EventSetup(max_events=100_000)
    connection = setup.join("a.>")

    def work(name: int) -> None:
        for number in range(500):
            assert setup.publish(f"a.{name}.{number % 7}", [name, number], retain=number % 2 == 0) >= 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    other = FakeConnection()
    while any(thread.is_alive() for thread in threads) or len(connection.sent) < 2000:
        for topic in ("a.*.1", "a.1.*", "*.2.>", "a.3.3"):
            setup.subscribe(other, topic)
            await asyncio.sleep(0)
            setup.unsubscribe(other, topic)
    for name in range(4):
        assert [value[1] for value in connection.values if value[0] == name] == list(range(500))
    assert dict(setup.topics) == {"a.>": 1}
