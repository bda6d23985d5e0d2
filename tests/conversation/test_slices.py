"""Collected generators and long batches: other calls have their turns meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rpcstream import Limits, RpcError, Server
from rpcstream.peer.slices import TURN

from ..kit import Network, StoppableServer, request, until


class Counting:
    """A server with generators of every kind that give numbers until they are told to stop, and note how they end."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server(**options)
        self.made = 0
        self.ended: list[str] = []

        def numbers(name: str, to: int) -> Iterator[int]:
            try:
                for number in range(to):
                    self.made += 1
                    yield number
            finally:
                self.ended.append(name)

        @server
        def sync(to: int) -> Iterator[int]:
            yield from numbers("sync", to)

        @server(offload="thread")
        def threaded(to: int) -> Iterator[int]:
            yield from numbers("threaded", to)

        @server(ordered=True)
        def ordered(to: int) -> Iterator[int]:
            yield from numbers("ordered", to)

        @server
        async def awaiting(to: int) -> AsyncIterator[int]:
            for number in numbers("awaiting", to):
                yield number

        @server
        def plain(value: Any) -> Any:
            return value


KINDS = ("sync", "threaded", "ordered", "awaiting")
ENDLESS = 10**12


@pytest.mark.parametrize("kind", KINDS)
async def test_an_endless_generator_is_stopped_at_the_size_of_a_message(network: Network, kind: str) -> None:
    counting = Counting(limits=Limits(max_message_size=20_000))
    async with network.client(counting.server) as client:
        with pytest.raises(RpcError) as caught:
            await client.call(kind, ENDLESS)
        assert (caught.value.code, caught.value.data["limit"]) == (-32001, 20_000)
        assert counting.ended == [kind]
        # What is held as it is, and what is made before that is looked at, comes on top.
        assert counting.made < 20_000
        for to in (0, 1, 31, 32, 33, 255, 256, 257, 1000):
            assert await client.call(kind, to) == list(range(to))
        counting.ended.clear()
        await client.notify(kind, 30_000)  # nobody wants the items: nothing is kept of them
        await until(lambda: counting.ended == [kind])


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["time-out", "cancel", "lost", "lost notification"])
async def test_it_ends_with_its_time_or_its_caller(network: Network, kind: str, how: str) -> None:
    counting = Counting()
    async with network.raw(counting.server) as raw:
        message = request(kind, ENDLESS, timeout=0.05 if how == "time-out" else None)
        if how == "lost notification":
            del message["id"]
        raw.send(message)
        await until(lambda: counting.made)
        if how == "time-out":
            assert await raw.code() == -32003
        elif how == "cancel":
            raw.cancel(1)
            assert await raw.code() == -32800
        else:
            await network.lose(raw)
        await until(lambda: counting.ended == [kind])


@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
async def test_others_have_their_turns_meanwhile(network: Network, kind: str) -> None:
    counting = Counting()
    async with network.serve(counting.server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.call(kind, ENDLESS)
        await until(lambda: counting.made)
        for number in range(10):
            assert await other.result("plain", number, id=number) == number
        assert not counting.ended
        greedy.cancel(1)
        assert await greedy.code() == -32800
        await until(lambda: counting.ended)


@pytest.mark.lasting
async def test_one_connection_may_not_collect_for_all(network: Network) -> None:
    """Calls of async generators go on side by side; what they hold together is bounded."""
    server = Server(limits=Limits(max_message_size=150_000))
    go = asyncio.Event()

    @server
    async def collects() -> AsyncIterator[str]:
        for _ in range(140):
            yield "x" * 1000
        await go.wait()

    async with network.raw(server) as raw:
        for number in range(5):
            raw.call("collects", id=number)
        refused = await raw.receive_many(3)
        assert [reply["error"]["code"] for reply in refused] == [-32002] * 3
        assert refused[0]["error"]["data"]["limit"] == 300_000
        go.set()
        for reply in await raw.receive_many(2):
            assert len(reply["result"]) == 140
        assert len(await raw.result("collects", id="again")) == 140


class Batched:
    """A server with a sync method that takes longer than a turn allows ten of, and one that notes when it is called."""

    def __init__(self) -> None:
        self.server = server = Server()
        self.events: list[Any] = []

        @server
        def slow(name: Any) -> Any:
            time.sleep(TURN / 4)
            self.events.append(name)
            return name

        @server
        async def slow_and_async(name: Any) -> Any:
            time.sleep(TURN / 4)
            self.events.append(name)
            return name

        @server
        async def awaiting(name: Any) -> Any:
            self.events.append(name)
            return name

        @server
        def plain(name: Any) -> Any:
            self.events.append(name)
            return name


def slow_batch(count: int, method: str = "slow") -> list[dict[str, Any]]:
    return [request(method, number, id=number) for number in range(count)]


@pytest.mark.lasting
@pytest.mark.parametrize("method", ["slow", "slow_and_async"])
async def test_others_have_their_turns_within_a_batch(network: Network, method: str) -> None:
    batched = Batched()
    async with network.serve(batched.server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.send(slow_batch(40, method))
        await until(lambda: batched.events)
        assert await other.result("plain", "other") == "other"
        assert batched.events.index("other") < 30
        assert [reply["result"] for reply in await greedy.receive()] == list(range(40))


@pytest.mark.lasting
async def test_what_comes_behind_a_batch_waits_for_its_sync_members(network: Network) -> None:
    batched = Batched()
    async with network.raw(batched.server) as raw:
        raw.send([*slow_batch(20), request("awaiting", "async member", id="a")], request("plain", "behind", id="b"))
        await until(lambda: batched.events)
        raw.call("plain", "later", id="c")
        replies = await raw.receive_many(3)
    assert batched.events.index("behind") > 19
    assert [event for event in batched.events if event != "async member"] == [*range(20), "behind", "later"]
    batch = next(reply for reply in replies if isinstance(reply, list))
    assert [reply["id"] for reply in batch] == [*range(20), "a"]


@pytest.mark.one_read
@pytest.mark.lasting
async def test_a_member_can_be_cancelled_before_its_turn(network: Network) -> None:
    batched = Batched()
    async with network.raw(batched.server) as raw:
        raw.send([*slow_batch(40), request("awaiting", "async", id="x")])
        await until(lambda: batched.events)
        for call_id in (38, "38", "x", "never"):  # "38" is another id
            raw.cancel(call_id)
        replies = await raw.receive()
        codes = {reply["id"]: reply["error"]["code"] for reply in replies if "error" in reply}
        assert codes == {38: -32800, "x": -32800}
    assert batched.events == [number for number in range(40) if number != 38]


@pytest.mark.one_peer
@pytest.mark.lasting
async def test_a_server_that_stops_finishes_the_batches_that_it_has_read(network: Network) -> None:
    batched = Batched()
    async with StoppableServer(network, batched.server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.send(slow_batch(20))
        await until(lambda: batched.events)
        stopping.stop()
        assert [reply["id"] for reply in await raw.receive()] == list(range(20))


@pytest.mark.one_peer
@pytest.mark.lasting
async def test_the_rest_of_a_batch_is_not_begun_when_the_caller_is_gone(network: Network) -> None:
    batched = Batched()
    async with network.raw(batched.server) as raw:
        raw.send([request("awaiting", "async", id="a"), *slow_batch(200)])
        await until(lambda: batched.events)
        await network.lose(raw)
        await network.settled()
    assert 0 < len(batched.events) < 150
    assert "async" not in batched.events


@pytest.mark.lasting
async def test_the_time_that_a_member_waits_counts(network: Network) -> None:
    server = Server()

    @server
    def slow() -> None:
        time.sleep(TURN)

    @server
    async def awaiting() -> str:
        return "in time"

    async with network.raw(server) as raw:
        members = [request("slow", id=number) for number in range(5)]
        late = request("awaiting", id="late", timeout=2 * TURN)
        early = request("awaiting", id="early", timeout=60)
        raw.send([*members, late, early])
        *_, told, answered = await raw.receive()
        assert (told["id"], told["error"]["code"]) == ("late", -32003)
        assert answered["result"] == "in time"
