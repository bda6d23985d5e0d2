"""What only the async client has: any number of calls at once on one connection, tasks, and event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from rpcstream import AsyncClient, ConnectionLost

from ..kit import reply, until
from .conftest import Connections, Scripted, answering


async def test_any_number_of_calls_at_once_on_one_connection_and_a_loss_fails_all(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        calls = [line.read() for _ in range(1000)]
        line.say(*[reply(call["id"], call["params"]) for call in reversed(calls)])
        for _ in range(50):
            line.read()

    connections = Connections(script)
    async with AsyncClient(scripted(connections), timeout=None) as client:
        results = await asyncio.gather(*(client.echo(number) for number in range(1000)))
        assert results == [[number] for number in range(1000)]
        assert connections.count == 1
        errors = await asyncio.gather(*(client.never() for _ in range(50)), return_exceptions=True)
        assert {type(error) for error in errors} == {ConnectionLost}
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_a_connection_is_opened_only_when_all_others_are_busy(scripted: Scripted) -> None:
    held, go = threading.Semaphore(0), threading.Event()
    connections = Connections(answering(lambda call: call["method"] == "hold" and (held.release(), go.wait(20))[1]))
    async with AsyncClient(scripted(connections), pool=3) as client:
        for _ in range(5):
            await client.quick()
        assert connections.count == 1
        holding = []
        for count in range(1, 4):
            holding.append(client.submit.hold())
            assert await asyncio.to_thread(held.acquire, timeout=20)
            assert connections.count == count
        go.set()
        assert await asyncio.gather(*holding) == [True] * 3


async def test_calls_need_no_task_of_their_own_and_submit_gives_one(served: str) -> None:
    async with AsyncClient(served) as client:
        assert await client.add(1, 2) == 3
        tasks = len(asyncio.all_tasks())
        call = client.wait()
        call.send(None)  # the call is on its way
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == tasks
        call.close()
        task = client.submit("add", a=1, b=2, returns=int)
        assert isinstance(task, asyncio.Task)
        gc.collect()
        assert await task == 3


def test_one_client_in_two_loops_one_after_the_other(served: str) -> None:
    client = AsyncClient(served)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        for runner in (first, second, second):
            assert runner.run(client.call("add", 1, 2)) == 3
        for runner in (first, second):
            runner.run(client.close())
