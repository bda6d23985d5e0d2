"""Binary frames through a hub: their sizes, those who do not read, and connections that end in the middle of one."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rpcstream import Rule
from rpcstream.codec.payloads import FrameLine
from rpcstream.hub import Hub

from ..internals import message_memory, waiting_memory
from .conftest import FramePeer, OpenHub, RunningHub, frame_of
from .test_binary_frames import bin_, call, pair, text

MIB = 1024 * 1024


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two parts are alike."""
    return (np.arange(size // 8 + 1, dtype="<u8") + (seed << 32)).tobytes()[:size]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """The memory that was taken for payloads."""
    arrays: list[weakref.ref[Any]] = []
    take = FrameLine.take_memory

    def noted(line: FrameLine) -> list[memoryview]:
        views = take(line)
        arrays.extend(weakref.ref(attachment.memory) for attachment in line.attachments)
        return views

    monkeypatch.setattr(FrameLine, "take_memory", noted)
    return arrays


async def begun(running_hub: RunningHub, provider: FramePeer, caller: FramePeer, **more: Any) -> Any:
    """A call at its provider; returns its id there."""
    caller.say(call(1, params=[1], **more))
    return (await provider.hear())["id"]


def half(message: Any, payload: bytes) -> tuple[bytes, bytes]:
    """A frame, cut in the middle of its payload."""
    frame = frame_of(message, payload)
    return frame[: -len(payload) // 2], frame[-len(payload) // 2 :]


async def receives(running_hub: RunningHub, size: int) -> None:
    """Wait until the hub has received this many bytes of a payload."""
    await running_hub.until(lambda: message_memory(running_hub.hub).waiting == size)


# -- sizes ------------------------------------------------------------------------------------------------------------


class TestTooLongAsText:
    PAYLOAD = pattern(80_000)

    @pytest.fixture
    async def hub(self, open_hub: OpenHub) -> RunningHub:
        return await open_hub(max_message_size=100_000)

    def check(self, error: Any) -> None:
        assert error["code"] == -32001
        assert error["data"]["limit"] == 100_000 < error["data"]["size"]

    async def test_for_the_provider(self, hub: RunningHub) -> None:
        provider, caller = await pair(hub, frames="caller")
        caller.say_frame(call(), self.PAYLOAD)
        self.check((await caller.hear())["error"])
        caller.say_frame(call(2, "rpc.notify", ["p", "m", [bin_(0)]]), self.PAYLOAD)
        self.check((await caller.hear())["error"])
        caller.say_frame({"jsonrpc": "2.0", "method": "work", "params": [bin_(0)]}, self.PAYLOAD)
        await provider.silence()
        await provider.declare()
        caller.say_frame(call(), self.PAYLOAD)
        assert (await provider.frame())[1] == [self.PAYLOAD]

    async def test_for_the_caller(self, hub: RunningHub) -> None:
        provider, caller = await pair(hub, frames="provider")
        there = await begun(hub, provider, caller, stream=5)
        progress = {"jsonrpc": "2.0", "method": "$/progress"}
        for value in (2, bin_(0)):
            message = {**progress, "params": {"token": there, "value": value, "more": bin_(int(value == bin_(0)))}}
            provider.say_frame(message, self.PAYLOAD, *([b"more"] if value == bin_(0) else []))
        assert (await caller.hear())["params"]["value"] == 2  # the other one is dropped
        provider.say_frame({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, self.PAYLOAD)
        self.check((await caller.hear())["error"])
        await caller.silence()

    async def test_items(self, hub: RunningHub) -> None:
        provider, caller = await pair(hub, frames="provider")
        there = await begun(hub, provider, caller, stream=5)
        params = {"id": there, "value": bin_(0)}
        provider.say_frame({"jsonrpc": "2.0", "method": "$/item", "params": params}, self.PAYLOAD)
        self.check((await caller.hear())["error"])
        assert (await provider.hear())["method"] == "$/cancelRequest"

    async def test_an_item_for_the_provider(self, hub: RunningHub) -> None:
        provider, caller = await pair(hub, frames="caller")
        caller.say(call(1, params=[{"$type": "stream", "id": "s"}]))
        there = (await provider.hear())["params"][0]["id"]
        provider.say({"jsonrpc": "2.0", "method": "$/credit", "params": {"stream": there, "n": 1}})
        assert (await caller.hear())["method"] == "$/credit"
        params = {"stream": "s", "value": bin_(0)}
        caller.say_frame({"jsonrpc": "2.0", "method": "$/item", "params": params}, self.PAYLOAD)
        self.check((await caller.hear())["error"])
        assert (await provider.hear())["method"] == "$/cancelRequest"

    async def test_in_a_batch(self, hub: RunningHub) -> None:
        provider, caller = await pair(hub)
        caller.say([call(1, params=[1]), call(2, params=[2])])
        for _ in range(2):
            there = (await provider.hear())["id"]
            provider.say_frame({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, self.PAYLOAD)
        for reply in await caller.hear():
            self.check(reply["error"])

    async def test_events_count_as_text(self, open_hub: OpenHub) -> None:
        """Whoever has subscribed."""
        hub = await open_hub(max_event_size=100_000, max_retained_size=100_000)
        publisher = await hub.frame_peer()
        publisher.say_frame(call(1, "rpc.publish", ["t", bin_(0)]), self.PAYLOAD)
        self.check((await publisher.hear())["error"])
        for number, fits in enumerate((True, False)):
            publisher.say_frame(call(1, "rpc.publish", [f"t.{number}", bin_(0), True]), self.PAYLOAD[:40_000])
            reply = await publisher.hear()
            assert ("result" in reply) is fits, reply


async def test_what_is_refused_takes_no_memory(open_hub: OpenHub, taken: list[Any]) -> None:
    """The caller may not do it, or nothing has that name."""
    rules = [Rule("*", register="*", call="work", publish="mine.*"), Rule("other", call="*")]
    hub = Hub(rules=rules, authenticate=lambda credentials: credentials.token, drain_timeout=5)
    running_hub = await open_hub(hub)
    caller = await running_hub.frame_peer(declares=False)
    await caller.result("rpc.authenticate", ["secret"])
    await caller.declare()
    await caller.offers("p", "work", "denied")
    payload = bytes(300_000)
    for method, params, code in (
        ("denied", [bin_(0)], -32006),
        ("nothing", [bin_(0)], -32601),
        (7, [bin_(0)], -32600),
        ("work", [bin_(0), bin_(0)], -32600),
        ("rpc.publish", ["theirs", bin_(0)], -32006),
        ("rpc.publish", [bin_(0), 1], -32602),
        ("rpc.publish", {"value": bin_(0)}, -32602),
        ("rpc.notify", ["p", "denied", [bin_(0)]], -32006),
        ("rpc.notify", ["nobody", "work", [bin_(0)]], -32602),
        ("rpc.ping", {"x": bin_(0)}, -32602),
    ):
        caller.say_frame(call("x", method, params), payload)
        reply = await caller.hear()
        assert (reply["id"], reply["error"]["code"]) == ("x", code), (method, params, reply)
    caller.say_frame({**call("x"), "jsonrpc": "1"}, payload)
    assert (await caller.hear())["error"]["code"] == -32600
    assert not taken
    caller.say_frame(call("x"), payload)
    request, payloads = await caller.frame()
    assert payloads == [payload]
    # A reply that no call waits for, also where one with that id is made meanwhile.
    first, rest = half({"jsonrpc": "2.0", "id": request["id"] + 1, "result": bin_(0)}, payload)
    taken.clear()
    caller.transport.write(first)
    other = await running_hub.frame_peer(declares=False)
    await other.result("rpc.authenticate", ["secret"])
    other.say(call(1, params=[1]))
    await running_hub.until(lambda: hub.directory.by_name["p"].load == 2)
    caller.transport.write(rest)
    assert (await caller.hear())["id"] == request["id"] + 1
    assert (await other.hear())["error"]["code"] == -32603
    assert not taken
    await caller.silence()


async def test_the_memory_of_a_payload_is_free_as_soon_as_it_was_sent(
    running_hub: RunningHub, taken: list[Any]
) -> None:
    """Although nothing else comes on the connection."""
    provider, caller = await pair(running_hub)
    payload = pattern(MIB)
    caller.say_frame(call(), payload)
    request, payloads = await provider.frame()
    provider.say_frame({"jsonrpc": "2.0", "id": request["id"], "result": bin_(0)}, *payloads)
    assert (await caller.frame())[1] == [payload]
    assert len(taken) == 2
    await running_hub.until(lambda: not any(memory() is not None for memory in taken))
    assert message_memory(running_hub.hub).waiting == 0


# -- those who do not read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [True, False])
async def test_subscribers_share_the_memory_of_an_event(running_hub: RunningHub, frames: bool) -> None:
    subscribers = [await running_hub.frame_peer(declares=frames) for _ in range(6)]
    for subscriber in subscribers:
        await subscriber.result("rpc.subscribe", {"topic": "t"})
        subscriber.transport.pause_reading()
    publisher = await running_hub.frame_peer()
    payloads = [pattern(4 * MIB, seed) for seed in range(2)]
    sent = [frame_of(call(1, "rpc.publish", ["t", bin_(0)]), payload) for payload in payloads]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for frame in sent:
            publisher.transport.write(frame)
            assert (await publisher.hear())["result"] == 6
        for _ in range(3):
            await publisher.result("rpc.ping")
        gc.collect()
        # In frames: the payloads, once. In text: besides them what they are as base64, once.
        assert tracemalloc.get_traced_memory()[0] - before < (10 if frames else 22) * MIB
    finally:
        tracemalloc.stop()
    for subscriber in subscribers:
        subscriber.transport.resume_reading()
        for payload in payloads:
            if frames:
                assert (await subscriber.frame())[1] == [payload]
            else:
                assert (await subscriber.hear())["params"]["value"] == text(payload)
    await running_hub.until(lambda: running_hub.hub.topics.memory.used == 0)


async def test_a_provider_that_does_not_read(open_hub: OpenHub) -> None:
    """Payloads count among what waits for it; what was taken comes in order, and is not torn."""
    running_hub = await open_hub(write_buffer=65_536, max_message_size=4 * MIB)
    provider, caller = await pair(running_hub)
    provider.transport.pause_reading()
    refused: list[int] = []
    member = running_hub.hub.directory.by_name["p"]
    number = 0
    while not refused:
        caller.say_frame(call(number, params=[number, bin_(0)]), pattern(500_000, number))
        number += 1
        served = member.calls_served
        await running_hub.until(lambda before=served: member.calls_served > before or not caller.lines.empty())
        if not caller.lines.empty():
            reply = await caller.hear()
            assert reply["error"]["code"] == -32002
            refused.append(reply["id"])
    assert refused == [number - 1]
    assert 3 * MIB < member.waiting_size <= 4 * MIB
    assert waiting_memory(running_hub.hub) == member.waiting_size
    provider.transport.resume_reading()
    for each in range(number - 1):
        request, payloads = await provider.frame()
        assert request["params"] == [each, bin_(0)]
        assert payloads == [pattern(500_000, each)]
    assert member.waiting_size == waiting_memory(running_hub.hub) == 0
    assert message_memory(running_hub.hub).waiting == 0


async def test_what_the_hub_itself_notifies_is_sent_as_it_was(open_hub: OpenHub) -> None:
    """The array is changed while its notification waits."""
    running_hub = await open_hub(write_buffer=65_536)
    provider, caller = await pair(running_hub)
    provider.transport.pause_reading()
    payload = pattern(4 * MIB)
    while running_hub.hub.directory.by_name["p"].is_flowing:
        caller.say_frame({"jsonrpc": "2.0", "method": "work", "params": [bin_(0)]}, payload)
        await asyncio.sleep(0.001)
    array = np.frombuffer(payload, np.uint8).copy()
    expected = array.tobytes()
    running_hub.hub.notify_client("p", "m", array)
    array[:] = 0
    provider.transport.resume_reading()
    while (message := await provider.frame())[0]["method"] != "m":
        assert message[1] == [payload]
    assert message[1] == [expected]


def test_a_held_call_counts_with_its_payload(with_hub: Callable[..., None]) -> None:
    async def main(hub: Hub, connect: Callable[[], Any]) -> None:
        provider = connect()
        await provider.offers("p", "work")
        provider.close()
        await asyncio.sleep(0.01)
        caller = connect()
        payload = pattern(300_000)
        caller.transport.write(frame_of(call(7), payload))
        await asyncio.sleep(1)
        assert hub.stats()["calls_held"] == 1
        assert 300_000 < waiting_memory(hub) < 320_000
        provider = connect()
        await provider.offers("p", "work")
        request = await provider.hear()
        assert request["params"] == [text(payload)]
        assert waiting_memory(hub) == 0

    with_hub(main, grace=10, ping_interval=None, keepalive_timeout=None)


# -- in the middle of a frame -----------------------------------------------------------------------------------------


async def test_a_provider_that_is_lost_in_the_middle_of_its_reply(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    there = await begun(running_hub, provider, caller)
    payload = pattern(MIB)
    provider.transport.write(half({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, payload)[0])
    await receives(running_hub, MIB // 2)
    provider.close()
    error = (await caller.hear())["error"]
    assert (error["code"], error["data"]["client"]) == (-32007, "p")
    assert message_memory(running_hub.hub).waiting == 0
    await caller.silence()


async def test_a_caller_that_is_lost_in_the_middle_of_its_request(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    caller.transport.write(half(call(), pattern(MIB))[0])
    await receives(running_hub, MIB // 2)
    caller.close()
    await receives(running_hub, 0)
    await provider.silence()
    other = await running_hub.frame_peer()
    other.say_frame(call(), b"other")
    assert (await provider.frame())[1] == [b"other"]


async def test_a_call_that_is_cancelled_while_its_reply_comes(running_hub: RunningHub) -> None:
    provider, caller = await pair(running_hub)
    there = await begun(running_hub, provider, caller)
    first, rest = half({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, pattern(MIB))
    provider.transport.write(first)
    await receives(running_hub, MIB // 2)
    caller.say({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}})
    assert (await caller.hear())["error"]["code"] == -32800
    assert (await provider.hear())["method"] == "$/cancelRequest"
    provider.transport.write(rest)
    await receives(running_hub, 0)
    await provider.silence()
    caller.say_frame(call(2), b"again")
    assert (await provider.frame())[1] == [b"again"]
    await caller.silence()


async def test_a_call_that_is_cancelled_while_it_is_sent_to_its_provider(open_hub: OpenHub) -> None:
    running_hub = await open_hub(write_buffer=65_536)
    provider, caller = await pair(running_hub)
    provider.transport.pause_reading()
    payloads = [pattern(8 * MIB, seed) for seed in range(2)]
    for number, payload in enumerate(payloads):
        caller.say_frame(call(number), payload)
    member = running_hub.hub.directory.by_name["p"]
    await running_hub.until(lambda: member.waiting)
    for number in range(2):
        caller.say({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": number}})
        assert (await caller.hear())["error"]["code"] == -32800
    provider.transport.resume_reading()
    # The first is under way: it comes whole. The other one was not sent.
    request, received = await provider.frame()
    assert received == payloads[:1]
    assert (await provider.hear())["params"] == {"id": request["id"]}
    provider.say({"jsonrpc": "2.0", "id": "ping", "method": "rpc.ping"})
    while "result" not in (message := await provider.hear()):
        assert message["method"] == "$/cancelRequest"
    await running_hub.until(lambda: waiting_memory(running_hub.hub) == 0)


async def test_a_hub_that_stops_in_the_middle_of_a_reply() -> None:
    """The reply is waited for, and sent."""
    hub = Hub(drain_timeout=10)
    payload = pattern(MIB)
    async with hub.listening(port=0) as address:
        running_hub = RunningHub(hub, address)
        provider, caller = await pair(running_hub)
        there = await begun(running_hub, provider, caller)
        first, rest = half({"jsonrpc": "2.0", "id": there, "result": bin_(0)}, payload)
        provider.transport.write(first)
        await receives(running_hub, MIB // 2)

        async def go_on() -> None:
            assert (await provider.hear())["method"] == "$/goAway"
            provider.transport.write(rest)

        going_on = asyncio.ensure_future(go_on())
    await going_on
    assert (await caller.hear())["method"] == "$/goAway"
    assert (await caller.frame())[1] == [payload]
    assert await caller.line() is None
