"""Collected generators and long batches: other calls have their turns meanwhile."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rpcstream import Limits, RpcError, Server
from rpcstream.peer.slices import TURN

from ..kit import Network, request, until


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


@pytest.mark.once
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


@pytest.mark.once
@pytest.mark.lasting
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["time-out", "lost", "lost notification"])
async def test_it_ends_with_its_time_or_its_caller(network: Network, kind: str, how: str) -> None:
    counting = Counting()
    async with network.raw(counting.server) as raw:
        message = request(kind, ENDLESS, timeout=0.5 if how == "time-out" else None)
        if how == "lost notification":
            del message["id"]
        raw.send(message)
        await until(lambda: counting.made)
        if how == "time-out":
            assert await raw.code() == -32003
        else:
            await network.lose(raw)
        await until(lambda: counting.ended == [kind])


@pytest.mark.once
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


class Batched:
    """A server with a sync method of which a turn takes less than ten, and others; they note when they are called."""

    def __init__(self) -> None:
        self.server = server = Server()
        self.events: list[Any] = []

        @server
        def slow(name: Any) -> Any:
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


def slow_batch(count: int) -> list[dict[str, Any]]:
    return [request("slow", number, id=number) for number in range(count)]


@pytest.mark.lasting
async def test_others_have_their_turns_within_a_batch(network: Network) -> None:
    batched = Batched()
    async with network.serve(batched.server) as endpoint:
        greedy, other = await endpoint.raw(), await endpoint.raw()
        greedy.send(slow_batch(40))
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
async def test_the_rest_of_a_batch_is_not_begun_when_the_caller_is_gone(network: Network) -> None:
    batched = Batched()
    async with network.raw(batched.server) as raw:
        raw.send([*slow_batch(200), request("awaiting", "async", id="a")])
        await until(lambda: batched.events)
        await network.lose(raw)
        await network.settled()
    assert 0 < len(batched.events) < 150
    assert "async" not in batched.events
