"""Topics without a socket: which event is sent to which connection, when, and the counters."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import EncodeError, InvalidParams, MessageTooLarge, ServerBusy
from rpcstream.events.patterns import TOPIC_MAX
from rpcstream.events.subscriptions import SHARE

from ..internals import remains_of, subscription_table
from .event_setup import EventSetup, FakeConnection, event_message, turns


async def test_a_value_goes_to_those_who_have_subscribed_to_its_topic() -> None:
    setup = EventSetup()
    one, two, other = setup.join("a", "b"), setup.join("a"), setup.join("b")
    assert (dict(setup.topics), len(setup.topics)) == ({"a": 2, "b": 2}, 2)
    assert setup.publish("a", 1) == 2
    assert setup.publish("b", "x") == 2
    assert setup.publish("c", None) == 0
    await turns()
    assert (one.values, two.values, other.values) == ([1, "x"], [1], ["x"])
    message = orjson.loads(two.sent[0])
    assert message == {"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": 1}}
    assert setup.counts == (3, 4, 0, 4)


async def test_a_value_is_encoded_once_and_not_at_all_for_nobody() -> None:
    setup = EventSetup()
    assert setup.publish("a", object()) == 0, "it is not looked at"
    connections = [setup.join("a") for _ in range(3)]
    setup.publish("a", np.zeros(100_000))
    await turns()
    assert connections[0].sent[0] is connections[1].sent[0] is connections[2].sent[0]


async def test_nothing_is_sent_in_the_turn_in_which_it_is_published() -> None:
    setup = EventSetup()
    connection = setup.join("a")
    setup.publish("a", 1)
    assert connection.sent == []
    await turns()
    assert connection.values == [1]


async def test_what_cannot_be_sent_is_said_to_the_publisher_and_sent_to_nobody() -> None:
    setup = EventSetup(max_message_size=1000)
    connection = setup.join("a")
    with pytest.raises(EncodeError, match="object"):
        setup.publish("a", object())
    with pytest.raises(MessageTooLarge, match="the server's limit is 1000 bytes"):
        setup.publish("a", "x" * 1000)
    await turns()
    assert connection.sent == []
    assert setup.counts == (0, 0, 0, 1)


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
    setup = EventSetup()
    for publish in (setup.publish, setup.topics.forward):
        with pytest.raises(ValueError, match="the topic '"):
            publish(topic, b"1")
    with pytest.raises(InvalidParams, match=re.escape(reason)) as caught:
        setup.join(topic)
    assert caught.value.data == {"parameter": "topic", "path": "$.topic", "reason": f"the topic {reason}"}
    assert (setup.counts, dict(setup.topics)) == ((0, 0, 0, 0), {})


async def test_a_topic_is_a_str() -> None:
    with pytest.raises(TypeError, match="a topic is a str, got int"):
        EventSetup().publish(5, 1)


@pytest.mark.parametrize("topic", ["a", "räume.2", "x" * TOPIC_MAX, "with space", "\n\0", "rpc", "🎈"])
async def test_any_other_text_is_a_topic(topic: str) -> None:
    setup = EventSetup()
    connection = setup.join(topic)
    assert setup.publish(topic, 1) == 1
    await turns()
    assert b"\n" not in connection.sent[0]
    assert orjson.loads(connection.sent[0])["params"]["topic"] == topic


async def test_subscribing_again_is_the_same_and_the_reply_says_what_holds() -> None:
    setup = EventSetup(max_events=7, policy="drop_newest")
    connection = setup.join("a", "a")
    reply = setup.topics.subscribe(connection, "a")
    assert reply == {"topic": "a", "queue": 7, "policy": "drop_newest"}
    assert setup.publish("a", 1) == 1
    await turns()
    assert connection.values == [1]
    assert setup.counts == (1, 1, 0, 1)


async def test_one_connection_has_so_many_subscriptions() -> None:
    setup = EventSetup(max_subscriptions=2)
    connection = setup.join("a", "b", "a")
    with pytest.raises(ServerBusy) as caught:
        setup.topics.subscribe(connection, "c")
    assert caught.value.data == {"limit": 2}
    setup.join("a", "b")
    assert setup.topics.unsubscribe(connection, "a") is True
    setup.topics.subscribe(connection, "c")
    assert dict(setup.topics) == {"a": 1, "b": 2, "c": 1}


async def test_unsubscribing_ends_also_what_waits() -> None:
    setup = EventSetup()
    connection = setup.join("a", "b")
    for number in range(3):
        setup.publish("a", number)
        setup.publish("b", number)
    assert setup.topics.unsubscribe(connection, "a") is True
    assert setup.topics.unsubscribe(connection, "a") is False
    assert setup.topics.unsubscribe(FakeConnection(), "b") is False
    assert setup.publish("a", 3) == 0
    await turns()
    assert connection.values == [0, 1, 2]
    assert setup.counts == (7, 3, 3, 1)


async def test_a_lost_connection_leaves_nothing_behind() -> None:
    setup = EventSetup()
    connection, other = setup.join("a", "b", stalled=True), setup.join("a")
    for number in range(3):
        setup.publish("a", number)
    connection.lose()
    assert dict(setup.topics) == {"a": 1}
    assert setup.publish("a", 3) == 1
    await turns()
    assert (connection.sent, other.values) == ([], [0, 1, 2, 3])
    assert setup.counts == (4, 4, 3, 1)
    other.lose()
    await turns()
    assert remains_of(setup.topics) == []


# -- those who are slow ------------------------------------------------------------------------------------------------


async def test_while_the_peer_does_not_read_events_wait_in_order() -> None:
    setup = EventSetup()
    connection, other = setup.join("a", "b", stalled=True), setup.join("a")
    for number in range(4):
        setup.publish("ab"[number % 2], number)
        await turns()
    assert (connection.sent, other.values) == ([], [0, 2])
    connection.write_gate.set_stalled(False)
    setup.publish("a", 4)
    await turns()
    assert connection.values == [0, 1, 2, 3, 4]
    assert setup.counts == (5, 8, 0, 3)


@pytest.mark.parametrize(("policy", "values"), [("drop_oldest", [7, 8, 9, "rare"]), ("drop_newest", [0, 1, 2, "rare"])])
async def test_events_of_one_turn_are_bounded_like_those_of_a_stall(policy: str, values: list[Any]) -> None:
    for stalled in (False, True):
        setup = EventSetup(max_events=3, policy=policy)
        connection = setup.join("a", "b", stalled=stalled)
        taken = [setup.publish("a", number) for number in range(10)]
        assert sum(taken) == (10 if policy == "drop_oldest" else 3)
        setup.publish("b", "rare")
        await turns()
        connection.write_gate.set_stalled(False)
        await turns()
        assert connection.values == values
        assert setup.counts == (11, 4, 7, 2)


@pytest.mark.parametrize("stalled", [False, True])
async def test_who_is_too_slow_may_be_disconnected(stalled: bool, caplog: pytest.LogCaptureFixture) -> None:
    setup = EventSetup(max_events=3, policy="disconnect")
    connection, other = setup.join("a", stalled=stalled), setup.join("b")
    setup.publish("a", 0)
    await turns()
    with caplog.at_level(logging.WARNING, "rpcstream.server"):
        for number in range(1, 6):
            setup.publish("a", number)
            if number < 3:
                setup.publish("b", number)
        await turns()
    assert len(connection.aborted) == 1
    assert "event_queue 3" in connection.aborted[0]
    assert caplog.messages == [f"closed the connection from far:1: {connection.aborted[0]}"]
    assert (dict(setup.topics), setup.counters.closed_for_limits) == ({"b": 1}, 1)
    assert other.values == [1, 2]
    assert setup.counts == (8, 2 if stalled else 3, 4, 1), "three that waited, and the one too many"


async def test_all_that_waits_for_one_connection_is_no_more_than_a_message_may_be() -> None:
    setup = EventSetup(max_message_size=11_000)
    connection = setup.join("a", "b", "c", stalled=True)
    for number in range(30):
        setup.publish("abc"[number % 3], str(number) + "x" * 3000)
    queue = next(iter(subscription_table(setup.topics).subscribers.values())).queue
    assert queue.size <= 11_000
    connection.write_gate.set_stalled(False)
    await turns()
    assert [value.strip("x") for value in connection.values] == ["27", "28", "29"]
    assert setup.counts == (30, 3, 27, 3)


async def test_an_event_has_a_size_of_its_own() -> None:
    setup = EventSetup(max_event_size=1000)
    connection = setup.join("a")
    with pytest.raises(MessageTooLarge) as caught:
        setup.publish("a", "x" * 1000)
    assert caught.value.data["limit"] == 1000
    with pytest.raises(MessageTooLarge):
        setup.publish("a", "x" * 1000, retain=True)
    with pytest.raises(MessageTooLarge):
        setup.topics.forward("a", b"x" * 1001)
    setup.publish("a", "x" * 900)
    await turns()
    assert [len(value) for value in connection.values] == [900]


async def test_what_waits_for_all_connections_has_a_budget_and_leaves_room_for_each() -> None:
    setup = EventSetup(max_events=1000, max_waiting_total=100_000)
    slow = [setup.join(f"t{number}", stalled=True) for number in range(9)]
    for turn in range(300):
        for number in range(9):
            setup.publish(f"t{number}", f"{turn}" + "x" * 1000)
    memory = setup.topics.memory
    assert 50_000 < memory.used <= 100_000
    assert memory.free >= 5_000
    late = setup.join("late", stalled=True)
    assert setup.publish("late", 1) == 1
    assert setup.publish("late", 2) == 1
    for connection in (*slow, late):
        connection.write_gate.set_stalled(False)
    await turns(50)
    assert late.values == [1, 2]
    assert all(connection.values[-1].startswith("299x") for connection in slow)
    assert memory.used == 0


async def test_one_event_for_many_takes_its_memory_once() -> None:
    setup = EventSetup(max_events=1000, max_waiting_total=100_000)
    slow = [setup.join("t", stalled=True) for _ in range(30)]
    setup.publish("t", "x" * 40_000)
    memory = setup.topics.memory
    assert 40_000 < memory.used < 60_000
    assert all(len(subscription_table(setup.topics).subscribers[connection].queue) == 1 for connection in slow)
    for connection in slow[:29]:
        connection.lose()
    assert 40_000 < memory.used < 41_000
    slow[29].lose()
    assert memory.used == 0


async def test_one_connection_gets_a_share_a_turn_until_it_shows_that_it_is_full() -> None:
    setup = EventSetup(max_events=1000)
    connection, other = setup.join("big"), setup.join("small")
    for _ in range(100):
        setup.publish("big", "x" * 10_000)
    setup.publish("small", 1)
    await asyncio.sleep(0)
    first = sum(map(len, connection.sent))
    assert SHARE <= first < SHARE + 11_000
    assert other.values == [1], "the others have their share in the same turn"
    connection.write_gate.stalled = True
    await turns()
    assert sum(map(len, connection.sent)) == first
    connection.write_gate.set_stalled(False)
    await turns(100)
    assert len(connection.sent) == 100


async def test_what_waits_to_be_written_counts() -> None:
    setup = EventSetup()
    connection = setup.join("a")
    connection.write_gate.unsent = 2 * 1024 * 1024
    setup.publish("a", 1)
    await turns()
    assert connection.sent == []
    connection.write_gate.unsent = 0
    await turns()
    assert connection.values == [1]


async def test_a_connection_that_drains_gets_no_more() -> None:
    setup = EventSetup()
    connection = setup.join("a")
    setup.publish("a", 1)
    connection.is_open = False
    assert setup.publish("a", 2) == 0
    await turns()
    assert (connection.sent, dict(setup.topics)) == ([], {})
    assert setup.counts == (2, 0, 1, 0)


# -- messages that are ready ------------------------------------------------------------------------------------------


async def test_messages_are_forwarded_as_they_are() -> None:
    setup = EventSetup(max_message_size=1000)
    connection = setup.join("a.*")
    ready = event_message("a.b", 1) + b" "
    assert setup.topics.forward("a.b", ready, retain=True) == 1
    assert setup.topics.forward("c", event_message("c", 2)) == 0
    with pytest.raises(MessageTooLarge):
        setup.topics.forward("a.b", event_message("a.b", "x" * 1000))
    late = setup.join("a.b")
    await turns()
    assert connection.sent == late.sent == [ready]
    assert connection.sent[0] is ready
    assert setup.counts == (2, 2, 0, 2)


# -- threads -----------------------------------------------------------------------------------------------------------


async def test_threads_may_publish() -> None:
    setup = EventSetup(max_events=100_000)
    connection = setup.join("a")

    def work(name: int) -> None:
        for number in range(500):
            assert setup.publish("a", [name, number]) == 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    setup.publish("a", [4, 0])
    while any(thread.is_alive() for thread in threads) or len(connection.sent) < 2001:
        await asyncio.sleep(0)
    for name in range(4):
        assert [value[1] for value in connection.values if value[0] == name] == list(range(500))
    assert setup.counts == (2001, 2001, 0, 1)


async def test_a_thread_that_does_not_let_the_loop_run_is_bounded_too() -> None:
    setup = EventSetup(max_events=10)
    connection = setup.join("a")
    thread = threading.Thread(target=lambda: [setup.publish("a", number) for number in range(1000)])
    thread.start()
    thread.join()  # the loop stands still meanwhile
    await turns()
    assert connection.values == list(range(990, 1000))
    assert setup.counts == (1000, 10, 990, 1)


def test_topics_serve_one_loop_after_another() -> None:
    setup = EventSetup()

    async def leave_something_behind() -> None:
        connection = setup.join("a")
        setup.publish("a", 1)
        connection.lose()  # and the loop ends before anything was sent

    async def serve() -> list[Any]:
        connection = setup.join("a")
        setup.publish("a", 2)
        await turns()
        return connection.values

    asyncio.run(leave_something_behind())
    assert setup.publish("a", 0) == 0
    assert asyncio.run(serve()) == [2]


@pytest.mark.parametrize("options", [{"max_events": 0}, {"policy": "wait"}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"room for at least|policy must be"):
        EventSetup(**options)
