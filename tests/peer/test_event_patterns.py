"""Topics, without a socket: subscriptions to patterns, what is denied of them, and last values that are kept."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import InvalidParams, MessageTooLarge, NotPermitted, ServerBusy
from rpcstream.events import event_queue
from rpcstream.events.patterns import is_pattern, matches
from rpcstream.events.subscriptions import HEIRS_MAX

from .test_events import FakeSession, Fixture, turns


def unsubscribe(made: Fixture, session: FakeSession, topic: str) -> bool:
    return made.topics.unsubscribe(session, topic)  # type: ignore[arg-type]


def subscribe(made: Fixture, session: FakeSession, topic: str, *denied: str) -> dict[str, Any]:
    return made.topics.subscribe(session, topic, denied=denied)  # type: ignore[arg-type]


def message(topic: str, value: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": value}})


# -- patterns ----------------------------------------------------------------------------------------------------------


async def test_what_is_published_goes_to_those_whose_pattern_matches_with_its_own_topic() -> None:
    made = Fixture()
    one, two, three = made.join("room.*.heat"), made.join("room.>"), made.join("room.1.heat", "door")
    assert dict(made.topics) == {"room.*.heat": 1, "room.>": 1, "room.1.heat": 1, "door": 1}
    assert [made.publish(f"room.{end}", end) for end in ("1.heat", "2.heat", "1", "1.heat.max")] == [3, 2, 1, 1]
    assert made.publish("room", 0) == made.publish("other.1.heat", 0) == 0
    await turns()
    assert (one.values, three.values) == (["1.heat", "2.heat"], ["1.heat"])
    assert two.topics == ["room.1.heat", "room.2.heat", "room.1", "room.1.heat.max"]
    assert one.sent[0] is two.sent[0] is three.sent[0], "encoded once"
    assert made.counts == (6, 7, 0, 4)


async def test_an_event_comes_once_however_many_subscriptions_match() -> None:
    made = Fixture()
    session = made.join("a.b", "a.*", "*.b", "a.>", ">", "*.*")
    assert made.publish("a.b", 1) == 1
    await turns()
    assert session.values == [1]
    for topic in ("a.b", "a.*", ">", "*.b", "a.>"):
        assert unsubscribe(made, session, topic)
        assert made.publish("a.b", topic) == 1
    assert unsubscribe(made, session, "*.*")
    assert made.publish("a.b", 2) == 0
    await turns()
    assert session.values == [1], "what waited went with the last one"
    assert (dict(made.topics), made.topics._table.has_patterns) == ({}, False)


async def test_a_value_for_nobodys_pattern_is_not_looked_at() -> None:
    made = Fixture()
    made.join("a.*")
    assert made.publish("b.c", object()) == 0
    with pytest.raises(TypeError):
        made.publish("a.c", object())


async def test_each_subscription_is_bounded_by_itself() -> None:
    made = Fixture(max_events=3)
    session = made.join("a.*", "b.>", "c")
    for number in range(10):
        for topic in ("a.1", "a.2", "b.x.y", "c"):
            made.publish(topic, number)
    await turns()
    counts = {topic: session.topics.count(topic) for topic in ("a.1", "a.2", "b.x.y", "c")}
    assert counts == {"a.1": 1, "a.2": 2, "b.x.y": 3, "c": 3}
    assert session.values[-4:] == [9] * 4
    assert made.counters.events_dropped == 40 - 9


async def test_a_pattern_counts_as_a_subscription() -> None:
    made = Fixture(max_subscriptions=2)
    session = made.join("a.*", "b", "a.*")
    with pytest.raises(ServerBusy):
        subscribe(made, session, ">")
    assert dict(made.topics) == {"a.*": 1, "b": 1}
    assert made.publish("c", 1) == 0


async def test_a_lost_connection_leaves_no_pattern_behind() -> None:
    made = Fixture()
    session, other = made.join("a.*", ">", "a", stalled=True), made.join("a.*")
    made.publish("a.b", 1)
    session.lose()
    assert (dict(made.topics), made.publish("a.b", 2)) == ({"a.*": 1}, 1)
    other.lose()
    assert (dict(made.topics), len(made.topics._table.patterns), made.topics._table.has_patterns) == ({}, 0, False)
    await turns()
    assert made.counts == (2, 0, 3, 0)


async def test_topics_of_our_own_are_for_those_who_may_have_them() -> None:
    made = Fixture(system="rpc.hub.")
    session, other = made.join("rpc.hub.joined", "rpc.hub.*", "rpc.hub.>"), made.join(">", "*.hub.joined")
    for topic in ("rpc.hub", "rpc.>", "rpc.*.joined", "rpc.stats", "rpc.hub*"):
        with pytest.raises(InvalidParams):
            made.join(topic)
    assert made.topics.announce("rpc.hub.joined", {"name": "gpu-1"}) == 1
    assert made.topics.announce("rpc.hub.left", {"name": "gpu-1"}) == 1
    with pytest.raises(ValueError, match="reserved"):
        made.publish("rpc.hub.joined", 1)
    with pytest.raises(ValueError, match="reserved"):
        made.topics.forward("rpc.hub.joined", b"{}")
    await turns()
    assert (session.topics, other.topics) == (["rpc.hub.joined", "rpc.hub.left"], [])
    assert session.values[0] == {"name": "gpu-1"}


# -- what is denied ----------------------------------------------------------------------------------------------------


async def test_what_is_denied_is_not_sent_for_that_subscription() -> None:
    made = Fixture()
    session = FakeSession()
    subscribe(made, session, "a.>", "a.secret", "a.*.secret")
    for topic in ("a.secret", "a.x", "a.x.secret", "a.x.y"):
        made.publish(topic, topic)
    await turns()
    assert session.values == ["a.x", "a.x.y"]
    subscribe(made, session, "*.secret")
    assert made.publish("a.secret", "by the other") == 1
    assert made.publish("a.x.secret", 1) == 0
    subscribe(made, session, "*.secret", "a.secret")
    assert made.publish("a.secret", "no more") == 0, "subscribing again is the same but for that"
    subscribe(made, session, "a.>")
    assert made.publish("a.secret", "all") == 1
    await turns()
    assert session.values == ["a.x", "a.x.y", "by the other", "all"]


async def test_a_topic_that_is_denied_is_not_subscribed_to() -> None:
    made = Fixture()
    with pytest.raises(NotPermitted) as caught:
        subscribe(made, FakeSession(), "a.secret", "*.secret")
    assert caught.value.data == {"topic": "a.secret"}
    assert dict(made.topics) == {}
    subscribe(made, FakeSession(), "a.open", "*.secret")
    assert made.publish("a.open", 1) == 1


# -- a subscription ends while events wait -----------------------------------------------------------------------------


async def test_what_waits_goes_to_another_subscription_that_matches() -> None:
    made = Fixture()
    session = FakeSession()
    subscribe(made, session, "a.b")
    subscribe(made, session, "b.*")
    subscribe(made, session, ">", "a.secret")
    for number, topic in enumerate(["a.b", "b.x", "c", "b.y", "a.b"]):
        made.publish(topic, number)
    assert unsubscribe(made, session, "a.b")
    assert unsubscribe(made, session, "b.*")
    await turns()
    assert session.values == [0, 1, 2, 3, 4]
    subscribe(made, session, "*.secret")
    made.publish("a.secret", 5)
    made.publish("c.secret", 6)
    assert unsubscribe(made, session, "*.secret")
    await turns()
    assert session.values[5:] == [6]
    assert made.counts == (7, 6, 1, 1)


async def test_only_so_many_subscriptions_are_asked_whether_they_want_it() -> None:
    made = Fixture(max_events=10)
    session = made.join("x.0")
    for number in range(HEIRS_MAX):
        subscribe(made, session, f"x.{'*.' * (number + 1)}>")  # overlap with the last one, and do not match
    subscribe(made, session, "x.>")
    assert unsubscribe(made, session, "x.>")
    subscribe(made, session, "x.>")
    made.publish("x.1", 1)
    subscribe(made, session, ">")
    assert unsubscribe(made, session, "x.>")
    await turns()
    assert session.values == []
    assert made.counts == (1, 0, 1, HEIRS_MAX + 2)


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
    """Every event once, in order, to everybody who wants it; and nothing else."""

    async def follow() -> None:
        made = Fixture(max_events=1000)
        sessions = [FakeSession(), FakeSession()]
        topics: list[set[str]] = [set(), set()]
        waiting: list[list[tuple[str, int]]] = [[], []]
        expected: list[list[tuple[str, int]]] = [[], []]
        last: dict[str, int] = {}
        for number, (name, *args) in enumerate(steps):
            if name == "subscribe":
                who, topic = args
                subscribe(made, sessions[who], topic)
                if topic not in topics[who]:
                    topics[who].add(topic)
                    waiting[who] += [each for each in last.items() if matches(topic, each[0])]
            elif name == "unsubscribe":
                who, topic = args
                assert unsubscribe(made, sessions[who], topic) is (topic in topics[who])
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
                assert made.publish(topic, number, retain=name == "retain") == count
                if name == "retain":
                    last.pop(topic, None)
                    last[topic] = number
        await turns()
        for who in (0, 1):
            seen = list(zip(sessions[who].topics, sessions[who].values, strict=True))
            assert seen == expected[who] + waiting[who]
        assert dict(made.topics) == {each: (each in topics[0]) + (each in topics[1]) for each in topics[0] | topics[1]}
        assert made.counters.subscriptions == len(topics[0]) + len(topics[1])
        assert len(made.topics._table.patterns) == sum(map(is_pattern, topics[0] | topics[1]))

    asyncio.run(follow())


# -- last values -------------------------------------------------------------------------------------------------------


async def test_the_last_value_is_sent_to_later_subscribers_first() -> None:
    made = Fixture()
    early = made.join("state.*")
    assert made.publish("state.door", "open", retain=True) == 1
    assert made.publish("state.door", "shut", retain=True) == 1
    assert made.publish("state.light", "on", retain=True) == 1
    assert made.publish("state.door", "creaks") == 1
    late, exact = made.join("state.>"), made.join("state.door")
    made.publish("state.light", "off")
    await turns()
    assert early.values == ["open", "shut", "on", "creaks", "off"]
    assert late.values == ["shut", "on", "off"]
    assert exact.values == ["shut"]
    subscribe(made, late, "state.>")
    await turns()
    assert len(late.sent) == 3, "subscribing again does not send them again"
    assert unsubscribe(made, late, "state.>")
    subscribe(made, late, "state.>")
    await turns()
    assert late.values[3:] == ["shut", "on"]


async def test_last_values_come_in_the_order_of_the_last_publication() -> None:
    made = Fixture()
    for number, topic in enumerate("abcab"):
        made.publish(topic, number, retain=True)
    session = made.join(">")
    await turns()
    assert session.values == [2, 3, 4]


async def test_null_is_sent_and_forgets() -> None:
    made = Fixture()
    early = made.join("a")
    made.publish("a", 1, retain=True)
    assert made.publish("a", None, retain=True) == 1
    late = made.join("a")
    await turns()
    assert (early.values, late.values) == ([1, None], [])
    assert made.publish("b", None, retain=True) == 0
    made.publish("b", 1, retain=True)
    assert (made.topics.forget("b"), made.topics.forget("b")) == (True, False)
    assert made.join("b").sent == []


async def test_what_is_denied_is_no_last_value_either() -> None:
    made = Fixture()
    for topic in ("a.x", "a.secret"):
        made.publish(topic, topic, retain=True)
    session = FakeSession()
    subscribe(made, session, "a.*", "*.secret")
    await turns()
    assert session.values == ["a.x"]


async def test_what_cannot_be_kept_is_sent_to_nobody() -> None:
    made = Fixture(max_retained=1, max_retained_size=1000)
    session = made.join(">")
    made.publish("a", 1, retain=True)
    with pytest.raises(ServerBusy):
        made.publish("b", 2, retain=True)
    with pytest.raises(ServerBusy):
        made.topics.forward("b", message("b", 2), retain=True)
    with pytest.raises(ServerBusy):
        made.publish("a", "x" * 1000, retain=True)
    made.publish("b", 3)
    made.publish("b", None, retain=True)
    await turns()
    assert session.values == [1, 3, None]
    assert made.counters.events_published == 3
    late = made.join(">")
    await turns()
    assert late.values == [1]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
async def test_the_newest_last_values_wait_and_push_nothing_out(policy: str) -> None:
    made = Fixture(max_events=3, policy=policy)
    for number in range(10):
        made.publish(f"a.{number}", number, retain=True)
    session = made.join("b", stalled=True)
    made.publish("b", "before")
    subscribe(made, session, "a.*")
    subscribe(made, session, ">")
    session.write_gate.set_stalled(False)
    await turns()
    assert session.values == ["before", 7, 8, 9, 7, 8, 9]
    assert session.aborted == []
    assert made.counters.events_dropped == 14


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
async def test_the_bytes_of_last_values_are_bounded_by_those_of_the_queue(policy: str) -> None:
    made = Fixture(max_events=100, policy=policy, max_message_size=11_000)
    for number in range(5):
        made.publish(f"a.{number}", str(number) + "x" * 3000, retain=True)
    session, other = made.join("a.*", stalled=True), made.join("a.0", "a.*", stalled=True)
    queue = made.topics._table.subscribers[session].queue  # type: ignore[index]
    assert queue.size <= 11_000
    for each in (session, other):
        each.write_gate.set_stalled(False)
    await turns()
    assert [value[0] for value in session.values] == ["2", "3", "4"]
    assert [value[0] for value in other.values] == ["0", "3", "4"]
    assert session.aborted == other.aborted == []


async def test_however_many_patterns_match_no_more_last_values_wait_than_there_may_be() -> None:
    """A connection that does not read, with every pattern that matches them all."""
    made = Fixture(max_events=1000, max_retained=100, max_pattern_steps=1000)
    for number in range(100):
        made.publish(".".join(["x"] * 8 + [str(number)]), number, retain=True)
    session = FakeSession(stalled=True)
    for levels in itertools.product("x*", repeat=8):
        subscribe(made, session, ".".join(levels) + ".>")
    queue = made.topics._table.subscribers[session].queue  # type: ignore[index]
    assert len(queue) == 100
    assert made.counters.events_dropped == 255 * 100


# -- ready-made messages -----------------------------------------------------------------------------------------------


async def test_messages_are_forwarded_as_they_are() -> None:
    made = Fixture(max_message_size=1000)
    session = made.join("a.*")
    ready = message("a.b", 1) + b" "
    assert made.topics.forward("a.b", ready, retain=True) == 1
    assert made.topics.forward("c", message("c", 2)) == 0
    with pytest.raises(MessageTooLarge):
        made.topics.forward("a.b", message("a.b", "x" * 1000))
    late = made.join("a.b")
    await turns()
    assert session.sent == late.sent == [ready]
    assert session.sent[0] is ready
    assert made.counts == (2, 2, 0, 2)


# -- many, and hostile -------------------------------------------------------------------------------------------------


async def test_a_thousand_patterns_that_all_match() -> None:
    made = Fixture(max_events=10, max_pattern_steps=2048)
    session, other = FakeSession(stalled=True), made.join("x.>")
    for levels in itertools.product("x*", repeat=10):
        subscribe(made, session, ".".join(levels))
    topic = ".".join("x" * 10)
    for number in range(100):
        assert made.publish(topic, number) == 2
        await turns(1)
    queue = made.topics._table.subscribers[session].queue  # type: ignore[index]
    assert len(queue) == 10, "of one subscription, whichever that is"
    assert other.values == list(range(100))
    for levels in itertools.product("x*", repeat=10):
        assert unsubscribe(made, session, ".".join(levels))
    assert (len(queue), dict(made.topics), made.publish(topic, 1)) == (0, {"x.>": 1}, 1)


async def test_patterns_that_overlap_have_a_budget_for_each_connection_and_for_all() -> None:
    made = Fixture(max_pattern_steps=20, max_pattern_steps_total=30)
    sessions = [made.join() for _ in range(5)]
    refused = 0
    for number, session in enumerate(sessions):
        for levels in itertools.product("x*", repeat=5):
            try:
                subscribe(made, session, ".".join([*levels, str(number)]))
            except ServerBusy:
                refused += 1
    assert refused > 100
    assert made.topics._table.patterns.steps <= 30
    for session in sessions:
        subscribe(made, session, "x.x.x.x.x.0")  # no pattern, so no steps
    assert made.publish("x.x.x.x.x.0", 1) == 5
    for session in sessions:
        session.lose()
    assert (len(made.topics), made.topics._table.weight, made.topics._table.patterns.steps) == (0, 0, 1)


async def test_subscriptions_of_all_connections_have_a_limit() -> None:
    made = Fixture(max_subscriptions_total=10)
    first, second = made.join("a", "b", "c.d.e.*"), made.join("a", "b.*")
    assert made.topics._table.weight == 2 + 4 + 1 + 2
    subscribe(made, second, "c.d")
    with pytest.raises(ServerBusy, match="all connections have 10 subscriptions") as caught:
        subscribe(made, second, "x")
    assert caught.value.data == {"limit": 10}
    assert made.publish("x", 1) == 0
    first.lose()
    subscribe(made, second, "x.y.*")
    assert made.topics._table.weight == 4 + 3


async def test_what_is_moved_when_subscriptions_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue, "MOVED_MAX", 20)
    made = Fixture(max_events=10)
    session = made.join(*(f"x.{number}" for number in range(5)), stalled=True)
    for number in range(50):
        made.publish(f"x.{number % 5}", number)
    queue = made.topics._table.subscribers[session].queue  # type: ignore[index]
    assert len(queue) == 50
    subscribe(made, session, "x.*")
    for number in range(5):
        assert unsubscribe(made, session, f"x.{number}")
    assert len(queue) == 20
    session.write_gate.set_stalled(False)
    await turns()
    assert session.values == sorted(session.values)
    assert made.counters.events_sent + made.counters.events_dropped == 50


async def test_long_patterns_of_many_levels_leave_nothing_behind() -> None:
    made = Fixture()
    session = FakeSession()
    for number in range(1024):
        subscribe(made, session, ".".join(f"{number * 37 % 1024:07x}"[-7:] for _ in range(31)) + ".*")
    assert len(made.topics) == 1024
    session.lose()
    assert (dict(made.topics), made.topics._table.patterns._root.below) == ({}, {})


async def test_threads_publish_while_patterns_come_and_go() -> None:
    made = Fixture(max_events=100_000)
    session = made.join("a.>")

    def work(name: int) -> None:
        for number in range(500):
            assert made.publish(f"a.{name}.{number % 7}", [name, number], retain=number % 2 == 0) >= 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    other = FakeSession()
    while any(thread.is_alive() for thread in threads) or len(session.sent) < 2000:
        for topic in ("a.*.1", "a.1.*", "*.2.>", "a.3.3"):
            subscribe(made, other, topic)
            await asyncio.sleep(0)
            unsubscribe(made, other, topic)
    for name in range(4):
        assert [value[1] for value in session.values if value[0] == name] == list(range(500))
    assert dict(made.topics) == {"a.>": 1}


async def test_large_values_are_kept_as_they_are_sent() -> None:
    made = Fixture()
    made.publish("a", np.zeros(100_000), retain=True)
    one, two = made.join("a"), made.join("*")
    await turns()
    assert one.sent[0] is two.sent[0], "nothing was copied"
