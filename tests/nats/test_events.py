"""Events over NATS: between clients, instances, subscribers at their ports, and other programs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, Client, ConnectionLost, InvalidParams, Limits, MessageTooLarge, NotPermitted
from rpcstream.nats.options import NatsLogin

from ..kit import until, until_in_thread
from ..kit.nats_server import NatsServer, skip_without_program
from ..kit.plain_nats import plain_client
from .event_setup import (
    SERVICE,
    all_until,
    client_of,
    event,
    instance,
    next_of,
    subjects_of,
    value_of,
)

pytestmark = pytest.mark.nats

SUBJECT = f"rpc.{SERVICE}.$event"


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    """A plain server for the tests of this module, each with its own connections."""
    skip_without_program()
    with NatsServer() as server:
        yield server


# -- clients ----------------------------------------------------------------------------------------------------------


async def test_clients_publish_to_each_other_where_no_instance_runs(nats: NatsServer) -> None:
    async with client_of(nats) as one, client_of(nats) as other:
        async with one.subscribe("a.*").with_topics() as events, one.subscribe("a.b") as exact:
            assert await other.publish("a.b", {"x": 1}) == 1
            assert await other.publish("a.b.c", 2) == 0  # NATS knows no subscriber
            assert await one.publish("a.c", "own") == 1
            assert [await next_of(events), await next_of(events)] == [("a.b", {"x": 1}), ("a.c", "own")]
            assert await next_of(exact) == {"x": 1}
        assert await one.publish("a.b", 3) == 0


async def test_arrays_are_frames(nats: NatsServer) -> None:
    array = np.arange(20_000, dtype=np.float64)
    async with client_of(nats) as one, plain_client(nats.url) as plain:
        seen = await plain.subscribe(f"{SUBJECT}.>")
        await plain.flush()
        async with one.subscribe("camera.1") as events:
            await one.publish("camera.1", array)
            assert np.array_equal(await next_of(events), array)
        assert (await seen.next_msg(20)).data[:1] == b"@"


@pytest.mark.parametrize("topic", ["", "a*", "a.>.b", "rpc.x", "x" * 257, "\u2003" * 256])
async def test_what_is_no_pattern_is_refused(nats: NatsServer, topic: str) -> None:
    async with client_of(nats) as client:
        with pytest.raises(InvalidParams, match="topic"):
            async with client.subscribe(topic):
                pass
        with pytest.raises(InvalidParams, match="topic"):
            await client.publish(topic, 1)


async def test_topics_of_any_characters(nats: NatsServer) -> None:
    names = ["küche.tür auf", "a..b", "$SYS.x", "100%", "zeile\n2", ".", "\U0001f600"]
    async with client_of(nats) as client, AsyncExitStack() as stack:
        events = [await stack.enter_async_context(client.subscribe(name).with_topics()) for name in names]
        for number, name in enumerate(names):
            assert await client.publish(name, number) == 1
        assert [await next_of(each) for each in events] == [(name, number) for number, name in enumerate(names)]


async def test_an_event_over_max_payload_is_an_error(nats: NatsServer) -> None:
    async with client_of(nats) as client:
        with pytest.raises(MessageTooLarge, match="max_payload"):
            await client.publish("camera.1", bytes(2 << 20))
        assert await client.publish("camera.1", 1) == 0


async def test_a_slow_reader_loses_the_oldest_and_counts_them(nats: NatsServer) -> None:
    async with client_of(nats) as client:
        async with client.subscribe("ticks", max_queue=3) as ticks, client.subscribe("end") as end:
            for number in range(10):
                await client.publish("ticks", number)
            await client.publish("end", True)
            await next_of(end)
            assert [await next_of(ticks) for _ in range(3)] == [7, 8, 9]
            assert ticks.dropped == 7
        async with client.subscribe("ticks", max_queue=1, policy="disconnect") as ticks:
            for number in range(3):
                await client.publish("ticks", number)
            with pytest.raises(ConnectionLost, match="too slow"):
                await all_until(ticks, None)


def test_the_client_without_asyncio(nats: NatsServer) -> None:
    with Client(f"{nats.url}/{SERVICE}", timeout=20) as client, client.subscribe("a.>").with_topics() as events:
        assert client.publish("a.b", [1, 2]) == 1
        assert next(events) == ("a.b", [1, 2])
        with pytest.raises(InvalidParams, match="JetStream is off"):
            client.publish("a.b", 1, retain=True)


# -- other programs ---------------------------------------------------------------------------------------------------


async def test_another_program_reads_and_writes_events(nats: NatsServer) -> None:
    async with plain_client(nats.url) as plain, client_of(nats) as client, instance(nats.url) as one:
        seen = await plain.subscribe(f"{SUBJECT}.room.>")
        await plain.flush()
        one.publish("room.heat", 21.5)
        await client.publish("room.light", "on")
        messages = [await seen.next_msg(20) for _ in range(2)]
        assert sorted((each.subject, value_of(each)) for each in messages) == [
            (f"{SUBJECT}.room.heat", 21.5),
            (f"{SUBJECT}.room.light", "on"),
        ]
        async with (
            AsyncClient(one.address) as there,
            there.subscribe("room.*").with_topics() as by_port,
            there.subscribe("room.heat"),
            client.subscribe("room.*").with_topics() as by_nats,
        ):
            for value in (1, 2):
                await plain.publish(f"{SUBJECT}.room.heat", event("room.heat", value))
            assert [await next_of(by_port) for _ in range(2)] == [("room.heat", 1), ("room.heat", 2)]
            assert [await next_of(by_nats) for _ in range(2)] == [("room.heat", 1), ("room.heat", 2)]


async def test_what_is_no_event_is_left_out_and_logged(nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        plain_client(nats.url) as plain,
        client_of(nats) as client,
        instance(nats.url) as one,
        AsyncClient(one.address) as there,
        there.subscribe("a") as by_port,
        client.subscribe("a") as by_nats,
    ):
        for data in (b"", b"hello", event("b", 1), b"@9 9\nx"):
            await plain.publish(f"{SUBJECT}.a", data)
        await plain.publish(f"{SUBJECT}.a", event("a", "good"))
        assert await next_of(by_port) == "good"
        assert await next_of(by_nats) == "good"
    told = [record.getMessage() for record in caplog.records]
    assert sum("is not read" in text for text in told) == 3
    assert sum("is not passed on" in text for text in told) == 3


# -- instances --------------------------------------------------------------------------------------------------------


async def test_an_event_comes_once_wherever_it_is_published_and_however_it_is_subscribed_to(nats: NatsServer) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        instances = [await enter(instance(nats.url)) for _ in range(2)]
        by_nats = await enter(client_of(nats))
        clients = [await enter(AsyncClient(each.address)) for each in instances]
        # Patterns that overlap, in one connection and in several of one instance.
        names = ["a.*", "*.b", "a.b", ">"]
        readers = [(name, await enter(client.subscribe(name))) for client in [*clients, by_nats] for name in names]
        readers += [("a.b", await enter((await enter(AsyncClient(instances[0].address))).subscribe("a.b")))]
        expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for number in range(60):
            source = number % 3
            expected[source].append(number)
            if source < 2:
                instances[source].publish("a.b", number)
            else:
                await by_nats.publish("a.b", number)
        for source in (0, 1):
            instances[source].publish("a.b", -1 - source)
        await by_nats.publish("a.b", -3)
        for name, events in readers:
            values = [await next_of(events) for _ in range(63)]
            for source, numbers in expected.items():
                assert [each for each in values if each >= 0 and each % 3 == source] == numbers, name
            assert sorted(each for each in values if each < 0) == [-3, -2, -1], name
        # No more come: what is published next is the next one.
        await by_nats.publish("a.b", "end")
        assert [await next_of(events) for _, events in readers] == ["end"] * len(readers)


async def test_only_what_has_subscribers_is_subscribed_to(nats: NatsServer) -> None:
    async with instance(nats.url) as one, AsyncClient(one.address) as there, AsyncClient(one.address) as other:
        assert subjects_of(nats) == []
        async with there.subscribe("a.*"), other.subscribe("a.*"):
            async with other.subscribe("b"):
                assert subjects_of(nats) == [f"{SUBJECT}.a.*", f"{SUBJECT}.b"]
            await until(lambda: subjects_of(nats) == [f"{SUBJECT}.a.*"])
        await until(lambda: subjects_of(nats) == [])
        events = there.subscribe("c")
        await events.__aenter__()
        assert subjects_of(nats) == [f"{SUBJECT}.c"]
        await there.close()  # as when the connection is lost
        await until(lambda: subjects_of(nats) == [])


@pytest.mark.slow
async def test_subscriptions_that_begin_and_end_neither_lose_nor_repeat_events(nats: NatsServer) -> None:
    async with instance(nats.url) as one, AsyncClient(one.address) as there, client_of(nats) as publisher:
        is_over = asyncio.Event()

        async def come_and_go(name: str) -> None:
            async with AsyncClient(one.address) as client:
                while not is_over.is_set():
                    async with client.subscribe(name):
                        await client.call("rpc.ping")

        async with there.subscribe("a.b", max_queue=10_000) as events:
            others = [asyncio.create_task(come_and_go(name)) for name in ("a.*", "*.b", ">")]
            for number in range(500):
                await publisher.publish("a.b", number)
            is_over.set()
            await asyncio.gather(*others)
            assert await all_until(events, 499) == list(range(500))


async def test_what_an_instance_publishes_before_it_stops_arrives(nats: NatsServer) -> None:
    async with client_of(nats) as client, client.subscribe("jobs") as jobs:
        async with instance(nats.url) as one:
            for number in range(200):
                one.publish("jobs", number)
        assert await all_until(jobs, 199) == list(range(200))


async def test_threads_publish_in_order(nats: NatsServer) -> None:
    async with (
        instance(nats.url) as one,
        client_of(nats) as client,
        client.subscribe("from.*", max_queue=10_000).with_topics() as events,
    ):

        def publish(name: str) -> None:
            for number in range(300):
                one.publish(f"from.{name}", number)

        await asyncio.gather(*[asyncio.to_thread(publish, name) for name in "abc"])
        received: dict[str, list[int]] = {}
        for _ in range(900):
            topic, number = await next_of(events)
            received.setdefault(topic, []).append(number)
        assert received == {f"from.{name}": list(range(300)) for name in "abc"}


async def test_what_nats_does_not_carry_still_comes_at_the_own_port(
    start_nats: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    nats = start_nats(max_payload=8192)
    async with (
        instance(nats.url) as one,
        AsyncClient(one.address) as there,
        client_of(nats) as client,
        there.subscribe("camera") as by_port,
        client.subscribe("camera") as by_nats,
    ):
        one.publish("camera", bytes(20_000))
        one.publish("camera", b"small")
        assert [len(await next_of(by_port)) for _ in range(2)] == [20_000, 5]
        assert await next_of(by_nats) == b"small"
        assert one.server.stats()["events_dropped"] == 1
    assert "an event of camera is not on NATS" in caplog.text


# -- permissions ------------------------------------------------------------------------------------------------------


async def test_permissions_of_nats_are_what_counts(start_nats: Callable[..., NatsServer]) -> None:
    limits = {"publish": {"deny": [f"{SUBJECT}.secret.>"]}, "subscribe": {"deny": [f"{SUBJECT}.secret.>"]}}
    everything = {"user": "server", "password": "s"}
    nats = start_nats(users=[everything, {"user": "guest", "password": "g", "permissions": limits}])
    login = NatsLogin(user="guest", password="g")
    async with AsyncClient(f"{nats.url}/{SERVICE}", nats=login) as guest:
        with pytest.raises(NotPermitted) as caught:
            async with guest.subscribe("secret.a"):
                pass
        assert "subscribe" in caught.value.data["reason"]
        with pytest.raises(NotPermitted) as caught:
            await guest.publish("secret.a", 1)
        assert "publish" in caught.value.data["reason"]
        async with guest.subscribe("open.*") as events:  # all else goes on
            outcomes = await asyncio.gather(
                *[guest.publish(topic, 1) for topic in ("open.a", "secret.a", "open.b")], return_exceptions=True
            )
            assert [type(each) for each in outcomes] == [int, NotPermitted, int]
            assert [await next_of(events), await next_of(events)] == [1, 1]


# -- lost connections -------------------------------------------------------------------------------------------------


async def test_after_a_lost_connection_subscriptions_are_made_again(start_nats: Callable[..., NatsServer]) -> None:
    nats = start_nats()
    async with (
        instance(nats.url) as one,
        AsyncClient(one.address) as there,
        client_of(nats, reconnect=True) as client,
        client_of(nats) as other,
        there.subscribe("a") as by_port,
        client.subscribe("a") as by_nats,
        other.subscribe("a") as ends,
    ):
        one.publish("a", 1)
        assert [await next_of(each) for each in (by_port, by_nats, ends)] == [1, 1, 1]
        await asyncio.to_thread(nats.kill)
        with pytest.raises(ConnectionLost, match="no more events of 'a'"):
            await next_of(ends)
        one.publish("a", 2)  # NATS is not there, the own port is
        assert await next_of(by_port) == 2
        await asyncio.to_thread(nats.restart)
        await until(lambda: by_nats.reconnects == 1 and subjects_of(nats) == [f"{SUBJECT}.a"] * 2)
        one.publish("a", 3)
        assert [await next_of(each) for each in (by_port, by_nats)] == [3, 3]
        await client.publish("a", 4)
        assert [await next_of(each) for each in (by_port, by_nats)] == [4, 4]


def publish_in_thread(nats: NatsServer, count: int, until_over: threading.Event) -> threading.Thread:
    """Publish many large events from another event loop, again and again until the test says that it is enough."""

    async def publish() -> None:
        payload = event("a", "x" * 60_000)
        async with plain_client(nats.url) as plain:
            while not until_over.is_set():
                for _ in range(count):
                    await plain.publish(f"{SUBJECT}.a", payload)
                await plain.flush()

    thread = threading.Thread(target=lambda: asyncio.run(publish()))
    thread.start()
    return thread


@pytest.mark.parametrize("reconnects", [False, True])
async def test_a_client_that_nats_cuts_off_for_slowness_is_told(
    start_nats: Callable[..., NatsServer], reconnects: bool
) -> None:
    nats = start_nats(config={"max_pending": 1 << 20, "write_deadline": "200ms"})
    options: dict[str, Any] = {"reconnect": True} if reconnects else {}
    async with client_of(nats, limits=Limits(), **options) as client, client.subscribe("a", max_queue=5) as events:
        is_enough = threading.Event()
        thread = publish_in_thread(nats, 100, is_enough)
        try:
            # The loop is blocked, as by a handler that computes.
            until_in_thread(lambda: "Slow Consumer" in nats.log())
        finally:
            is_enough.set()
        await asyncio.to_thread(thread.join)
        if reconnects:
            await until(lambda: events.reconnects == 1)
            await client.publish("a", "again")
            assert (await all_until(events, "again"))[-1] == "again"
        else:
            with pytest.raises(ConnectionLost, match="no more events of 'a'"):
                await all_until(events, "again")


# -- the log ----------------------------------------------------------------------------------------------------------


async def test_without_jetstream_last_values_stay_where_they_are(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with instance(nats.url) as one, instance(nats.url) as other, client_of(nats) as client:
        async with client.subscribe("state") as events:
            one.publish("state", "on", retain=True)
            assert await next_of(events) == "on"
            one.publish("other.state", "on", retain=True)
            with pytest.raises(InvalidParams, match="JetStream is off"):
                await client.publish("state", "off", retain=True)
        async with AsyncClient(one.address) as there, there.subscribe("state") as kept:
            assert await next_of(kept) == "on"
        async with AsyncClient(other.address) as there, there.subscribe("state") as not_kept:
            one.publish("state", "live")
            assert await next_of(not_kept) == "live"
    told = [record.getMessage() for record in caplog.records if "are not shared" in record.getMessage()]
    assert len(told) == 1  # by the one that has retained something
    assert "JetStream is off" in told[0]


async def test_a_forged_mark_hides_no_event_of_another(nats: NatsServer) -> None:
    async with (
        plain_client(nats.url) as plain,
        client_of(nats) as victim,
        instance(nats.url) as one,
        AsyncClient(one.address) as there,
        there.subscribe("a") as by_port,
        there.subscribe("*"),
    ):
        seen = await plain.subscribe(f"{SUBJECT}.a")
        await plain.flush()
        await victim.publish("a", 1)
        begin, _, number = (await seen.next_msg(20)).reply.rpartition(".")
        for ahead in (1, 2, 10**30):
            await plain.publish(f"{SUBJECT}.a", event("a", "forged"), reply=f"{begin}.{int(number) + ahead}")
        await plain.publish(f"{SUBJECT}.a", event("a", "odd"), headers={"Nats-Sequence": "\u0664x"})
        await plain.flush()
        await victim.publish("a", 2)
        await victim.publish("a", 3)
        assert await all_until(by_port, 3) == [1, "forged", "forged", "forged", "odd", 2, 3]


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_command_line_publishes_and_subscribes(nats: NatsServer) -> None:
    address = f"{nats.url}/{SERVICE}"

    async def run(*argv: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "rpcstream", "--uri", address, *argv]
        return await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1, stdin=asyncio.subprocess.DEVNULL)

    shows = await run("--subscribe", "cli.*", "--max-events", "2")
    await until(lambda: subjects_of(nats) == [f"{SUBJECT}.cli.*"])
    for value in ("1", "text"):
        publishes = await run("--publish", "cli.a", value)
        assert await publishes.communicate() == (b"1\n", b"")
    out, errors = await asyncio.wait_for(shows.communicate(), 20)
    assert (out.splitlines(), errors) == ([b'{"topic":"cli.a","value":1}', b'{"topic":"cli.a","value":"text"}'], b"")
    kept = await run("--publish", "cli.a", "1", "--retain")
    out, errors = await kept.communicate()
    assert kept.returncode != 0
    assert b"JetStream is off" in errors
