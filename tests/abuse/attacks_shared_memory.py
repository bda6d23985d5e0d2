"""Attacks by shared memory: rings of holes, which whoever reads them would pay for."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import tempfile
from pathlib import Path

import orjson

from rpcstream import Limits, Server
from rpcstream.shared_memory import FIRST, RING_SIZE, SharedMemory

from .attacks_frames import plain
from .attacks_hub import must
from .harness import MIB, ServerUnderAttack, attack, request

#: Bytes of a payload that stands in a ring.
SIZE = RING_SIZE - FIRST - MIB


def sharing(limits: Limits | None = None) -> Server:
    """A server that listens on a Unix socket as well, for as long as it runs."""
    server, inner, stack = Server(), plain(limits), contextlib.AsyncExitStack()

    @server
    async def socket() -> str:
        """The path of the socket."""
        place = Path(tempfile.mkdtemp()) / "socket"
        await stack.enter_async_context(inner.listening(unix=place))
        return str(place)

    return server


def sharing_little() -> Server:
    """The same with room for four rings."""
    return sharing(Limits(max_held_total=4 * RING_SIZE))


def punch(memory: SharedMemory) -> None:
    """Make holes of what was written into a ring."""
    assert memory.ring is not None
    keep_size_and_punch = 3
    size = ctypes.c_long(RING_SIZE - FIRST)
    ctypes.CDLL(None).fallocate(memory.ring.description["fd"], keep_size_and_punch, ctypes.c_long(FIRST), size)


async def send_holes(path: str, gate: asyncio.Event | None = None) -> bytes:
    """Offer a ring, and call with a payload in it that is holes; gives the answer.

    Args:
        gate: let the holes be made only when the header was read, and end only when this is set.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    memory = SharedMemory(writer.get_extra_info("socket"))
    try:
        writer.write(request("rpc.hello", {"binary": 1, "shm": memory.offer()}))
        answer = orjson.loads(await reader.readline())["result"].get("shm")
        if gate is not None and answer is None:
            return b"no ring"
        must(memory.accept(answer), "both ends have rings")
        data = {"$type": "bytes", "data": {"$bin": 0}}
        json = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "size", "params": [data]}) + b"\n"
        if gate is not None:
            must(memory.place([bytes(SIZE)]) == [FIRST], "it is written")
        writer.write(b"@%d %d:%d\n" % (len(json), FIRST, SIZE) + json[:10])
        await asyncio.sleep(0.2)
        if gate is not None:
            punch(memory)
        writer.write(json[10:])
        said = await reader.readline()
        if gate is not None:
            await gate.wait()
        await asyncio.sleep(0.2)
        return said
    finally:
        writer.close()
        memory.close()


@attack(152, "20 connections with rings of holes, one call with 63 MiB each", sharing)
async def rings_of_holes(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    path = await raw.result("socket")
    for answer in await asyncio.gather(*(send_holes(path) for _ in range(20))):
        must(b"no such place in shared memory" in answer, str(answer[:300]))


@attack(
    152, "20 connections that make holes in their rings after the header was read", sharing_little, memory=7 * RING_SIZE
)
async def rings_with_holes_later(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    path = await raw.result("socket")
    gate = asyncio.Event()
    tasks = [asyncio.create_task(send_holes(path, gate)) for _ in range(20)]
    await asyncio.sleep(3)
    gate.set()
    answers = await asyncio.gather(*tasks)
    must(answers.count(b"no ring") >= 16, "the rings of peers are counted")
