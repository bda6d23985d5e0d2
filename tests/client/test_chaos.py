"""A server that answers wrongly at random: no answer reaches another call, no call hangs, nothing is left over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Retry
from rpcstream.errors import InternalError

from ..kit import reply, until
from ..kit.example_count import IS_THOROUGH
from .conftest import Scripted

EXPECTED = (ConnectionError, TimeoutError, CancelledError, InternalError)


def misbehave() -> Callable[[Any], None]:
    """A script that answers in any order, late, twice, in pieces and to no call, and closes connections."""
    choose = random.Random(0)

    def answers(call: Any) -> bytes:
        if isinstance(call, list):
            kept = [one for one in call if choose.random() < 0.9]
            return b"[" + b",".join(map(answer, kept)) + b"]\n" if kept else b""
        return answer(call) + b"\n" if "id" in call else b""

    def answer(call: dict[str, Any]) -> bytes:
        return orjson.dumps(reply(call["id"], call["params"][0]))

    def script(line: Any) -> None:
        held: list[bytes] = []
        while (call := line.read()) is not None:
            held.append(answers(call))
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


def tokens(worker: int, count: int) -> Any:
    """What a worker has echoed, which no other has, each with its own chance of what is done."""
    choose = random.Random(worker)
    for number in range(count):
        yield f"{worker} {number}" + "x" * choose.choice((0, 10, 100_000)), choose


@pytest.mark.thorough
async def test_calls_in_chaos(scripted: Scripted, face: Callable[..., Any]) -> None:
    async def batch_of(client: Any, names: list[str]) -> list[Any]:
        if isinstance(client, AsyncClient):
            async with client.batch(timeout=0.1) as batch:
                return [batch.echo(name) for name in names]

        def blocking() -> list[Any]:
            with client.client.batch(timeout=0.1) as batch:
                return [batch.echo(name) for name in names]

        return await asyncio.to_thread(blocking)

    async def work(worker: int) -> int:
        right = 0
        for token, choose in tokens(worker, 120 if IS_THOROUGH else 8):
            try:
                match choose.randrange(4):
                    case 0:
                        assert await client.call("echo", token, timeout=0.1) == token
                    case 1:
                        submitted: Any = asyncio.ensure_future(client.submit("echo", token, timeout=0.1))
                        if not isinstance(client, AsyncClient):
                            submitted = asyncio.wrap_future(await submitted)
                        await asyncio.sleep(choose.choice((0, 0.001)))
                        if choose.random() < 0.4:
                            submitted.cancel()
                        assert await submitted == token
                    case 2:
                        names = [f"{token} {each}" for each in range(3)]
                        assert [call.result() for call in await batch_of(client, names)] == names
                    case 3:
                        await client.notify("note", token)
            except (*EXPECTED, asyncio.CancelledError):
                continue
            right += 1
        return right

    async with face(scripted(misbehave()), pool=2, retry=Retry(times=1, repeats="all")) as client:
        assert min(await asyncio.gather(*(work(worker) for worker in range(12)))) > 0
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
