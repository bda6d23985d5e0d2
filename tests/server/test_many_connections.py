"""1,000 connections at once with many calls each: right answers, none lost, and the memory is given back."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import orjson
import pytest

from ..kit.example_count import IS_THOROUGH

CONNECTIONS = 1000
CALLS = 100 if IS_THOROUGH else 10

PROGRAM = """
    import asyncio, gc, resource, sys
    from rpcstream import Server

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    server = Server()

    @server
    def sync(caller: int, number: int) -> list[int]:
        return [caller, number]

    @server
    async def later(caller: int, number: int, delay: float) -> list[int]:
        await asyncio.sleep(delay)
        return [caller, number]

    @server
    def blocks() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    server.run(port=0, on_listening=lambda address: print(address, flush=True))
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM)], stdout=subprocess.PIPE, text=True)
    yield process
    process.terminate()
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def blocks(host: str, port: int) -> int:
    """Blocks of memory that live objects of the server hold."""
    reader, writer = await asyncio.open_connection(host, port)
    counts = []
    for _ in range(3):  # the first ones make what stays
        writer.write(b'{"jsonrpc":"2.0","method":"blocks","id":1}\n')
        counts.append(orjson.loads(await reader.readline())["result"])
    writer.close()
    await writer.wait_closed()
    return int(counts[-1])


async def caller(host: str, port: int, number: int, together: asyncio.Barrier) -> None:
    chance = random.Random(number)
    reader, writer = await asyncio.open_connection(host, port)
    await together.wait()
    # Every caller uses the same ids, so an answer that went to another would not be noticed by its id.
    calls = []
    for call in range(CALLS):
        slow = chance.random() < 0.5
        params = [number, call, chance.random() * 0.05] if slow else [number, call]
        message = {"jsonrpc": "2.0", "method": "later" if slow else "sync", "params": params, "id": call}
        calls.append(orjson.dumps(message))
    waiting: set[int] = set()
    for start in range(0, CALLS, 10):
        writer.write(b"\n".join(calls[start : start + 10]) + b"\n")
        waiting |= set(range(start, start + 10))
        while len(waiting) > 5:
            take(await reader.readline(), number, waiting)
    while waiting:
        take(await reader.readline(), number, waiting)
    writer.write(b"\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


def take(line: bytes, number: int, waiting: set[int]) -> None:
    reply = orjson.loads(line)
    assert reply["result"] == [number, reply["id"]]
    waiting.remove(reply["id"])


@pytest.mark.thorough
@pytest.mark.timeout(150)
async def test_a_thousand_connections(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    host, _, port = server.stdout.readline().strip().rpartition(":")
    before = await blocks(host, int(port))
    for _ in range(2):
        together = asyncio.Barrier(CONNECTIONS)
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(caller(host, int(port), number, together))
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        pytest.skip("the measuring of coverage keeps blocks of its own")
    # One object left behind by each connection would be 2,000 blocks at least.
    assert await blocks(host, int(port)) - before < 1500
