"""Attacks by images that are each within the limits but too much together: pixels, scans, text, many at a time."""

from __future__ import annotations

import base64
import functools
import io
import struct
import zlib
from typing import Any

from PIL import Image

from rpcstream import Server

from .harness import MIB, ServerUnderAttack, attack, request

#: What one message of images may take while it is decoded, and what all of a server may (`max_image_memory`).
MEMORY = 1024 * MIB + 128 * MIB


def looking() -> Server:
    """Handlers of every kind that take images."""
    server = Server()

    @server
    def size(images: list[Image.Image]) -> list[list[int]]:
        return [list(image.size) for image in images]

    @server
    def echo(value: Any) -> str:
        return type(value).__name__

    @server(offload="thread")
    def in_thread(image: Image.Image) -> list[int]:
        return list(image.size)

    @server
    async def later(image: Image.Image) -> list[int]:
        return list(image.size)

    return server


def file_of(image: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def tagged(data: bytes, name: str) -> dict[str, Any]:
    return {"$type": "image", "format": name, "data": base64.b64encode(data).decode()}


@functools.cache
def webp(side: int = 8000) -> dict[str, Any]:
    """64 megapixels in 3 KB."""
    return tagged(file_of(Image.new("RGB", (side, side)), "webp", lossless=True, method=0), "webp")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@attack(1, "12 lossless WebPs of 64 megapixels in 40 KB, for a hint", looking, memory=MEMORY, in_suite=False)
async def many_webps(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    reply = await raw.call("size", [[webp()] * (12 if target.whole else 4)])
    assert reply["error"]["code"] == -32602


@attack(1, "the same for a method that takes anything", looking, memory=MEMORY)
async def many_webps_untyped(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    reply = await raw.call("echo", [{"a": [webp()] * (12 if target.whole else 4)}])
    assert reply["error"]["code"] == -32602


@attack(1, "a batch of 12 calls with a WebP of 64 megapixels each", looking, memory=MEMORY, in_suite=False)
async def batch_of_webps(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    calls = [request("echo", [webp()], n)[:-1] for n in range(12 if target.whole else 4)]
    await raw.send(b"[" + b",".join(calls) + b"]\n")
    codes = [member.get("error", {}).get("code") for member in await raw.reply()]
    assert codes.count(-32602) == len(calls) - 1


@attack(1, "a progressive JPEG of 64 megapixels and 500 scans", looking, memory=512 * MIB)
async def scans(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    data = file_of(Image.new("L", (8000, 8000)), "jpeg", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    image = tagged(data[:-2] + scan * (500 if target.whole else 150) + b"\xff\xd9", "jpeg")
    reply = await raw.call("size", [[image]])
    assert reply["error"]["code"] == -32602


@attack(1, "20 PNGs of one pixel with 63 MiB of zTXt each", looking, memory=128 * MIB)
async def compressed_text(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    packed = zlib.compress(bytes(MIB))
    texts = b"".join(chunk(b"zTXt", b"k%d\0\0" % n + packed) for n in range(63))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0"))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + texts + pixels + chunk(b"IEND", b"")
    reply = await raw.call("echo", [[tagged(data, "png")] * (20 if target.whole else 5)])
    assert reply["error"]["code"] == -32602


@attack(
    1,
    "large images for an offloaded, an async and a sync handler, from 8 connections at once",
    looking,
    memory=MEMORY,
    in_suite=False,
)
async def many_connections(target: ServerUnderAttack) -> None:
    image = webp(5000)
    raws = await target.connect_many(8 if target.whole else 4)
    calls = 6 if target.whole else 3
    for raw in raws:
        for n in range(calls):
            method = ("in_thread", "later", "echo")[n % 3]
            await raw.send(request(method, [image], n))
    for raw in raws:
        answers = await raw.replies(calls)
        assert all("result" in answer for answer in answers)
