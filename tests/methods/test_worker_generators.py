"""Generators in worker processes: bounded there, since they cannot be stopped from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import Limits, Server

ENDLESS = 10**12


@pytest.fixture
def server(workers: Any) -> Server:
    server = Server(limits=Limits(max_message_size=200_000), processes=1)
    server.add(workers.numbers, offload="process")
    server.add(workers.numbers, name="short", offload="process", timeout=0.3)
    server.add(workers.texts, offload="process")
    return server


def line(method: str, params: Any, **members: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params, **members})


async def test_all_items_come(server: Server, connect: Any) -> None:
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for to in (0, 1, 255, 256, 257, 3000):
            assert (await raw.call("numbers", [to]))["result"] == list(range(to))


@pytest.mark.parametrize(
    ("method", "params", "members"),
    [("numbers", [ENDLESS], {}), ("texts", [ENDLESS, 10_000], {}), ("numbers", [ENDLESS], {"stream": 5})],
)
async def test_what_is_too_much_stays_in_the_worker(
    server: Server, connect: Any, method: str, params: list[Any], members: dict[str, Any]
) -> None:
    async with server.listening(port=0) as address:
        raw = await connect(address)
        error = (await raw.ask(line(method, params, id=1, **members)))["error"]
        assert (error["code"], error["data"]["limit"]) == (-32001, 200_000)
        assert (await raw.call("numbers", [3]))["result"] == [0, 1, 2]


async def test_one_whose_caller_gave_up_ends_by_itself(server: Server, connect: Any, tmp_path: Path) -> None:
    """By the time-out, which it knows; or it would have the worker for ever."""
    notes = [tmp_path / name for name in ("timed out", "notified")]
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.call("numbers", [1])  # the worker has started: that is not counted in the short time-out
        # As a notification nothing is kept, so that no size ends it.
        await raw.send(line("short", [ENDLESS, str(notes[1])]) + b"\n")
        late = await raw.ask(line("short", [ENDLESS, str(notes[0])], id=1))
        assert late["error"]["code"] in (-32003, -32001)
        async with asyncio.timeout(20):
            while not notes[1].exists():
                await asyncio.sleep(0.01)
        assert (await raw.call("numbers", [3]))["result"] == [0, 1, 2]
