"""Flow control at the sender: pauses, two ends that both send too much, and a server's stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Context, Limits, Server, ServerBusy
from rpcstream.peer.remote import Peer
from rpcstream.transports.connection import SocketConnection

from ..kit import Network, RawPeer, StoppableServer, notification, request, until

KILO = "x" * 1000


class Busy:
    """A server whose handlers wait: for `go`, or for their caller.

    Attributes:
        callers: those who said hello.
    """

    def __init__(self, **limits: Any) -> None:
        self.server = server = Server(limits=Limits(**limits))
        self.go = asyncio.Event()
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.callers: list[Peer] = []

        @server
        async def hello(ctx: Context) -> None:
            self.callers.append(ctx.peer)

        @server
        async def wait(name: Any, text: str = "") -> Any:
            self.begun.append(name)
            try:
                await self.go.wait()
            finally:
                self.ended.append(name)
            return name

        @server
        async def ask(name: Any, ctx: Context) -> Any:
            self.begun.append(name)
            answer = await ctx.peer.confirm(name)
            self.ended.append(name)
            return answer

        @server
        async def total(values: AsyncIterator[int]) -> int:
            self.begun.append("total")
            found = sum([value async for value in values])
            self.ended.append("total")
            return found

        @server
        async def count(n: int) -> AsyncIterator[int]:
            for each in range(n):
                yield each
            self.ended.append("count")

        @server
        async def kilos() -> AsyncIterator[str]:
            while True:
                yield KILO * 10

        @server
        def plain(value: Any = None) -> Any:
            self.begun.append(value)
            return value

        @server
        async def echo(value: Any) -> Any:
            await asyncio.sleep(0)
            return value


async def turns(count: int = 50) -> None:
    """Let everything happen that would."""
    for _ in range(count):
        await asyncio.sleep(0)


async def answers(raw: RawPeer, count: int) -> dict[Any, Any]:
    """What the next answers say, by their ids: the result or the error's code. Other messages are left out."""
    found: dict[Any, Any] = {}
    while len(found) < count:
        message = await raw.receive()
        for each in message if isinstance(message, list) else [message]:
            if "method" not in each:
                found[each["id"]] = each.get("result", each.get("error", {}).get("code"))
    return found


# -- what a sender notices ------------------------------------------------------------------------------------------


@pytest.mark.backpressure
async def test_the_sending_of_who_asks_too_much_stops(network: Network) -> None:
    """The connection is not read while it is at the cap: what was sent stays with the sender, and is all answered."""
    busy = Busy(max_calls=2)
    async with network.raw(busy.server) as raw:
        if raw.transport.get_extra_info("ssl_object") is not None:
            pytest.skip("what is encrypted and not sent cannot be seen here")
        raw.send(*[request("wait", n, KILO * 10, id=n) for n in range(1400)])
        await until(lambda: network.served[0].is_paused)
        await turns()
        unsent = raw.transport.get_write_buffer_size()
        assert unsent > 500_000
        await turns()
        assert raw.transport.get_write_buffer_size() == unsent
        assert busy.begun == [0, 1]
        busy.go.set()
        assert [await raw.result() for _ in range(1400)] == list(range(1400))
        assert raw.transport.get_write_buffer_size() == 0


async def test_who_asks_too_much_does_not_stop_others(network: Network) -> None:
    busy = Busy(max_calls=2)
    async with network.serve(busy.server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.send(*[request("wait", n, KILO * 10, id=n) for n in range(1400)])
        await until(lambda: network.served[0].is_paused)
        assert await other.result("echo", 1) == 1
        assert [await other.result("plain", n) for n in range(10)] == list(range(10))
        busy.go.set()
        await greedy.receive_many(1400)


# -- a peer that does not read --------------------------------------------------------------------------------------


@pytest.mark.backpressure
@pytest.mark.own_socket
async def test_words_count_though_who_says_them_does_not_read(network: Network) -> None:
    """Answers, items and cancels of a peer that reads nothing are heeded; its requests wait."""
    busy = Busy(write_buffer=50_000)
    async with network.raw(busy.server) as raw:
        raw.send(request("ask", "ask", id="ask"), request("wait", "wait", id="wait"))
        raw.call("total", {"$type": "stream", "id": "s"}, id="total")
        first = await raw.receive_many(2)
        (asked,) = [each for each in first if each["method"] == "confirm"]
        raw.transport.pause_reading()
        raw.call("kilos", id="kilos", stream=2**30)
        session = network.served[0]
        await until(lambda: session.write_gate.stalled)
        raw.call("plain", "request", id="plain")
        raw.send(notification("$/item", stream="s", value=5))
        raw.send(notification("$/end", stream="s"))
        raw.cancel("wait")
        raw.answer(asked, "confirmed")
        await until(lambda: sorted(busy.ended) == ["ask", "total", "wait"])
        assert session.write_gate.stalled
        assert "request" not in busy.begun
        raw.cancel("kilos")
        raw.transport.resume_reading()
        expected = {"ask": "confirmed", "total": 5, "wait": -32800, "plain": "request", "kilos": -32800}
        assert await answers(raw, 5) == expected


@pytest.mark.backpressure
@pytest.mark.own_socket
async def test_who_neither_reads_nor_stops_asking_is_closed(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    """Something waits for its words, so they are read; what that takes is bounded all the same."""
    busy = Busy(max_message_size=100_000, write_buffer=10_000)
    async with network.serve(busy.server) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.send(request("ask", "it", id="ask"))
        await raw.receive()
        raw.transport.pause_reading()
        raw.call("kilos", id="kilos", stream=2**30)
        session = network.served[0]
        await until(lambda: session.write_gate.stalled)
        while session.channel is not None:
            raw.send(*[request("plain", n, id=n) for n in range(1000)])
            await asyncio.sleep(0)
            assert session.queue.size < 500_000
        await other.silence()
        assert "the peer left over 140000 bytes of replies unread (write_buffer)" in caplog.text
        assert busy.server.counters.closed_for_limits == 1
        assert busy.begun == ["it"]


@pytest.mark.backpressure
@pytest.mark.parametrize("kind", ["async", "sync", "thread", "upload"])
async def test_producers_stop_with_credit_left(network: Network, kind: str) -> None:
    """Credit says what the reader of the stream takes; that its connection takes nothing counts as well."""
    made: list[int] = []
    many = 1600

    def values() -> Iterator[str]:
        for n in range(many):
            made.append(n)
            yield f"{n} {KILO * 10}"

    async def async_values() -> AsyncIterator[str]:
        for value in values():
            yield value

    def number(message: dict[str, Any]) -> int:
        return int(message["params"]["value"].split()[0])

    async def see_it_stop(raw: RawPeer, stalled: Any) -> None:
        await until(stalled)
        count = -1
        while count != len(made):  # a thread may be at one still
            count = len(made)
            await asyncio.sleep(0.02)
        assert 0 < len(made) < many
        raw.transport.resume_reading()
        assert [number(await raw.receive()) for _ in range(many)] == list(range(many))

    if kind == "upload":
        over = asyncio.Event()

        async def script(raw: RawPeer) -> None:
            asked = await raw.receive()
            token = asked["params"][0]["id"]
            raw.transport.pause_reading()
            raw.send(notification("$/credit", stream=token, n=2**30))
            (session,) = network.sessions
            await see_it_stop(raw, lambda: session.write_gate.stalled)
            assert (await raw.receive())["method"] == "$/end"
            raw.answer(asked, "taken")
            await over.wait()

        async with network.scripted(script) as endpoint:
            client: AsyncClient = endpoint.client(limits=Limits(write_buffer=50_000))
            assert await client.take(async_values()) == "taken"
            over.set()
        return
    server = Server(limits=Limits(write_buffer=50_000))
    server.add(
        async_values if kind == "async" else values, name="produce", offload="thread" if kind == "thread" else None
    )
    async with network.raw(server) as raw:
        raw.transport.pause_reading()
        raw.call("produce", stream=2**30)
        await see_it_stop(raw, lambda: network.served[0].write_gate.stalled)
        await raw.result()


# -- turned away ----------------------------------------------------------------------------------------------------


async def test_what_is_turned_away_and_counted(network: Network) -> None:
    """Each request has one answer, each member of a batch its own; notifications have none, and count as well."""
    busy = Busy(max_calls=2)
    async with network.raw(busy.server) as raw:
        raw.send(request("ask", 0, id=0), request("ask", 1, id=1))
        asked = await raw.receive_many(2)
        raw.send(request("plain", "kept 2", id=2), request("plain", "kept 3", id=3))
        await until(lambda: network.served[0].queue.is_full)
        raw.call("plain", "away", id="away")
        raw.send({"jsonrpc": "2.0", "method": "plain", "params": ["away"]})
        raw.send([request("plain", "away", id=7), notification("plain", value="away"), request("plain", id="8"), 5])
        raw.send([notification("plain", value="away"), notification("plain", value="away")])
        raw.send(request("plain", "away", id=None), request("plain", "away", id=True))
        busied = {"code": -32002, "message": "Server busy", "data": {"limit": 2}}
        assert await raw.reply() == {"jsonrpc": "2.0", "id": "away", "error": busied}
        batch = await raw.receive()
        assert [(each["id"], each["error"]) for each in batch] == [(7, busied), ("8", busied), (None, busied)]
        assert [await raw.reply(), await raw.reply()] == [{"jsonrpc": "2.0", "id": None, "error": busied}] * 2
        assert busy.server.counters.turned_away == 10
        for each in asked:
            raw.answer(each, "fine")
        results = [await raw.result() for _ in range(4)]
        assert sorted(results) == ["fine", "fine", "kept 2", "kept 3"]
        await raw.silence()
        assert "away" not in busy.begun


async def test_nothing_is_turned_away_that_only_waits_for_its_turn(network: Network) -> None:
    """A handler waits for its caller, but there is room for calls: those that come faster than they are carried out
    wait, however many they are."""
    busy = Busy(max_calls=3, write_buffer=500)
    async with network.raw(busy.server) as raw:
        raw.call("ask", "it", id="ask")
        asked = await raw.receive()
        for n in range(0, 1000, 50):
            raw.send(*[request("plain", each, id=each) for each in range(n, n + 50)])
            await asyncio.sleep(0)
        assert [await raw.result() for _ in range(1000)] == list(range(1000))
        assert busy.server.counters.turned_away == 0
        raw.answer(asked, "fine")
        assert await raw.result() == "fine"


async def crowded(network: Network, raw: RawPeer, *waiting: dict[str, Any]) -> list[dict[str, Any]]:
    """Two calls run and wait for their caller, and these two wait in line, which is full; what the two asked."""
    raw.send(request("ask", 0, id=0), request("ask", 1, id=1))
    asked = await raw.receive_many(2)
    raw.send(*waiting)
    await until(lambda: network.served[0].queue.is_full)
    return asked


def undelimited(*messages: Any) -> bytes:
    """One line, in which the messages stand one behind the other."""
    return b"".join(map(orjson.dumps, messages))


@pytest.mark.parametrize("packed", [False, True])
async def test_words_about_calls_that_wait_wait_with_them(network: Network, packed: bool) -> None:
    """The end of a stream, and credit for one, whose calls have not begun: no requests, and not turned away."""
    busy = Busy(max_calls=2)
    async with network.raw(busy.server) as raw:
        total = request("total", {"$type": "stream", "id": "s"}, id="total")
        asked = await crowded(network, raw, total, request("count", 3, id="count", stream=1))
        words = [notification("$/end", stream="s"), notification("$/credit", id="count", n=5)]
        raw.send(words) if packed else raw.send(*words)
        assert await raw.code("plain", id="away") == -32002  # so the words have been read
        for each in asked:
            raw.answer(each, "fine")
        assert await answers(raw, 4) == {0: "fine", 1: "fine", "total": 0, "count": None}
        assert busy.server.counters.turned_away == 1


@pytest.mark.parametrize("packed", [False, True])
async def test_words_that_waited_count_once_their_calls_begin(network: Network, packed: bool) -> None:
    """Also when the calls fill all room there is, so that nothing else of what waits is read."""
    busy = Busy(max_calls=5)
    async with network.raw(busy.server) as raw:
        raw.send(*[request("wait", n, id=n) for n in range(5)])
        await until(lambda: len(busy.begun) == 5)
        raw.call("total", {"$type": "stream", "id": "s"}, id="total")
        raw.call("count", 3, id="count", stream=1)
        await until(lambda: network.served[0].queue.count == 2)
        words = [notification("$/end", stream="s"), notification("$/credit", id="count", n=5)]
        raw.send(words) if packed else raw.send(*words)
        await until(lambda: network.served[0].queue.count == 4)
        raw.cancel(0)
        raw.cancel(1)
        assert await answers(raw, 4) == {0: -32800, 1: -32800, "total": 0, "count": None}
        busy.go.set()
        assert await answers(raw, 3) == {2: 2, 3: 3, 4: 4}


@pytest.mark.backpressure
async def test_cancels_count_however_many_come(network: Network) -> None:
    """Those about nothing take no room from the others; nor do long ids."""
    busy = Busy(max_calls=3)
    async with network.raw(busy.server) as raw:
        raw.send(*[request("wait", n, id=n) for n in range(3)])
        await until(lambda: len(busy.begun) == 3)
        words = [notification("$/cancelRequest", id=n) for n in range(100, 1100)]
        ids = [3, 4, "x" * 1000, "x" * 1001]
        later = [request("count", 3, id=3, stream=1), *[request("wait", n, id=n) for n in ids[1:]]]
        raw.send(*words, *later, *[notification("$/cancelRequest", id=n) for n in [*ids, 0]])
        assert await answers(raw, 5) == dict.fromkeys([*ids, 0], -32800)
        busy.go.set()
        assert await answers(raw, 2) == {1: 1, 2: 2}
        assert sorted(busy.begun) == [0, 1, 2]


async def test_words_of_which_too_many_come_are_dropped(network: Network) -> None:
    busy = Busy(max_calls=2, max_message_size=2000, write_buffer=1000)
    async with network.raw(busy.server) as raw:
        asked = await crowded(network, raw, request("plain", 2, id=2), request("plain", 3, id=3))
        for n in range(1000):
            raw.send(notification("$/credit", id=f"unknown {n}", n=1))
            raw.send(notification("$/end", stream=f"unknown {n}", error={"code": 1, "message": "x" * 1000}))
        assert await raw.code("plain", id="away") == -32002
        assert network.served[0].queue.count == 4
        for each in asked:
            raw.answer(each, "fine")
        assert sorted([str(await raw.result()) for _ in range(4)]) == ["2", "3", "fine", "fine"]
        await raw.silence()


@pytest.mark.undelimited
async def test_requests_without_a_delimiter_are_each_turned_away(network: Network) -> None:
    busy = Busy(max_calls=2)
    async with network.raw(busy.server) as raw:
        asked = await crowded(network, raw, request("plain", 2, id=2), request("plain", 3, id=3))
        raw.send(undelimited(request("plain", id=4), request("plain", id=5), [request("plain", id=6)]))
        assert [(await raw.receive())["id"], (await raw.receive())["id"]] == [4, 5]
        assert [each["id"] for each in await raw.receive()] == [6]
        for each in asked:
            raw.answer(each, "fine")
        await raw.receive_many(4)


@pytest.mark.one_read
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("way", ["batch", "batch of nothing else", "escaped"])
async def test_answers_and_items_pass_requests_however_they_are_packed(
    network: Network, way: str, is_full: bool
) -> None:
    """What runs waits for them: it would wait for ever if they stayed behind requests that wait for it."""
    await answers_pass(network, way, is_full)


@pytest.mark.undelimited
@pytest.mark.parametrize("is_full", [False, True])
async def test_answers_and_items_without_a_delimiter_pass_requests(network: Network, is_full: bool) -> None:
    await answers_pass(network, "no delimiter", is_full)


async def answers_pass(network: Network, way: str, is_full: bool) -> None:
    busy = Busy(max_calls=2)
    async with network.raw(busy.server) as raw:
        raw.send(request("ask", 0, id=0), request("total", {"$type": "stream", "id": "s"}, id="total"))
        first = await raw.receive_many(2)
        (asked,) = [each for each in first if each["method"] == "confirm"]
        raw.call("plain", 2, id=2)
        if is_full:
            raw.call("plain", 3, id=3)
        await until(lambda: network.served[0].queue.is_full if is_full else network.served[0].queue)
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": "fine"}
        words = [notification("$/item", stream="s", value=5), notification("$/end", stream="s")]
        last = request("plain", "last", id="last")
        if way == "no delimiter":
            raw.send(undelimited(answer, last, *words))
        elif way == "batch":
            raw.send([answer, last, *words])
        elif way == "batch of nothing else":
            raw.send(words, [answer], last)
        else:
            lines = [orjson.dumps(each).replace(b"result", b"r\\u0065sult") for each in (answer, *words)]
            raw.send(*[line.replace(b"$/", b"\\u0024/") for line in lines], last)
        expected = {0: "fine", "total": 5, 2: 2, "last": -32002 if is_full else "last"}
        if is_full:
            expected[3] = 3
        assert await answers(raw, len(expected)) == expected


async def test_a_cancel_in_a_batch_that_waits_finds_its_call(network: Network) -> None:
    busy = Busy(max_calls=2)
    async with network.raw(busy.server) as raw:
        raw.send(request("wait", 0, id=0), request("wait", 1, id=1))
        members = [request("plain", "no", id="no"), notification("$/cancelRequest", id="no")]
        raw.send([*members, request("plain", "yes", id=2)])
        await until(lambda: network.served[0].queue)
        busy.go.set()
        await raw.receive_many(2)
        cancelled, done = await raw.receive()
        assert (cancelled["id"], cancelled["error"]["code"]) == ("no", -32800)
        assert (done["id"], done["result"]) == (2, "yes")
        assert busy.begun == [0, 1, "yes"]


# -- two ends that both send too much -------------------------------------------------------------------------------


async def calling_each_other(network: Network, *, size: int, count: int, **limits: Any) -> list[Any]:
    """The outcomes of `count` calls each way, all begun at once, which take and give so many bytes."""
    busy = Busy(**limits)
    long = "x" * size
    async with network.client(busy.server, limits=Limits(**limits), timeout=None) as client:

        @client
        async def echo(value: Any) -> Any:
            await asyncio.sleep(0)
            return value

        await client.hello()
        (caller,) = busy.callers
        calls = [end.echo(long) for _ in range(count) for end in (client, caller)]
        async with asyncio.timeout(20):  # should they wait for each other for ever
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
    return ["right" if outcome == long else outcome for outcome in outcomes]


@pytest.mark.lasting
async def test_long_messages_both_ways(network: Network) -> None:
    """More than fits between the two: neither stops reading until the other has read."""
    assert await calling_each_other(network, size=3_000_000, count=10) == ["right"] * 20


@pytest.mark.lasting
async def test_long_messages_both_ways_through_small_buffers(network: Network) -> None:
    outcomes = await calling_each_other(network, size=500_000, count=50, write_buffer=10_000, max_calls=100)
    assert outcomes == ["right"] * 100


@pytest.mark.lasting
async def test_long_messages_both_ways_at_the_cap(network: Network) -> None:
    """What cannot be kept is turned away; nothing hangs, and nothing is lost."""
    outcomes = await calling_each_other(network, size=300_000, count=50, write_buffer=10_000, max_calls=2)
    assert len(outcomes) == 100
    assert all(each == "right" or isinstance(each, ServerBusy) for each in outcomes)
    assert "right" in outcomes


@pytest.mark.lasting
@pytest.mark.parametrize("direction", ["to the server", "to the client"])
async def test_many_long_calls_begun_at_once(network: Network, direction: str) -> None:
    """They wait for each other, so that the caller does not take its own haste for a peer that does not read."""
    busy = Busy(write_buffer=50_000, max_message_size=200_000)
    async with network.client(busy.server, limits=busy.server.limits) as client:

        @client
        async def echo(value: Any) -> Any:
            return value

        await client.hello()
        end: Any = client if direction == "to the server" else busy.callers[0]
        values = [f"{n} {KILO * 100}" for n in range(100)]
        assert await asyncio.gather(*map(end.echo, values)) == values


# -- fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.one_read
async def test_plain_calls_of_one_connection_do_not_keep_the_others_waiting(network: Network) -> None:
    """Each connection has its turn, and a turn ends with the first message that took too long (here: any)."""
    server = Server(slow_call=1e-9)
    done: list[int] = []
    server.add(done.append, name="plain")
    async with network.serve(server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.send(*[request("plain", n, id=n) for n in range(500)])
        for _ in range(5):
            assert await other.result("rpc.ping") == "pong"
        assert len(done) < 500
        await greedy.receive_many(500)
        assert done == list(range(500))


@pytest.mark.one_read
async def test_calls_of_one_connection_take_turns(network: Network) -> None:
    server = Server()
    steps: list[int] = []

    @server
    async def work(which: int) -> None:
        for _ in range(100):
            steps.append(which)
            await asyncio.sleep(0)

    async with network.raw(server) as raw:
        raw.send(*[request("work", n, id=n) for n in range(10)])
        await raw.receive_many(10)
    ahead = [0] * 10
    for which in steps:
        ahead[which] += 1
        assert max(ahead) - min(ahead) <= 2


# -- a server that stops --------------------------------------------------------------------------------------------


@pytest.mark.one_peer
@pytest.mark.lasting
async def test_a_stop_finishes_what_was_read_and_begins_nothing_else(network: Network) -> None:
    """At the cap: what runs asks its caller still, what waits in line is carried out after it."""
    busy = Busy(max_calls=1)
    async with StoppableServer(network, busy.server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.send(request("ask", "first", id=1))
        asked = await raw.receive()
        raw.send(request("ask", "in line", id=2))
        await until(lambda: network.served[0].queue)
        stopping.stop()
        await until(lambda: network.served[0].is_draining)
        raw.send(request("ask", "too late", id=3), notification("plain", value="too late"))
        raw.answer(asked, "fine")
        messages = await raw.receive_many(2)
        assert [each["result"] for each in messages if "result" in each] == ["fine"]
        (asked,) = [each for each in messages if "method" in each]
        raw.answer(asked, "fine as well")
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "result": "fine as well"}
        assert await raw.receive() is None
        assert raw.farewells == [{"last": 2, "reason": "the server is stopping"}]
    assert busy.begun == ["first", "in line"]


@pytest.mark.lasting
async def test_streams_come_to_their_end_while_the_server_stops(network: Network) -> None:
    busy = Busy()
    async with StoppableServer(network, busy.server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.send(
            request("count", 5, id="count", stream=1), request("total", {"$type": "stream", "id": "s"}, id="total")
        )
        messages = await raw.receive_many(2)
        assert {each["method"] for each in messages} == {"$/item", "$/credit"}
        stopping.stop()
        await until(lambda: network.served[0].is_draining)
        raw.send(notification("$/credit", id="count", n=10), notification("$/item", stream="s", value=7))
        raw.send(notification("$/end", stream="s"))
        messages = await raw.receive_many(6)
        assert [each["params"]["value"] for each in messages if "method" in each] == [1, 2, 3, 4]
        assert {each["id"]: each["result"] for each in messages if "method" not in each} == {
            "count": None,
            "total": 7,
        }
        assert await raw.receive() is None


@pytest.mark.lasting
async def test_a_thread_is_waited_for_and_may_ask_while_the_server_stops(network: Network) -> None:
    busy = Busy()
    go = threading.Event()

    @busy.server(offload="thread")
    def work(ctx: Context) -> Any:
        busy.begun.append("work")
        assert go.wait(20)
        return ctx.peer.confirm("still there?")

    async with StoppableServer(network, busy.server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.call("work")
        await until(lambda: busy.begun)
        stopping.stop()
        await until(lambda: network.served[0].is_draining)
        go.set()
        raw.answer(await raw.receive(), "yes")
        assert await raw.result() == "yes"
        assert await raw.receive() is None


@pytest.mark.own_socket
@pytest.mark.lasting
async def test_whoever_had_a_long_turn_is_not_read_until_the_others_had_theirs(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop may read one connection many times in a row: each read would be a turn."""
    said: list[str] = []
    pause, resume = SocketConnection.pause, SocketConnection.resume

    def note_pause(connection: SocketConnection) -> None:
        said.append("pause")
        pause(connection)

    def note_resume(connection: SocketConnection) -> None:
        said.append("resume")
        resume(connection)

    monkeypatch.setattr(SocketConnection, "pause", note_pause)
    monkeypatch.setattr(SocketConnection, "resume", note_resume)
    server = Server()

    @server
    def spin(seconds: float) -> str:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return "done"

    async with network.raw(server) as raw:
        assert await raw.result("spin", 0.03) == "done"
        # On a busy machine a turn may take long before the call, too.
        await until(lambda: said and said == ["pause", "resume"] * (len(said) // 2))
        assert await raw.result("rpc.ping") == "pong"
