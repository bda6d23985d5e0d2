"""Events over NATS: between clients, instances, subscribers at their ports, and other programs."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, CallTimeout, Client, ConnectionLost, InvalidParams, Limits, NotPermitted
from rpcstream.errors import MessageTooLarge

from ..kit import PATIENCE, UsualServer, frame, until
from ..kit.nats_server import NatsServer
from .conftest import Clock
from .service import Service, all_until, event_of, login, next_of, user

pytestmark = pytest.mark.nats


async def test_clients_publish_to_each_other_where_no_instance_runs(service: Service) -> None:
    array = np.arange(20_000, dtype=np.float64)
    async with service.client() as one, service.client() as other, service.raw(f"{service.event}>") as raw:
        async with one.subscribe("a.*").with_topics() as events, one.subscribe("a.b") as exact:
            assert await other.publish("a.b", {"x": 1}) == 1
            assert await other.publish("a.b.c", 2) == 1
            assert await one.publish("a.c", array) == 1
            (first, (topic, same)) = await next_of(events, 2)
            assert (first, topic) == (("a.b", {"x": 1}), "a.c")
            assert np.array_equal(same, array)
            assert await next_of(exact) == [{"x": 1}]
        assert [(await raw.next()).data[:1] for _ in range(3)] == [b"{", b"{", b"@"]
    async with service.client() as alone:
        assert await alone.publish("a.b", 3) == 1


async def test_what_is_no_pattern_is_refused(service: Service) -> None:
    async with service.client() as client:
        for topic in ("", "a*", "a.>.b", "rpc.x", "x" * 257, "\u2003" * 256):
            with pytest.raises(InvalidParams, match="topic"):
                await client.subscribe(topic).__aenter__()
            with pytest.raises(InvalidParams, match="topic"):
                await client.publish(topic, 1)


async def test_a_slow_reader_loses_the_oldest_and_counts_them(service: Service) -> None:
    async with (
        service.client() as client,
        client.subscribe("ticks", max_queue=3) as ticks,
        client.subscribe("end") as end,
    ):
        for number in range(10):
            await client.publish("ticks", number)
        await client.publish("end", True)
        await next_of(end)
        assert await next_of(ticks, 3) == [7, 8, 9]
        assert ticks.dropped == 7


def test_the_client_without_asyncio(service: Service) -> None:
    with Client(service.address, timeout=PATIENCE) as client, client.subscribe("a.>").with_topics() as events:
        assert client.publish("a.b", [1, 2]) == 1
        assert next(events) == ("a.b", [1, 2])


async def test_another_program_reads_and_writes_events(service: Service) -> None:
    async with (
        service.raw(f"{service.event}room.>") as raw,
        service.client() as client,
        service.serving(port=0) as one,
        AsyncClient(one.address) as there,
        there.subscribe("room.*").with_topics() as by_port,
        there.subscribe("room.heat"),
        client.subscribe("room.*").with_topics() as by_nats,
    ):
        one.publish("room.heat", 21.5)
        await next_of(by_nats)
        await client.publish("room.light", "on")
        told = [await raw.next() for _ in range(2)]
        assert [(each.subject, each.json["params"]["value"]) for each in told] == [
            (f"{service.event}room.heat", 21.5),
            (f"{service.event}room.light", "on"),
        ]
        indented = event_of("room.heat", "two\nlines").replace(b"{", b"{\r\n  ")  # it is passed on on one line
        for data in (event_of("room.heat", 1), indented):
            raw.publish(f"{service.event}room.heat", data)
        for events, before in ((by_port, 2), (by_nats, 1)):
            values = await next_of(events, before + 2)
            assert values[before:] == [("room.heat", 1), ("room.heat", "two\nlines")]


#: Payloads that are no events of the topic "a", for a server and a client.
NO_EVENTS = [
    b"",
    b"hello",
    b"[]",
    event_of("a", 1).replace(b"$/event", b"add"),
    event_of("a", 1).replace(b'{"topic": "a", "value": 1}', b'["a", 1]'),
    event_of("b", 1),
    event_of("a", 1).replace(b'"value"', b'"x"'),
    event_of("a", list(range(2000))),
    event_of("a", 1) + b"x",
    event_of("a", 1).replace(b"1}}", b'"\xff"}}'),
    b"@",
    b"@9 9\nx",
    b"@5 0:8\n[1,2]12345678",
    b"@5 8\n[1,2]12345678" + bytes(100),
]


async def test_what_is_no_event_is_left_out_and_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    whole = frame(event_of("a", {"$bin": 0}), bytes(64))
    chance = random.Random(1)
    broken = [whole[:at] + chance.randbytes(2) + whole[at:-4] for at in range(0, len(whole) - 4, 3)]
    async with (
        service.raw() as raw,
        service.client(limits=Limits(max_json_size=8000)) as client,
        service.serving(UsualServer(limits=Limits(max_json_size=8000, max_depth=20)), port=0) as one,
        AsyncClient(one.address) as there,
        there.subscribe("a") as by_port,
        client.subscribe("a") as by_nats,
    ):
        for data in NO_EVENTS + broken:
            raw.publish(f"{service.event}a", data)
        deep = event_of("a", 1).replace(b"1}}", b"[" * 25 + b"1" + b"]" * 25 + b"}}")
        for data in (deep, event_of("a", "good")):
            raw.publish(f"{service.event}a", data)
        assert await next_of(by_port) == ["good"]
        assert await all_until(by_nats, "good") == [deep_list(25), "good"]  # depth is what a server limits
    for text in ("was ignored", "was not passed on"):
        assert caplog.text.count(text) == 10  # of one kind, no more in a while


def deep_list(depth: int) -> Any:
    return [deep_list(depth - 1)] if depth else 1


async def test_no_reply_subject_hides_an_event(service: Service) -> None:
    """That of the processes of one server says which events came already; others write there what they like."""
    async with (
        service.raw() as raw,
        service.client() as victim,
        service.serving(port=0) as one,
        AsyncClient(one.address) as there,
        there.subscribe("a") as by_port,
        there.subscribe("*"),
    ):
        await victim.publish("a", 1)
        replies = ["", "a", "_INBOX.abc.def", "rpcstream.processes.", "rpcstream.processes.abc"]
        for reply in replies:
            for _ in range(2):
                raw.publish(f"{service.event}a", event_of("a", reply), reply)
        raw.publish(f"{service.event}a", event_of("a", "odd"), head=b"NATS/1.0\r\nNats-Sequence: \xd9\xa4x\r\n\r\n")
        await raw.flush()
        await victim.publish("a", 2)
        assert await all_until(by_port, 2) == [1, *[each for each in replies for _ in range(2)], "odd", 2]


async def test_subscriptions_that_come_and_go_lose_and_repeat_nothing(service: Service) -> None:
    async with (
        service.client() as client,
        service.serving(port=0) as one,
        AsyncClient(one.address) as there,
        AsyncClient(one.address) as other,
        there.subscribe("a.*", max_queue=10_000) as events,
    ):

        async def publish() -> None:
            for number in range(300):
                await client.publish("a.b", number)
            await client.publish("a.b", "end")

        publishing = asyncio.create_task(publish())
        while not publishing.done():
            for name in (">", "a.b", "*.b"):
                async with other.subscribe(name):
                    await asyncio.sleep(0)
        assert await all_until(events, "end") == [*range(300), "end"]


async def test_an_event_comes_once_wherever_it_is_published_and_however_it_is_subscribed_to(service: Service) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        instances = [await enter(service.serving(port=0)) for _ in range(2)]
        by_nats = await enter(service.client())
        clients = [await enter(AsyncClient(each.address)) for each in instances]
        # Patterns that overlap, in one connection and in several of one instance.
        names = ["a.*", "*.b", "a.b", ">"]
        readers = [await enter(client.subscribe(name)) for client in [*clients, by_nats] for name in names]
        readers.append(await enter((await enter(AsyncClient(instances[0].address))).subscribe("a.b")))
        for number in range(60):
            if number % 3 < 2:
                instances[number % 3].publish("a.b", number)
            else:
                await by_nats.publish("a.b", number)
        for events in readers:
            values = await next_of(events, 60)
            for source in range(3):
                assert [each for each in values if each % 3 == source] == list(range(source, 60, 3))
        # No more come: what is published next is the next one.
        await by_nats.publish("a.b", "end")
        assert [await next_of(events) for events in readers] == [["end"]] * len(readers)


async def test_only_what_has_subscribers_is_subscribed_to(service: Service) -> None:
    async with service.serving(port=0) as one, AsyncClient(one.address) as there, AsyncClient(one.address) as other:
        assert service.subscribed("$event") == []
        async with there.subscribe("a.*"), other.subscribe("a.*"):
            async with other.subscribe("b"):
                assert service.subscribed("$event") == ["$event.a.*", "$event.b"]
            await until(lambda: service.subscribed("$event") == ["$event.a.*"])
        await until(lambda: service.subscribed("$event") == [])
        await there.subscribe("c").__aenter__()
        assert service.subscribed("$event") == ["$event.c"]
        await there.close()  # as when the connection is lost
        await until(lambda: service.subscribed("$event") == [])


async def test_threads_publish_in_order_and_all_arrives_before_the_instance_stops(service: Service) -> None:
    async with service.client() as client, client.subscribe("*", max_queue=10_000).with_topics() as events:
        async with service.serving() as one:

            def publish(name: str) -> None:
                for number in range(300):
                    one.publish(name, number)

            await asyncio.gather(*[asyncio.to_thread(publish, name) for name in "abc"])
        received: dict[str, list[int]] = {}
        for topic, number in await next_of(events, 900):
            received.setdefault(topic, []).append(number)
    assert received == {name: list(range(300)) for name in "abc"}


async def test_what_nats_does_not_carry_still_comes_at_the_own_port(
    start_nats: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(start_nats(max_payload=8192))
    async with (
        service.serving(port=0) as one,
        AsyncClient(one.address) as there,
        service.client() as client,
        there.subscribe("camera") as by_port,
        client.subscribe("camera") as by_nats,
    ):
        one.publish("camera", bytes(20_000))
        with pytest.raises(MessageTooLarge, match="max_payload"):
            await client.publish("camera", bytes(20_000))
        one.publish("camera", b"small")
        assert [len(each) for each in await next_of(by_port, 2)] == [20_000, 5]
        assert await next_of(by_nats) == [b"small"]
        assert one.stats()["events_dropped"] == 1
    assert "an event of camera was not published on NATS" in caplog.text


async def test_permissions_of_nats_are_what_counts(start_nats: Callable[..., NatsServer]) -> None:
    denied = {"deny": ["rpc.vision.$event.secret.>"]}
    users = [user("server"), user("guest", {"publish": denied, "subscribe": denied})]
    service = Service(start_nats(users=users), "vision")
    async with service.client(nats=login("guest")) as guest:
        with pytest.raises(NotPermitted, match="subscribe"):
            await guest.subscribe("secret.a").__aenter__()
        async with guest.subscribe("open.*") as events:  # all else goes on
            calls = [guest.publish(topic, 1) for topic in ("open.a", "secret.a", "open.b")]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in outcomes] == [int, NotPermitted, int]
            assert await next_of(events, 2) == [1, 1]


async def test_a_subscription_that_timed_out_can_be_made_again(
    clock: Clock, start_nats: Callable[..., NatsServer]
) -> None:
    service = Service(nats := start_nats())
    async with service.client(timeout=3) as client, service.client() as other:
        await other.publish("a", 0)
        async with client.subscribe("b"):
            nats.pause()
            late = [asyncio.create_task(client.subscribe("a").__aenter__()) for _ in range(2)]
            await clock.until(lambda: all(each.done() for each in late))
            nats.resume()
            assert [type(each.exception()) for each in late] == [CallTimeout] * 2
        await until(lambda: service.subscribed("$event") == [])
        async with client.subscribe("a") as events:
            await other.publish("a", 1)
            assert await next_of(events) == [1]


async def test_after_a_lost_connection_subscriptions_are_made_again(start_nats: Callable[..., NatsServer]) -> None:
    service = Service(nats := start_nats())
    async with (
        service.serving(port=0) as one,
        AsyncClient(one.address) as there,
        service.client(reconnect=True) as client,
        service.client() as other,
        there.subscribe("a") as by_port,
        client.subscribe("a") as by_nats,
        other.subscribe("a") as ends,
    ):
        one.publish("a", 1)
        assert [await next_of(each) for each in (by_port, by_nats, ends)] == [[1], [1], [1]]
        await asyncio.to_thread(nats.kill)
        with pytest.raises(ConnectionLost, match="no more events of 'a'"):
            await next_of(ends)
        one.publish("a", 2)  # NATS is not there, the own port is
        assert await next_of(by_port) == [2]
        await asyncio.to_thread(nats.restart)
        await until(lambda: by_nats.reconnects == 1 and service.subscribed("$event") == ["$event.a"] * 2)
        one.publish("a", 3)
        await next_of(by_nats)
        await client.publish("a", 4)
        assert (await next_of(by_port, 2), await next_of(by_nats)) == ([3, 4], [4])


@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_client_that_nats_cuts_off_for_slowness_is_told(
    start_nats: Callable[..., NatsServer], reconnects: bool
) -> None:
    service = Service(nats := start_nats(config={"max_pending": 1 << 20, "write_deadline": "200ms"}))
    options: dict[str, Any] = {"reconnect": True} if reconnects else {}
    async with service.client(**options) as client, client.subscribe("a", max_queue=5) as events:
        data = event_of("a", "x" * 60_000)
        with socket.create_connection(("127.0.0.1", nats.port)) as sock:
            sock.sendall(b"CONNECT {}\r\n")
            while "Slow Consumer" not in nats.log():  # the loop is blocked, as by a handler that computes
                sock.sendall(b"PUB %ba %d\r\n%b\r\n" % (service.event.encode(), len(data), data))
        if reconnects:
            await until(lambda: events.reconnects == 1)
            await client.publish("a", "again")
            await all_until(events, "again")
        else:
            with pytest.raises(ConnectionLost, match="no more events of 'a'"):
                await all_until(events, "again")
