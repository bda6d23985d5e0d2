"""Deadlines: sent with a call, seen by the handler, inherited by its own calls, enforced before a call begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rpcstream import CallTimeout, Context, Limits, Server
from rpcstream.errors import CallCancelled, DeadlineExceeded
from rpcstream.testing import FakeTimeLoop, memory_client

from ..kit import LogLines, Network, RawPeer, notification, request, until


class Timed:
    """A server whose handlers look at the time; what they begin and end with is noted."""

    def __init__(self, **options: Any) -> None:
        self.server = Server(**options)
        self.begun: list[Any] = []
        self.cancelled: list[Any] = []
        self.thread_go = threading.Event()

        @self.server
        async def left(ctx: Context, after: float = 0) -> float | None:
            self.begun.append("left")
            await asyncio.sleep(after)
            return ctx.remaining

        @self.server
        def left_inline(ctx: Context) -> float | None:
            self.begun.append("left_inline")
            return ctx.remaining

        @self.server
        def plain() -> str:
            self.begun.append("plain")
            return "plain"

        @self.server
        async def sleep(seconds: float, name: Any = None) -> Any:
            self.begun.append(name)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return name

        self.server.add(sleep, name="sleep_4_at_most", timeout=4)
        self.server.add(sleep, name="sleep_in_order", ordered=True)

        @self.server
        async def items(seconds: float, count: int) -> AsyncIterator[int]:
            try:
                for n in range(count):
                    await asyncio.sleep(seconds)
                    yield n
            finally:
                self.cancelled.append("items")

        @self.server(offload="thread")
        def in_thread(ctx: Context, name: Any = None) -> Any:
            self.begun.append(name)
            assert self.thread_go.wait(20)
            try:
                ctx.check()
            except CallCancelled:
                self.cancelled.append((name, ctx.cancelled, ctx.remaining))
            return name


@pytest.fixture
async def timed() -> Timed:
    return Timed()


@pytest.mark.fake_time
async def test_the_rest_of_the_time(network: Network, timed: Timed, fake_time: FakeTimeLoop) -> None:
    async with network.raw(timed.server) as raw:
        for timeout in (5, 0.001, 1e300, None):
            assert await raw.result("left", timeout=timeout) == timeout
            assert await raw.result("left_inline", timeout=timeout) == timeout
        assert await raw.result("left", 2, timeout=5) == 3
        assert await raw.result("left") is None
        late = request("sleep", 9, id=3, timeout=2)
        raw.send([request("left", 1, id=1, timeout=5), request("left", 1, id=2), late])
        assert [each.get("result", "late") for each in await raw.receive()] == [4, None, "late"]


@pytest.mark.fake_time
async def test_the_shorter_of_two_limits(network: Network, timed: Timed, fake_time: FakeTimeLoop) -> None:
    async with network.raw(timed.server) as raw:
        for asked, takes in ({"timeout": 10}, 4), ({}, 4), ({"timeout": 3}, 3):
            before = fake_time.time()
            assert await raw.code("sleep_4_at_most", 100, **asked) == -32003
            assert fake_time.time() - before == takes


@pytest.mark.fake_time
async def test_when_it_passes(network: Network, timed: Timed, fake_time: FakeTimeLoop) -> None:
    async with network.raw(timed.server) as raw:
        raw.send(request("sleep", 100, "late", id=1, timeout=5), request("sleep", 100, "never", id=2))
        reply = await raw.reply()
        assert fake_time.time() == 5
        assert (reply["id"], reply["error"]["code"], reply["error"]["data"]["method"]) == (1, -32003, "sleep")
        assert timed.cancelled == ["late"]
        raw.cancel(2)
        assert await raw.code() == -32800
        raw.send({"jsonrpc": "2.0", "method": "sleep", "params": [100, "noted"], "timeout": 5})
        assert await raw.result("sleep", 6, "later") == "later"
        assert timed.cancelled == ["late", "never", "noted"]


async def test_what_a_client_tells(network: Network) -> None:
    heard: list[Any] = []

    async def script(raw: RawPeer) -> None:
        while (asked := await raw.receive()) is not None:
            heard.append(asked)
            raw.answer(asked)

    async with network.scripted(script) as endpoint:
        client = endpoint.client(timeout=50)
        await client.call("its own")
        await client.call("none", timeout=None)
        await client.call("limited", timeout=20)
        async for _ in client.stream("streamed", timeout=20):
            pass
        told = {each["method"]: each.get("timeout") for each in heard}
        assert told["its own"] is told["none"] is None
        assert all(19 < told[name] <= 20 for name in ("limited", "streamed"))


@pytest.mark.fake_time
async def test_the_time_out_of_a_stream_is_for_the_whole_of_it(
    network: Network, timed: Timed, fake_time: FakeTimeLoop
) -> None:
    async with network.client(timed.server) as client:
        got = []
        with pytest.raises((CallTimeout, DeadlineExceeded)):
            async for item in client.stream.items(2, 10, timeout=5):
                got.append(item)
        assert (got, fake_time.time()) == ([0, 1], 5)
        await until(lambda: timed.cancelled == ["items"])
        assert [item async for item in client.stream.items(2, 10, timeout=21)] == list(range(10))


def asking(server: Server) -> None:
    @server
    async def ask(ctx: Context, after: float = 0, own: Any = "none") -> Any:
        await asyncio.sleep(after)
        return await (ctx.peer.left() if own == "none" else ctx.peer.left(timeout=own))

    @server(offload="thread")
    def ask_in_thread(ctx: Context, after: float = 0, own: Any = "none") -> Any:
        return ctx.peer.left() if own == "none" else ctx.peer.left(timeout=own)

    @server
    async def ask_for_items(ctx: Context) -> Any:
        return [item async for item in ctx.peer.stream.left()]


@pytest.mark.fake_time
async def test_calls_back_have_what_is_left(network: Network, fake_time: FakeTimeLoop) -> None:
    server = Server()
    asking(server)
    async with network.raw(server) as raw:
        for params, limit, told in ([], 5, 5), ([2, 1], 5, 1), ([2, 100], 5, 3), ([2, None], 5, 3), ([2], None, None):
            raw.call("ask", *params, timeout=limit)
            asked = await raw.receive()
            assert asked.get("timeout") == told
            raw.answer(asked, "fine")
            assert await raw.result() == "fine"
        fake_time.autojump = False
        raw.call("ask_in_thread", 0, 100, timeout=5)
        asked = await raw.receive()
        assert asked["timeout"] == 5
        raw.answer(asked, "fine")
        assert await raw.result() == "fine"
        raw.call("ask_for_items", timeout=5)
        asked = await raw.receive()
        assert (asked["stream"], asked["timeout"]) == (16, 5)
        raw.send(notification("$/item", id=asked["id"], value=1))
        raw.answer(asked)
        assert await raw.result() == [1]


@pytest.mark.fake_time
async def test_calls_of_other_servers_inherit_it(network: Network, timed: Timed) -> None:
    front = Server()
    async with memory_client(timed.server, timeout=7) as behind:

        @front
        async def ask(own: float | None = None) -> Any:
            return await (behind.left() if own is None else behind.left(timeout=own))

        async with network.raw(front) as raw:
            assert await raw.result("ask", timeout=5) == 5
            assert await raw.result("ask", 30, timeout=5) == 5
            assert await raw.result("ask", timeout=50) == 7, "the client's own, since there is another now"
            assert await raw.result("ask") is None


@pytest.mark.fake_time
async def test_a_handler_whose_call_back_runs_out_of_time(
    network: Network, fake_time: FakeTimeLoop, errors: LogLines
) -> None:
    """Its own time is out as well: that is what its caller is told, not that something failed."""
    server = Server()
    asking(server)
    async with network.raw(server) as raw:
        raw.call("ask", timeout=5)
        asked = await raw.receive()
        messages = await raw.receive_many(2)
        assert fake_time.time() == 5
        assert [each["error"]["code"] for each in messages if "error" in each] == [-32003]
        assert [each["params"] for each in messages if "method" in each] == [{"id": asked["id"]}]


@pytest.mark.fake_time
@pytest.mark.parametrize("method", ["left", "left_inline", "plain", "in_thread", "sleep_in_order", "items", "batch"])
async def test_what_waited_too_long_to_be_read_is_not_begun(network: Network, method: str) -> None:
    timed = Timed(limits=Limits(max_calls=1))
    params = {"sleep_in_order": [1], "items": [0, 1]}.get(method, [])
    asked = request(method, *params, id=2, timeout=5)
    async with network.raw(timed.server) as raw:
        raw.call("sleep", 6, "first")
        raw.send([request("left", id=2, timeout=5), request("left", id=3)] if method == "batch" else asked)
        assert await raw.result() == "first"
        reply = await raw.receive()
        if method == "batch":
            assert (reply[1]["result"], timed.begun) == (None, ["first", "left"])
            reply = reply[0]
        else:
            assert timed.begun == ["first"]
        assert reply["error"]["code"] == -32003
        assert reply["error"]["data"]["timeout"] == 5


@pytest.mark.fake_time
async def test_what_waits_for_a_thread_is_not_begun_and_what_runs_there_learns_it(
    network: Network, fake_time: FakeTimeLoop
) -> None:
    fake_time.autojump = False
    timed = Timed(threads=1)
    async with network.raw(timed.server) as raw:
        raw.call("in_thread", "first")
        await until(lambda: timed.begun == ["first"])
        raw.send(request("in_thread", "second", id=2, timeout=5), request("in_thread", "third", id=3, timeout=50))
        await raw.silence()
        fake_time.jump(6)
        assert await raw.code() == -32003
        timed.thread_go.set()
        assert [await raw.result(), await raw.result()] == ["first", "third"]
        assert timed.begun == ["first", "third"]
        timed.thread_go.clear()
        raw.call("in_thread", "it", timeout=5)
        await until(lambda: timed.begun[-1] == "it")
        fake_time.jump(5)
        assert await raw.code() == -32003
        timed.thread_go.set()
        await until(lambda: timed.cancelled == [("it", True, 0)])


@pytest.mark.fake_time
async def test_what_waits_for_its_turn_is_not_begun(network: Network, timed: Timed, fake_time: FakeTimeLoop) -> None:
    async with network.raw(timed.server) as raw:
        for n, (seconds, limit) in enumerate([(10, None), (1, 5), (1, 20)]):
            raw.call("sleep_in_order", seconds, n, id=n, timeout=limit)
        late = await raw.reply()
        assert (late["id"], late["error"]["code"], fake_time.time()) == (1, -32003, 5)
        assert [await raw.result(), await raw.result()] == [0, 2]
        assert fake_time.time() == 11
        assert timed.begun == [0, 2]
