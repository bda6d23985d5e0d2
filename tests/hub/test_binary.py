"""Arrays go through a hub as binary frames, to those that read frames; others get base64."""

from __future__ import annotations

import asyncio
import base64
import gc
import tracemalloc

import numpy as np
import pytest

from rpcstream import Rule

from ..kit import Frame, batch, frame, notification, reply, request, until
from ..kit.messages import MessageReader, parsed
from .conftest import CALL, Code, HubPeer, OpenHub, RunningHub, asked_of

#: Two payloads, of which the first is padded.
FIRST, SECOND = bytes(range(256)) * 20 + b"odd", b"\n@\x00{}" * 1000

#: How `{"$bin": 0}` may be written.
SAME_PLACE = ['{"$bin":0}', '{ "$bin"\t:\r\n 0 }', '{"\\u0024bin":0}', '{"$\\u0062\\u0069\\u006E":0}', '{"$bin":-0}']

MIB = 1024 * 1024

BIN = {"$bin": 0}
BIN_1 = {"$bin": 1}


def text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two parts are alike."""
    return (np.arange(size // 8 + 1, dtype="<u8") + (seed << 32)).tobytes()[:size]


async def sent(hub: RunningHub, peer: HubPeer, data: bytes) -> None:
    """Write bytes, and wait until the hub should have read them all."""
    peer.write(data)
    await until(lambda: not peer.transport.get_write_buffer_size())
    other = await hub.peer()
    await other.silence()
    other.close()


@pytest.mark.parametrize("binary", ["provider caller", "provider", "caller", ""])
async def test_each_way_to_write_a_place_for_each_end(running_hub: RunningHub, binary: str) -> None:
    provider, caller = await running_hub.pair(binary=binary)
    for place in SAME_PLACE:
        caller.send_frame(CALL % ("7", "work", f'["{{}}\\"$bin\\u0001",{place}]'), FIRST)
        if "provider" in binary:
            asked, payloads = await provider.receive_frame()
            assert (asked["params"], payloads) == (['{}"$bin\x01', BIN], [FIRST])
        else:
            asked = await provider.receive()
            assert asked["params"] == ['{}"$bin\x01', text(FIRST)]
        provider.send_frame(f'{{"jsonrpc":"2.0","result":{{"data":{place}}},"id":{asked["id"]}}}', SECOND)
        if "caller" in binary:
            assert await caller.receive_frame() == (reply(7, {"data": BIN}), [SECOND])
        else:
            assert await caller.receive() == reply(7, {"data": text(SECOND)})
    caller.send(batch(request("work", 1), request("work", 2, id=2)))
    for payload in (FIRST, SECOND):
        provider.send_frame(reply((await provider.receive())["id"], BIN), payload)
    assert [each["result"] for each in await caller.receive()] == [text(FIRST), text(SECOND)]


async def test_items_and_progress(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair(binary="provider caller")
    caller.send_frame(request("work", BIN, {"$type": "stream", "id": "s"}, id="x", stream=5), FIRST)
    asked, payloads = await provider.receive_frame()
    assert (asked["params"][0], payloads) == (BIN, [FIRST])
    for method, name in (("$/progress", "token"), ("$/item", "id")):
        provider.send_frame(notification(method, value={"a": BIN}, **{name: asked["id"]}, more=BIN_1), SECOND, FIRST)
        message, payloads = await caller.receive_frame()
        assert (message["params"], payloads) == ({name: "x", "value": {"a": BIN}}, [SECOND])
    there = asked["params"][1]["id"]
    provider.send(notification("$/credit", stream=there, n=1))
    assert (await caller.receive())["params"] == {"stream": "s", "n": 1}
    caller.send_frame(notification("$/item", stream="s", value=BIN), FIRST)
    message, payloads = await provider.receive_frame()
    assert (message["params"], payloads) == ({"stream": there, "value": BIN}, [FIRST])
    error = {"code": 5, "message": "m", "data": BIN}
    provider.send_frame({"jsonrpc": "2.0", "id": asked["id"], "error": error}, FIRST)
    assert await caller.receive_frame() == ({"jsonrpc": "2.0", "id": "x", "error": error}, [FIRST])


async def test_notifications_and_events(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair(binary="provider caller")
    plain = await running_hub.peer()
    await provider.result("rpc.subscribe", "t")
    await plain.result("rpc.subscribe", "*")
    caller.send_frame(notification("work", a=BIN), FIRST)
    assert await provider.receive_frame() == (notification("work", a=BIN), [FIRST])
    caller.send_frame(request("rpc.notify", params={"params": [1, BIN], "client": "p", "method": "m"}), SECOND)
    message, payloads = await provider.receive_frame()
    assert (message, payloads) == ({"jsonrpc": "2.0", "method": "m", "params": [1, BIN]}, [SECOND])
    assert await caller.result() is True
    caller.send_frame(request("rpc.publish", "t", BIN, True), FIRST)
    assert await caller.result() == 2
    event = notification("$/event", topic="t", value=BIN)
    assert await provider.receive_frame() == (event, [FIRST])
    assert (await plain.receive())["params"]["value"] == text(FIRST)
    # Kept for those that come later.
    for binary in (True, False):
        late = await running_hub.peer(binary=binary)
        await late.result("rpc.subscribe", "t")
        if binary:
            assert await late.receive_frame() == (event, [FIRST])
        else:
            assert (await late.receive())["params"]["value"] == text(FIRST)


@pytest.mark.parametrize("accept", ["application/x-rpcstream", "application/json", "application/x-ndjson"])
async def test_a_caller_over_http(running_hub: RunningHub, accept: str) -> None:
    """Its body is a frame; the reply is one, or text, or a stream of lines."""
    provider = await running_hub.peer("p", "work", binary=True)
    headers = f"Accept: {accept}, application/json", "Content-Type: application/x-rpcstream"
    posting = asyncio.ensure_future(running_hub.post(frame(request("work", BIN, id="x"), FIRST), *headers, json=False))
    asked, payloads = await provider.receive_frame()
    assert (asked["params"], payloads) == ([BIN], [FIRST])
    there, is_stream = asked["id"], "ndjson" in accept
    provider.send_frame(notification("$/progress", token=there, value=BIN), FIRST)  # not asked for
    if is_stream:
        provider.send_frame(notification("$/item", id=there, value=BIN), FIRST)
    provider.send_frame(reply(there, BIN), SECOND)
    answer = await posting
    if "rpcstream" in accept:
        (found,) = MessageReader().feed(answer.body)
        assert isinstance(found, Frame)
        assert (parsed(found), found.payloads) == (reply("x", BIN), [SECOND])
    elif is_stream:
        assert answer.lines[-2:] == [notification("$/item", id="x", value=text(FIRST)), reply("x", text(SECOND))]
    else:
        assert answer.json == reply("x", text(SECOND))


async def test_what_only_looks_like_a_place_stays_as_it_is_in_text(running_hub: RunningHub) -> None:
    """Also where it is long, so that its strings are cut out; and in strings of a frame."""
    provider, caller = await running_hub.pair(binary="provider caller")
    for value in ([BIN], [BIN, "x" * 20_000], [{"data": {"$bin": 7}, "$bin": 0}, '{"$bin":0}']):
        provider.answer(asked := await asked_of(provider, caller, *value), value)
        assert (asked["params"], await caller.result()) == (value, value)
    values = ["$bin", '{"$bin":0}', {"x$bin": 1, '"$bin': 2, "$bin\\": 3}, '\\"$bin":0}', "\x00$bin\x1f"]
    caller.send_frame(request("work", *values, BIN), FIRST)
    asked, payloads = await provider.receive_frame()
    assert (asked["params"], payloads) == ([*values, BIN], [FIRST])


#: Two of one number; none; in an object that is not read; a name that comes again; besides others; of no number.
WRONG = [
    '[{"$bin":0},{"\\u0024bin":0}]',
    "[1]",
    '[{"a":{"$bin":0},"a":1}]',
    '[{"$bin":5,"$bin":0},{"b":1,"b":{"x":1}}]',
]
WRONG += ['[{"a":{"$bin":0},"a":{"$bin":5,"$bin":0}}]', '[{"$bin":0},{"$bin":1,"x":2}]', '[{"$bin":0.0}]']


async def test_what_two_readers_may_read_differently_goes_nowhere(running_hub: RunningHub) -> None:
    """As a request, a notification, what is published, and a reply."""
    provider, caller = await running_hub.pair(binary="provider caller")
    await provider.result("rpc.subscribe", "t")
    for params in WRONG:
        call = CALL % ("1", "work", params)
        for message in (
            *(call, call.replace('"id":1,', "")),
            CALL % ("1", "rpc.publish", f'["t",{params}]'),
            CALL % ("1", "rpc.notify", f'["p","m",{params}]'),
        ):
            caller.send_frame(message, FIRST)
            assert await caller.code() == Code.INVALID, message
        there = (await asked_of(provider, caller, 1))["id"]
        provider.send_frame('{"jsonrpc":"2.0","id":' + f'{there},"result":{params}}}', FIRST)
        assert await caller.code() == Code.INTERNAL, params
    await provider.silence()
    await caller.silence()


LARGE = pattern(80_000)


async def test_too_long_as_text(open_hub: OpenHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that have room for the payload in a frame, not in text, for a provider, a caller, and subscribers."""
    monkeypatch.setattr("rpcstream.events.topics.MAX_RETAINED_SIZE", 100_000)
    hub = await open_hub({"max_message_size": 100_000})
    provider, caller = await hub.pair()

    async def is_told() -> bool:
        error = await caller.error()
        return error["code"] == Code.TOO_LARGE and error["data"]["limit"] == 100_000 < error["data"]["size"]

    for message in (request("work", BIN), request("rpc.notify", "p", "m", [BIN]), request("rpc.publish", "t", BIN)):
        caller.send_frame(message, LARGE)
        assert await is_told(), message
    caller.send_frame(notification("work", a=BIN), LARGE)
    await provider.silence()
    asked = await asked_of(provider, caller, {"$type": "stream", "id": "s"})
    provider.send(notification("$/credit", stream=asked["params"][0]["id"], n=1))
    assert (await caller.receive())["method"] == "$/credit"
    caller.send_frame(notification("$/item", stream="s", value=BIN), LARGE)
    assert await is_told()
    assert (await provider.receive())["method"] == "$/cancelRequest"
    asked = await asked_of(provider, caller, stream=5)
    provider.send_frame(notification("$/progress", token=asked["id"], value=BIN), LARGE)  # is dropped
    provider.send_frame(reply(asked["id"], BIN), LARGE)
    assert await is_told()
    asked = await asked_of(provider, caller, stream=5)
    provider.send_frame(notification("$/item", id=asked["id"], value=BIN), LARGE)
    assert await is_told()
    assert (await provider.receive())["method"] == "$/cancelRequest"
    await provider.declare()
    await caller.declare()
    caller.send_frame(request("work", BIN), LARGE)
    asked, payloads = await provider.receive_frame()
    provider.send_frame(reply(asked["id"], BIN), *payloads)
    assert (await caller.receive_frame())[1] == [LARGE]
    caller.send(batch(request("work")))
    provider.send_frame(reply((await provider.receive())["id"], BIN), LARGE)
    assert (await caller.receive())[0]["error"]["code"] == Code.TOO_LARGE
    for number, kept in enumerate(("result", "error")):
        caller.send_frame(request("rpc.publish", f"t.{number}", BIN, True), LARGE[:40_000])
        assert kept in await caller.reply()


async def test_what_is_refused_is_not_kept(open_hub: OpenHub) -> None:
    """The caller may not do it, nothing has that name, or nobody waits for it. It takes its own bytes only."""
    rules = [Rule("*", register="*", call="work", publish="mine.*")]
    hub = await open_hub(rules=rules, authenticate=lambda credentials: credentials.token)
    provider, caller = [await hub.peer(token="ada", binary=True) for _ in range(2)]
    await provider.offers("p", "work", "denied")
    payload = bytes(8 * MIB)
    calls = [
        *(("denied", [BIN], Code.DENIED), ("nothing", [BIN], Code.UNKNOWN), (7, [BIN], Code.INVALID)),
        *(("work", [BIN, BIN], Code.INVALID), ("rpc.ping", {"x": BIN}, Code.PARAMS)),
        *(("rpc.publish", ["theirs", BIN], Code.DENIED), ("rpc.publish", {"value": BIN}, Code.PARAMS)),
        *(("rpc.notify", ["p", "denied", [BIN]], Code.DENIED), ("rpc.notify", ["q", "work", [BIN]], Code.PARAMS)),
    ]
    refused = [(frame(request(method, params=params), payload), code) for method, params, code in calls]
    refused.append((frame(reply(99, BIN), payload), None))
    gc.collect()
    tracemalloc.start()
    try:
        for data, code in refused:
            caller.write(data)
            if code is None:
                await caller.result("rpc.ping", id="end")
            else:
                assert await caller.code() == code
        assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    finally:
        tracemalloc.stop()
    await provider.silence()


@pytest.mark.parametrize("binary", [True, False])
async def test_subscribers_share_the_memory_of_an_event(running_hub: RunningHub, binary: bool) -> None:
    """And it is free as soon as it was sent, although nothing else comes on the connection."""
    subscribers = [await running_hub.peer(binary=binary) for _ in range(6)]
    for subscriber in subscribers:
        await subscriber.result("rpc.subscribe", "t")
        subscriber.transport.pause_reading()
    publisher = await running_hub.peer(binary=True)
    payload = pattern(8 * MIB)
    published = frame(request("rpc.publish", "t", BIN), payload)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        publisher.write(published)
        assert await publisher.result() == 6
        await publisher.silence()
        gc.collect()
        # In frames: the payload, once. In text: besides it what it is as base64, once.
        assert tracemalloc.get_traced_memory()[0] - before < (10 if binary else 22) * MIB
        for subscriber in subscribers:
            subscriber.transport.resume_reading()
            if binary:
                assert (await subscriber.receive_frame())[1] == [payload]
            else:
                assert (await subscriber.receive())["params"]["value"] == text(payload)
        await until(lambda: gc.collect() >= 0 and tracemalloc.get_traced_memory()[0] - before < 4 * MIB)
    finally:
        tracemalloc.stop()


async def test_a_call_that_is_cancelled_while_it_is_sent_to_its_provider(open_hub: OpenHub) -> None:
    hub = await open_hub({"write_buffer": 65_536})
    provider, caller = await hub.pair(binary="provider caller")
    provider.transport.pause_reading()
    payloads = [pattern(8 * MIB, seed) for seed in range(2)]
    for number, payload in enumerate(payloads):
        caller.send_frame(request("work", BIN, id=number), payload)
    while (await hub.clients())["p"]["state"] != "stalled":
        await asyncio.sleep(0)
    for number in range(2):
        caller.cancel(number)
        assert await caller.code() == Code.CANCELLED
    provider.transport.resume_reading()
    # The first is under way: it comes whole. The other one was not sent.
    asked, received = await provider.receive_frame()
    assert received == payloads[:1]
    assert await provider.receive() == notification("$/cancelRequest", id=asked["id"])
    provider.call("rpc.ping", id="end")
    while "result" not in (message := await provider.receive()):
        assert message["method"] == "$/cancelRequest"


async def test_an_array_that_is_changed_while_its_notification_waits_is_sent_as_it_was(open_hub: OpenHub) -> None:
    hub = await open_hub({"write_buffer": 65_536})
    provider, caller = await hub.pair(binary="provider caller")
    await hub.stalled("p", provider, caller)
    array = np.frombuffer(pattern(MIB), np.uint8).copy()
    hub.hub.notify_client("p", "m", array)
    array[:] = 0
    provider.transport.resume_reading()
    while b'"m"' not in (message := await provider.receive_bytes())[:60]:
        pass
    assert message.payloads == [pattern(MIB)]
