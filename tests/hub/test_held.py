"""Calls of a method whose provider has just left (`Hub(grace=…)`): held, passed on when it is back, or refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream import Rule
from rpcstream.hub import Hub

from ..kit import TRANSPORTS, batch, notification, reply, request, until
from .conftest import Code, HubPeer, OpenHub, RunningHub

pytestmark = pytest.mark.fake_time


def is_away(error: Any) -> bool:
    """Whether it is the error of a call of a method that no client offers at the moment."""
    return error["code"] == Code.UNKNOWN and error["data"]["no_provider"] is True


async def left(hub: RunningHub, *methods: str) -> None:
    """A provider that has offered these, and is gone."""
    provider = await hub.peer("p", *(methods or ("work",)))
    provider.close()
    await asyncio.sleep(0.01)


@pytest.fixture
async def hub(open_hub: OpenHub) -> RunningHub:
    """A hub that holds calls for ten seconds; a provider of `work` has just left."""
    hub = await open_hub(grace=10)
    await left(hub)
    return hub


async def test_in_order_behind_the_reply_to_the_registration(hub: RunningHub) -> None:
    one, two, provider = [await hub.peer() for _ in range(3)]
    one.call("work", 1)
    two.call("p.work", 2, id="x")
    one.send(notification("work", n=3), request("work", 4, id=4))
    await asyncio.sleep(3)
    assert hub.hub.stats()["calls_held"] == 4
    provider.call("rpc.register", "p", ["work"])
    one.call("work", 5, id=5)
    assert "result" in await provider.receive()
    heard = await provider.receive_many(5)
    # `p.work` is another name, whose calls have an order of their own.
    assert [each["params"] for each in heard if each["params"] != [2]] == [[1], {"n": 3}, [4], [5]]
    assert [each["params"] for each in heard if "id" not in each] == [{"n": 3}]
    for each in heard:
        if "id" in each:
            provider.answer(each, each["params"])
    assert [await one.result() for _ in range(3)] == [[1], [4], [5]]
    assert await two.receive() == reply("x", [2])
    assert hub.hub.stats()["calls_held"] == 0


async def test_calls_of_one_batch_wait_together(hub: RunningHub) -> None:
    caller = await hub.peer()
    caller.send(batch(request("work", 1), request("work", 2, id=2), request("other", id=3)))
    await asyncio.sleep(5)
    provider = await hub.peer("p", "work")
    for _ in range(2):
        provider.answer(asked := await provider.receive(), asked["params"])
    first, second, other = await caller.receive()
    assert (first["result"], second["result"], is_away(other["error"])) == ([1], [2], True)


async def test_what_is_left_of_the_time_is_told(hub: RunningHub) -> None:
    """A provider that comes, reads nothing and leaves, again and again, gives a call no more time."""
    caller, since = await hub.peer(), asyncio.get_running_loop().time()
    caller.call("work", timeout=8)
    for left_over in (6, 4, 2):
        await asyncio.sleep(1)
        provider = await hub.peer("p", "work")
        assert (await provider.receive())["timeout"] == pytest.approx(left_over + 1, abs=0.2)
        await asyncio.sleep(1)
        provider.send(notification("$/goAway", last=None))
        await asyncio.sleep(0)
        provider.close()
    assert await caller.code() == Code.LATE
    assert asyncio.get_running_loop().time() - since == pytest.approx(8, abs=0.2)


async def test_providers_that_do_not_begin_it_are_tried_a_few_times(hub: RunningHub) -> None:
    caller, tries = await hub.peer(), 0
    caller.call("work")
    while not caller.inbox:
        provider, tries = await hub.peer("p", "work"), tries + 1
        await provider.receive()
        provider.send(notification("$/goAway", last=None))
        await asyncio.sleep(0.01)
        provider.close()
        await asyncio.sleep(0.01)
    assert (tries, await caller.code()) == (5, Code.GONE)


async def test_right_after_the_start_nothing_is_known_to_be_missing(open_hub: OpenHub) -> None:
    hub = await open_hub(grace=10)
    caller = await hub.peer()
    caller.send(request("work", 1), request("other", id=2), request("rpc.other", id=3))
    answer = await caller.reply()
    assert (answer["id"], answer["error"]["code"]) == (3, Code.UNKNOWN)
    assert "no_provider" not in answer["error"]["data"]
    await asyncio.sleep(9)
    provider = await hub.peer("p", "work")
    assert (await provider.receive())["params"] == [1]
    assert (await caller.receive())["id"] == 2
    assert is_away(await caller.error("other"))


async def test_when_the_time_is_over(open_hub: OpenHub) -> None:
    hub = await open_hub(grace=10)
    await asyncio.sleep(60)
    await left(hub)
    since = asyncio.get_running_loop().time()
    caller = await hub.peer()
    caller.send(request("work"), {"jsonrpc": "2.0", "method": "work"})
    await asyncio.sleep(5)
    caller.send(batch(request("work", id=2)))
    assert is_away(await caller.error())
    assert is_away((await caller.receive())[0]["error"])
    assert asyncio.get_running_loop().time() - since == pytest.approx(10, abs=0.1)
    assert is_away(await caller.error("work"))
    assert hub.hub.stats()["calls_held"] == 0


async def test_what_its_caller_cancels_or_has_no_more_time_for(open_hub: OpenHub) -> None:
    hub = await open_hub(grace=60)
    await left(hub)
    caller, gone = await hub.peer(), await hub.peer()
    caller.send(request("work", 1), request("work", 2, id=2, timeout=2))
    caller.send(batch(request("work", 3, id=3)), request("work", 4, id=4))
    gone.send(request("work", 5), {"jsonrpc": "2.0", "method": "work", "params": [6]})
    await asyncio.sleep(1)
    caller.cancel(1)
    assert await caller.code() == Code.CANCELLED
    caller.cancel(3)
    assert (await caller.receive())[0]["error"]["code"] == Code.CANCELLED
    gone.close()
    error = await caller.error()
    assert (error["code"], error["data"]) == (Code.LATE, {"method": "work", "timeout": 2})
    await asyncio.sleep(30)  # by then the hub knows that it was no half-close
    provider = await hub.peer("p", "work")
    # Notifications do not end with their sender. Two callers have no order between them.
    assert sorted(each["params"] for each in await provider.receive_many(2)) == [[4], [6]]
    await provider.silence()
    assert hub.hub.stats()["connections"] == 2


async def test_who_may_not_call_is_not_held(open_hub: OpenHub) -> None:
    """Or else the time of the answer would tell what was offered."""
    rules = [Rule("provider", name="*", register="*"), Rule("friend", call="work")]
    hub = await open_hub(grace=30, authenticate=lambda credentials: credentials.token, rules=rules)
    provider, friend, stranger = [await hub.peer(token=user) for user in ("provider", "friend", "stranger")]
    for _ in range(2):  # right after the start, and once the method was offered
        assert is_away(await stranger.error("work"))
        friend.call("work")
        await until(lambda: hub.hub.stats()["calls_held"])
        await provider.offers("p", "work")
        provider.answer(await provider.receive(), 1)
        assert await friend.result() == 1
        assert await stranger.code("work") == Code.DENIED
        assert await provider.result("rpc.unregister", ["work"]) == ["work"]


LONG = "x" * 40_000


@pytest.mark.parametrize(
    ("limits", "params", "room"), [({"max_calls": 16}, [], 4), ({"max_message_size": 100_000}, [LONG], 1)]
)
async def test_of_one_connection(open_hub: OpenHub, limits: dict[str, int], params: list[Any], room: int) -> None:
    hub = await open_hub(limits, grace=10)
    await left(hub)
    greedy, other = await hub.peer(), await hub.peer()
    greedy.send(*(request("work", *params, id=number) for number in range(room + 2)))
    assert [each["id"] for each in await greedy.receive_many(2)] == [room, room + 1]
    other.call("work")
    await asyncio.sleep(0.1)
    assert hub.hub.stats()["calls_held"] == room + 1


@pytest.mark.parametrize(
    ("limits", "params", "room"), [({"max_queue": 4}, [], 4), ({"max_waiting_total": 150_000}, [LONG], 1)]
)
async def test_of_all_connections(open_hub: OpenHub, limits: dict[str, int], params: list[Any], room: int) -> None:
    hub = await open_hub(limits, grace=10)
    for _ in range(2):  # and again when their time is over
        await left(hub)
        for _ in range(room):
            (await hub.peer()).call("work", *params)
            await asyncio.sleep(0.01)
        assert is_away(await (await hub.peer()).error("work", *params))
        assert hub.hub.stats()["calls_held"] == room
        await asyncio.sleep(15)


async def test_made_up_names_displace_none_that_were_offered(open_hub: OpenHub) -> None:
    hub = await open_hub({"max_queue": 4}, grace=10)
    await left(hub, "work", "more")
    caller, other = await hub.peer(), await hub.peer()
    caller.call("work")
    for number in range(10):
        assert await other.code(f"made-up-{number}") == Code.UNKNOWN
    assert (hub.hub.stats()["calls_held"], len(caller.inbox)) == (1, 0)
    await left(hub, "new")  # which displaces the oldest of those that were offered
    assert is_away(await caller.error())


async def test_when_the_hub_stops() -> None:
    async with TRANSPORTS["memory"].serving(Hub(grace=1000, drain_timeout=5), None) as there:
        caller = await there.join(HubPeer)
        caller.call("work")
        await asyncio.sleep(0.1)
    assert is_away(await caller.error())
