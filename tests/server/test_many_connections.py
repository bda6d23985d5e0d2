"""1,000 connections at once with many calls each: right answers, none lost, and the memory is given back."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
from collections.abc import Iterator

import pytest

from ..kit import RawPeer, UsualServer, request
from ..kit.example_count import IS_THOROUGH

pytestmark = pytest.mark.slow

CONNECTIONS = 1000
CALLS = 100 if IS_THOROUGH else 10


@pytest.fixture
def open_files() -> Iterator[None]:
    """As many files may be open as connections have ends, and some more."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS + 100:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS + 100), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def call(address: str, number: int, together: asyncio.Barrier) -> None:
    """Every caller uses the same ids, so an answer that went to another would not be noticed by its id."""
    chance = random.Random(number)
    raw = await RawPeer.open(address)
    await together.wait()
    for start in range(0, CALLS, 10):
        for id in range(start, start + 10):
            if chance.random() < 0.5:
                raw.call("echo_after", [number, id], chance.random() * 0.05, id=id)
            else:
                raw.send(request("echo", [number, id], id=id))
        replies = {each["id"]: each["result"] for each in await raw.receive_many(10)}
        assert replies == {id: [number, id] for id in range(start, start + 10)}
    raw.send(b"")
    assert await raw.rest() == []
    raw.close()


@pytest.mark.thorough
@pytest.mark.timeout(150)
async def test_a_thousand_connections(open_files: None) -> None:
    blocks = []
    async with UsualServer().listening(port=0) as address:
        for _ in range(3):
            together = asyncio.Barrier(CONNECTIONS)
            async with asyncio.TaskGroup() as group:
                for number in range(CONNECTIONS):
                    group.create_task(call(address, number, together))
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        pytest.skip("the measuring of coverage keeps blocks of its own")
    # One object left behind by each connection would be 1,000 blocks at least.
    assert blocks[2] - blocks[1] < 800
