"""Long messages through a hub: forwarded at once, short ones at the end of the turn, all in order."""

from __future__ import annotations

import gc
import tracemalloc

import orjson
import pytest

from .conftest import OpenHub, RawPeer, RunningHub, provider_and_caller

MIB = 1024 * 1024

#: Characters: short, long enough to be cut out of its message, and to be written without a copy; not all are ASCII.
SIZES = (10, 20_000, 100, 100_000, 10, 300_000, 5)


def texts() -> list[str]:
    return [f"{number} " + 'a"\\ö'[number % 4] * size for number, size in enumerate(SIZES)]


def requests() -> list[dict[str, object]]:
    return [{"jsonrpc": "2.0", "id": number, "method": "work", "params": [text]} for number, text in enumerate(texts())]


async def answer(provider: RawPeer, number: int) -> None:
    """Answer the next request, which must be the one with this number, with its own params."""
    asked = await provider.hear()
    assert asked["params"] == [texts()[number]]
    provider.say({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"][0]})


async def test_requests_and_replies_keep_their_order(open_hub: OpenHub) -> None:
    running_hub = await open_hub()
    provider, caller = await running_hub.peer(), await running_hub.peer()
    await provider.offers("p", "work")
    caller.say(*requests())
    for number in range(len(SIZES)):
        await answer(provider, number)
    for number, text in enumerate(texts()):
        assert await caller.hear() == {"jsonrpc": "2.0", "id": number, "result": text}


@pytest.mark.parametrize("between", ["rpc.ping", "rpc.nothing"])
async def test_a_client_may_call_itself_while_it_is_answered(open_hub: OpenHub, between: str) -> None:
    """What goes to it then has come from itself, in the same turn, before what the hub answers."""
    running_hub = await open_hub()
    client = await running_hub.peer()
    await client.offers("p", "work")
    own = {"jsonrpc": "2.0", "id": "own", "method": between}
    asked = requests()
    client.say(b"\n".join(orjson.dumps(each) for request in asked for each in (own, request)))
    heard = [await client.hear() for _ in range(2 * len(asked))]
    assert [each["params"][0] for each in heard if "method" in each] == texts()
    assert sum(each["id"] == "own" for each in heard) == len(asked)
    calls = [each for each in heard if "method" in each]
    client.say(b"\n".join(orjson.dumps({"jsonrpc": "2.0", "id": c["id"], "result": c["params"][0]}) for c in calls))
    replies = [await client.hear() for _ in asked]
    assert [reply["result"] for reply in replies] == texts()


async def test_a_provider_that_does_not_read_gets_everything_in_order_later(open_hub: OpenHub) -> None:
    running_hub = await open_hub(write_buffer=65_536)
    provider, caller = await running_hub.peer(), await running_hub.peer()
    await provider.offers("p", "work")
    provider.transport.pause_reading()
    rounds = 12
    for _ in range(rounds):
        caller.say(*requests())
    await running_hub.until(lambda: running_hub.hub.directory.by_name["p"].waiting)
    provider.transport.resume_reading()
    for _ in range(rounds):
        for number in range(len(SIZES)):
            await answer(provider, number)
    heard = [(await caller.hear())["result"] for _ in range(rounds * len(SIZES))]
    assert heard == texts() * rounds


async def test_last_values_do_not_keep_the_messages_that_they_came_in(running_hub: RunningHub) -> None:
    """Twenty short values, each published in a batch beside a long call."""
    _, publisher = await provider_and_caller(running_hub)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20):
            publish = {"topic": f"t.{number}", "value": {"number": number, "text": "x" * 1000}, "retain": True}
            publisher.say(
                [
                    {"jsonrpc": "2.0", "id": 1, "method": "rpc.publish", "params": publish},
                    {"jsonrpc": "2.0", "id": 2, "method": "no such method", "params": ["x" * MIB]},
                ]
            )
            assert {each["id"] for each in await publisher.hear()} == {1, 2}
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2 * MIB
    finally:
        tracemalloc.stop()
    publisher.say({"jsonrpc": "2.0", "id": 3, "method": "rpc.subscribe", "params": {"topic": "t.*"}})
    messages = [await publisher.hear() for _ in range(21)]
    values = [each["params"]["value"] for each in messages if "method" in each]
    assert sorted(value["number"] for value in values) == list(range(20))
