"""Topics, without a socket: what is sent to whom, when, and what is counted."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Codec, EncodeError, InvalidParams, Limits, MessageTooLarge, ServerBusy
from rpcstream.events.delivery import SHARE
from rpcstream.events.patterns import TOPIC_MAX
from rpcstream.events.topics import Topics
from rpcstream.observe.counters import Counters
from rpcstream.peer.write_gate import WriteGate


class FakeSession:
    """What topics ask of a session."""

    def __init__(self, *, stalled: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.write_gate = WriteGate(1024 * 1024)
        self.write_gate.stalled = stalled
        self.channel = SimpleNamespace(address="far:1")
        self.is_open = True
        self.lost_callbacks: list[Callable[[], object]] = []
        self.add_lost_callback = self.lost_callbacks.append
        self.sent: list[Any] = []
        self.aborted: list[str] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)
        self.lose()

    def lose(self) -> None:
        self.is_open = False
        self.write_gate.set_stalled(False)
        for function in self.lost_callbacks:
            function()

    @property
    def topics(self) -> list[str]:
        return [orjson.loads(bytes(message))["params"]["topic"] for message in self.sent]

    @property
    def values(self) -> list[Any]:
        return [orjson.loads(bytes(message))["params"]["value"] for message in self.sent]


class Fixture:
    def __init__(self, *, max_events: int = 5, policy: Any = "drop_oldest", system: str = "", **limits: Any) -> None:
        self.counters = Counters()
        self.topics = Topics(
            codec=Codec(),
            limits=Limits(**limits),
            counters=self.counters,
            max_events=max_events,
            policy=policy,
            system=system,
        )
        self.publish = self.topics.publish

    def join(self, *topics: str, stalled: bool = False) -> FakeSession:
        session = FakeSession(stalled=stalled)
        for topic in topics:
            self.topics.subscribe(session, topic)  # type: ignore[arg-type]
        return session

    @property
    def counts(self) -> tuple[int, int, int, int]:
        counters = self.counters
        return counters.events_published, counters.events_sent, counters.events_dropped, counters.subscriptions


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_value_goes_to_those_who_have_subscribed_to_its_topic() -> None:
    made = Fixture()
    one, two, other = made.join("a", "b"), made.join("a"), made.join("b")
    assert (dict(made.topics), len(made.topics)) == ({"a": 2, "b": 2}, 2)
    assert made.publish("a", 1) == 2
    assert made.publish("b", "x") == 2
    assert made.publish("c", None) == 0
    await turns()
    assert (one.values, two.values, other.values) == ([1, "x"], [1], ["x"])
    message = orjson.loads(two.sent[0])
    assert message == {"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": 1}}
    assert made.counts == (3, 4, 0, 4)


async def test_a_value_is_encoded_once_and_not_at_all_for_nobody() -> None:
    made = Fixture()
    assert made.publish("a", object()) == 0, "it is not looked at"
    sessions = [made.join("a") for _ in range(3)]
    made.publish("a", np.zeros(100_000))
    await turns()
    assert sessions[0].sent[0] is sessions[1].sent[0] is sessions[2].sent[0]


async def test_nothing_is_sent_in_the_turn_in_which_it_is_published() -> None:
    made = Fixture()
    session = made.join("a")
    made.publish("a", 1)
    assert session.sent == []
    await turns()
    assert session.values == [1]


async def test_what_cannot_be_sent_is_said_to_the_publisher_and_sent_to_nobody() -> None:
    made = Fixture(max_message_size=1000)
    session = made.join("a")
    with pytest.raises(EncodeError, match="object"):
        made.publish("a", object())
    with pytest.raises(MessageTooLarge, match="the server's limit is 1000 bytes"):
        made.publish("a", "x" * 1000)
    await turns()
    assert session.sent == []
    assert made.counts == (0, 0, 0, 1)


BAD_TOPICS = [
    ("", "is empty"),
    ("x" * (TOPIC_MAX + 1), "has more than 256 characters"),
    ("." * 32, "has more than 32 levels"),
    ("room*", "may have '*' only as a whole level"),
    ("sensors.>.a", "may have '>' only as its last level, whole"),
    ("rpc.hub.clients", "begins with 'rpc.', which is reserved"),
    ("rpc.>", "begins with 'rpc.', which is reserved"),
    ("rpc.", "begins with 'rpc.', which is reserved"),
]


@pytest.mark.parametrize(("topic", "reason"), BAD_TOPICS)
async def test_what_is_no_topic_is_refused_with_the_reason(topic: str, reason: str) -> None:
    made = Fixture()
    for publish in (made.publish, made.topics.forward):
        with pytest.raises(ValueError, match="the topic '"):
            publish(topic, b"1")
    with pytest.raises(InvalidParams, match=re.escape(reason)) as caught:
        made.join(topic)
    assert caught.value.data == {"parameter": "topic", "path": "$.topic", "reason": f"the topic {reason}"}
    assert (made.counts, dict(made.topics)) == ((0, 0, 0, 0), {})


async def test_a_topic_is_a_str() -> None:
    with pytest.raises(TypeError, match="a topic is a str, got int"):
        Fixture().publish(5, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["a", "räume.2", "x" * TOPIC_MAX, "with space", "\n\0", "rpc", "🎈"])
async def test_any_other_text_is_a_topic(topic: str) -> None:
    made = Fixture()
    session = made.join(topic)
    assert made.publish(topic, 1) == 1
    await turns()
    assert b"\n" not in session.sent[0]
    assert orjson.loads(session.sent[0])["params"]["topic"] == topic


async def test_subscribing_again_is_the_same_and_the_reply_says_what_holds() -> None:
    made = Fixture(max_events=7, policy="drop_newest")
    session = made.join("a", "a")
    reply = made.topics.subscribe(session, "a")  # type: ignore[arg-type]
    assert reply == {"topic": "a", "queue": 7, "policy": "drop_newest"}
    assert made.publish("a", 1) == 1
    await turns()
    assert session.values == [1]
    assert made.counts == (1, 1, 0, 1)


async def test_one_connection_has_so_many_subscriptions() -> None:
    made = Fixture(max_subscriptions=2)
    session = made.join("a", "b", "a")
    with pytest.raises(ServerBusy) as caught:
        made.topics.subscribe(session, "c")  # type: ignore[arg-type]
    assert caught.value.data == {"limit": 2}
    made.join("a", "b")
    assert made.topics.unsubscribe(session, "a") is True  # type: ignore[arg-type]
    made.topics.subscribe(session, "c")  # type: ignore[arg-type]
    assert dict(made.topics) == {"a": 1, "b": 2, "c": 1}


async def test_unsubscribing_ends_also_what_waits() -> None:
    made = Fixture()
    session = made.join("a", "b")
    for number in range(3):
        made.publish("a", number)
        made.publish("b", number)
    assert made.topics.unsubscribe(session, "a") is True  # type: ignore[arg-type]
    assert made.topics.unsubscribe(session, "a") is False  # type: ignore[arg-type]
    assert made.topics.unsubscribe(FakeSession(), "b") is False  # type: ignore[arg-type]
    assert made.publish("a", 3) == 0
    await turns()
    assert session.values == [0, 1, 2]
    assert made.counts == (7, 3, 3, 1)


async def test_a_lost_connection_leaves_nothing_behind() -> None:
    made = Fixture()
    session, other = made.join("a", "b", stalled=True), made.join("a")
    for number in range(3):
        made.publish("a", number)
    session.lose()
    assert dict(made.topics) == {"a": 1}
    assert made.publish("a", 3) == 1
    await turns()
    assert (session.sent, other.values) == ([], [0, 1, 2, 3])
    assert made.counts == (4, 4, 3, 1)
    other.lose()
    await turns()
    assert (dict(made.topics), made.topics._table.subscribers, made.topics._delivery.due) == ({}, {}, [])


# -- those who are slow ------------------------------------------------------------------------------------------------


async def test_while_the_peer_does_not_read_events_wait_in_order() -> None:
    made = Fixture()
    session, other = made.join("a", "b", stalled=True), made.join("a")
    for number in range(4):
        made.publish("ab"[number % 2], number)
        await turns()
    assert (session.sent, other.values) == ([], [0, 2])
    session.write_gate.set_stalled(False)
    made.publish("a", 4)
    await turns()
    assert session.values == [0, 1, 2, 3, 4]
    assert made.counts == (5, 8, 0, 3)


@pytest.mark.parametrize(("policy", "values"), [("drop_oldest", [7, 8, 9, "rare"]), ("drop_newest", [0, 1, 2, "rare"])])
async def test_events_of_one_turn_are_bounded_like_those_of_a_stall(policy: str, values: list[Any]) -> None:
    for stalled in (False, True):
        made = Fixture(max_events=3, policy=policy)
        session = made.join("a", "b", stalled=stalled)
        taken = [made.publish("a", number) for number in range(10)]
        assert sum(taken) == (10 if policy == "drop_oldest" else 3)
        made.publish("b", "rare")
        await turns()
        session.write_gate.set_stalled(False)
        await turns()
        assert session.values == values
        assert made.counts == (11, 4, 7, 2)


@pytest.mark.parametrize("stalled", [False, True])
async def test_who_is_too_slow_may_be_disconnected(stalled: bool, caplog: pytest.LogCaptureFixture) -> None:
    made = Fixture(max_events=3, policy="disconnect")
    session, other = made.join("a", stalled=stalled), made.join("b")
    made.publish("a", 0)
    await turns()
    with caplog.at_level(logging.WARNING, "rpcstream.server"):
        for number in range(1, 6):
            made.publish("a", number)
            if number < 3:
                made.publish("b", number)
        await turns()
    assert len(session.aborted) == 1
    assert "event_queue 3" in session.aborted[0]
    assert caplog.messages == [f"closed the connection from far:1: {session.aborted[0]}"]
    assert (dict(made.topics), made.counters.closed_for_limits) == ({"b": 1}, 1)
    assert other.values == [1, 2]
    assert made.counts == (8, 2 if stalled else 3, 4, 1), "three that waited, and the one too many"


async def test_all_that_waits_for_one_connection_is_no_more_than_a_message_may_be() -> None:
    made = Fixture(max_message_size=11_000)
    session = made.join("a", "b", "c", stalled=True)
    for number in range(30):
        made.publish("abc"[number % 3], str(number) + "x" * 3000)
    queue = next(iter(made.topics._table.subscribers.values())).queue
    assert queue.size <= 11_000
    session.write_gate.set_stalled(False)
    await turns()
    assert [value.strip("x") for value in session.values] == ["27", "28", "29"]
    assert made.counts == (30, 3, 27, 3)


async def test_an_event_has_a_size_of_its_own() -> None:
    made = Fixture(max_event_size=1000)
    session = made.join("a")
    with pytest.raises(MessageTooLarge) as caught:
        made.publish("a", "x" * 1000)
    assert caught.value.data["limit"] == 1000
    with pytest.raises(MessageTooLarge):
        made.publish("a", "x" * 1000, retain=True)
    with pytest.raises(MessageTooLarge):
        made.topics.forward("a", b"x" * 1001)
    made.publish("a", "x" * 900)
    await turns()
    assert [len(value) for value in session.values] == [900]


async def test_what_waits_for_all_connections_has_a_budget_and_leaves_room_for_each() -> None:
    made = Fixture(max_events=1000, max_waiting_total=100_000)
    slow = [made.join(f"t{number}", stalled=True) for number in range(9)]
    for turn in range(300):
        for number in range(9):
            made.publish(f"t{number}", f"{turn}" + "x" * 1000)
    room = made.topics.memory
    assert 50_000 < room.used <= 100_000
    assert room.free >= 5_000
    late = made.join("late", stalled=True)
    assert made.publish("late", 1) == 1
    assert made.publish("late", 2) == 1
    for session in (*slow, late):
        session.write_gate.set_stalled(False)
    await turns(50)
    assert late.values == [1, 2]
    assert all(session.values[-1].startswith("299x") for session in slow)
    assert room.used == 0


async def test_one_event_for_many_takes_its_memory_once() -> None:
    made = Fixture(max_events=1000, max_waiting_total=100_000)
    slow = [made.join("t", stalled=True) for _ in range(30)]
    made.publish("t", "x" * 40_000)
    room = made.topics.memory
    assert 40_000 < room.used < 60_000
    assert all(len(made.topics._table.subscribers[session].queue) == 1 for session in slow)  # type: ignore[index]
    for session in slow[:29]:
        session.lose()
    assert 40_000 < room.used < 41_000
    slow[29].lose()
    assert room.used == 0


async def test_one_connection_gets_a_share_a_turn_until_it_shows_that_it_is_full() -> None:
    made = Fixture(max_events=1000)
    session, other = made.join("big"), made.join("small")
    for _ in range(100):
        made.publish("big", "x" * 10_000)
    made.publish("small", 1)
    await asyncio.sleep(0)
    first = sum(map(len, session.sent))
    assert SHARE <= first < SHARE + 11_000
    assert other.values == [1], "the others have their share in the same turn"
    session.write_gate.stalled = True
    await turns()
    assert sum(map(len, session.sent)) == first
    session.write_gate.set_stalled(False)
    await turns(100)
    assert len(session.sent) == 100


async def test_what_waits_to_be_written_counts() -> None:
    made = Fixture()
    session = made.join("a")
    session.write_gate.unsent = 2 * 1024 * 1024
    made.publish("a", 1)
    await turns()
    assert session.sent == []
    session.write_gate.unsent = 0
    await turns()
    assert session.values == [1]


async def test_a_connection_that_drains_gets_no_more() -> None:
    made = Fixture()
    session = made.join("a")
    made.publish("a", 1)
    session.is_open = False
    assert made.publish("a", 2) == 0
    await turns()
    assert (session.sent, dict(made.topics)) == ([], {})
    assert made.counts == (2, 0, 1, 0)


# -- threads -----------------------------------------------------------------------------------------------------------


async def test_threads_may_publish() -> None:
    made = Fixture(max_events=100_000)
    session = made.join("a")

    def work(name: int) -> None:
        for number in range(500):
            assert made.publish("a", [name, number]) == 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    made.publish("a", [4, 0])
    while any(thread.is_alive() for thread in threads) or len(session.sent) < 2001:
        await asyncio.sleep(0)
    for name in range(4):
        assert [value[1] for value in session.values if value[0] == name] == list(range(500))
    assert made.counts == (2001, 2001, 0, 1)


async def test_a_thread_that_does_not_let_the_loop_run_is_bounded_too() -> None:
    made = Fixture(max_events=10)
    session = made.join("a")
    thread = threading.Thread(target=lambda: [made.publish("a", number) for number in range(1000)])
    thread.start()
    thread.join()  # the loop stands still meanwhile
    await turns()
    assert session.values == list(range(990, 1000))
    assert made.counts == (1000, 10, 990, 1)


def test_topics_serve_one_loop_after_another() -> None:
    made = Fixture()

    async def leave_something_behind() -> None:
        session = made.join("a")
        made.publish("a", 1)
        session.lose()  # and the loop ends before anything was sent

    async def serve() -> list[Any]:
        session = made.join("a")
        made.publish("a", 2)
        await turns()
        return session.values

    asyncio.run(leave_something_behind())
    assert made.publish("a", 0) == 0
    assert asyncio.run(serve()) == [2]


@pytest.mark.parametrize("options", [{"max_events": 0}, {"policy": "wait"}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"room for at least|policy must be"):
        Fixture(**options)
