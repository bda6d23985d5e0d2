"""Attacks by long JSON: text that takes long to parse, in a line, in a frame, over HTTP and WebSocket, and at a hub."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from rpcstream import Server

from ..kit.http import get, post
from ..kit.websocket import TEXT, UPGRADE, frame_head
from .attacks_hub import hub, must, registered
from .harness import MIB, RawConnection, ServerUnderAttack, attack

#: Bytes of the JSON that is refused, and of the JSON that is taken; both with room for the rest of the message.
REFUSED, TAKEN = 60 * MIB, 8 * MIB - 1024


def taking() -> Server:
    server = Server()

    @server
    def size(value: Any = None) -> int:
        return len(value)

    return server


def texts(size: int) -> dict[str, bytes]:
    """Values of about this many bytes, by what takes long in them."""
    return {
        "escaped quotes": b'"%b"' % (b'\\"' * (size // 2)),
        "short strings": b"[%b]" % b",".join([b'"%b"' % (b'\\"' * 9)] * min(size // 21, 450_000)),
        "numbered": b'"%b"' % (b"\\u0041" * (size // 6)),
        "blanks": b"[1,%b2]" % (b" " * size),
        "pieces": b"[%b]" % b",".join([b'"%b"' % (b"A" * 9000 + b'\\"' * 60)] * (size // 9123)),
        "ASCII": b'"%b"' % (b"A" * size),
        "not ASCII": b'"%b"' % ("A" + "\u0436" * (size // 2)).encode(),
        "payload": b'{"$type":"bytes","data":"%b"}' % (b"\\u0041" * (size // 6)),
    }


def call(value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"size","params":[%b]}' % value


async def upgraded(target: ServerUnderAttack) -> RawConnection:
    raw = await target.connect()
    raw.write(get("/", *UPGRADE))
    head = await raw.reader.readuntil(b"\r\n\r\n")
    must(b" 101 " in head, str(head))
    return raw


async def check_refused(raw: RawConnection, what: str) -> None:
    """The next reply is an error that names the limit."""
    begun = await asyncio.wait_for(raw.reader.readuntil(b"}}"), 30)
    must(b"max_json_size" in begun and b"-32001" in begun, f"{what}: {begun[:300]!r}")


def chosen(target: ServerUnderAttack, size: int) -> list[tuple[str, bytes]]:
    """All texts; in the short form of an attack the first ones."""
    return list(texts(size).items())[: None if target.whole else 3]


@attack(150, "lines with 60 MiB of JSON that takes long to parse", taking, memory=320 * MIB)
async def long_lines(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for what, text in chosen(target, REFUSED):
        if what == "short strings":
            text = b"[%b]" % b",".join([b'"%b"' % (b'\\"' * 30)] * 1_000_000)
        await raw.send(call(text) + b"\n")
        await check_refused(raw, what)


@attack(150, "lines with as much of it as is taken", taking, memory=160 * MIB)
async def taken_lines(target: ServerUnderAttack) -> None:
    for what, text in chosen(target, TAKEN):
        raw = await target.connect()
        await raw.send(call(text) + b"\n")
        reply = await raw.reply()
        must("result" in reply or what == "payload", f"{what}: {reply}")


# in the same turn the payload is received and decoded
@attack(150, "the same besides 30 MiB of payload", taking, memory=320 * MIB, wait=0.5)
async def taken_with_payload(target: ServerUnderAttack) -> None:
    payload = b'{"$type":"bytes","data":"%b"}' % (b"QUJD" * (30 * MIB // 4))
    for what, text in chosen(target, TAKEN):
        raw = await target.connect()
        await raw.send(call(b"[%b,%b]" % (text, payload)) + b"\n")
        reply = await raw.reply()
        must(reply.get("result") == 2 or what == "payload", f"{what}: {reply}")


@attack(150, "a string of 30 MiB of ASCII, which is taken", taking, memory=320 * MIB)
async def long_text(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for _ in range(4):
        await raw.send(call(b'"%b"' % (b"A" * 30 * MIB)) + b"\n")
        must((await raw.reply()).get("result") == 30 * MIB, "it is cheap to parse")


@attack(150, "30 MiB of payloads of 4 KiB", taking, memory=480 * MIB)
async def many_payloads(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    payload = b'{"$type":"bytes","data":"%b"}' % (b"QUJD" * 1024)
    for count in (5_000, 5_000):
        raw.write(call(b"[%b]" % b",".join([payload] * count)) + b"\n")
        must((await raw.reply()).get("result") == count, "payloads are no JSON")


@attack(150, "binary frames with 60 MiB of JSON", taking, memory=320 * MIB)
async def long_frames(target: ServerUnderAttack) -> None:
    for what, text in chosen(target, REFUSED):
        raw = await target.connect()
        json = call(b'[%b,{"$type":"bytes","data":{"$bin":0}}]' % text) + b"\n"
        await raw.send(b"@%d 1\n" % len(json) + json + b"x")
        await check_refused(raw, what)


@attack(150, "60 MiB of it without a line end, in pieces that end with a bracket", taking, memory=320 * MIB)
async def undelimited(target: ServerUnderAttack) -> None:
    for piece in (b'\\"' * 500_000 + b"]", b"A" * 1_000_000 + b"}", b"\\\\" * 500_000 + b"]"):
        raw = await target.connect()
        raw.write(b'{"jsonrpc":"2.0","id":1,"method":"size","params":["')
        for _ in range(60 if target.whole else 20):
            await raw.send(piece)
            await asyncio.sleep(0.01)
        raw.close()
    raw = await target.connect()
    await raw.send(b'{"jsonrpc":"2.0","id":1,"method":"size","params":["' + b'\\"' * (30 * MIB))
    await asyncio.sleep(0.3)
    await raw.send(b'"]}')
    await check_refused(raw, "at once")


@attack(150, "bodies of 60 MiB of JSON over HTTP", taking, memory=320 * MIB)
async def long_bodies(target: ServerUnderAttack) -> None:
    for what, text in chosen(target, REFUSED):
        raw = await target.connect()
        await raw.send(post(call(text)))
        await check_refused(raw, what)


@attack(150, "messages of 60 MiB of JSON over WebSocket", taking, memory=320 * MIB)
async def long_websocket_messages(target: ServerUnderAttack) -> None:
    for what, text in chosen(target, REFUSED):
        raw = await upgraded(target)
        await raw.send(frame_head(TEXT, len(call(text))) + call(text))
        await check_refused(raw, what)


@attack(150, "60 MiB of JSON for a provider of a hub, and in its reply", hub, memory=480 * MIB)
async def long_at_hub(target: ServerUnderAttack) -> None:
    provider = await registered(target, "provider", ["size"])
    for what, text in chosen(target, REFUSED):
        raw = await target.connect()
        await raw.send(call(text) + b"\n")
        await check_refused(raw, what)
        await raw.send(call(b"1") + b"\n")
        asked = orjson.loads(await provider.reader.readline())
        reply = b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (orjson.dumps(asked["id"]), text)
        await provider.send(reply)
        await check_refused(raw, what)
