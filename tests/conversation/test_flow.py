"""Flow control: how much one end accepts of the other, and that neither waits for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rpcstream import AsyncClient, ConnectionLost, Context, Limits, Server
from rpcstream.testing import FakeTimeLoop

from ..kit import Network, notification, peer_keeping_server, request, until

pytestmark = pytest.mark.every_transport


class Capped:
    """A server that runs few calls of one connection at a time."""

    def __init__(self, max_calls: int, **limits: Any) -> None:
        self.server = server = Server(limits=Limits(max_calls=max_calls, **limits))
        self.go = asyncio.Event()
        self.begun: list[Any] = []
        self.running = self.most = 0

        @server
        async def wait(name: Any = None, text: str = "") -> Any:
            self.begun.append(name)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.go.wait()
            finally:
                self.running -= 1
            return name

        @server
        async def ask(ctx: Context, name: Any = None) -> Any:
            self.begun.append(name)
            return await ctx.peer.confirm(name)

        @server(offload="thread")
        def ask_in_thread(ctx: Context, name: Any = None) -> Any:
            self.begun.append(name)
            return ctx.peer.confirm(name)

        @server
        async def items(n: int) -> AsyncIterator[int]:
            for each in range(n):
                yield each

        @server
        async def total(values: AsyncIterator[int]) -> int:
            return sum([value async for value in values])

        @server
        def plain(value: Any) -> Any:
            return value


# -- the cap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 4])
async def test_the_cap_stops_reading(network: Network, cap: int) -> None:
    """What is not begun waits, some of it here and the rest with the peer."""
    capped = Capped(cap, write_buffer=20_000)
    async with network.raw(capped.server) as raw:
        count = 300
        for n in range(count):
            raw.call("wait", n, "x" * 10_000, id=n)
        session = network.served[0]
        await until(lambda: session.is_paused)
        for _ in range(50):
            await asyncio.sleep(0)
        assert capped.begun == list(range(cap))
        assert session.queue.size < 1_000_000
        capped.go.set()
        assert [await raw.result() for _ in range(count)] == list(range(count))
        assert capped.most == cap


async def test_a_batch_counts_with_each_of_its_members(network: Network) -> None:
    capped = Capped(3)
    async with network.raw(capped.server) as raw:
        raw.send([request("wait", n, id=n) for n in range(10)])
        raw.call("wait", "behind")
        raw.call("plain", "behind")
        await until(lambda: len(capped.begun) == 3)
        await until(lambda: network.served[0].queue)
        capped.go.set()
        assert [each["result"] for each in await raw.receive()] == list(range(10))
        assert {await raw.result(), await raw.result()} == {"behind"}
        assert capped.most == 3


@pytest.mark.one_read
@pytest.mark.parametrize("method", ["ask", "ask_in_thread"])
async def test_replies_get_through_at_the_cap(network: Network, method: str) -> None:
    """Every handler that may run waits for the peer, whose answers come behind requests that must wait."""
    capped = Capped(3)
    async with network.raw(capped.server) as raw:
        raw.send(*[request(method, n, id=n) for n in range(5)])
        asked = await raw.receive_many(3)
        assert sorted(each["params"][0] for each in asked) == [0, 1, 2]
        for each in asked:
            raw.send(request("plain", each["params"][0], id=f"behind {each['params'][0]}"))
            raw.answer(each, each["params"][0])
        results = []
        while len(results) < 8:
            message = await raw.receive()
            if "method" in message:
                raw.answer(message, message["params"][0])
            else:
                results.append((message["id"], message["result"]))
        assert sorted(results, key=str) == sorted(
            [(n, n) for n in range(5)] + [(f"behind {n}", n) for n in range(3)], key=str
        )


async def test_words_of_the_conversation_get_through_at_the_cap(network: Network) -> None:
    """Credit and items, progress and cancels, though behind requests that must wait."""
    capped = Capped(4)
    seen: list[Any] = []

    @capped.server
    async def watch(ctx: Context) -> Any:
        return await ctx.peer.work(on_progress=seen.append)

    async with network.raw(capped.server) as raw:
        raw.send(
            request("items", 3, id="items", stream=0), request("total", {"$type": "stream", "id": "s"}, id="total")
        )
        raw.send(request("watch", id="watch"), request("wait", id="wait"))
        messages = await raw.receive_many(2)
        (asked,) = [each for each in messages if each["method"] == "work"]
        await until(lambda: len(capped.begun) == 1)
        raw.send(request("plain", "behind", id="behind"))
        await until(lambda: network.served[0].queue)
        raw.send(request("plain", "also behind", id="also"), notification("$/credit", id="items", n=2))
        assert [each["params"]["value"] for each in await raw.receive_many(2)] == [0, 1]
        raw.send(request("plain", "also behind", id="also"), notification("$/progress", token=asked["id"], value=7))
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


@pytest.mark.own_socket
@pytest.mark.parametrize("method", ["ask", "ask_in_thread"])
async def test_busy_where_it_must_not_wait(network: Network, method: str) -> None:
    """All that may run wait for the peer, which sends more requests than can be kept: those are turned away, since
    the answers that everybody waits for come behind them."""
    capped = Capped(2)
    async with network.raw(capped.server) as raw:
        raw.send(request(method, 0, id=0), request(method, 1, id=1))
        asked = await raw.receive_many(2)
        for n in range(2, 12):
            raw.call("plain", n, id=n)
            await asyncio.sleep(0)
        raw.send([request("plain", id=50), request("plain", id=51)])
        raw.send({"jsonrpc": "2.0", "method": "plain", "params": [1]})
        raw.send(request("plain", id=True), request("plain", id=None), b"no JSON")
        await until(lambda: not raw.transport.get_write_buffer_size() and len(raw.inbox) >= 4)
        for each in asked:
            raw.answer(each, "confirmed")
        raw.call("rpc.ping", id="last")
        replies: list[Any] = []
        while not {*range(12), "last"} <= {each["id"] for each in replies}:
            message = await raw.receive()
            replies += message if isinstance(message, list) else [message]
        await raw.silence()
        refused = [each for each in replies if each.get("error", {}).get("code") == -32002]
        assert refused
        assert all(each["error"]["data"] == {"limit": 2} for each in refused)
        answered = {each["id"]: each.get("result") for each in replies if each["id"] in range(12)}
        assert len([each for each in replies if each["id"] in range(12)]) == 12, "each has one answer"
        assert (answered[0], answered[1]) == ("confirmed", "confirmed")
        assert all(answered[n] in (n, None) for n in range(2, 12))
        assert capped.begun == [0, 1]


@pytest.mark.lasting
async def test_a_flood_while_all_wait_for_the_peer(network: Network) -> None:
    """As above, with both ends talking as fast as they can: everything is answered, with a result or as busy."""
    capped = Capped(8)
    async with network.serve(capped.server) as endpoint:
        client: AsyncClient = endpoint.client()
        answered = 0

        @client
        async def confirm(name: Any) -> Any:
            nonlocal answered
            answered += 1
            await asyncio.sleep(0)
            return name

        calls = [client.ask(n) if n % 2 else client.plain(n) for n in range(500)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        results = [each for each in outcomes if not isinstance(each, BaseException)]
        busy = [each for each in outcomes if getattr(each, "code", None) == -32002]
        assert len(results) + len(busy) == 500
        assert [each for n, each in enumerate(outcomes) if each == n] == results
        assert answered == len(capped.begun)


@pytest.mark.lasting
@pytest.mark.own_socket
async def test_a_client_has_a_cap_as_well(network: Network) -> None:
    server = Server()

    @server
    async def ask(ctx: Context) -> list[Any]:
        return await asyncio.gather(*(ctx.peer.work(n) for n in range(20)))

    async with network.client(server, limits=Limits(max_calls=3)) as client:
        running = most = 0

        @client
        async def work(n: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            running -= 1
            return n

        try:
            assert await client.ask() == list(range(20))
        except Exception as error:  # it waits for an answer itself, so it may say that it is busy
            assert "-32603" in str(error)
        assert most == 3


# -- fairness -------------------------------------------------------------------------------------------------------


@pytest.mark.own_socket
async def test_a_busy_connection_does_not_keep_the_others_waiting(network: Network) -> None:
    server = Server()
    done = 0

    @server
    async def work() -> None:
        nonlocal done
        for _ in range(20):
            await asyncio.sleep(0)
        done += 1

    async with network.serve(server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.send(*[request("work", id=n) for n in range(1000)])
        for _ in range(5):
            assert await other.result("rpc.ping") == "pong"
        assert done < 1000
        await greedy.receive_many(1000)


async def test_streams_share_their_connection(network: Network) -> None:
    """Generators that never wait, on one connection, with all the credit they want: each has its turn, and a plain call
    between them as well."""
    server = Server(limits=Limits(write_buffer=20_000))
    progress = [0] * 10
    first_done: list[list[int]] = []

    @server
    def count(which: int, n: int) -> Iterator[str]:
        for each in range(n):
            progress[which] = each + 1
            yield "x" * 100
        if not first_done:
            first_done.append(list(progress))

    @server(offload="thread")
    def count_in_thread(which: int, n: int) -> Iterator[str]:
        for each in range(n):
            progress[which] = each + 1
            yield "x" * 100

    async with network.raw(server) as raw:
        raw.send(*[request("count", n, 1500, id=n, stream=2**30) for n in range(9)])
        raw.send(request("count_in_thread", 9, 200, id=9, stream=2**30), request("rpc.ping", id="ping"))
        items = replies = 0
        while replies < 11:
            message = await raw.receive()
            if "method" in message:
                items += 1
            else:
                replies += 1
                if message["id"] == "ping":
                    assert items < 9 * 1500
        assert items == 9 * 1500 + 200
        assert min(first_done[0][:9]) > 100, "none waited until another was done"


@pytest.mark.lasting
async def test_uploads_share_their_connection(network: Network) -> None:
    capped = Capped(100)
    async with network.client(capped.server, limits=Limits(write_buffer=5_000)) as client:
        made = 0

        def source() -> Iterator[int]:
            nonlocal made
            while made < 20_000:
                made += 1
                yield 1

        calls = [client.submit.total(source()) for _ in range(5)]
        for n in range(20):
            assert await client.plain(n) == n
        assert made < 20_000
        assert sum(await asyncio.gather(*calls)) == 20_000


# -- who does not read ----------------------------------------------------------------------------------------------


@pytest.mark.fake_time
@pytest.mark.parametrize("kind", ["stream", "replies", "calls back", "progress"])
async def test_slow_readers_are_closed_with_a_reason(
    network: Network, kind: str, fake_time: FakeTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """They are waited for, held to what the limit allows, and then closed, which is counted and said."""
    limits = Limits(write_buffer=50_000, write_timeout=30, max_message_size=100_000)
    server = Server(limits=limits)
    ended: list[str] = []

    @server
    async def stream() -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 10_000
        finally:
            ended.append("stream")

    @server
    def reply() -> str:
        return "x" * 90_000

    @server
    async def call_back(ctx: Context) -> None:
        try:
            while True:
                try:
                    await ctx.peer.confirm("x" * 10_000, timeout=1)
                except TimeoutError:
                    pass
        finally:
            ended.append("calls back")

    @server
    async def tell(ctx: Context) -> None:
        try:
            while True:
                ctx.progress("x" * 10_000)
                await asyncio.sleep(0.1)
        finally:
            ended.append("progress")

    async with network.serve(server) as endpoint:
        slow, other = await endpoint.raw(), await endpoint.raw()
        slow.transport.pause_reading()
        since = fake_time.time()
        if kind == "replies":
            slow.send(*[request("reply", id=n) for n in range(50)])
        else:
            method, members = {
                "stream": ("stream", {"stream": 2**30}),
                "calls back": ("call_back", {}),
                "progress": ("tell", {}),
            }[kind]
            slow.call(method, **members)
        session, channel = network.served[0], network.served[0].channel
        while session.channel is not None:
            assert channel.unread_size < 400_000
            await asyncio.sleep(1)
        assert 30 <= fake_time.time() - since <= 60
        await until(lambda: kind == "replies" or ended == [kind])
        assert server.counters.closed_for_limits == 1
        messages = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        reasons = [message for message in messages if message.startswith("closed ")]
        assert len(reasons) == 1
        assert "the peer did not read its replies for 30 s (write_timeout)" in reasons[0]
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
        await until(lambda: network.served[0].channel is None and not network.served[0].running.handlers)
        assert len(sent) < 1000
        assert "the peer left over 300000 bytes of replies unread (write_buffer)" in caplog.text
        assert server.counters.closed_for_limits == 1


@pytest.mark.backpressure
async def test_a_reader_that_comes_back_in_time(network: Network) -> None:
    server = Server(limits=Limits(write_buffer=50_000))

    @server
    async def stream(n: int) -> AsyncIterator[str]:
        for each in range(n):
            yield f"{each} " + "x" * 10_000

    async with network.raw(server) as raw:
        raw.transport.pause_reading()
        raw.call("stream", 2000, stream=4000)
        await until(lambda: network.served[0].write_gate.stalled)
        raw.transport.resume_reading()
        items = await raw.receive_many(2000)
        assert [int(each["params"]["value"].split()[0]) for each in items] == list(range(2000))
        await raw.result()


@pytest.mark.backpressure
async def test_calls_to_a_peer_that_does_not_read_wait_before_they_are_sent(network: Network) -> None:
    server, kept = peer_keeping_server(limits=Limits(write_buffer=50_000, write_timeout=None))

    async with network.raw(server) as raw:
        assert await raw.result("hello") is None
        raw.transport.pause_reading()
        calls = []
        while not network.served[0].write_gate.stalled:
            calls.append(asyncio.ensure_future(kept[0].confirm(len(calls), "x" * 10_000)))
            await asyncio.sleep(0)
        sent = len(network.served[0].pending)
        calls += [asyncio.ensure_future(kept[0].confirm(len(calls) + n, "x" * 10_000)) for n in range(300)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(network.served[0].pending) == sent, "the others wait to be sent"
        raw.transport.resume_reading()
        for _ in calls:
            raw.answer(asked := await raw.receive(), asked["params"][0])
        assert await asyncio.gather(*calls) == list(range(len(calls)))


@pytest.mark.backpressure
async def test_calls_that_wait_to_be_sent_fail_with_the_connection(network: Network) -> None:
    server, kept = peer_keeping_server(limits=Limits(write_buffer=50_000, write_timeout=None))

    async with network.raw(server) as raw:
        assert await raw.result("hello") is None
        raw.transport.pause_reading()
        calls = []
        while not network.served[0].write_gate.stalled:
            calls.append(asyncio.ensure_future(kept[0].confirm("x" * 10_000)))
            await asyncio.sleep(0)
        calls += [asyncio.ensure_future(kept[0].confirm("x" * 10_000)) for _ in range(10)]
        await asyncio.sleep(0)
        network.served[0].abort("the test says so")
        for call in calls:
            with pytest.raises(ConnectionLost):
                await call


@pytest.mark.lasting
async def test_both_ends_talk_at_once_and_much(network: Network) -> None:
    """Long messages both ways, calls within calls: neither end waits until the other has read."""
    server = Server(limits=Limits(write_buffer=50_000))
    long = "x" * 200_000

    @server
    async def exchange(text: str, ctx: Context) -> str:
        back: str = await ctx.peer.back(text)
        return back

    async with network.client(server, limits=Limits(write_buffer=50_000)) as client:

        @client
        async def back(text: str) -> str:
            return text

        assert await asyncio.gather(*(client.exchange(long) for _ in range(20))) == [long] * 20


async def test_a_full_queue_of_threads_says_busy(network: Network) -> None:
    server = Server(threads=1, limits=Limits(max_queue=2))
    go = threading.Event()
    begun: list[int] = []

    @server(offload="thread")
    def work(n: int, ctx: Context) -> int:
        begun.append(n)
        assert go.wait(20)
        return n

    async with network.raw(server) as raw:
        raw.call("work", 0, id=0)
        await until(lambda: begun == [0])
        raw.send(*[request("work", n, id=n) for n in range(1, 5)])
        assert {(await raw.reply())["error"]["code"], (await raw.reply())["error"]["code"]} == {-32002}
        go.set()
        assert [await raw.result() for _ in range(3)] == [0, 1, 2]
