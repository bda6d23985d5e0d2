"""A provider that leaves with a last word (`$/goAway`), and a hub that does: no call is lost, none is made twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ..kit import notification, reply, request
from .conftest import Code, HubPeer, RunningHub, asked_of

pytestmark = pytest.mark.fake_time

SHARED = {"name": "work", "shared": True}


def go_away(*last: Any) -> dict[str, Any]:
    return notification("$/goAway", reason="it stops", **({"last": last[0]} if last else {}))


async def three(hub: RunningHub) -> tuple[HubPeer, HubPeer]:
    """A provider of `work` that others may offer too, and a caller."""
    return await hub.peer("first", SHARED), await hub.peer()


async def executed(caller: HubPeer) -> tuple[int, bool]:
    """What the error that comes next says of it."""
    error = await caller.error()
    return error["code"], error["data"]["executed"]


async def test_calls_that_were_not_read_go_to_another_provider(running_hub: RunningHub) -> None:
    first, caller = await three(running_hub)
    caller.send(*(request("work", number, id=number) for number in range(1, 5)))
    asked = await first.receive_many(4)
    second = await running_hub.peer("second", SHARED)
    first.send(go_away(asked[1]["id"]), go_away(None))
    # What it has read it answers; what it has not read is not its own any more.
    for each in asked:
        first.answer(each, "first")
    again = await second.receive_many(2)
    assert [each["params"] for each in again] == [[3], [4]]
    for each in again:
        second.answer(each, "second")
    replies = await caller.receive_many(4)
    assert {each["id"]: each["result"] for each in replies} == {1: "first", 2: "first", 3: "second", 4: "second"}
    await caller.silence()
    await second.silence()
    # And it gets no more calls.
    assert (await caller.result("rpc.methods"))[0]["clients"] == ["second"]
    for number in range(3):
        second.answer(await asked_of(second, caller), number)
        assert await caller.result() == number


async def test_a_word_that_names_no_call_takes_none_away(running_hub: RunningHub) -> None:
    caller, second = await running_hub.peer(), await running_hub.peer("second", SHARED)
    for number, last in enumerate(((), (10**9,), (-1,), ("x",), (1.5,), (True,), ([],), ({"a": 1},))):
        first = await running_hub.peer(f"first-{number}", SHARED)
        caller.call(f"first-{number}.work", 1)
        asked = await first.receive()
        first.send(*[go_away(*last)] * 3, go_away(None), reply(asked["id"], "first"))
        assert await caller.receive() == reply(1, "first"), last
    await second.silence()


async def test_a_call_that_every_provider_declines_comes_to_an_end(running_hub: RunningHub) -> None:
    providers = [await running_hub.peer(f"p{number}", SHARED) for number in range(2)]
    caller = await running_hub.peer()
    caller.call("work")
    tries = 0
    while not caller.inbox:
        for each in providers:
            while each.inbox:
                each.fail(await each.receive(), Code.CANCELLED, data={"executed": False})
                tries += 1
        await asyncio.sleep(0)
    assert (await executed(caller), tries) == ((Code.GONE, False), 5)


async def test_what_is_not_sent_again(running_hub: RunningHub) -> None:
    """What was cancelled or timed out; streams and long calls, which are left to the caller."""
    first, caller = await three(running_hub)
    caller.call("work")
    caller.cancel(1)
    assert await caller.code() == Code.CANCELLED
    assert await caller.code("work", id=2, timeout=1) == Code.LATE
    caller.send(request("work", "x" * 2000, id=3), request("work", id=4, stream=5))
    await caller.silence()
    second = await running_hub.peer("second", SHARED)
    first.send(go_away(None))
    assert [await executed(caller) for _ in range(2)] == [(Code.GONE, False)] * 2
    await second.silence()


async def test_calls_that_were_never_sent_go_to_another_provider(running_hub: RunningHub) -> None:
    """They waited at the hub, since their provider did not read."""
    first, caller = await three(running_hub)
    await running_hub.stalled("first", first, caller)
    caller.send(request("first.work", 0), request("work", 1, id=2))
    assert await caller.result("rpc.ping", id="read") == "pong"
    second = await running_hub.peer("second", SHARED)
    first.close()
    asked = await second.receive()
    assert asked["params"] == [1]
    second.answer(asked, "second")
    assert await executed(caller) == (Code.GONE, False)
    assert await caller.receive() == reply(2, "second")
