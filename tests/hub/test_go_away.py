"""A provider that leaves with a last word (`$/goAway`), and a hub that does: no call is lost, none is made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream.hub import Hub

from ..internals import listener_of, sessions_of
from .conftest import CALL, OpenHub, RawPeer, RunningHub, stall

Connect = Callable[[], RawPeer]

SHARED = {"name": "work", "shared": True}

#: Stands for a member that is left out.
ABSENT = object()


def go_away(last: Any) -> dict[str, Any]:
    params = {"reason": "it stops"} | ({} if last is ABSENT else {"last": last})
    return {"jsonrpc": "2.0", "method": "$/goAway", "params": params}


def result(call_id: Any, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": value}


async def provider(connect: Connect, name: str) -> RawPeer:
    peer = connect()
    await peer.offers(name, SHARED)
    return peer


def test_calls_that_were_not_read_go_to_another_provider(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        caller.say(*[CALL % (number, "work", f"[{number}]") for number in range(1, 5)])
        asked = [await first.hear() for _ in range(4)]
        second = await provider(connect, "second")
        first.say(go_away(asked[1]["id"]), go_away(None))
        # What it has read it answers; what it has not read is not its own any more.
        first.say(*[result(each["id"], "first") for each in asked])
        again = [await second.hear() for _ in range(2)]
        assert [each["params"] for each in again] == [[3], [4]]
        second.say(*[result(each["id"], "second") for each in again])
        replies = [await caller.hear() for _ in range(4)]
        assert {each["id"]: each["result"] for each in replies} == {1: "first", 2: "first", 3: "second", 4: "second"}
        await caller.silence()
        await second.silence()

    with_hub(main)


def test_a_provider_that_leaves_gets_no_more_calls(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, second = await provider(connect, "first"), await provider(connect, "second")
        first.say(go_away(None))
        await first.silence()
        assert [each.name for each in hub.directory.routes["work"].members] == ["second"]
        caller = connect()
        caller.say(*[CALL % (number, "work", "[]") for number in range(3)])
        for number in range(3):
            second.say(result((await second.hear())["id"], number))
            assert (await caller.hear())["result"] == number

    with_hub(main)


@pytest.mark.parametrize("name", ["work", "first.work"])
def test_without_another_provider_the_error_says_that_it_was_not_executed(with_hub: Any, name: str) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        caller.say(CALL % (1, name, "[1]"))
        await first.hear()
        first.say(go_away(None))
        error = (await caller.hear())["error"]
        assert (error["code"], error["data"]["executed"]) == (-32007, False)

    with_hub(main)


def test_without_another_provider_it_is_held(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        caller.say(CALL % (1, "work", "[1]"), f"[{CALL % (2, 'work', '[2]')}]")
        await first.hear()
        await first.hear()
        first.say(go_away(None))
        (refused,) = await caller.hear()  # of a batch only what has just come is held
        assert refused["error"]["data"]["executed"] is False
        second = await provider(connect, "second")
        asked = await second.hear()
        assert asked["params"] == [1]
        second.say(result(asked["id"], "held"))
        assert await caller.hear() == result(1, "held")

    with_hub(main, grace=60)


@pytest.mark.parametrize("last", [ABSENT, 10**9, -1, "x", 1.5, True, [], {"a": 1}])
def test_a_word_that_names_no_call_takes_none_away(with_hub: Any, last: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        second = await provider(connect, "second")
        caller.say(CALL % (1, "first.work", "[1]"))
        asked = await first.hear()
        first.say(*[go_away(last)] * 3, go_away(None), result(asked["id"], "first"))
        assert await caller.hear() == result(1, "first")
        await second.silence()

    with_hub(main)


def test_a_call_that_every_provider_declines_comes_to_an_end(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        peers = [await provider(connect, f"p{number}") for number in range(2)]
        caller = connect()
        caller.say(CALL % (1, "work", "[1]"))
        error = {"code": -32800, "message": "Cancelled", "data": {"executed": False}}
        tries = 0

        async def decline(peer: RawPeer) -> None:
            nonlocal tries
            while (asked := await peer.hear()) is not None:
                tries += 1
                peer.say({"jsonrpc": "2.0", "id": asked["id"], "error": error})

        declining = [asyncio.ensure_future(decline(peer)) for peer in peers]
        reply = await caller.hear()
        assert (reply["error"]["code"], reply["error"]["data"]["executed"]) == (-32007, False)
        assert tries == 5
        for each in declining:
            each.cancel()

    with_hub(main)


def test_a_call_that_was_cancelled_or_timed_out_is_not_sent_again(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        caller.say(CALL % (1, "work", "[1]"), '{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}')
        assert (await caller.hear())["error"]["code"] == -32800
        caller.say('{"jsonrpc":"2.0","id":2,"method":"work","timeout":1}')
        assert (await caller.hear())["error"]["code"] == -32003
        second = await provider(connect, "second")
        first.say(go_away(None))
        await second.silence()

    with_hub(main)


def test_the_caller_may_cancel_it_at_its_second_provider(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        caller.say(CALL % (1, "work", "[1]"), f"[{CALL % (2, 'work', '[2]')}]")
        await first.hear()
        await first.hear()
        second = await provider(connect, "second")
        first.say(go_away(None))
        asked = [await second.hear() for _ in range(2)]
        for call_id in (1, 2):
            caller.say({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": call_id}})
        cancelled = [(await second.hear())["params"]["id"] for _ in range(2)]
        assert sorted(cancelled) == sorted(each["id"] for each in asked)
        await caller.hear()
        await caller.hear()
        await caller.silence()

    with_hub(main)


def test_a_stream_and_a_long_call_are_left_to_the_caller(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        first, caller = await provider(connect, "first"), connect()
        long = '"' + "x" * 2000 + '"'
        caller.say(CALL % (1, "work", f"[{long}]"), '{"jsonrpc":"2.0","id":2,"method":"work","stream":5}')
        await first.hear()
        await first.hear()
        second = await provider(connect, "second")
        first.say(go_away(None))
        replies = [await caller.hear() for _ in range(2)]
        assert {each["id"]: each["error"]["data"]["executed"] for each in replies} == {1: False, 2: False}
        await second.silence()

    with_hub(main)


async def test_calls_that_were_never_sent_go_to_another_provider(running_hub: RunningHub) -> None:
    """They waited at the hub, since their provider did not read."""
    first, second, caller = [await running_hub.peer() for _ in range(3)]
    await first.offers("p", SHARED)
    await stall(running_hub, first, caller)
    caller.say(CALL % (1, "p.work", "[0]"), CALL % (2, "work", "[1]"))
    await running_hub.until(lambda: running_hub.hub.directory.by_name["p"].waiting >= 2)
    await second.offers("second", SHARED)
    first.close()
    asked = await second.hear()
    assert asked["params"] == [1]
    second.say(result(asked["id"], "second"))
    error = (await caller.hear())["error"]
    assert (error["code"], error["data"]["executed"]) == (-32007, False)
    assert await caller.hear() == result(2, "second")


async def test_a_hub_that_stops_tells_its_members(running_hub: RunningHub) -> None:
    member = await running_hub.peer()
    await member.offers("first", SHARED)
    caller = await running_hub.peer()
    caller.say(CALL % (7, "work", "[1]"))
    asked = await member.hear()
    await listener_of(running_hub.hub).stop_accepting()
    for peer, last in ((caller, 7), (member, "ask")):
        word = await peer.hear()
        assert (word["method"], word["params"]["last"]) == ("$/goAway", last)
    member.say(result(asked["id"], "done"))
    assert await caller.hear() == result(7, "done")


async def test_a_hub_that_stops_begins_no_calls_of_its_members(open_hub: OpenHub) -> None:
    """What it has read and not passed on is answered as not executed, and may be made again at the next hub."""
    running_hub = await open_hub(max_calls=1)
    member = await running_hub.peer()
    await member.offers("first", SHARED)
    caller = await running_hub.peer()
    caller.say(*[CALL % (number, "work", "[]") for number in (1, 2)])
    asked = await member.hear()
    await running_hub.until(lambda: session_queues(running_hub.hub))
    await listener_of(running_hub.hub).stop_accepting()
    assert (await caller.hear())["params"]["last"] == 2
    member.say(result(asked["id"], "done"))
    assert await caller.hear() == result(1, "done")
    error = (await caller.hear())["error"]
    assert (error["code"], error["data"]["executed"]) == (-32800, False)


def session_queues(hub: Hub) -> int:
    """Requests that wait in line."""
    return sum(session.queue.count for session in sessions_of(hub))
