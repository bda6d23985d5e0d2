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

from rpcstream import AsyncClient, InvalidParams, Limits, NotPermitted, Server, ServerBusy
from rpcstream.nats.options import NatsLogin

from ..kit import until
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client
from .event_setup import (
    SERVICE,
    Instance,
    all_until,
    client_of,
    event,
    instance,
    next_of,
    value_of,
)

pytestmark = pytest.mark.nats

SUBJECT = f"rpc.{SERVICE}.$event"
BUCKET = f"rpc_{SERVICE}_last"


@pytest.fixture
def nats(start_nats: Callable[..., NatsServer]) -> NatsServer:
    """A server with JetStream."""
    return start_nats(jetstream=True)


async def kept_at(one: Instance, pattern: str, count: int) -> dict[str, Any]:
    """The last values that an instance gives a new subscriber at its port: so many."""
    async with AsyncClient(one.address) as client, client.subscribe(pattern).with_topics() as events:
        return dict([await next_of(events) for _ in range(count)])


async def kept_on_nats(nats: NatsServer, pattern: str) -> list[tuple[str, Any]]:
    """The last values that a new subscriber on NATS gets."""
    end = pattern.replace("*", "end")
    async with client_of(nats) as client, client.subscribe(pattern).with_topics() as events:
        await client.publish(end, "end")
        return (await all_until(events, (end, "end")))[:-1]


async def test_a_later_subscriber_gets_the_last_value_wherever_it_was_published(nats: NatsServer) -> None:
    async with instance(nats.url) as one, instance(nats.url) as other, client_of(nats) as client:
        one.publish("state.one", "old", retain=True)
        one.publish("state.one", 1, retain=True)
        assert await client.publish("state.client", {"x": 2}, retain=True) == 1
        array = np.arange(3000, dtype=np.float32)
        other.publish("state.other", array, retain=True)
        async with client.subscribe("state.*") as events:
            assert len([await next_of(events) for _ in range(3)]) == 3
        for each in (one, other):
            values = await kept_at(each, "state.*", 3)
            assert np.array_equal(values.pop("state.other"), array)
            assert values == {"state.one": 1, "state.client": {"x": 2}}
        async with client.subscribe("state.one") as exact:
            assert await next_of(exact) == 1


async def test_live_subscribers_get_each_of_them_once(nats: NatsServer) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        one, other = [await enter(instance(nats.url)) for _ in range(2)]
        client = await enter(client_of(nats))
        sources = [await enter(AsyncClient(one.address)), await enter(AsyncClient(other.address)), client]
        readers = [await enter(source.subscribe(name)) for source in sources for name in ("s.*", "s.a", "*.a")]
        for number in range(10):
            source = (one, other)[number % 2] if number % 3 else client
            if source is client:
                await client.publish("s.a", number, retain=True)
            else:
                source.publish("s.a", number, retain=True)
            # One after the other, so that their order is known.
            assert [await next_of(each) for each in readers] == [number] * len(readers)


async def test_none_ends_a_last_value_for_all(nats: NatsServer) -> None:
    async with instance(nats.url) as one, instance(nats.url) as other, client_of(nats) as client:
        async with AsyncClient(other.address) as there, there.subscribe(">").with_topics() as events:
            for number, topic in enumerate("abc"):
                one.publish(topic, number, retain=True)
            assert [await next_of(events) for _ in range(3)] == [("a", 0), ("b", 1), ("c", 2)]
            one.publish("a", None, retain=True)
            assert await next_of(events) == ("a", None)
            await client.publish("b", None, retain=True)
            assert await next_of(events) == ("b", None)
            one.server.topics.forget("c")  # sends no event
            one.publish("d", 4, retain=True)
            assert await next_of(events) == ("d", 4)
        for each in (one, other):
            assert await kept_at(each, ">", 1) == {"d": 4}
            assert [topic for topic in "abcd" if each.server.topics.last_value(topic) is not None] == ["d"]
        assert await kept_on_nats(nats, "*") == [("d", 4)]


async def test_they_outlive_the_instances(nats: NatsServer) -> None:
    async with instance(nats.url) as one:
        one.publish("state", "on", retain=True)
    async with instance(nats.url) as later, client_of(nats) as client:
        assert await kept_at(later, "state", 1) == {"state": "on"}
        async with client.subscribe("state") as events:
            assert await next_of(events) == "on"
    async with client_of(nats) as alone, alone.subscribe("state") as events:  # the bucket is there, no instance
        assert await next_of(events) == "on"
        assert await alone.publish("state", "off", retain=True) == 1
        assert await next_of(events) == "off"


async def test_what_was_retained_before_the_server_ran_is_shared(nats: NatsServer) -> None:
    async with instance(nats.url) as old:
        old.publish("state", "old", retain=True)
    server = Server()
    server.publish("before", 1, retain=True)
    server.join_nats(nats.url, service=SERVICE)
    server.publish("state", "new", retain=True)
    async with server.listening(port=0), client_of(nats) as client, client.subscribe(">").with_topics() as events:
        found: dict[str, Any] = {}
        while found != {"before": 1, "state": "new"}:
            topic, value = await next_of(events)
            found[topic] = value
        assert server.topics.last_value("state") is not None


async def test_another_program_reads_and_writes_them(nats: NatsServer) -> None:
    async with (
        instance(nats.url) as one,
        plain_client(nats.url) as plain,
        AsyncClient(one.address) as there,
        there.subscribe("room.*") as events,
    ):
        bucket = await plain.jetstream().key_value(BUCKET)
        await bucket.put("room.heat", event("room.heat", 21.5))
        assert await next_of(events) == 21.5
        one.publish("room.light", "on", retain=True)
        assert await next_of(events) == "on"
        await client_publish(nats, "room.fan", 1)
        assert await next_of(events) == 1
        live = await plain.subscribe(f"{SUBJECT}.room.*")
        await plain.flush()
        await client_publish(nats, "room.light", "off")
        assert value_of(await live.next_msg(20)) == "off"
        entry = await bucket.get("room.light")
        assert json.loads(entry.value)["params"] == {"topic": "room.light", "value": "off"}
        await bucket.put("room.heat", b"no event")
        await bucket.put("room.heat", event("room.heat", 22))
        assert [await next_of(events) for _ in range(2)] == ["off", 22]
        await bucket.delete("room.heat")
        await until(lambda: one.server.topics.last_value("room.heat") is None)


async def client_publish(nats: NatsServer, topic: str, value: Any) -> None:
    async with client_of(nats) as client:
        await client.publish(topic, value, retain=True)


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [("%FF%FE", "state.%FF", "state.%ED%A0%80"), ("\udcff\udcfe", "state.\udcc3", "%C3\udca9")]
)
async def test_a_name_that_is_no_topic_is_skipped(
    nats: NatsServer, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    """Subscribers, the instance that is there, and later ones get the other values all the same.

    Args:
        names: percent-encoded, one of them as half of a character; or with bytes that are no UTF-8, as surrogates.
    """
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(instance(nats.url))
        client = await stack.enter_async_context(client_of(nats))
        raw = await RawClient.connect(nats.port)
        stack.push_async_callback(raw.close)
        one.publish("state.a", 1, retain=True)
        async with client.subscribe("state.*") as events:
            assert await next_of(events) == 1
            for name in names:
                for prefix in (f"$KV.{BUCKET}.", f"{SUBJECT}."):
                    raw.publish(prefix.encode() + name.encode(errors="surrogateescape"), event("x", "bad"))
            await raw.flush()
            await client.publish("state.b", 2, retain=True)
            assert await next_of(events) == 2
        await until(lambda: one.server.topics.last_value("state.b") is not None)
        raw.publish(f"$KV.{BUCKET}.".encode() + names[0].encode(errors="surrogateescape"), event("x", "bad"))
        await raw.flush()  # it is the last one that a reader gets
        async with instance(nats.url) as other:
            for each in (one, other):
                assert await kept_at(each, "state.*", 2) == {"state.a": 1, "state.b": 2}
            async with client_of(nats) as later, later.subscribe(">") as everything:
                assert [await next_of(everything) for _ in range(2)] == [1, 2]
                other.publish("state.c", 3, retain=True)
                assert await next_of(everything) == 3
            await until(lambda: one.server.topics.last_value("state.c") is not None)
    told = [
        record for record in caplog.records if "is not a topic" in record.getMessage() and BUCKET in record.getMessage()
    ]
    assert len(told) == 3  # both instances, and the client that reads all, once each
    assert "could not be handled" not in caplog.text


@pytest.mark.slow
async def test_no_subscriber_misses_one_or_sees_an_older_one_after_a_newer(nats: NatsServer) -> None:
    count = 400
    async with instance(nats.url) as one, instance(nats.url) as other, AsyncExitStack() as stack:
        by_nats = await stack.enter_async_context(client_of(nats))
        one.publish("n", 0, retain=True)
        async with by_nats.subscribe("n") as events:
            assert await next_of(events) == 0  # it is stored

        async def follow(client: AsyncClient) -> list[int]:
            async with client.subscribe("n", max_queue=10_000) as events:
                return await all_until(events, count)

        async def publish() -> list[Any]:
            tasks = []
            for number in range(1, count + 1):
                one.publish("n", number, retain=True)
                if number % 20 == 0:
                    # Each with a connection of its own, so that it is a subscription of its own.
                    fresh = [client_of(nats), AsyncClient(one.address), AsyncClient(other.address)]
                    tasks += [asyncio.create_task(follow(await stack.enter_async_context(each))) for each in fresh]
                await asyncio.sleep(0)
            return await asyncio.gather(*tasks)

        results = await publish()
        for number, values in enumerate(results):
            assert values == sorted(set(values)), "an older one after a newer, or one twice"
            if number % 3 < 2:  # on NATS, and where they are published: none is missing
                assert values == list(range(values[0], count + 1))


async def test_instances_that_write_the_same_topic_come_to_the_same_value(nats: NatsServer) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        instances = [await enter(instance(nats.url)) for _ in range(3)]
        clients = [await enter(AsyncClient(each.address)) for each in instances]
        readers = [await enter(client.subscribe("race", max_queue=10_000)) for client in clients]
        seen: list[list[Any]] = [[] for _ in readers]

        async def read(events: Any, values: list[Any]) -> None:
            while True:
                values.append(await anext(events))

        tasks = [asyncio.create_task(read(*each)) for each in zip(readers, seen, strict=True)]
        for number in range(100):
            for source, each in enumerate(instances):
                each.publish("race", [source, number], retain=True)
            if number % 10 == 0:
                await asyncio.sleep(0)
        # Stored when the last one of each instance is.
        for source, each in enumerate(instances):
            each.publish(f"fence.{source}", 1, retain=True)
        for each in instances:
            kept = each.server.topics.last_value
            await until(lambda kept=kept: all(kept(f"fence.{number}") is not None for number in range(3)))
        [(_, stored)] = await kept_on_nats(nats, "race")
        for each, values in zip(instances, seen, strict=True):
            assert last_value_at(each, "race") == stored
            await until(lambda values=values: values[-2:] == [stored, "end"])  # kept_on_nats has published the latter
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def last_value_at(one: Instance, topic: str) -> Any:
    """The last value that an instance has."""
    message = one.server.topics.last_value(topic)
    assert message is not None
    return json.loads(bytes(message))["params"]["value"]


# -- limits, and what is refused --------------------------------------------------------------------------------------


async def test_the_bucket_is_bounded(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    small = Limits(max_retained=2)
    async with instance(nats.url, limits=small) as one, client_of(nats) as client, client.subscribe("*") as events:
        one.publish("a", 1, retain=True)
        assert await next_of(events) == 1
        await client.publish("b", 2, retain=True)
        with pytest.raises(ServerBusy, match="no room for this last value"):
            await client.publish("c", 3, retain=True)
        await client.publish("b", 4, retain=True)  # in place of another one
        assert [await next_of(events) for _ in range(2)] == [2, 4]
    async with instance(nats.url) as larger, client_of(nats) as client, client.subscribe("*").with_topics() as events:
        assert [await next_of(events) for _ in range(2)] == [("a", 1), ("b", 4)]
        larger.publish("d", 5, retain=True)  # this server may have more, the bucket may not
        assert await next_of(events) == ("d", 5)
        assert larger.server.topics.last_value("d") is not None
    assert "the last value of d is not shared" in caplog.text


async def test_without_a_bucket_a_client_is_told(nats: NatsServer) -> None:
    async with client_of(nats) as client, client.subscribe("a") as events:
        with pytest.raises(InvalidParams, match="no instance has made the bucket"):
            await client.publish("a", 1, retain=True)
        assert await client.publish("a", 2) == 1
        assert await next_of(events) == 2


async def test_a_bucket_that_something_else_has_made_is_not_used(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with plain_client(nats.url) as plain:
        await plain.jetstream().create_key_value(bucket=BUCKET)
    async with instance(nats.url) as one:
        one.publish("a", 1, retain=True)
        assert await kept_at(one, "a", 1) == {"a": 1}
    assert "was made by something else: it needs republish" in caplog.text


async def test_permissions_for_last_values(
    start_nats: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    deny = {"publish": {"deny": ["$KV.>"]}}
    no_api = {"publish": {"deny": ["$JS.>"]}}
    nats = start_nats(
        jetstream=True,
        users=[
            {"user": "server", "password": "p"},
            {"user": "reader", "password": "p", "permissions": deny},
            {"user": "outsider", "password": "p", "permissions": no_api},
        ],
    )

    def client(user: str) -> AsyncClient:
        return AsyncClient(f"{nats.url}/{SERVICE}", nats=NatsLogin(user=user, password="p"), timeout=20)

    outsider = Server()
    outsider.join_nats(nats.url, service=SERVICE, login=NatsLogin(user="outsider", password="p"), only=True)
    async with outsider.listening():
        outsider.publish("a", 0, retain=True)
        await until(lambda: "are not shared" in caplog.text)
    assert "NATS does not permit this login to publish to $JS.API.STREAM.INFO" in caplog.text
    server = Server()
    server.join_nats(nats.url, service=SERVICE, login=NatsLogin(user="server", password="p"), only=True)
    async with server.listening(), client("reader") as reader, client("outsider") as alone:
        server.publish("a", 1, retain=True)
        async with reader.subscribe("a") as events:
            assert await next_of(events) == 1
            with pytest.raises(NotPermitted, match="Not permitted"):
                await reader.publish("a", 2, retain=True)
        with pytest.raises(NotPermitted) as caught:
            async with alone.subscribe("a"):
                pass
        assert "$JS.API.CONSUMER.CREATE" in caught.value.data["reason"]


# -- while NATS is away -----------------------------------------------------------------------------------------------


async def test_what_is_retained_while_nats_is_away_is_stored_later(nats: NatsServer) -> None:
    async with (
        instance(nats.url) as one,
        instance(nats.url) as other,
        AsyncClient(one.address) as there,
        AsyncClient(other.address) as elsewhere,
        there.subscribe(">").with_topics() as at_one,
        elsewhere.subscribe(">").with_topics() as at_other,
    ):
        one.publish("a", 1, retain=True)
        assert [await next_of(each) for each in (at_one, at_other)] == [("a", 1)] * 2
        await asyncio.to_thread(nats.kill)
        one.publish("a", 2, retain=True)
        one.publish("b", 3, retain=True)
        one.publish("b", None, retain=True)
        assert [await next_of(at_one) for _ in range(3)] == [("a", 2), ("b", 3), ("b", None)]
        await asyncio.to_thread(nats.restart)
        assert await next_of(at_other) == ("a", 2)
        async with client_of(nats) as client, client.subscribe("*").with_topics() as events:
            assert await next_of(events) == ("a", 2)
            await client.publish("c", 4, retain=True)
            assert [await next_of(each) for each in (at_one, at_other, events)] == [("c", 4)] * 3
        assert await kept_at(other, "*", 2) == {"a": 2, "c": 4}


@pytest.mark.slow
async def test_instances_learn_what_has_changed_while_they_were_away(start_cluster: Callable[..., Any]) -> None:
    cluster = start_cluster(3, jetstream=True)
    first, second = cluster.nodes[0], cluster.nodes[1]
    async with instance(first.url) as one, AsyncClient(one.address) as there:
        one.publish("a", 1, retain=True)
        one.publish("b", 1, retain=True)
        async with there.subscribe(">").with_topics() as events, client_of(second) as client:
            assert sorted([await next_of(events) for _ in range(2)]) == [("a", 1), ("b", 1)]
            async with AsyncExitStack() as stack:
                stored = await retried(lambda: stack.enter_async_context(client.subscribe("*")))
                assert [await next_of(stored) for _ in range(2)] == [1, 1]
            await asyncio.to_thread(first.kill)
            await retried(lambda: client.publish("a", 2, retain=True))
            await retried(lambda: client.publish("b", None, retain=True))
            await asyncio.to_thread(first.restart)
            # While the nodes choose a leader JetStream does not answer; then it is asked again later.
            assert sorted([await next_of(events, 40) for _ in range(2)], key=str) == [("a", 2), ("b", None)]
        async with asyncio.timeout(40):
            while await kept_at(one, "*", 1) != {"a": 2}:
                await asyncio.sleep(0.1)


async def retried(ask: Callable[[], Any]) -> Any:
    """Ask JetStream while the nodes that are left choose a leader, or have too much to do."""
    async with asyncio.timeout(40):
        while True:
            try:
                return await ask()
            except (InvalidParams, ServerBusy):
                await asyncio.sleep(0.05)
