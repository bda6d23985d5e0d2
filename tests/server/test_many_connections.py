"""1,000 connections at once with many calls each: right answers, none lost, and the memory is given back."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from ..kit import RawPeer, request
from ..kit.example_count import IS_THOROUGH

pytestmark = pytest.mark.slow

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
def address() -> Iterator[str]:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.terminate()
    assert process.communicate(timeout=20)[0] == ""
    assert process.returncode == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def blocks(address: str) -> int:
    """Blocks of memory that live objects of the server hold."""
    raw = await RawPeer.open(address)
    counts = [await raw.result("blocks") for _ in range(3)]  # the first ones make what stays
    raw.close()
    return int(counts[-1])


async def call(address: str, number: int, together: asyncio.Barrier) -> None:
    """Every caller uses the same ids, so an answer that went to another would not be noticed by its id."""
    chance = random.Random(number)
    raw = await RawPeer.open(address)
    await together.wait()
    for start in range(0, CALLS, 10):
        for id in range(start, start + 10):
            slow = chance.random() < 0.5
            delay = [chance.random() * 0.05] if slow else []
            raw.send(request("later" if slow else "sync", number, id, *delay, id=id))
        replies = {each["id"]: each["result"] for each in await raw.receive_many(10)}
        assert replies == {id: [number, id] for id in range(start, start + 10)}
    raw.send(b"")
    assert await raw.rest() == []
    raw.close()


@pytest.mark.thorough
@pytest.mark.timeout(150)
async def test_a_thousand_connections(address: str) -> None:
    before = await blocks(address)
    for _ in range(2):
        together = asyncio.Barrier(CONNECTIONS)
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(call(address, number, together))
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        pytest.skip("the measuring of coverage keeps blocks of its own")
    # One object left behind by each connection would be 2,000 blocks at least.
    assert await blocks(address) - before < 1500
