"""The order of calls on one connection."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rpcstream import Context, RpcError, Server
from rpcstream.testing import FakeTimeLoop

from ..kit import LogLines, Network, request, until


class Ordered:
    """A server with ordered methods of all kinds, which note when they begin and end."""

    def __init__(self) -> None:
        self.server = server = Server()
        self.events: list[tuple[str, Any]] = []
        self.at_work = 0
        self.thread_go = threading.Event()
        self.thread_go.set()

        @contextmanager
        def working(name: Any) -> Iterator[None]:
            self.at_work += 1
            self.events.append(("begin", name))
            try:
                yield
            finally:
                self.at_work -= 1
                self.events.append(("end", name))

        @server(ordered=True, name="async")
        async def work(name: Any, seconds: float = 0) -> Any:
            with working(name):
                await asyncio.sleep(seconds)
            return name

        @server(ordered=True, name="sync")
        def work_now(name: Any) -> Any:
            with working(name):
                return name

        @server(ordered=True, name="thread", offload="thread")
        def work_in_thread(name: Any) -> Any:
            with working(name):
                assert self.thread_go.wait(20)
                return name

        @server(ordered=True)
        async def items(name: Any, seconds: float = 0) -> AsyncIterator[Any]:
            with working(name):
                await asyncio.sleep(seconds)
                yield name

        @server(ordered=True)
        def sync_items(name: Any) -> Iterator[Any]:
            with working(name):
                yield name

        @server(ordered=True)
        async def fails(name: Any) -> None:
            with working(name):
                raise RpcError(5, name)

        @server
        async def free(name: Any, seconds: float = 0) -> Any:
            await asyncio.sleep(seconds)
            return name

        @server
        def plain(name: Any) -> Any:
            return name

    def one_by_one(self, names: list[Any]) -> bool:
        return self.events == [(what, name) for name in names for what in ("begin", "end")]


@pytest.fixture
async def ordered() -> Ordered:
    return Ordered()


KINDS = ["async", "sync", "thread", "items", "sync_items"]


async def test_however_they_come(network: Network, ordered: Ordered) -> None:
    """In batches, as notifications, as streams, one message at a time or several at once."""
    async with network.raw(ordered.server) as raw:
        raw.send([request("async", 0, id=0), request("thread", 1, id=1)], request("sync", 2, id=2))
        raw.send(request("items", 3, id=3, stream=5), [request("sync_items", 4, id=4)])
        raw.send({"jsonrpc": "2.0", "method": "async", "params": [5]}, request("fails", 6, id=6))
        raw.send([{"jsonrpc": "2.0", "method": "thread", "params": [7]}, request("async", 8, id=8)])
        raw.call("sync", 9, id=9)
        messages = await raw.receive_many(8)
        assert ordered.one_by_one(list(range(10)))
        # A batch is answered when all of it is done, which is not the turn of its last member.
        ids = [each[0]["id"] if isinstance(each, list) else each.get("id") for each in messages]
        assert {each for each in ids if each is not None} == {0, 2, 3, 4, 6, 8, 9}
        ordered.events.clear()
        raw.send(*[request(KINDS[n % 5], n, id=n) for n in range(30)])
        assert [(await raw.reply())["id"] for _ in range(30)] == list(range(30))
        assert ordered.one_by_one(list(range(30)))


@pytest.mark.fake_time
@pytest.mark.parametrize("seed", range(5))
async def test_under_delays_cancels_and_time_outs(network: Network, ordered: Ordered, seed: int) -> None:
    chance = random.Random(seed)
    async with network.raw(ordered.server) as raw:
        count, cancelled = 60, set()
        for n in range(count):
            members = {"timeout": chance.uniform(0.5, 20)} if chance.random() < 0.3 else {}
            raw.call(chance.choice(["async", "items"]), n, chance.choice([0, 0.1, 1.0]), id=n, **members)
            if chance.random() < 0.3:
                cancelled.add(victim := chance.randrange(count))
                raw.cancel(victim)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0.3, 2]))
        replies = await raw.receive_many(count)
        assert sorted(each["id"] for each in replies) == list(range(count)), "each has one answer"
        results = [each["id"] for each in replies if "result" in each]
        assert results == sorted(results)
        assert {each["id"] for each in replies if each.get("error", {}).get("code") == -32800} <= cancelled
        begun = [name for what, name in ordered.events if what == "begin"]
        assert begun == sorted(begun)
        assert ordered.one_by_one(begun)


async def test_a_cancel_does_not_let_the_next_one_in_too_early(network: Network, ordered: Ordered) -> None:
    ordered.thread_go.clear()
    async with network.raw(ordered.server) as raw:
        raw.send(request("thread", 0, id=0), request("async", 1, id=1), request("async", 2, id=2))
        await until(lambda: ordered.at_work == 1)
        raw.cancel(1)
        assert (await raw.reply())["id"] == 1
        await raw.silence()
        assert ordered.events == [("begin", 0)]
        ordered.thread_go.set()
        assert [await raw.result(), await raw.result()] == [0, 2]
        assert ordered.one_by_one([0, 2])


async def test_each_connection_has_a_line_of_its_own_which_others_overtake(network: Network, ordered: Ordered) -> None:
    ordered.thread_go.clear()
    async with network.serve(ordered.server) as endpoint:
        one, other = await endpoint.raw(), await endpoint.raw()
        one.send(request("thread", "one", id=1), request("async", "two", id=2), request("free", 3), request("plain", 4))
        assert {await one.result(), await one.result()} == {3, 4}
        assert await other.result("async", "other") == "other"
        assert ("begin", "two") not in ordered.events
        ordered.thread_go.set()
        assert [await one.result(), await one.result()] == ["one", "two"]


@pytest.mark.fake_time
async def test_a_line_that_waits_for_itself_ends_in_its_time(
    network: Network, fake_time: FakeTimeLoop, errors: LogLines
) -> None:
    """An ordered handler that has its caller call another one cannot be answered: its deadline is."""
    server = Server()

    @server(ordered=True)
    async def outer(ctx: Context) -> None:
        await ctx.peer.middle()

    @server(ordered=True)
    async def inner() -> str:
        return "inner"

    async with network.client(server) as client:

        @client
        async def middle(ctx: Context) -> Any:
            return await ctx.peer.inner()

        with pytest.raises((RpcError, TimeoutError)):
            await client.outer(timeout=5)
        assert fake_time.time() == 5
        assert await client.inner() == "inner"
