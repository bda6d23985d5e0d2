"""Providers that answer wrongly, floods, those who do not read or say nothing, a hub that stops: others are served."""

from __future__ import annotations

import asyncio

import pytest

from rpcstream import Limits
from rpcstream.testing import connections_of

from ..kit import notification, reply, request, until
from .conftest import CALL, Code, OpenHub, RunningHub, asked_of, serves

WRONG = ['"error":null', '"error":7', '"error":{}', '"error":{"code":1.5,"message":"x"}', '"result":NaN']
WRONG += ['"error":{"code":1,"message":["x"]}', '"result": ["' + "x" * 10_000 + '", NaN]']
WRONG += ['"result":' + "[" * depth + "]" * depth for depth in (150, 100_000)]


async def test_the_caller_is_told(open_hub: OpenHub) -> None:
    provider, caller = await (await open_hub({"max_message_size": 300_000})).pair()
    for members in WRONG:
        asked = await asked_of(provider, caller)
        provider.send('{"jsonrpc":"2.0","id":' + f"{asked['id']},{members}}}")
        assert await caller.code() in (Code.INTERNAL, Code.INVALID), members[:100]
        await serves(provider, caller)
    provider.answer(await asked_of(provider, caller), "x" * 300_000)
    error = await caller.error()
    assert (error["code"], error["data"]["limit"]) == (Code.TOO_LARGE, 300_000)


async def test_cancelled_by_nobody(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    provider.fail(await asked_of(provider, caller), Code.CANCELLED)
    error = await caller.error()
    assert (error["code"], error["data"]["client"], error["data"]["method"]) == (Code.GONE, "p", "work")


async def test_cancels_are_for_ones_own_calls(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    other = await running_hub.peer()
    asked = await asked_of(provider, caller)
    for peer in (other, provider):
        for each in (1, asked["id"], str(asked["id"]), None, 1.0):
            peer.cancel(each)
        await peer.silence()
    provider.answer(asked, "well")
    assert await caller.result() == "well"


async def test_items_beyond_credit_end_the_call(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    asked = await asked_of(provider, caller, stream=2)
    provider.send(*(notification("$/item", id=asked["id"], value=n) for n in range(5)))
    assert [each["params"]["value"] for each in await caller.receive_many(2)] == [0, 1]
    assert await caller.code() == Code.INTERNAL
    assert (await provider.receive())["method"] == "$/cancelRequest"
    await caller.silence()


async def test_two_callers_that_both_say_s1(running_hub: RunningHub) -> None:
    """Each has its own stream, whose name at the provider nobody can guess: whoever could would be sent its items."""
    provider, caller = await running_hub.pair()
    stream, names = {"$type": "stream", "id": "s1"}, []
    for peer in (caller, await running_hub.peer()):
        names.append((await asked_of(provider, peer, stream))["params"][0]["id"])
        provider.send(notification("$/credit", stream=names[-1], n=3))
        assert (await peer.receive())["params"] == {"stream": "s1", "n": 3}
        peer.send('{"jsonrpc":"2.0","method":"$/item","params":{"stream":"s1","value":7.10}}')
        item = f'{{"jsonrpc":"2.0","method":"$/item","params":{{"stream":"{names[-1]}","value":7.10}}}}'
        assert await provider.receive_bytes() == item.encode()
    assert len({name.rpartition("-")[2] for name in names}) == 2
    assert all(len(name) > 16 for name in names)
    assert await caller.code("work", stream, id=2) == Code.PARAMS


@pytest.mark.parametrize("reference", ['{"$type":"stre\\u0061m","id":"s1"}', '{"$typ\\u0065":"stream","id":"s1"}'])
async def test_a_reference_that_is_written_in_another_way(running_hub: RunningHub, reference: str) -> None:
    provider, caller = await running_hub.pair()
    caller.send(CALL % ("1", "work", f"[{reference}]"))
    assert (await provider.receive())["params"][0]["id"] != "s1"


TOO_DEEP = "[" * 150 + "]" * 150


async def test_items_that_cannot_go_on(running_hub: RunningHub) -> None:
    """Neither to the caller nor to the provider; params that stand there twice are those that come last."""
    provider, caller = await running_hub.pair()
    item = '{"jsonrpc":"2.0","method":"$/item","params":[1],"params":{"%s":%s,"value":%s}}'
    for value in ("[" * 100 + "]" * 100, TOO_DEEP):
        is_fine = value != TOO_DEEP
        asked = await asked_of(provider, caller, {"$type": "stream", "id": "s"}, stream=2)
        name = asked["params"][0]["id"]
        provider.send(notification("$/credit", stream=name, n=2))
        assert (await caller.receive())["params"] == {"stream": "s", "n": 2}
        if is_fine:
            provider.send(item % ("id", asked["id"], value))
            assert (await caller.receive())["params"]["id"] == 1
        caller.send(item % ("stream", '"s"', value))
        if is_fine:
            assert (await provider.receive())["params"]["stream"] == name
            provider.answer(asked)
            await caller.result()
            continue
        assert await caller.code() == Code.PARAMS
        assert (await provider.receive())["method"] == "$/cancelRequest"
        provider.send(item % ("id", (await asked_of(provider, caller, stream=2))["id"], value))
        assert await caller.code() == Code.INTERNAL
        assert (await provider.receive())["method"] == "$/cancelRequest"


MB = 1_000_000


def unread(hub: RunningHub) -> int:
    """Bytes that the hub holds for the connection that has left most unread."""
    return max(each.unread_size for each in connections_of(hub.hub))


async def test_progress_to_a_caller_that_does_not_read(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    asked = await asked_of(provider, caller)
    caller.transport.pause_reading()
    for n in range(400):
        provider.send(notification("$/progress", token=asked["id"], value=f"{n:05}" + "x" * 100_000))
    await provider.silence()
    assert unread(running_hub) < 3 * MB
    provider.answer(asked, "well")
    caller.transport.resume_reading()
    messages = [await caller.receive()]
    while "method" in messages[-1]:
        messages.append(await caller.receive())
    assert messages[-1]["result"] == "well"
    assert messages[-2]["params"]["value"].startswith("00399")


async def test_items_for_a_caller_that_does_not_read(running_hub: RunningHub) -> None:
    """It permits a million, and the provider would send them: no more than the caller takes, and a window."""
    provider, caller = await running_hub.pair()
    asked = await asked_of(provider, caller, id="all", stream=MB)
    permitted, sent = asked["stream"], 0
    assert permitted == running_hub.hub.limits.stream_window
    caller.transport.pause_reading()
    while permitted:
        provider.send(*[notification("$/item", id=asked["id"], value="x" * 100_000)] * permitted)
        sent, permitted = sent + permitted, 0
        # What is permitted for these comes before the answer to what was asked behind them.
        provider.call("rpc.ping")
        while "method" in (heard := await provider.receive()):
            permitted += heard["params"]["n"]
    assert unread(running_hub) < 4 * MB
    caller.transport.resume_reading()
    assert (await provider.receive())["method"] == "$/credit"
    provider.answer(asked, sent)
    items = 0
    while "method" in (heard := await caller.receive()):
        items += 1
    assert items == sent == heard["result"]


@pytest.mark.parametrize(("limits", "text"), [({"max_queue": 50}, ""), ({"max_message_size": 4 * MB}, "x" * 100_000)])
async def test_a_provider_that_does_not_read(open_hub: OpenHub, limits: dict[str, int], text: str) -> None:
    hub = await open_hub({"max_calls": 200, **limits})
    provider, caller = await hub.pair()
    await hub.stalled("p", provider, caller)
    caller.send(*(request("work", text, id=n) for n in range(100)))
    refused = []
    while (answer := await caller.ask(request("rpc.ping", id="end"))).get("id") != "end":
        refused.append(answer["error"]["code"])
    while answer.get("id") == "end" and caller.inbox:
        await caller.receive()
    assert set(refused) == {Code.BUSY}
    assert len(refused) >= 50
    quick, other = await hub.peer("quick", "now"), await hub.peer()
    other.call("now")
    quick.answer(await quick.receive(), "served")
    assert await other.result() == "served"


async def test_messages_for_clients_that_do_not_read_have_a_bound_together(
    open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "max_waiting", 300_000)
    hub = await open_hub()
    slow = [await hub.peer(f"slow-{number}") for number in range(3)]
    caller, good = await hub.peer(), await hub.peer("good", "fine")
    for peer in slow:
        peer.transport.pause_reading()
    refused = 0
    while refused < 200:
        for number in range(3):
            answer = await caller.reply("rpc.notify", f"slow-{number}", "hear", ["x" * 50_000])
            refused += "error" in answer
    caller.call("fine")
    good.answer(await good.receive(), 1)
    assert await caller.result() == 1
    for peer in slow:
        peer.transport.resume_reading()
    while any(each["state"] == "stalled" for each in (await hub.clients()).values()):
        await asyncio.sleep(0)
    assert await caller.result("rpc.notify", "slow-0", "hear", ["x" * 50_000]) is True


async def test_of_registrations(open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one client, and of several together."""
    monkeypatch.setattr("rpcstream.hub.methods.MAX_OFFERED_SIZE", 100_000)
    monkeypatch.setattr("rpcstream.hub.methods.MAX_OFFERED_TOTAL", 220_000)
    hub = await open_hub({"max_offered": 100})
    provider, caller = await hub.pair()
    flooder, others = await hub.peer(), [await hub.peer() for _ in range(3)]
    many = [{"name": f"m{n}", "description": "d" * 100} for n in range(90)]
    for _ in range(20):
        await flooder.offers("f", *many)  # again takes no more room
    for params in (
        {"methods": [f"n{n}" for n in range(11)]},
        {"methods": [{"name": "x", "description": "d" * 100_000}]},
        {"methods": [], "components": {"X": {"description": "d" * 100_000}}},
    ):
        assert await flooder.code("rpc.register", params=params) == Code.BUSY
    assert hub.hub.stats()["methods_offered"] == 91
    assert len(await flooder.result("rpc.unregister", [f"m{n}" for n in range(90)])) == 90
    much = {"name": "own", "shared": True, "description": "d" * 90_000}
    for peer in (*others[:1] * 3, others[1]):
        await peer.offers(None, much)
    assert await others[2].code("rpc.register", params={"methods": [much]}) == Code.BUSY
    assert await others[0].result("rpc.unregister", id=2) == ["own"]
    others[1].close()
    await until(lambda: hub.hub.stats()["methods_offered"] == 1)
    for peer in (others[0], others[2]):
        await peer.offers(None, much)
    await serves(provider, caller)


async def test_a_hub_that_stops_finishes_what_has_begun_and_begins_no_more(open_hub: OpenHub) -> None:
    """What it has read and not passed on is answered as not executed, and may be made again at the next hub."""
    hub = await open_hub({"max_calls": 1})
    provider, caller = await hub.pair()
    caller.send(request("work"), request("work", id=2))
    asked = await provider.receive()
    while (await hub.clients())["p"]["in_flight"] != 1:
        await asyncio.sleep(0)
    hub.hub.stop()
    await until(lambda: provider.farewells and caller.farewells)
    assert (provider.farewells[0]["last"], caller.farewells[0]["last"]) == (1, 2)
    provider.answer(asked, "done")
    assert await caller.receive() == reply(1, "done")
    error = await caller.error()
    assert (error["code"], error["data"]["executed"]) == (Code.CANCELLED, False)


async def test_connections_that_say_nothing_are_closed(open_hub: OpenHub) -> None:
    """HTTP says what it wants with each call, however long that takes, and however long ago the last one was."""
    hub = await open_hub(registration_timeout=1)
    provider, framed = await hub.peer("p", "work"), await hub.websocket_peer()
    await framed.result("rpc.stats")
    for said in (b"", b" ", b"{", b"GET"):  # not even what it speaks
        (await hub.peer()).write(said)
    assert await (await hub.websocket_peer()).receive() is None
    posting = asyncio.ensure_future(hub.post(CALL % (1, "work", "[]")))
    asked = await provider.receive()
    await asyncio.sleep(1.1)
    provider.answer(asked, "late")
    assert (await posting).json["result"] == "late"
    await framed.silence()
    await until(lambda: hub.hub.stats()["connections"] == 2)
