"""Attacks by binary frames: bytes that are announced and never come, floods of tiny frames, ends in the middle."""

from __future__ import annotations

import asyncio
import base64
import time
from functools import partial
from typing import Any

import orjson

from rpcstream import Limits, Server

from ..kit.http import post
from ..kit.websocket import BINARY, TEXT, frame_head
from ..wire.frame_model import frame_of
from .attacks_json import upgraded
from .harness import MIB, RawConnection, ServerUnderAttack, attack, limits, request

FRAMES = "Content-Type: application/x-rpcstream"

#: What one client announces.
ANNOUNCED = 60 * MIB

#: Seconds of the clock in which an honest call is answered. Generous, since other programs may have the processor: the
#: harness checks that it waits for 0.25 s of the event loop at most.
HONEST_SECONDS = 2.0


def plain(limits: Limits | None = None) -> Server:
    """A server that tells sizes."""
    server = Server(limits=limits or Limits())

    @server
    def size(data: bytes) -> int:
        return len(data)

    return server


def small() -> Server:
    """The same with memory for one large frame."""
    server = Server(limits=limits(max_held_total=128 * MIB))
    server.add(lambda data: len(data), name="size")
    return server


def call(payload: bytes, call_id: Any = 1, method: str = "size") -> bytes:
    """A call of `size` in a frame."""
    data = {"$type": "bytes", "data": {"$bin": 0}}
    return frame_of(orjson.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": [data]}), payload)


def announcement(size: int) -> bytes:
    """Header and JSON of such a call, without its payload."""
    json = call(b"x").partition(b"\n")[2][:-1]
    return b"@%d %d\n" % (len(json), size) + json


async def check_honest(raw: RawConnection, count: int) -> None:
    """Frames of another client are answered in the end."""
    await raw.send(call(b"y" * count))
    reply = await raw.reply()
    assert reply.get("result") == count, reply


@attack(35, "100 clients announce 60 MiB each in a frame and send nothing", plain)
async def announced(target: ServerUnderAttack) -> None:
    idle = await target.connect_many(100)
    for each in idle:
        await each.send(announcement(ANNOUNCED))
    # As text, and in frames so small that none has to wait for long, others are served meanwhile.
    raw = await target.connect()
    assert await raw.result("size", ["eHl6"]) == 3
    if target.whole:
        await check_honest(raw, MIB)


@attack(190, "100 clients announce 60 MiB each by Content-Length, others headers without an end", plain)
async def announced_by_length(target: ServerUnderAttack) -> None:
    for each in await target.connect_many(100):
        await each.send(b"Content-Length: %d\r\n\r\n[" % ANNOUNCED)
    for each in await target.connect_many(20):
        await each.send(b"Content-Length: 1\r\n" + b"X: x\r\n" * 600)
    endless = await target.connect()
    await endless.send(b"Content-Length: 999999999999999\r\n\r\n")
    for _ in range(64):
        await endless.send(b"[" * MIB)
    raw = await target.connect()
    assert await raw.result("size", ["eHl6"]) == 3


@attack(
    35, "the same with a part of each payload, at a server with little memory", small, memory=160 * MIB, in_suite=False
)
async def announced_in_part(target: ServerUnderAttack) -> None:
    idle = await target.connect_many(3)
    for each in idle:
        each.write(announcement(ANNOUNCED) + b"x" * 30 * MIB)
    await asyncio.sleep(0.1)
    raw = await target.connect()
    await check_honest(raw, 8 * MIB)


@attack(35, "tiny frames, as many as fit into a read", plain)
async def tiny(target: ServerUnderAttack) -> None:
    count = 50_000 if target.whole else 8_000
    for flood in (b"@3 1\n{}\nx", b"@3 1\n{}\nx[]\n", call(b"x"), call(b"x", method="nope")):
        raw = await target.connect()
        times = min(count, 4 * MIB // len(flood))
        raw.write(flood * times)
        assert all([(await raw.reply()) is not None for _ in range(times)])
        raw.close()


@attack(35, "connections that end within a frame, at every place", plain)
async def ends_within(target: ServerUnderAttack) -> None:
    whole = call(b"x" * 300_000)
    head = whole.index(b"\n") + 1
    places = [*range(1, head + 4), head + 100, len(whole) - 300_000, len(whole) - 150_000, len(whole) - 1]
    for place in places:
        raw = await target.connect()
        await raw.send(whole[:place])
        raw.close()
    raw = await target.connect()
    await check_honest(raw, 300_000)
    stats = await raw.result("rpc.stats")
    assert stats is not None


@attack(35, "a frame of a terabyte, and headers that never end", plain, memory=32 * MIB)
async def huge(target: ServerUnderAttack) -> None:
    for sent in (announcement(10**12 - 1), b"@%d 1\n" % (10**12 - 1)):
        skipped = await target.connect()
        await skipped.send(sent + bytes(MIB))  # until `message_timeout`
    raw = await target.connect()
    await raw.send(b"@3" + b" 1" * 10_000)
    assert (await raw.reply())["error"]["code"] == -32700
    assert await raw.reply() is None
    raw = await target.connect()
    await raw.send(request("size", ["eHl6"]))
    assert (await raw.reply())["result"] == 3


async def check_honest_everywhere(target: ServerUnderAttack) -> None:
    """Calls of other clients are answered at once, as text and as frames, small and large, on every transport."""
    text = request("size", [{"$type": "bytes", "data": base64.b64encode(b"y" * MIB).decode()}])
    frame = call(b"y" * MIB)
    lines = [text, call(b"y" * 8 * 1024), frame, call(b"y" * 20 * MIB), post(text), post(frame, FRAMES, json=False)]
    calls = [(target.connect, message) for message in lines]
    for kind, message in ((TEXT, text), (BINARY, frame)):
        calls.append((partial(upgraded, target), frame_head(kind, len(message)) + message))
    for connect, sent in calls:
        raw = await connect()
        began = time.monotonic()
        await raw.send(sent)
        answer = await asyncio.wait_for(raw.reader.readuntil(b"}"), 60)
        seen = time.monotonic() - began
        if b'"result":' not in answer or seen > HONEST_SECONDS:
            raise AssertionError(f"after {seen:.1f} s: {sent[:80]!r} {answer[:300]!r}")


@attack(
    151,
    "17 clients announce 64 MiB and send nothing, 100 send a little of 60 MiB; then honest calls on every transport",
    plain,
    memory=320 * MIB,
)
async def announced_and_others(target: ServerUnderAttack) -> None:
    for each in await target.connect_many(17):
        await each.send(announcement(64 * MIB - 1024))
    for each in await target.connect_many(100):
        await each.send(announcement(ANNOUNCED) + b"x" * 4096)
    for _ in range(5 if target.whole else 2):
        await check_honest_everywhere(target)


@attack(151, "the same over HTTP and WebSocket", plain, memory=320 * MIB)
async def announced_over_http(target: ServerUnderAttack) -> None:
    frame = announcement(ANNOUNCED)
    for each in await target.connect_many(30):
        length = f"Content-Length: {len(frame) + ANNOUNCED}"
        await each.send(post(None, length, FRAMES, json=False) + frame)
    for _ in range(30):
        raw = await upgraded(target)
        await raw.send(frame_head(BINARY, len(frame) + ANNOUNCED) + frame)
    await check_honest_everywhere(target)
