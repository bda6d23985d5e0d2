"""Flow control: how much one end accepts of the other, that neither waits for ever, and whose turn it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, ConnectionLost, Context, Limits, Logs, Server, ServerBusy
from rpcstream.errors import MessageTooLarge
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, Network, RawPeer, StoppableServer, UsualServer, notification, request, until
from ..kit.matrix import cut_connections
from ..kit.memory import join
from .conftest import MESSAGES

KILO = "x" * 1000
STREAM = {"$type": "stream", "id": "s"}


def limited(**limits: Any) -> UsualServer:
    """The usual server, with `confirm`, which asks its caller, and an endless stream."""
    server = UsualServer(limits=Limits(**limits))

    @server
    async def confirm(value: Any, ctx: Context) -> Any:
        return await ctx.peer.confirm(value)

    @server
    async def kilos() -> AsyncIterator[str]:
        while True:
            yield KILO * 60

    @server
    async def echo_async(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    return server


async def answers(raw: RawPeer, count: int) -> dict[Any, Any]:
    """What the next answers say, by their ids: the result or the error's code. Other messages are left out."""
    found: dict[Any, Any] = {}
    while len(found) < count:
        message = await raw.receive()
        for each in message if isinstance(message, list) else [message]:
            if "method" not in each:
                found[each["id"]] = each.get("result", each.get("error", {}).get("code"))
    return found


async def test_the_cap_stops_reading(network: Network) -> None:
    """What is not begun waits, some of it here and the rest with the peer; the others do not."""
    server = limited(max_calls=4, write_buffer=20_000)
    async with network.serve(server) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.send(*[request("wait", n, id=n, note=KILO * 10) for n in range(100)])
        await network.paused()
        for _ in range(50):
            await asyncio.sleep(0)
        assert server.begun == [0, 1, 2, 3]
        assert [await other.result("echo", n) for n in range(10)] == list(range(10))
        server.release()
        assert [await raw.result() for _ in range(100)] == list(range(100))


async def test_words_of_the_conversation_get_through_at_the_cap(network: Network) -> None:
    """Credit and items, progress and cancels, though behind requests that must wait."""
    server = limited(max_calls=4)
    seen: list[Any] = []

    @server
    async def watch(ctx: Context) -> Any:
        return await ctx.peer.work(on_progress=seen.append)

    async with network.raw(server) as raw:
        raw.send(request("count", 3, id="items", stream=0), request("total", STREAM, id="total"))
        raw.send(request("watch", id="watch"), request("wait", id="wait"))
        messages = await raw.receive_many(2)
        (asked,) = [each for each in messages if each["method"] == "work"]
        await until(lambda: server.begun)
        raw.send(request("echo", "behind", id="behind"))
        await network.queued()
        raw.send(request("echo", "also behind", id="also"), notification("$/credit", id="items", n=2))
        assert [each["params"]["value"] for each in await raw.receive_many(2)] == [0, 1]
        raw.send(request("echo", "also behind", id="also"), notification("$/progress", token=asked["id"], value=7))
        await until(lambda: seen == [7])
        raw.send(notification("$/item", stream="s", value=5), notification("$/end", stream="s"))
        replies = [await raw.reply() for _ in range(4)]  # one is done: now the requests behind have room
        assert {each["id"]: each["result"] for each in replies}["total"] == 5
        raw.cancel("wait")
        assert (await raw.reply())["error"]["code"] == -32800
        raw.send(notification("$/credit", id="items", n=1))
        assert (await raw.receive())["params"]["value"] == 2
        assert (await raw.reply())["id"] == "items"
        raw.answer(asked, "watched")
        assert await raw.result() == "watched"


@pytest.mark.once
@pytest.mark.lasting
async def test_a_flood_while_all_wait_for_the_peer(network: Network) -> None:
    """Both ends talk as fast as they can: everything is answered, with a result or as busy."""
    async with network.serve(limited(max_calls=8)) as endpoint:
        client: AsyncClient = endpoint.client()
        answered = 0

        @client
        async def confirm(name: Any) -> Any:
            nonlocal answered
            answered += 1
            await asyncio.sleep(0)
            return name

        calls = [client.confirm(n) if n % 2 else client.echo(n) for n in range(200)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        results = [each for each in outcomes if not isinstance(each, BaseException)]
        refused = [each for each in outcomes if getattr(each, "code", None) == -32002]
        assert len(results) + len(refused) == 200
        assert [each for n, each in enumerate(outcomes) if each == n] == results
        assert answered == len([n for n in results if n % 2])


async def crowded(network: Network, raw: RawPeer, *waiting: dict[str, Any]) -> list[dict[str, Any]]:
    """Two calls run and wait for their caller, and these two wait in line, which is full; what the two asked."""
    raw.send(request("confirm", 0, id=0), request("confirm", 1, id=1))
    asked = await raw.receive_many(2)
    raw.send(*waiting)
    await network.full()
    return asked


async def test_what_is_turned_away_and_counted(network: Network) -> None:
    """Each request has one answer, each member of a batch its own; notifications have none, and count as well."""
    server = limited(max_calls=2)
    async with network.raw(server) as raw:
        asked = await crowded(network, raw, request("echo", "kept 2", id=2), request("echo", "kept 3", id=3))
        raw.call("note", "away", id="away")
        raw.send(notification("note", value="away"))
        raw.send([request("note", "away", id=7), notification("note", value="away"), request("note", id="8"), 5])
        raw.send([notification("note", value="away"), notification("note", value="away")])
        raw.send(request("note", "away", id=None), request("note", "away", id=True))
        data = {"limit": 2, "reason": "as many calls of this connection run as may (max_calls)"}
        busied = {"code": -32002, "message": "Server busy", "data": data}
        assert await raw.reply() == {"jsonrpc": "2.0", "id": "away", "error": busied}
        batch = await raw.receive()
        assert [(each["id"], each["error"]) for each in batch] == [(7, busied), ("8", busied), (None, busied)]
        assert [await raw.reply(), await raw.reply()] == [{"jsonrpc": "2.0", "id": None, "error": busied}] * 2
        assert server.stats()["turned_away"] == 10
        raw.send(b'{"jsonrpc":"2.0","method":"echo","params":[NaN],"id":"bad"}')
        assert await raw.code() == -32700  # whose fault it is, is told at the limit too
        for each in asked:
            raw.answer(each, "fine")
        assert await answers(raw, 4) == {0: "fine", 1: "fine", 2: "kept 2", 3: "kept 3"}
        await raw.silence()
        assert server.noted == []


async def test_nothing_is_turned_away_that_only_waits_for_its_turn(network: Network) -> None:
    """A handler waits for its caller, but there is room for calls: those that come faster than they are carried out
    wait, however many they are."""
    server = limited(max_calls=3, write_buffer=500)
    async with network.raw(server) as raw:
        raw.call("confirm", "it", id="ask")
        asked = await raw.receive()
        for n in range(0, 500, 50):
            raw.send(*[request("echo", each, id=each) for each in range(n, n + 50)])
            await asyncio.sleep(0)
        assert [await raw.result() for _ in range(500)] == list(range(500))
        assert server.stats()["turned_away"] == 0
        raw.answer(asked, "fine")
        assert await raw.result() == "fine"


@pytest.mark.parametrize("packed", [False, True])
async def test_words_about_calls_that_wait_wait_with_them(network: Network, packed: bool) -> None:
    """The end of a stream, and credit for one, whose calls have not begun: no requests, and not turned away. They count
    once the calls begin, also where these fill all the room there is, so that nothing else of what waits is read."""
    waiting = [request("total", STREAM, id="total"), request("count", 3, id="count", stream=1)]
    words = [notification("$/end", stream="s"), notification("$/credit", id="count", n=5)]
    async with network.raw(limited(max_calls=2)) as raw:
        asked = await crowded(network, raw, *waiting)
        raw.send(words) if packed else raw.send(*words)
        assert await raw.code("echo", id="away") == -32002  # so the words have been read
        for each in asked:
            raw.answer(each, "fine")
        assert await answers(raw, 4) == {0: "fine", 1: "fine", "total": 0, "count": None}


@pytest.mark.backpressure
async def test_cancels_count_however_many_come(network: Network) -> None:
    """Those about nothing take no room from the others; nor do long ids."""
    server = limited(max_calls=3)
    async with network.raw(server) as raw:
        raw.send(*[request("wait", n, id=n) for n in range(3)])
        await until(lambda: len(server.begun) == 3)
        words = [notification("$/cancelRequest", id=n) for n in range(100, 1100)]
        ids = [3, 4, "x" * 1000, "x" * 1001]
        later = [request("count", 3, id=3, stream=1), *[request("wait", n, id=n) for n in ids[1:]]]
        raw.send(*words, *later, *[notification("$/cancelRequest", id=n) for n in [*ids, 0]])
        assert await answers(raw, 5) == dict.fromkeys([*ids, 0], -32800)
        server.release()
        assert await answers(raw, 2) == {1: 1, 2: 2}
        assert sorted(server.begun) == [0, 1, 2]


@pytest.mark.once
@pytest.mark.parametrize(("count", "size", "is_kept"), [(1, 1, True), (1100, 1, False), (1100, 200, True)])
async def test_words_of_which_too_many_come_are_dropped(network: Network, count: int, size: int, is_kept: bool) -> None:
    """Of those about unknown streams only some wait, none with a long name; each time anew."""
    credit = notification("$/credit", id="count", n=3)
    async with network.raw(limited(max_calls=2)) as raw:
        for _ in range(2):
            asked = await crowded(network, raw, request("count", 3, id="count", stream=0), request("echo", 3, id=3))
            raw.send(*[notification("$/end", stream=f"{n}" + "x" * size, error="x" * 100) for n in range(count)])
            raw.send(credit)
            assert await raw.code("echo", id="away") == -32002
            for each in asked:
                raw.answer(each, "fine")
            expected = {0: "fine", 1: "fine", 3: 3, **({"count": None} if is_kept else {})}
            assert await answers(raw, len(expected)) == expected
            if not is_kept:
                await raw.silence()
                raw.send(credit)
                assert await answers(raw, 1) == {"count": None}


@pytest.mark.once
async def test_the_memory_of_long_requests_in_line_is_free_when_their_caller_is_gone(network: Network) -> None:
    """They may fill it for one connection; those of another one are refused then (tests/server)."""
    value = "x" * 150_000
    async with network.serve(limited(max_calls=2, max_held_total=400_000)) as endpoint:
        one, other = await endpoint.raw(), await endpoint.raw()
        for raw in (one, other):
            raw.send(request("confirm", id="ask", params=[1]), request("confirm", id="too", params=[2]))
        asked = (await one.receive_many(2), await other.receive_many(2))[1]
        one.send(request("echo", value, id=5), request("echo", value, id=6))
        await network.full()
        assert await other.code("echo", value, id="refused") == -32002
        await network.lose(one)
        other.call("echo", value, id="kept")
        await network.queued()
        for each in asked:
            other.answer(each)
        assert await answers(other, 3) == {"ask": None, "too": None, "kept": value}


@pytest.mark.once
async def test_a_batch_that_is_too_long_is_refused_once_where_there_is_no_room_for_it(network: Network) -> None:
    async with network.raw(limited(max_calls=2, max_batch=3)) as raw:
        raw.send(*[request("confirm", n, id=n) for n in range(2)])
        asked = await raw.receive_many(2)
        for n in (2, 3):
            raw.call("echo", n, id=n)
        await network.full()
        raw.send([[]] * 3)
        assert [each["error"]["code"] for each in await raw.receive()] == [-32002] * 3
        raw.send([[]] * 4)
        assert (await raw.receive())["error"]["code"] == -32002
        for each in asked:
            raw.answer(each)
        assert await answers(raw, 4) == {0: None, 1: None, 2: 2, 3: 3}


@pytest.mark.once
@pytest.mark.one_read
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("way", ["batches", "escaped", "no delimiter"])
async def test_answers_and_items_pass_requests_however_they_are_packed(
    network: Network, way: str, is_full: bool
) -> None:
    """What runs waits for them: it would wait for ever if they stayed behind requests that wait for it."""
    async with network.raw(limited(max_calls=2)) as raw:
        raw.send(request("confirm", 0, id=0), request("total", STREAM, id="total"))
        first = await raw.receive_many(2)
        (asked,) = [each for each in first if each["method"] == "confirm"]
        raw.call("echo", 2, id=2)
        if is_full:
            raw.call("echo", 3, id=3)
        await (network.full() if is_full else network.queued())
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": "fine"}
        words = [notification("$/item", stream="s", value=5), notification("$/end", stream="s")]
        last = request("echo", "last", id="last")
        if way == "no delimiter" and network.transport in [TRANSPORTS[name] for name in MESSAGES]:
            raw.send([answer], words, last)
        elif way == "no delimiter":
            raw.send(b"".join(map(orjson.dumps, [answer, last, *words])))
        elif way == "batches":
            raw.send(words, [answer], last)
        else:
            lines = [orjson.dumps(each).replace(b"result", b"r\\u0065sult") for each in (answer, *words)]
            raw.send(*[line.replace(b"$/", b"\\u0024/") for line in lines], last)
        found = await answers(raw, 5 if is_full else 4)
        last_codes = ["last"] if not is_full else [-32002, "last"]
        assert found.pop("last") in last_codes, "it may come when there is room again"
        assert found == {0: "fine", "total": 5, 2: 2, **({3: 3} if is_full else {})}


@pytest.mark.once
@pytest.mark.one_read
@pytest.mark.own_socket
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_busy_connection_does_not_keep_the_others_waiting(network: Network, kind: str) -> None:
    """Each connection has its turn, and a turn of plain calls ends with the first that took too long (here: any)."""
    server = Server(logs=Logs(slow_call=1e-9))
    done: list[int] = []

    @server(name="async")
    async def work(n: int) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        done.append(n)

    server.add(done.append, name="plain")
    async with network.serve(server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.send(*[request(kind, n, id=n) for n in range(300)])
        for _ in range(5):
            assert await other.result("rpc.ping") == "pong"
        assert len(done) < 300
        await greedy.receive_many(300)
        assert sorted(done) == list(range(300))


@pytest.mark.once
async def test_streams_share_their_connection(network: Network) -> None:
    """Generators that never wait, on one connection, with all the credit they want: each has its turn, and a plain call
    between them as well."""
    server = Server(limits=Limits(write_buffer=20_000))
    progress = [0] * 10
    first_done: list[list[int]] = []

    def count(which: int, n: int) -> Iterator[str]:
        for each in range(n):
            progress[which] = each + 1
            yield "x" * 100
        if not first_done:
            first_done.append(list(progress))

    server.add(count)
    server.add(count, name="count_in_thread", offload="thread")
    async with network.raw(server) as raw:
        # So many that each takes several slices of time, wherever the connection takes all that it is given.
        raw.send(*[request("count", n, 1500, id=n, stream=2**30) for n in range(5)])
        raw.send(request("count_in_thread", 9, 300, id=9, stream=2**30), request("rpc.ping", id="ping"))
        items = replies = 0
        while replies < 7:
            message = await raw.receive()
            if "method" in message:
                items += 1
            else:
                replies += 1
                assert message["id"] != "ping" or items < 5 * 1500
        assert items == 5 * 1500 + 300
        assert min(first_done[0][:5]) > 30, f"none waited until another was done: {first_done}"


@pytest.mark.backpressure
@pytest.mark.own_socket
async def test_words_count_though_who_says_them_does_not_read(network: Network) -> None:
    """Answers, items and cancels of a peer that reads nothing are heeded; its requests wait."""
    server = limited(write_buffer=50_000)
    heeded: list[Any] = []

    @server
    async def heed(values: AsyncIterator[Any], ctx: Context) -> Any:
        heeded.append(await ctx.peer.confirm())
        async for each in values:
            heeded.append(each)

    async with network.raw(server) as raw:
        raw.send(request("heed", STREAM, id="heed"), request("wait", "wait", id="wait"))
        asked = await raw.receive()
        await until(lambda: server.begun)
        raw.transport.pause_reading()
        raw.call("kilos", id="kilos", stream=2**30)
        await network.stalled()
        raw.call("note", "request", id="note")
        raw.answer(asked, "confirmed")
        raw.cancel("wait")
        await until(lambda: heeded == ["confirmed"] and server.ended == [("wait", "CancelledError")])
        assert server.noted == []
        raw.cancel("kilos")
        raw.transport.resume_reading()
        raw.send(notification("$/end", stream="s"))
        expected = {"heed": None, "wait": -32800, "note": None, "kilos": -32800}
        assert await answers(raw, 4) == expected


@pytest.mark.once
@pytest.mark.backpressure
@pytest.mark.own_socket
async def test_who_neither_reads_nor_stops_asking_is_closed(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    """Something waits for its words, so they are read; what that takes is bounded all the same."""
    server = limited(max_message_size=100_000, write_buffer=10_000)
    async with network.serve(server) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.send(request("confirm", "it", id="ask"))
        await raw.receive()
        raw.transport.pause_reading()
        raw.call("kilos", id="kilos", stream=2**30)
        await network.stalled()
        while not server.stats()["closed_for_limits"]:
            raw.send(*[request("note", n, id=n) for n in range(400)])
            await asyncio.sleep(0)
        await other.silence()
        assert "the peer left over 140000 bytes of replies unread (write_buffer)" in caplog.text
        assert server.stats()["closed_for_limits"] == 1
        assert server.noted == []


@pytest.mark.fake_time
@pytest.mark.parametrize("kind", ["stream", "reply", "call_back", "tell"])
async def test_slow_readers_are_closed_with_a_reason(
    network: Network, kind: str, fake_time: FakeTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """They are waited for, held to what the limit allows, and then closed, which is counted and said."""
    server = Server(limits=Limits(write_buffer=50_000, write_timeout=30, max_message_size=100_000))

    @server
    async def stream() -> AsyncIterator[str]:
        while True:
            yield KILO * 10

    @server
    def reply() -> str:
        return KILO * 90

    @server
    async def call_back(ctx: Context) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await ctx.peer.confirm(KILO * 10, timeout=1)

    @server
    async def tell(ctx: Context) -> None:
        while True:
            ctx.progress(KILO * 10)
            await asyncio.sleep(0.1)

    async with network.serve(server) as endpoint:
        slow, other = await endpoint.raw(), await endpoint.raw()
        slow.transport.pause_reading()
        since = fake_time.time()
        slow.send(*[request(kind, id=n, stream=2**30) for n in range(50 if kind == "reply" else 1)])
        while not server.stats()["closed_for_limits"]:
            assert network.unread < 400_000
            await asyncio.sleep(1)
        assert 30 <= fake_time.time() - since <= 60
        await network.finished()
        assert server.stats()["closed_for_limits"] == 1
        messages = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        (reason,) = [message for message in messages if message.startswith("closed ")]
        assert "the peer did not read its replies for 30 s (write_timeout)" in reason
        await other.silence()


@pytest.mark.backpressure
async def test_what_cannot_wait_is_bounded_by_closing(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    """Notifications cannot wait for room: a peer that does not read them is closed when too many are unread."""
    server = Server(limits=Limits(write_buffer=50_000, max_message_size=100_000))
    sent: list[int] = []

    @server
    async def tell(ctx: Context) -> None:
        for n in range(10_000):
            ctx.peer.notify.note("x" * 50_000)
            sent.append(n)
            await asyncio.sleep(0)

    async with network.raw(server) as raw:
        raw.transport.pause_reading()
        raw.call("tell")
        await until(lambda: not network.open_connections)
        await network.finished()
        assert len(sent) < 1000
        assert "the peer left over 300000 bytes of replies unread (write_buffer)" in caplog.text
        assert server.stats()["closed_for_limits"] == 1


@pytest.mark.backpressure
@pytest.mark.parametrize("kind", ["async", "sync", "thread"])
async def test_producers_stop_with_credit_left(network: Network, kind: str) -> None:
    """Credit says what the reader of the stream takes; that its connection takes nothing counts as well."""
    made: list[int] = []
    many = 120

    def values() -> Iterator[str]:
        for n in range(many):
            made.append(n)
            yield f"{n} {KILO * 80}"

    async def async_values() -> AsyncIterator[str]:
        for value in values():
            yield value

    server = Server(limits=Limits(write_buffer=50_000))
    produce = async_values if kind == "async" else values
    server.add(produce, name="produce", offload="thread" if kind == "thread" else None)
    async with network.raw(server) as raw:
        raw.transport.pause_reading()
        raw.call("produce", stream=2**30)
        await until(lambda: made)
        count = -1
        while count != len(made):  # a thread may be at one still
            count = len(made)
            await asyncio.sleep(0.005)
        assert 0 < len(made) < many
        raw.transport.resume_reading()
        items = await raw.receive_many(many)
        assert [int(each["params"]["value"].split()[0]) for each in items] == list(range(many))
        await raw.result()


@pytest.mark.once
@pytest.mark.backpressure
@pytest.mark.parametrize("is_lost", [False, True])
async def test_calls_to_a_peer_that_does_not_read_wait_before_they_are_sent(network: Network, is_lost: bool) -> None:
    server = limited(write_buffer=50_000, write_timeout=None)
    async with network.raw(server) as raw:
        assert await raw.result("hello") is None
        raw.transport.pause_reading()
        calls = [asyncio.ensure_future(server.peers[0].confirm(n, KILO * 50)) for n in range(150)]
        for _ in range(200):
            await asyncio.sleep(0)
        assert network.unread < 1_000_000, "the others wait to be sent"
        if is_lost:
            cut_connections()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, ConnectionLost)
            return
        raw.transport.resume_reading()
        for _ in calls:
            raw.answer(asked := await raw.receive(), asked["params"][0])
        assert await asyncio.gather(*calls) == list(range(len(calls)))


@pytest.mark.lasting
@pytest.mark.parametrize(
    ("size", "count", "limits"),
    [
        (3_000_000, 2, {}),
        (300_000, 10, {"write_buffer": 10_000, "max_calls": 2}),
    ],
    ids=["more than fits between the two", "through small buffers at the cap"],
)
async def test_long_messages_both_ways(network: Network, size: int, count: int, limits: dict[str, int]) -> None:
    """Neither stops reading until the other has read; what cannot be kept is turned away, and nothing is lost."""
    server = limited(**limits)
    long = "x" * size
    async with network.client(server, limits=Limits(**limits), timeout=None) as client:

        @client
        async def echo_async(value: Any) -> Any:
            await asyncio.sleep(0)
            return value

        await client.hello()
        calls = [end.echo_async(long) for _ in range(count) for end in (client, server.peers[0])]
        async with asyncio.timeout(20):  # should they wait for each other for ever
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert long in outcomes
    for each in outcomes:
        is_busy = isinstance(each, ServerBusy) and limits.get("max_calls") == 2
        # NATS carries no long call of a server to its client.
        is_too_large = isinstance(each, MessageTooLarge) and network.transport is TRANSPORTS["nats"]
        assert each == long or is_busy or (is_too_large and size > 2_000_000)


@pytest.mark.one_peer
@pytest.mark.lasting
async def test_a_stop_finishes_what_was_read_and_begins_nothing_else(network: Network) -> None:
    """At the cap: what runs asks its caller still, what waits in line is carried out after it."""
    server = limited(max_calls=1)
    async with StoppableServer(network, server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.call("confirm", "first", id=1)
        asked = await raw.receive()
        raw.call("confirm", "in line", id=2)
        await network.queued()
        stopping.stop()
        await network.draining()
        raw.send(request("confirm", "too late", id=3), notification("note", value="too late"))
        raw.answer(asked, "fine")
        messages = await raw.receive_many(2)
        assert [each["result"] for each in messages if "result" in each] == ["fine"]
        (asked,) = [each for each in messages if "method" in each]
        assert asked["params"] == ["in line"]
        raw.answer(asked, "fine as well")
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "result": "fine as well"}
        assert await raw.receive() is None
        assert raw.farewells == [{"last": 2, "reason": "the server is stopping"}]
    assert server.noted == []


async def test_what_came_before_the_end_is_answered() -> None:
    """Also more short requests in one read than are handled in one turn."""
    async with UsualServer().in_memory() as make_stream:
        raw, stream = RawPeer(), make_stream()
        join(stream, raw)
        pings = [b'{"jsonrpc":"2.0","method":"rpc.ping","id":%d}\n' % number for number in range(12_000)]
        stream.data_received(b"".join([*pings, b"\n"]))
        assert len(await raw.rest()) == 12_000
