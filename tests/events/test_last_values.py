"""Last values without a socket: kept for later subscribers, in order and in bounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rpcstream import ServerBusy

from ..internals import subscription_table
from .event_setup import EventSetup, FakeConnection, event_message, turns


async def test_the_last_value_is_sent_to_later_subscribers_first() -> None:
    setup = EventSetup()
    early = setup.join("state.*")
    assert setup.publish("state.door", "open", retain=True) == 1
    assert setup.publish("state.door", "shut", retain=True) == 1
    assert setup.publish("state.light", "on", retain=True) == 1
    assert setup.publish("state.door", "creaks") == 1
    late, exact = setup.join("state.>"), setup.join("state.door")
    setup.publish("state.light", "off")
    await turns()
    assert early.values == ["open", "shut", "on", "creaks", "off"]
    assert late.values == ["shut", "on", "off"]
    assert exact.values == ["shut"]
    setup.subscribe(late, "state.>")
    await turns()
    assert len(late.sent) == 3, "subscribing again does not send them again"
    assert setup.unsubscribe(late, "state.>")
    setup.subscribe(late, "state.>")
    await turns()
    assert late.values[3:] == ["shut", "on"]


async def test_last_values_come_in_the_order_of_the_last_publication() -> None:
    setup = EventSetup()
    for number, topic in enumerate("abcab"):
        setup.publish(topic, number, retain=True)
    connection = setup.join(">")
    await turns()
    assert connection.values == [2, 3, 4]


async def test_null_is_sent_and_forgets() -> None:
    setup = EventSetup()
    early = setup.join("a")
    setup.publish("a", 1, retain=True)
    assert setup.publish("a", None, retain=True) == 1
    late = setup.join("a")
    await turns()
    assert (early.values, late.values) == ([1, None], [])
    assert setup.publish("b", None, retain=True) == 0
    setup.publish("b", 1, retain=True)
    assert (setup.topics.forget("b"), setup.topics.forget("b")) == (True, False)
    assert setup.join("b").sent == []


async def test_what_is_denied_is_no_last_value_either() -> None:
    setup = EventSetup()
    for topic in ("a.x", "a.secret"):
        setup.publish(topic, topic, retain=True)
    connection = FakeConnection()
    setup.subscribe(connection, "a.*", "*.secret")
    await turns()
    assert connection.values == ["a.x"]


async def test_what_cannot_be_kept_is_sent_to_nobody() -> None:
    setup = EventSetup(max_retained=1, max_retained_size=1000)
    connection = setup.join(">")
    setup.publish("a", 1, retain=True)
    with pytest.raises(ServerBusy):
        setup.publish("b", 2, retain=True)
    with pytest.raises(ServerBusy):
        setup.topics.forward("b", event_message("b", 2), retain=True)
    with pytest.raises(ServerBusy):
        setup.publish("a", "x" * 1000, retain=True)
    setup.publish("b", 3)
    setup.publish("b", None, retain=True)
    await turns()
    assert connection.values == [1, 3, None]
    assert setup.counters.events_published == 3
    late = setup.join(">")
    await turns()
    assert late.values == [1]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
async def test_the_newest_last_values_wait_and_push_nothing_out(policy: str) -> None:
    setup = EventSetup(max_events=3, policy=policy)
    for number in range(10):
        setup.publish(f"a.{number}", number, retain=True)
    connection = setup.join("b", stalled=True)
    setup.publish("b", "before")
    setup.subscribe(connection, "a.*")
    setup.subscribe(connection, ">")
    connection.write_gate.set_stalled(False)
    await turns()
    assert connection.values == ["before", 7, 8, 9, 7, 8, 9]
    assert connection.aborted == []
    assert setup.counters.events_dropped == 14


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
async def test_the_bytes_of_last_values_are_bounded_by_those_of_the_queue(policy: str) -> None:
    setup = EventSetup(max_events=100, policy=policy, max_message_size=11_000)
    for number in range(5):
        setup.publish(f"a.{number}", str(number) + "x" * 3000, retain=True)
    connection, other = setup.join("a.*", stalled=True), setup.join("a.0", "a.*", stalled=True)
    queue = subscription_table(setup.topics).subscribers[connection].queue
    assert queue.size <= 11_000
    for each in (connection, other):
        each.write_gate.set_stalled(False)
    await turns()
    assert [value[0] for value in connection.values] == ["2", "3", "4"]
    assert [value[0] for value in other.values] == ["0", "3", "4"]
    assert connection.aborted == other.aborted == []


async def test_however_many_patterns_match_no_more_last_values_wait_than_there_may_be() -> None:
    """A connection that does not read, with every pattern that matches them all."""
    setup = EventSetup(max_events=1000, max_retained=100, max_pattern_steps=1000)
    for number in range(100):
        setup.publish(".".join(["x"] * 8 + [str(number)]), number, retain=True)
    connection = FakeConnection(stalled=True)
    for levels in itertools.product("x*", repeat=8):
        setup.subscribe(connection, ".".join(levels) + ".>")
    queue = subscription_table(setup.topics).subscribers[connection].queue
    assert len(queue) == 100
    assert setup.counters.events_dropped == 255 * 100


async def test_large_values_are_kept_as_they_are_sent() -> None:
    setup = EventSetup()
    setup.publish("a", np.zeros(100_000), retain=True)
    one, two = setup.join("a"), setup.join("*")
    await turns()
    assert one.sent[0] is two.sent[0], "nothing was copied"
