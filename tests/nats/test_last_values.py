"""Last values over NATS: in a JetStream bucket, for later subscribers at any instance and on NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, InvalidParams, Limits, NotPermitted, ServerBusy

from ..kit import PATIENCE, UsualServer, until
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client
from .conftest import Clock
from .service import Service, all_until, event_of, login, next_of, user

pytestmark = pytest.mark.nats


@pytest.fixture
def service(keeping_nats: NatsServer) -> Service:
    return Service(keeping_nats)


async def kept_at(one: UsualServer, pattern: str) -> dict[str, Any]:
    """The last values that an instance gives a new subscriber at its port."""
    async with AsyncClient(one.address) as client, client.subscribe(pattern).with_topics() as events:
        one.publish(end := pattern.replace("*", "end"), "end")
        return dict((await all_until(events, (end, "end")))[:-1])


async def kept_on_nats(service: Service, pattern: str) -> dict[str, Any]:
    """Those that a new subscriber on NATS gets."""
    async with service.client() as client, client.subscribe(pattern).with_topics() as events:
        await client.publish(end := pattern.replace("*", "end"), "end")
        return dict((await all_until(events, (end, "end")))[:-1])


async def until_kept(one: UsualServer, pattern: str, values: dict[str, Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await kept_at(one, pattern) != values:
            await asyncio.sleep(0.02)


async def test_a_later_subscriber_gets_the_last_value_wherever_it_was_published(service: Service) -> None:
    array = np.arange(3000, dtype=np.float32)
    async with service.serving(port=0) as one, service.serving(port=0) as other, service.client() as client:
        one.publish("state.one", "old", retain=True)
        one.publish("state.one", 1, retain=True)
        assert await client.publish("state.client", {"x": 2}, retain=True) == 1
        other.publish("array", array, retain=True)
        async with client.subscribe("state.*").with_topics() as events, client.subscribe("array") as arrays:
            assert dict(await next_of(events, 2)) == {"state.one": 1, "state.client": {"x": 2}}
            assert np.array_equal((await next_of(arrays))[0], array)
        for each in (one, other):
            await until_kept(each, "state.*", {"state.one": 1, "state.client": {"x": 2}})
            async with AsyncClient(each.address) as there, there.subscribe("array") as arrays:
                assert np.array_equal((await next_of(arrays))[0], array)
    # They outlive the instances.
    async with service.client() as alone, alone.subscribe("state.one") as events:
        assert await next_of(events) == [1]
        assert await alone.publish("state.one", "off", retain=True) == 1
        assert await next_of(events) == ["off"]
    later = UsualServer()
    later.publish("state.before", 3, retain=True)  # it is shared as soon as the server runs
    async with service.serving(later, port=0), service.serving(port=0) as last:
        for each in (later, last):
            await until_kept(each, "state.*", {"state.one": "off", "state.client": {"x": 2}, "state.before": 3})


async def test_none_ends_a_last_value_for_all(service: Service) -> None:
    async with service.serving(port=0) as one, service.serving(port=0) as other, service.client() as client:
        async with AsyncClient(other.address) as there, there.subscribe(">").with_topics() as events:
            for number, topic in enumerate("abc"):
                one.publish(topic, number, retain=True)
            assert await next_of(events, 3) == [("a", 0), ("b", 1), ("c", 2)]
            one.publish("a", None, retain=True)
            assert await next_of(events) == [("a", None)]
            await client.publish("b", None, retain=True)
            assert await next_of(events) == [("b", None)]
            one.topics.forget("c")  # sends no event
            one.publish("d", 4, retain=True)
            assert await next_of(events) == [("d", 4)]
        for each in (one, other):
            assert await kept_at(each, "*") == {"d": 4}
    assert await kept_on_nats(service, "*") == {"d": 4}


async def test_another_program_reads_and_writes_them(service: Service) -> None:
    async with (
        service.serving(port=0) as one,
        plain_client(service.nats.url) as plain,
        service.raw(f"{service.event}room.*") as raw,
        service.client() as client,
        AsyncClient(one.address) as there,
        there.subscribe("room.*") as events,
    ):
        bucket = await plain.jetstream().key_value(service.bucket)
        await bucket.put("room.heat", event_of("room.heat", 21.5))
        assert await next_of(events) == [21.5]
        one.publish("room.light", "on", retain=True)
        assert await next_of(events) == ["on"]
        await client.publish("room.light", "off", retain=True)
        assert [(await raw.next()).json["params"]["value"] for _ in range(3)] == [21.5, "on", "off"]
        entry = await bucket.get("room.light")
        assert json.loads(entry.value)["params"] == {"topic": "room.light", "value": "off"}
        await bucket.put("room.heat", b"no event")
        await bucket.put("room.heat", event_of("room.heat", 22))
        assert await next_of(events, 2) == ["off", 22]
        await bucket.delete("room.heat")
        await until_kept(one, "room.*", {"room.light": "off"})


async def test_a_name_that_is_no_topic_is_skipped(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """Subscribers, the instance that is there, and later ones get the other values all the same."""
    # Percent-encoded, one of them as half of a character; and bytes that are no UTF-8.
    names = [b"%FF%FE", b"state.%FF", b"state.%ED%A0%80", b"\xff\xfe", b"state.\xc3", b"%C3\xa9"]
    async with service.serving(port=0) as one, service.client() as client, service.raw() as raw:

        async def write(*names: bytes) -> None:
            for name in names:
                for prefix in (f"$KV.{service.bucket}.", service.event):
                    raw.publish(prefix.encode() + name, event_of("x", "bad"))
            await raw.flush()

        one.publish("state.a", 1, retain=True)
        async with client.subscribe("state.*") as events:
            assert await next_of(events) == [1]
            await write(*names)
            await client.publish("state.b", 2, retain=True)
            assert await next_of(events) == [2]
        await until_kept(one, "state.*", {"state.a": 1, "state.b": 2})
        await write(names[0])  # it is the last one that a reader gets
        async with service.serving(port=0) as other, service.client() as later, later.subscribe(">") as everything:
            assert await next_of(everything, 2) == [1, 2]
            other.publish("state.c", 3, retain=True)
            assert await next_of(everything) == [3]
            for each in (one, other):
                await until_kept(each, "state.*", {"state.a": 1, "state.b": 2, "state.c": 3})
    assert "is not a topic" in caplog.text
    assert "could not be handled" not in caplog.text


#: What stands in the place of headers.
MALFORMED_HEADS = [b"N", b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0 \xff\r\n\r\n", b"NATS/1.0\r\n:\r\n\r\n", b"\xff" * 20]


async def test_nobody_ends_the_connection_by_messages_to_the_inbox_for_answers_of_jetstream(service: Service) -> None:
    """NATS permits some programs to read these subjects, and to publish to inboxes."""
    async with service.serving(port=0), service.client() as client, service.raw(f"$KV.{service.bucket}.>") as raw:
        assert await client.publish("state.one", 1, retain=True) == 1
        answers = (await raw.next()).reply.rpartition(".")[0]
        for head in MALFORMED_HEADS:
            raw.publish(f"{answers}.x", b"", b"", head)
            raw.publish(f"{answers}.x", b"x", b"", head)
        raw.publish(answers.encode() + b".\xff", b"x")
        raw.publish(f"{answers}.x", b"x", b"\xff")
        await raw.flush()
        async with client.subscribe("state.one") as events:
            assert await next_of(events) == [1]
            assert await client.publish("state.one", 2, retain=True) == 1
            assert await next_of(events) == [2]


@pytest.mark.slow
async def test_no_subscriber_misses_one_or_sees_an_older_one_after_a_newer(service: Service) -> None:
    count = 400
    async with service.serving(port=0) as one, service.serving(port=0) as other, AsyncExitStack() as stack:
        one.publish("n", 0, retain=True)
        await until_kept(other, "*", {"n": 0})  # it is stored
        tasks = []

        async def follow(client: AsyncClient) -> list[int]:
            async with client.subscribe("n", max_queue=10_000) as events:
                return await all_until(events, count)

        for number in range(1, count + 1):
            one.publish("n", number, retain=True)
            if number % 20 == 0:
                # Each with a connection of its own, so that it is a subscription of its own.
                fresh = [service.client(), AsyncClient(one.address), AsyncClient(other.address)]
                tasks += [asyncio.create_task(follow(await stack.enter_async_context(each))) for each in fresh]
            await asyncio.sleep(0)
        for number, values in enumerate(await asyncio.gather(*tasks)):
            assert values == sorted(set(values)), "an older one after a newer, or one twice"
            if number % 3 < 2:  # on NATS, and where they are published: none is missing
                assert values == list(range(values[0], count + 1))


async def test_instances_that_write_the_same_topic_come_to_the_same_value(service: Service) -> None:
    async with AsyncExitStack() as stack:
        instances = [await stack.enter_async_context(service.serving(port=0)) for _ in range(3)]
        for number in range(50):
            for source, each in enumerate(instances):
                each.publish("race.x", [source, number], retain=True)
            if number % 10 == 0:
                await asyncio.sleep(0)
        # Stored when the last one of each instance is.
        for source, each in enumerate(instances):
            each.publish(f"fence.{source}", 1, retain=True)
        for each in instances:
            await until_kept(each, "fence.*", {f"fence.{number}": 1 for number in range(3)})
        stored = await kept_on_nats(service, "race.*")
        assert [await kept_at(each, "race.*") for each in instances] == [stored] * 3


async def test_the_bucket_is_bounded(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    small = UsualServer(limits=Limits(max_retained=2))
    async with service.serving(small) as one, service.client() as client, client.subscribe("*") as events:
        one.publish("a", 1, retain=True)
        assert await next_of(events) == [1]
        await client.publish("b", 2, retain=True)
        with pytest.raises(ServerBusy, match="no room for this last value"):
            await client.publish("c", 3, retain=True)
        await client.publish("b", 4, retain=True)  # in place of another one
        assert await next_of(events, 2) == [2, 4]
    async with service.serving(port=0) as larger, service.client() as client:
        async with client.subscribe("*").with_topics() as events:
            assert await next_of(events, 2) == [("a", 1), ("b", 4)]
            larger.publish("d", 5, retain=True)  # this server may have more, the bucket may not
            assert await next_of(events) == [("d", 5)]
        assert await kept_at(larger, "*") == {"a": 1, "b": 4, "d": 5}
    assert await kept_on_nats(service, "*") == {"a": 1, "b": 4}
    assert "the last value of d is not shared" in caplog.text


async def test_without_the_right_bucket(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    async with service.client() as client, client.subscribe("a") as events:
        with pytest.raises(InvalidParams, match="no instance has made the bucket"):
            await client.publish("a", 1, retain=True)
        assert await client.publish("a", 2) == 1
        assert await next_of(events) == [2]
    async with plain_client(service.nats.url) as plain:
        await plain.jetstream().create_key_value(bucket=service.bucket)
    async with service.serving(port=0) as one:
        one.publish("a", 1, retain=True)
        assert await kept_at(one, "*") == {"a": 1}
        await until(lambda: "was made by something else: it needs republish" in caplog.text)


@pytest.mark.parametrize("fault", ["the consumer is deleted", "a message is missing"])
async def test_an_instance_that_lost_its_consumer_reads_the_values_again(
    clock: Clock, service: Service, fault: str
) -> None:
    async with (
        service.serving(port=0) as one,
        AsyncClient(one.address) as there,
        there.subscribe("*") as events,
        plain_client(service.nats.url) as plain,
        service.raw() as raw,
    ):
        jetstream = plain.jetstream()
        bucket = await jetstream.key_value(service.bucket)
        await bucket.put("a", event_of("a", 1))
        assert await next_of(events) == [1]
        stream = f"KV_{service.bucket}"
        [consumer] = await jetstream.consumers_info(stream)
        if fault == "the consumer is deleted":
            await jetstream.delete_consumer(stream, consumer.name)
        else:
            head = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 9\r\n\r\n"
            raw.publish(str(consumer.config.deliver_subject), b"", head=head)
            await raw.flush()
        await bucket.put("b", event_of("b", 2))
        arrival = asyncio.create_task(next_of(events))
        await clock.until(arrival.done)
        assert arrival.result() == [2]
        async with asyncio.timeout(PATIENCE):
            while consumer.name in [each.name for each in await jetstream.consumers_info(stream)]:
                await asyncio.sleep(0.02)
        await bucket.put("b", event_of("b", 3))
        assert await next_of(events) == [3]


async def test_permissions_for_last_values(
    start_nats: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    unheard = user("unheard", {"subscribe": {"deny": ["_INBOX.>"]}})
    users = [user("server"), user("outsider", {"publish": {"deny": ["$JS.>"]}}), unheard]
    service = Service(start_nats(jetstream=True, users=users), "vision")
    async with service.serving(login=login("outsider")) as outsider:
        outsider.publish("a", 0, retain=True)
        await until(lambda: "are not shared" in caplog.text)
    assert "NATS does not permit this login to publish to $JS.API.STREAM.INFO" in caplog.text
    async with service.serving(login=login("unheard")) as unheard_one:
        unheard_one.publish("a", 0, retain=True)
        await until(lambda: "NATS does not permit this login to subscribe to _INBOX." in caplog.text)
    async with service.serving(login=login("server")), service.client(nats=login("outsider")) as alone:
        with pytest.raises(NotPermitted, match=r"\$JS\.API\.CONSUMER\.CREATE"):
            await alone.subscribe("a").__aenter__()


async def test_what_is_retained_while_nats_is_away_is_stored_later(start_nats: Callable[..., NatsServer]) -> None:
    service = Service(nats := start_nats(jetstream=True))
    async with (
        service.serving(port=0) as one,
        service.serving(port=0) as other,
        AsyncClient(one.address) as there,
        AsyncClient(other.address) as elsewhere,
        there.subscribe(">").with_topics() as at_one,
        elsewhere.subscribe(">").with_topics() as at_other,
    ):
        one.publish("a", 1, retain=True)
        assert [await next_of(each) for each in (at_one, at_other)] == [[("a", 1)]] * 2
        await asyncio.to_thread(nats.kill)
        one.publish("a", 2, retain=True)
        one.publish("b", 3, retain=True)
        one.publish("b", None, retain=True)
        assert await next_of(at_one, 3) == [("a", 2), ("b", 3), ("b", None)]
        await asyncio.to_thread(nats.restart)
        async with plain_client(service.nats.url) as plain:  # it is there before the instances are back
            bucket = await plain.jetstream().key_value(service.bucket)
            await bucket.put("d", event_of("d", 5))
        assert sorted(await next_of(at_other, 2)) == [("a", 2), ("d", 5)]
        assert await next_of(at_one) == [("d", 5)]
        async with service.client() as client, client.subscribe("*").with_topics() as events:
            assert sorted(await next_of(events, 2)) == [("a", 2), ("d", 5)]
            await client.publish("c", 4, retain=True)
            assert [await next_of(each) for each in (at_one, at_other, events)] == [[("c", 4)]] * 3
        assert await kept_at(other, "*") == {"a": 2, "c": 4, "d": 5}
