"""Attacks by shared memory: rings of holes, which whoever reads them would pay for."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import orjson

from rpcstream import Server
from rpcstream.shared_memory import FIRST, RING_SIZE, SharedMemory

from .attacks_frames import plain
from .attacks_hub import must
from .harness import MIB, Budget, ServerUnderAttack, attack, request

#: Bytes of a payload that stands in a ring.
SIZE = RING_SIZE - FIRST - MIB


def sharing() -> Server:
    """A server that listens on a Unix socket as well, for as long as it runs."""
    server, inner, stack = Server(), plain(), contextlib.AsyncExitStack()

    @server
    async def socket() -> str:
        """The path of the socket."""
        place = Path(tempfile.mkdtemp()) / "socket"
        await stack.enter_async_context(inner.listening(unix=place))
        return str(place)

    return server


async def send_holes(path: str) -> bytes:
    """Offer a ring of which nothing was written, and call with a payload in it; gives the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    memory = SharedMemory(writer.get_extra_info("socket"))
    try:
        writer.write(request("rpc.hello", {"binary": 1, "shm": memory.offer()}))
        must(memory.accept(orjson.loads(await reader.readline())["result"].get("shm")), "both ends have rings")
        data = {"$type": "bytes", "data": {"$bin": 0}}
        json = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "size", "params": [data]}) + b"\n"
        writer.write(b"@%d %d:%d\n" % (len(json), FIRST, SIZE) + json)
        answer = await reader.readline()
        await asyncio.sleep(0.2)
        return answer
    finally:
        writer.close()
        memory.close()


@attack(
    152, "20 connections with rings of holes, one call with 63 MiB each", server=sharing, budget=Budget(memory=64 * MIB)
)
async def rings_of_holes(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    path = await raw.result("socket")
    for answer in await asyncio.gather(*(send_holes(path) for _ in range(20))):
        must(b"no such place in shared memory" in answer, str(answer[:300]))
