"""Last values over NATS: all instances keep them, for later subscribers at any instance and on NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, InvalidParams, Limits, NotPermitted, ServerBusy

from ..kit import PATIENCE, UsualServer
from ..kit.nats_server import NatsServer
from .service import Service, all_until, event_of, login, next_of, user

pytestmark = pytest.mark.nats


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
        # They outlive each instance, as long as one runs.
        before = UsualServer()
        before.publish("state.before", 3, retain=True)  # it is shared as soon as the server runs
        async with service.serving(before, port=0), service.serving(port=0) as last:
            for each in (one, other, before, last):
                await until_kept(each, "state.*", {"state.one": 1, "state.client": {"x": 2}, "state.before": 3})
        assert await kept_on_nats(service, "state.*") == {"state.one": 1, "state.client": {"x": 2}, "state.before": 3}


async def test_the_last_values_of_an_instance_that_stopped_are_kept_by_the_others(service: Service) -> None:
    async with service.serving(port=0) as other:
        async with service.serving(port=0) as one:
            one.publish("a", 1, retain=True)
            one.publish("b", 2, retain=True)
            one.publish("b", None, retain=True)
        async with service.serving(port=0) as later:
            for each in (other, later):
                await until_kept(each, "*", {"a": 1})
    async with service.client() as alone:
        with pytest.raises(ConnectFailed, match="no instance of the service"):
            await alone.publish("a", 2, retain=True)
        assert await kept_on_nats(service, "*") == {}


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
        service.raw(f"{service.event}room.*") as raw,
        service.raw("answers.>") as asking,
        AsyncClient(one.address) as there,
        there.subscribe("room.*") as events,
    ):
        for value, answer in ((21.5, True), ("off", True), (None, True)):
            asking.publish(f"{service.root}$retain.room.heat", event_of("room.heat", value), "answers.x")
            assert (await asking.next()).json is answer
            assert await next_of(events) == [value]
            assert (await raw.next()).json["params"]["value"] == value
        for data in (b"", b"no event", event_of("room.light", 1)):
            asking.publish(f"{service.root}$retain.room.heat", data, "answers.x")
            assert (await asking.next()).json["error"]["code"] == InvalidParams.CODE
        one.publish("room.light", "on", retain=True)
        one.publish("room.heat", 22, retain=True)
        asking.publish(f"{service.root}$last.room.*", b"", "answers.x")
        answers = [await asking.next() for _ in range(3)]
        assert [each.subject for each in answers] == ["answers.x.room.light", "answers.x.room.heat", "answers.x"]
        assert [each.json["params"]["value"] for each in answers[:2]] == ["on", 22]
        assert answers[2].json is True
        for pattern in (
            "a*",
            "%2A",
            "%3E",
            "room.%2A",
            "%72oom.heat",
        ):  # NATS permits a subject, and that is all it means
            asking.publish(f"{service.root}$last.{pattern}", b"", "answers.x")
            assert (await asking.next()).json["error"]["code"] == InvalidParams.CODE


async def test_what_is_no_last_value_is_skipped(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """Subscribers, the instance that is there, and later ones get the other values all the same."""
    # Percent-encoded, one of them as half of a character; and bytes that are no UTF-8.
    names = [b"%FF%FE", b"state.%FF", b"state.%ED%A0%80", b"\xff\xfe", b"state.\xc3", b"%C3\xa9"]
    stamps = [
        b"keep 1-x",
        b"keep -1-" + b"a" * 16,
        b"keep " + b"9" * 19 + b"-" + b"a" * 16,
        b"hold 1-" + b"a" * 16,
        b"\xff",
    ]
    good = b"NATS/1.0\r\nRpc-Last: keep 9-" + b"a" * 16 + b"\r\n\r\n"
    async with service.serving(port=0) as one, service.client() as client, service.raw() as raw:
        one.publish("state.a", 1, retain=True)
        async with client.subscribe("state.*") as events:
            assert await next_of(events) == [1]
            for name in names:
                for kind in (b"$keep.all.", b"$retain.", b"$last.", b"$event."):
                    raw.publish(service.root.encode() + kind + name, event_of("x", "bad"), head=good)
            for stamp in stamps:
                head = b"NATS/1.0\r\nRpc-Last: " + stamp + b"\r\n\r\n"
                raw.publish(f"{service.root}$keep.all.state.a", event_of("state.a", "bad"), head=head)
            for data in (b"", b"x", event_of("state.b", 1)):
                raw.publish(f"{service.root}$keep.all.state.a", data, head=good)
            await raw.flush()
            await client.publish("state.b", 2, retain=True)
            assert await next_of(events) == [2]
        await until_kept(one, "state.*", {"state.a": 1, "state.b": 2})
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


async def test_nobody_ends_the_connection_by_messages_to_the_inbox_for_answers(service: Service) -> None:
    """NATS permits some programs to read these subjects, and to publish to inboxes."""
    async with service.serving(port=0), service.client() as client, service.raw(f"{service.root}$retain.>") as raw:
        assert await client.publish("state.one", 1, retain=True) == 1
        answers = (await raw.next()).reply.rpartition(".")[0]
        for head in MALFORMED_HEADS:
            for end in ("x", "x.a", "x.%FF"):
                raw.publish(f"{answers}.{end}", b"", b"", head)
                raw.publish(f"{answers}.{end}", b"x", b"", head)
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


async def test_many_that_were_retained_before_are_sent_in_turns(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpcstream.nats.events.LATE_AT_ONCE", 3)
    before = UsualServer()
    for number in range(10):
        before.publish(f"a.{number}", number, retain=True)
    async with service.serving(port=0) as one, service.serving(before, port=0):
        await until_kept(one, "a.*", {f"a.{number}": number for number in range(10)})


async def test_one_that_nats_does_not_carry_gives_way_to_the_next(start_nats: Callable[..., NatsServer]) -> None:
    service = Service(start_nats(max_payload=8192))
    async with service.serving(port=0) as one, service.serving(port=0) as other:
        one.publish("a", 1, retain=True)
        await until_kept(other, "*", {"a": 1})
        one.publish("a", "x" * 20_000, retain=True)
        one.publish("b", 2, retain=True)
        await until_kept(other, "*", {"a": 1, "b": 2})
        other.publish("a", 3, retain=True)
        for each in (one, other):
            await until_kept(each, "*", {"a": 3, "b": 2})


async def test_last_values_are_bounded(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    small = UsualServer(limits=Limits(max_retained=2))
    async with (
        service.serving(small, port=0) as one,
        service.client() as client,
        client.subscribe("*").with_topics() as events,
    ):
        one.publish("a", 1, retain=True)
        await client.publish("b", 2, retain=True)
        with pytest.raises(ServerBusy, match="max_retained"):
            await client.publish("c", 3, retain=True)
        await client.publish("b", 4, retain=True)  # in place of another one
        assert await next_of(events, 3) == [("a", 1), ("b", 2), ("b", 4)]
        async with service.serving(port=0) as larger:
            larger.publish("d", 5, retain=True)  # this server may have more
            assert await next_of(events) == [("d", 5)]
            assert await kept_at(larger, "*") == {"a": 1, "b": 4, "d": 5}
            assert await kept_at(one, "*") == {"a": 1, "b": 4}
    assert "is not kept" in caplog.text


async def test_a_flood_of_requests_is_answered_in_turn(service: Service) -> None:
    async with service.serving(port=0) as one, service.raw("answers.>") as raw, service.client() as client:
        for number in range(50):
            one.publish(f"a.{number}", "x" * 1000, retain=True)
        for _ in range(1500):
            raw.publish(f"{service.root}$last.a.*", b"", "answers.x")
        assert await client.add(1, 2) == 3
        ends = []
        while len(ends) < 1500:
            message = await raw.next()
            ends += [message.json] if message.subject == "answers.x" else []
        refused = [each for each in ends if each is not True]
        assert {each["error"]["code"] for each in refused} <= {ServerBusy.CODE}
        assert len(ends) > len(refused)


async def test_permissions_for_last_values(
    start_nats: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    unheard = user("unheard", {"subscribe": {"deny": ["rpc.vision.$keep.*.>"]}})
    denied = ["rpc.vision.$last.>", "rpc.vision.$retain.>"]
    users = [user("server"), user("outsider", {"publish": {"deny": denied}}), unheard]
    service = Service(start_nats(users=users), "vision")
    for name, text in (("outsider", "publish to rpc.vision.$last.>"), ("unheard", "subscribe to rpc.vision.$keep.")):
        async with service.serving(login=login(name), port=0) as one:
            one.publish("a", 0, retain=True)
            assert await kept_at(one, "*") == {"a": 0}
        assert f"NATS does not permit this login to {text}" in caplog.text
    async with service.serving(login=login("server")), service.client(nats=login("outsider")) as alone:
        with pytest.raises(NotPermitted, match=r"rpc\.vision\.\$last\.a"):
            await alone.subscribe("a").__aenter__()
        with pytest.raises(NotPermitted, match=r"rpc\.vision\.\$retain\.a"):
            await alone.publish("a", 1, retain=True)


async def test_what_is_retained_while_nats_is_away_is_sent_later(start_nats: Callable[..., NatsServer]) -> None:
    service = Service(nats := start_nats())
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
        other.publish("d", 5, retain=True)
        assert await next_of(at_one, 3) == [("a", 2), ("b", 3), ("b", None)]
        assert await next_of(at_other) == [("d", 5)]
        await asyncio.to_thread(nats.restart)
        assert await next_of(at_other) == [("a", 2)]
        assert await next_of(at_one) == [("d", 5)]
        async with service.client() as client, client.subscribe("*").with_topics() as events:
            assert sorted(await next_of(events, 2)) == [("a", 2), ("d", 5)]
            await client.publish("c", 4, retain=True)
            assert [await next_of(each) for each in (at_one, at_other, events)] == [[("c", 4)]] * 3
        assert await kept_at(other, "*") == {"a": 2, "c": 4, "d": 5}
