"""Attacks by shared memory: arenas of holes, which whoever reads them would pay for, and receivers that keep all."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import struct
import tempfile
from pathlib import Path

import orjson

from rpcstream import Limits, Server
from rpcstream.peer.shared_memory import ARENA_SIZE, PAGE

from .attacks_frames import plain
from .attacks_hub import must
from .harness import MIB, ServerUnderAttack, attack, request

#: Bytes of a payload that stands in an arena: as many as a message may have.
SIZE = 63 * MIB
#: Where the control page and the payload stand.
CONTROL, FIRST = PAGE, MIB


def sharing(limits: Limits | None = None) -> Server:
    """A server that listens on a Unix socket as well, for as long as it runs."""
    server, inner, stack = Server(), plain(limits), contextlib.AsyncExitStack()

    inner.add(lambda size: bytes(size), name="zeros")

    @server
    async def socket() -> str:
        """The path of the socket."""
        place = Path(tempfile.mkdtemp()) / "socket"
        await stack.enter_async_context(inner.listening(unix=place))
        return str(place)

    return server


def sharing_little() -> Server:
    """The same with room for four arenas."""
    return sharing(Limits(max_held_total=4 * ARENA_SIZE))


class RawArena:
    """An arena as the wire page has it, with nothing in it but a control page."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("rpcstream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, ARENA_SIZE)
        key = os.urandom(16)
        os.pwrite(self.fd, key + bytes(MIB - len(key)), 0)
        os.pwrite(self.fd, struct.pack("=QQQ", 1, 0, 7), CONTROL)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.offer = {"binary": 1, "shm": {"pid": os.getpid(), "fd": self.fd, "key": key.hex(), "at": CONTROL, "id": 7}}

    def write(self) -> None:
        """Have memory for the payload."""
        for at in range(FIRST, FIRST + SIZE, MIB):
            os.pwrite(self.fd, b"\1" * MIB, at)

    def punch(self) -> None:
        """Make holes of what was written."""
        keep_size_and_punch = 3
        ctypes.CDLL(None).fallocate(self.fd, keep_size_and_punch, ctypes.c_long(FIRST), ctypes.c_long(SIZE))


async def send_holes(path: str, gate: asyncio.Event | None = None) -> bytes:
    """Offer an arena, and call with a payload in it that is holes; gives the answer.

    Args:
        gate: let the holes be made only when the header was read, and end only when this is set.
    """
    reader, writer = await asyncio.open_unix_connection(path, limit=SIZE)
    arena = RawArena()
    try:
        writer.write(request("rpc.hello", arena.offer))
        answer = orjson.loads(await reader.readline())["result"].get("shm")
        if gate is not None and answer is None:
            return b"no arena"
        must(answer is not None, "both ends have arenas")
        data = {"$type": "bytes", "data": {"$bin": 0}}
        json = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "size", "params": [data]}) + b"\n"
        if gate is not None:
            arena.write()
        writer.write(b"@%d 0:%d:%d\n" % (len(json), FIRST, SIZE) + json[:10])
        await asyncio.sleep(0.2)
        if gate is not None:
            arena.punch()
        writer.write(json[10:])
        said = await reader.readline()
        if gate is not None:
            await gate.wait()
        await asyncio.sleep(0.2)
        return said
    finally:
        writer.close()
        os.close(arena.fd)


@attack(152, "15 connections with arenas of holes, one call with 63 MiB each", sharing)
async def arenas_of_holes(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    path = await raw.result("socket")
    for answer in await asyncio.gather(*(send_holes(path) for _ in range(15))):
        must(b"no such place in shared memory" in answer, str(answer[:300]))


@attack(
    152,
    "20 connections that make holes in their arenas after the header was read",
    sharing_little,
    memory=7 * ARENA_SIZE // 2,
)
async def arenas_with_holes_later(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    path = await raw.result("socket")
    gate = asyncio.Event()
    tasks = [asyncio.create_task(send_holes(path, gate)) for _ in range(20)]
    await asyncio.sleep(3)
    gate.set()
    answers = await asyncio.gather(*tasks)
    must(answers.count(b"no arena") >= 16, "the arenas of peers are counted")


@attack(152, "1,500 connections that offer an arena each, and keep what they get", sharing, memory=320 * MIB)
async def many_arenas(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    path = await raw.result("socket")
    arenas, writers, taken = [], [], 0
    try:
        for _ in range(1500):
            arena = RawArena()
            arenas.append(arena)
            reader, writer = await asyncio.open_unix_connection(path, limit=4 * MIB)
            writers.append(writer)
            writer.write(request("rpc.hello", arena.offer))
            if "shm" not in orjson.loads(await reader.readline())["result"]:
                continue
            taken += 1
            for _ in range(20):
                writer.write(request("zeros", [MIB]))
                head = await reader.readline()
                await reader.readline()
                if b":" not in head:
                    await reader.readexactly(MIB)
        must(0 < taken <= 16, f"{taken} arenas were mapped")
        must(await raw.result("rpc.ping") == "pong", "others are served")
    finally:
        for writer in writers:
            writer.close()
        for arena in arenas:
            os.close(arena.fd)
