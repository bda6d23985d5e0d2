"""`rpc.methods`, `rpc.discover` and `rpc.clients`: what they say, and that long ones hold nobody up."""

from __future__ import annotations

import json

from ..kit import batch, request
from .conftest import CALL, CANCELLED, INVALID, PARAMS, TOO_LARGE, OpenHub, RunningHub

LISTS = ("rpc.methods", "rpc.discover", "rpc.clients")


async def test_ids_params_notifications_and_batches(running_hub: RunningHub) -> None:
    peer = await running_hub.peer("p", {"name": "m", "description": 'a "word"', "x-idempotent": True}, "b.c")
    for method in LISTS:
        for call_id in ('"x"', "1.0", "null", str(2**64)):
            peer.send(CALL % (call_id, method, "[]"))
            line = await peer.receive_bytes()
            assert line.startswith(b'{"jsonrpc":"2.0","id":%b,"result":' % call_id.encode())
        peer.send({"jsonrpc": "2.0", "method": method})
        await peer.silence()
        assert await peer.code(method, 1) == await peer.code(method, params={"x": 1}) == PARAMS
        assert await peer.code(method, params=7) == INVALID
        peer.send(batch(*(request(method, id=number) for number in range(3))))
        assert [(each["id"], "result" in each) for each in await peer.receive()] == [(0, True), (1, True), (2, True)]
        assert "result" in (await running_hub.post(json.dumps(request(method)))).json
    assert await peer.result("rpc.methods") == [
        {"name": "m", "clients": ["p"], "shared": False, "description": 'a "word"'},
        {"name": "p.b.c", "clients": ["p"], "shared": False},
    ]


async def test_long_ones_that_change_without_end_hold_nobody_up(running_hub: RunningHub) -> None:
    """Each has what was offered before it was asked for, and who gives up keeps nobody else waiting."""
    provider, other, lost = [await running_hub.peer() for _ in range(3)]
    await provider.offers("p", *({"name": f"m{n}", "description": "d" * 500} for n in range(900)))
    for number in range(6):
        await provider.offers("p", f"new-{number}")
        lost.call("rpc.methods", id=number)
        other.send(request("rpc.methods"), batch(request("rpc.discover", id=2), request("rpc.methods", id=3)))
        lost.cancel(number)
        assert await provider.result("rpc.ping") == "pong"
        alone, (document, methods) = sorted(await other.receive_many(2), key=lambda each: isinstance(each, list))
        for found in (alone["result"], document["result"]["methods"], methods["result"]):
            assert {f"new-{number}", "m0", "m899"} <= {each["name"] for each in found}
    assert all("result" in each or each["error"]["code"] == CANCELLED for each in await lost.receive_many(6))


async def test_one_that_is_too_long(open_hub: OpenHub) -> None:
    hub = await open_hub({"max_message_size": 10_000})
    peer = await hub.peer()
    for number in range(3):
        await peer.offers("p", *(f"method-{number}-{each}" for each in range(80)))
    for method in LISTS[:2] * 2:
        assert await peer.code(method) == TOO_LARGE
    assert await peer.result("rpc.clients")
    await peer.result("rpc.unregister", [f"method-{number}-{each}" for number in (1, 2) for each in range(80)])
    assert len(await peer.result("rpc.methods")) == 80


async def test_the_document_says_what_is_offered(running_hub: RunningHub) -> None:
    first, second = await running_hub.peer(), await running_hub.peer()
    shared = {"name": "work", "shared": True, "summary": "s", "params": [{"name": "x", "schema": {"$ref": "#/c"}}]}
    await first.offers("a", {**shared, "x-idempotent": True}, components={"X": {"type": "object"}})
    document = await second.result("rpc.discover")
    names = [each["name"] for each in document["methods"]]
    assert names == sorted(names)
    expected = {"name": "work", "summary": "s", "params": shared["params"], "x-shared": True}
    assert document["methods"][names.index("work")] == {**expected, "x-clients": ["a"], "x-idempotent": True}
    assert document["components"]["schemas"]["a.X"] == {"type": "object"}
    assert document == running_hub.hub.discover()
    older = await second.result("rpc.discover", "1.2.6")
    assert (older["openrpc"], "work" in [each["name"] for each in older["methods"]]) == ("1.2.6", True)
    await second.offers("b", shared)
    document = await second.result("rpc.discover")
    assert document["methods"][names.index("work")] == {**expected, "x-clients": ["a", "b"]}
