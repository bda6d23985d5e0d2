"""A server that answers wrongly at random: no answer reaches another call, no call hangs, nothing is left over."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Client, InternalError

from ..internals import blocking_connections, free_connections, slots_of, threads_in_line
from ..kit.example_count import IS_THOROUGH

Scripted = Callable[[Callable[[Any], None]], str]

#: More rounds for whoever doubts.
ROUNDS = int(os.environ.get("RPCSTREAM_CHAOS_ROUNDS", "1"))

EXPECTED = (ConnectionError, TimeoutError, CancelledError, InternalError)


def misbehave(seed: int) -> Callable[[Any], None]:
    """A script that answers in any order, late, twice, in pieces and to no call, and closes connections."""
    choose = random.Random(seed)

    def answers(request: Any) -> bytes:
        if isinstance(request, list):
            kept = [one for one in request if choose.random() < 0.9]
            return b"[" + b",".join(map(answer, kept)) + b"]\n" if kept else b""
        return answer(request) + b"\n" if "id" in request else b""

    def answer(request: dict[str, Any]) -> bytes:
        return orjson.dumps({"jsonrpc": "2.0", "id": request["id"], "result": request["params"][0]})

    def script(line: Any) -> None:
        held: list[bytes] = []
        while (request := line.read()) is not None:
            held.append(answers(request))
            luck = choose.random()
            if luck < 0.7:
                choose.shuffle(held)
                out = b"".join(held)
                held.clear()
                if luck < 0.1:
                    out += out
                if luck < 0.15:
                    out += b'{"jsonrpc":"2.0","id":%d,"result":"forged"}\n' % choose.randrange(10**6, 10**7)
                cut = choose.randrange(len(out) + 1)
                line.raw(out[:cut])
                line.raw(out[cut:])
            elif luck > 0.99:
                return
            elif luck > 0.98:
                held.clear()

    return script


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_threads_in_chaos(scripted: Scripted, seed: int) -> None:
    address = scripted(misbehave(seed))

    def work(thread: int) -> int:
        choose = random.Random(f"{seed} {thread}")
        right = 0
        for number in range(120 if IS_THOROUGH else 40):
            token = f"{thread} {number}" + "x" * choose.choice((0, 10, 100_000))
            try:
                match choose.randrange(6):
                    case 0 | 1:
                        assert client.echo(token, timeout=0.1) == token
                    case 2:
                        assert client.submit.echo(token, timeout=0.1).result(20) == token
                    case 3:
                        future = client.submit.echo(token, timeout=0.1)
                        if choose.random() < 0.5:
                            future.cancel()
                        assert future.result(20) == token
                    case 4:
                        with client.batch(timeout=0.1) as batch:
                            calls = [batch.echo(f"{token} {each}") for each in range(3)]
                        assert [call.result() for call in calls] == [f"{token} {each}" for each in range(3)]
                    case 5:
                        client.notify.note(token)
            except EXPECTED:
                continue
            right += 1
        return right

    with Client(address, pool=2, retries=1, retry="all") as client, ThreadPoolExecutor(6) as executor:
        done = list(executor.map(work, range(6)))
        assert min(done) > 0
        connections = blocking_connections(client)
        assert not any(connection.pending for connection in connections)
        assert len(connections) == len(free_connections(client)) <= 2
        assert not threads_in_line(client)


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_tasks_in_chaos(scripted: Scripted, seed: int) -> None:
    address = scripted(misbehave(seed))

    async def work(worker: int) -> int:
        choose = random.Random(f"{seed} {worker}")
        right = 0
        for number in range(60):
            token = f"{worker} {number}" + "x" * choose.choice((0, 10, 100_000))
            try:
                match choose.randrange(4):
                    case 0:
                        assert await client.echo(token, timeout=0.1) == token
                    case 1:
                        task = client.submit.echo(token, timeout=0.1)
                        await asyncio.sleep(choose.choice((0, 0.001)))
                        if choose.random() < 0.5:
                            task.cancel()
                        assert await task == token
                    case 2:
                        async with client.batch(timeout=0.1) as batch:
                            calls = [batch.echo(f"{token} {each}") for each in range(3)]
                        assert [call.result() for call in calls] == [f"{token} {each}" for each in range(3)]
                    case 3:
                        await client.notify.note(token)
            except (*EXPECTED, asyncio.CancelledError):
                continue
            right += 1
        return right

    async with AsyncClient(address, pool=2, retries=1, retry="all") as client:
        done = await asyncio.gather(*(work(worker) for worker in range(20)))
        assert min(done) > 0
        assert all(place.load == 0 for place in slots_of(client))
    assert asyncio.all_tasks() == {asyncio.current_task()}
