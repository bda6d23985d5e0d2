"""Events between the workers of a server, with links whose messages wait until the test lets them through."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import ServerBusy
from rpcstream.events import relay as relay_module
from rpcstream.events.relay import CHUNK, KINDS, EventRelay, Message, unpacked_event
from rpcstream.supervisor import event_exchange
from rpcstream.supervisor.event_exchange import EventExchange
from rpcstream.wire.buffers import AttachedMessage

from ..events.event_setup import EventSetup, FakeConnection, turns

pytestmark = pytest.mark.slow

RETAINED = 1000, 1_000_000


class Process:
    """A worker of the simulation: its topics, and the link to the middle in both directions."""

    def __init__(self, number: int, cluster: Cluster, **options: Any) -> None:
        self.number = number
        self.cluster = cluster
        self.setup = EventSetup(**options)
        self.topics = self.setup.topics
        self.relay = EventRelay()
        self.topics.join(self.relay)
        self.to_middle: deque[Message] = deque()
        self.to_process: deque[Message] = deque()
        self.full = False

    @property
    def waiting_size(self) -> int:
        return relay_module.WAITING_MAX if self.full else 0

    def send(self, message: Message) -> None:
        self.to_process.append(through_json(message))

    def start(self) -> None:
        self.relay.start(lambda message: self.to_middle.append(through_json(message)), lambda: 0)
        self.cluster.exchange.add(self, *RETAINED)

    def receive(self) -> None:
        self.relay.on_message(self.to_process.popleft())

    def say(self) -> None:
        self.cluster.exchange.on_message(self, self.to_middle.popleft())

    def last(self, topic: str) -> Any:
        message = self.topics.last_value(topic)
        return None if message is None else orjson.loads(bytes(message))["params"]["value"]


class Cluster:
    """Several processes and what is in their middle."""

    def __init__(self, count: int, **options: Any) -> None:
        self.exchange = EventExchange()
        self.processes: list[Process] = []
        self._options = options
        for _ in range(count):
            self.add()

    def add(self) -> Process:
        process = Process(len(self.processes) + 1, self, **self._options)
        self.processes.append(process)
        process.start()
        return process

    def end(self, process: Process) -> None:
        self.processes.remove(process)
        self.exchange.remove(process)

    async def settle(self, *, without: Iterable[Process] = ()) -> None:
        """Let all messages through, in both directions, until there are none; not to and from some processes."""
        processes = [each for each in self.processes if each not in without]
        while True:
            await turns()
            if not any(each.to_middle or each.to_process for each in processes):
                return
            for each in processes:
                while each.to_middle:
                    each.say()
                while each.to_process:
                    each.receive()


def through_json(message: Message) -> Message:
    """The message as it comes out of the channel."""
    assert message["type"] in KINDS
    body = message.get("body")
    copy: Message = orjson.loads(orjson.dumps({name: value for name, value in message.items() if name != "body"}))
    return copy if body is None else {**copy, "body": bytes(body)}


async def cluster_of(count: int, **options: Any) -> Cluster:
    cluster = Cluster(count, **options)
    await cluster.settle()
    return cluster


async def test_an_event_reaches_the_subscribers_of_all_processes_and_the_count_is_of_all() -> None:
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    there = [process.setup.join("news") for process in (one, two, two, three)]
    await cluster.settle()
    assert [process.topics.publish("news", "hello") for process in (one, two, three)] == [4, 4, 4]
    assert one.topics.publish("other", 1) == 0
    await cluster.settle()
    assert [connection.values for connection in there] == [["hello"] * 3] * 4
    assert dict(one.topics) == dict(three.topics) == {"news": 4}
    assert len(two.topics) == 1
    assert [process.setup.counters.events_published for process in cluster.processes] == [2, 1, 1]


async def test_the_number_counts_each_connection_once_and_not_those_that_are_denied() -> None:
    cluster = await cluster_of(2)
    one, two = cluster.processes
    both = two.setup.join("a.b", "a.*", "a.>")
    denied = two.setup.join()
    two.setup.subscribe(denied, "a.*", "a.b")
    await cluster.settle()
    assert one.topics.publish("a.b", 1) == 1
    assert one.topics.publish("a.c", 2) == 2
    await cluster.settle()
    two.setup.subscribe(denied, "a.*")  # allowed now
    await cluster.settle()
    assert one.topics.publish("a.b", 3) == 2
    await cluster.settle()
    two.setup.unsubscribe(both, "a.*")
    two.setup.unsubscribe(both, "a.b")
    await cluster.settle()
    assert one.topics.publish("a.c", 4) == 2
    await cluster.settle()
    both.lose()
    await cluster.settle()
    assert one.topics.publish("a.c", 5) == 1
    await cluster.settle()
    assert (both.values, denied.values) == ([1, 2, 3, 4], [2, 3, 4, 5])


async def test_events_go_only_to_processes_with_subscribers() -> None:
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    two.setup.join("a")
    await cluster.settle()
    one.topics.publish("a", 1)
    await turns()
    (message,) = one.to_middle
    assert message["to"] == [two.number]
    one.say()
    assert not three.to_process
    assert len(two.to_process) == 1


@pytest.mark.parametrize("seed", range(30))
async def test_all_processes_come_to_the_same_last_values_in_whatever_order_messages_pass(seed: int) -> None:
    choose = random.Random(seed)
    cluster = await cluster_of(3, max_events=1000)
    seen: dict[int, FakeConnection] = {each.number: each.setup.join(">") for each in cluster.processes}
    await cluster.settle()
    value = 0
    for _ in range(150):
        process = choose.choice(cluster.processes)
        step = choose.random()
        if step < 0.35:
            value += 1
            kept = choose.random() < 0.8
            is_last = kept and choose.random() < 0.2
            process.topics.publish(choose.choice("xyz"), None if is_last else (process.number, value), retain=kept)
            await turns(1)
        elif step < 0.4:
            process.topics.forget(choose.choice("xyz"))
        elif process.to_middle and step < 0.7:
            process.say()
        elif process.to_process:
            process.receive()
    await cluster.settle()
    late = cluster.add()
    await cluster.settle()
    for topic in "xyz":
        assert len({orjson.dumps(each.last(topic)) for each in (*cluster.processes, late)}) == 1
    for connection in seen.values():  # each publisher's events in its order
        got = [each for each in connection.values if each is not None]
        for number in seen:
            own = [each for process, each in got if process == number]
            assert own == sorted(own)
    assert len({len(connection.values) for connection in seen.values()}) == 1


async def test_a_reply_to_a_subscription_waits_until_all_know_of_it_and_comes_before_events() -> None:
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    connection = one.setup.join()
    reply = asyncio.create_task(one.topics.subscribe_everywhere(connection, "news"))
    await turns()
    assert one.topics.publish("news", "own") == 1
    await cluster.settle(without=[three])
    assert two.topics.publish("news", "of two") == 1
    await cluster.settle(without=[three])
    assert not reply.done()
    assert connection.sent == []
    await cluster.settle()
    assert (await reply)["topic"] == "news"
    await turns()
    assert connection.values == ["own", "of two"]
    assert three.topics.publish("news", 3) == 1


async def test_a_process_that_does_not_answer_delays_a_subscription_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_exchange, "SETTLE_TIME", 0.01)
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    connection = one.setup.join()
    reply = asyncio.create_task(one.topics.subscribe_everywhere(connection, "news"))
    while not reply.done():
        await cluster.settle(without=[three])
        await asyncio.sleep(0.001)
    assert two.topics.publish("news", 1) == 1
    await cluster.settle()
    assert three.topics.publish("news", 2) == 1


async def test_a_subscription_whose_request_is_cancelled_does_not_stand() -> None:
    cluster = await cluster_of(2)
    one, two = cluster.processes
    connection = one.setup.join("before")
    await cluster.settle()
    for topic in ("news", "before"):
        reply = asyncio.create_task(one.topics.subscribe_everywhere(connection, topic))
        await turns()
        reply.cancel()
        await asyncio.wait([reply])
    await cluster.settle()
    assert (two.topics.publish("news", 1), two.topics.publish("before", 2)) == (0, 1)
    await cluster.settle()
    assert connection.values == [2]


async def test_what_is_published_before_the_start_reaches_the_others() -> None:
    cluster = await cluster_of(1)
    (one,) = cluster.processes
    connection = one.setup.join("boot")
    two = Process(2, cluster)
    cluster.processes.append(two)
    two.topics.publish("boot", "begun")
    two.topics.publish("state", "warm", retain=True)
    two.start()
    await cluster.settle()
    assert connection.values == ["begun"]
    assert one.last("state") == "warm"


async def test_a_process_that_ends_has_no_subscribers_any_more() -> None:
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    for number in range(5):
        two.setup.join(f"a.{number}", "a.*")
    await cluster.settle()
    assert one.topics.publish("a.1", 1) == 5
    cluster.end(two)
    await cluster.settle()
    assert one.topics.publish("a.1", 1) == three.topics.publish("a.1", 1) == 0
    assert dict(one.topics) == {}


async def test_a_process_that_ends_is_not_waited_for() -> None:
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    reply = asyncio.create_task(one.topics.subscribe_everywhere(one.setup.join(), "news"))
    await cluster.settle(without=[three])
    assert not reply.done()
    cluster.end(three)
    await cluster.settle()
    await reply
    assert two.topics.publish("news", 1) == 1


async def test_last_values_that_find_no_room_come_later_and_other_events_are_counted_as_dropped() -> None:
    cluster = await cluster_of(2)
    one, two = cluster.processes
    connection = two.setup.join(">")
    await cluster.settle()
    two.full = True
    for number in range(3):
        one.topics.publish("kept", number, retain=True)
        one.topics.publish("gone", number, retain=True)
        one.topics.publish("news", number)
    one.topics.publish("gone", None, retain=True)
    await cluster.settle()
    assert one.setup.counters.events_dropped == 10
    assert connection.sent == []
    two.full = False
    cluster.exchange.on_room(two)
    await cluster.settle()
    assert (two.last("kept"), two.last("gone")) == (2, None)
    assert connection.values == [2]


async def test_own_last_values_that_find_no_room_are_sent_when_there_is() -> None:
    cluster = await cluster_of(1)
    (one,) = cluster.processes
    slow = Process(2, cluster)
    cluster.processes.append(slow)
    waiting = relay_module.WAITING_MAX
    slow.relay.start(lambda message: slow.to_middle.append(through_json(message)), lambda: waiting)
    cluster.exchange.add(slow, *RETAINED)
    await cluster.settle()
    connection = one.setup.join(">")
    await cluster.settle()
    assert slow.topics.publish("news", 1) == 0
    slow.topics.publish("state", "on", retain=True)
    await cluster.settle()
    assert (one.last("state"), connection.sent) == (None, [])
    assert slow.setup.counters.events_dropped == 2
    waiting = 0
    slow.relay.on_room()
    await cluster.settle()
    assert (one.last("state"), connection.values) == ("on", ["on"])


async def test_with_too_many_changes_a_process_is_told_all_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "CHANGES_MAX", 50)
    cluster = await cluster_of(3)
    one, two, three = cluster.processes
    old = one.setup.join("old")
    await cluster.settle()
    connections = [one.setup.join(f"t.{number}", "t.*") for number in range(40)]
    await cluster.settle(without=[three])
    assert two.topics.publish("t.7", 1) == 40
    old.lose()
    for connection in connections[:35]:
        connection.lose()
    await cluster.settle()
    assert dict(two.topics) == dict(three.topics) == dict(one.topics)
    assert three.topics.publish("t.39", 1) == 5
    assert three.topics.publish("old", 1) == 0


async def test_changes_are_sent_in_pieces() -> None:
    cluster = await cluster_of(1)
    (one,) = cluster.processes
    for _ in range(3):
        one.setup.join(*[f"t.{number}" for number in range(500)])
    two = cluster.add()
    await cluster.settle()
    assert len(two.topics) == 500
    three = Process(3, cluster)
    three.start()
    assert [len(each["changes"]) for each in three.to_process] == [CHUNK, 500]


async def test_flapping_subscriptions_are_told_combined() -> None:
    cluster = await cluster_of(2)
    one, two = cluster.processes
    connection = one.setup.join()
    for _ in range(100):
        one.setup.subscribe(connection, "a")
        one.setup.unsubscribe(connection, "a")
        one.setup.join("b").lose()
    await turns()
    assert [each["changes"] for each in one.to_middle] == [[[1, "a", None]]]
    await cluster.settle()
    assert dict(two.topics) == {}


async def test_the_limits_of_subscriptions_hold_for_all_processes_together() -> None:
    cluster = await cluster_of(2, max_subscriptions_total=10, max_pattern_steps_total=8)
    one, two = cluster.processes
    two.setup.join(*"abcdefg")
    await cluster.settle()
    one.setup.join(*"abc")
    with pytest.raises(ServerBusy, match="max_subscriptions_total"):
        one.setup.join("d")
    await cluster.settle()
    assert set(two.topics) == set("abcdefg")
    assert two.topics["a"] == 2


async def test_the_steps_of_patterns_are_counted_together() -> None:
    cluster = await cluster_of(2, max_pattern_steps_total=8)
    one, two = cluster.processes
    two.setup.join("*.*.*", ">")
    await cluster.settle()
    with pytest.raises(ServerBusy, match="max_pattern_steps_total"):
        one.setup.join("*.*.*.*", "a.*.*", "*.b.>")


async def test_payloads_stay_attached_between_processes() -> None:
    cluster = await cluster_of(2)
    one, two = cluster.processes
    connection = two.setup.join("image")
    two.topics.attach_payloads()
    await cluster.settle()
    array = np.arange(10_000, dtype=np.float32)
    assert one.topics.publish("image", {"a": array, "b": [array[:5000]]}, retain=True) == 1
    await cluster.settle()
    (message,) = connection.sent
    assert isinstance(message, AttachedMessage)
    assert [bytes(each) for each in message.payloads] == [array.tobytes(), array[:5000].tobytes()]
    late = cluster.add()
    await cluster.settle()
    kept = late.topics.last_value("image")
    assert isinstance(kept, AttachedMessage)
    assert bytes(kept.payloads[0]) == array.tobytes()
    assert late.topics.publish("image", array) == 1
    await turns()
    assert isinstance(unpacked_event(late.to_middle[-1]), AttachedMessage)


async def test_last_values_over_the_limit_of_another_process_are_said_and_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = await cluster_of(2, max_retained=2)
    one, two = cluster.processes
    connection = two.setup.join(">")
    await cluster.settle()
    two.topics.publish("a", 1, retain=True)
    two.topics.publish("b", 2, retain=True)
    one.topics.publish("c", 3, retain=True)
    await cluster.settle()
    assert connection.values == [1, 2, 3]
    assert "is not kept" in caplog.text


async def test_the_middle_keeps_as_much_as_the_workers_that_started_last(caplog: pytest.LogCaptureFixture) -> None:
    cluster = await cluster_of(1)
    (one,) = cluster.processes
    for topic in "abc":
        one.topics.publish(topic, topic, retain=True)
    await cluster.settle()
    two = Process(2, cluster)
    two.relay.start(lambda message: two.to_middle.append(message), lambda: 0)
    cluster.exchange.add(two, 2, 1000)
    cluster.processes.append(two)
    await cluster.settle()
    assert [two.last(topic) for topic in "abc"] == [None, "b", "c"]
    one.topics.publish("d", 1, retain=True)
    await cluster.settle()
    assert "is not kept for workers that start later" in caplog.text
