"""Behaviour of the async client only."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import AsyncClient, CallTimeout, ConnectFailed, ConnectionLost, MethodNotFound, Server
from rpcstream.testing import memory_client
from rpcstream.transports.stream import LineStream

from ..internals import slots_of

Scripted = Callable[[Callable[[Any], None]], str]


async def test_any_number_of_calls_at_once_on_one_connection(scripted: Scripted) -> None:
    connections = []

    def script(line: Any) -> None:
        connections.append(line)
        requests = [line.read() for _ in range(1000)]
        line.say(*[{"jsonrpc": "2.0", "id": each["id"], "result": each["params"]} for each in reversed(requests)])
        line.read()

    async with AsyncClient(scripted(script)) as client:
        results = await asyncio.gather(*(client.echo(number) for number in range(1000)))
    assert results == [[number] for number in range(1000)]
    assert len(connections) == 1


async def test_calls_need_no_task_of_their_own(served: str) -> None:
    async with AsyncClient(served) as client:
        assert await client.sum(1, 2) == 3
        tasks = len(asyncio.all_tasks())
        call = client.never()
        step = call.send(None)  # the call is on its way
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == tasks
        call.close()
        del step


async def test_cancelling_gives_the_call_up(scripted: Scripted) -> None:
    go = threading.Event()

    def script(line: Any) -> None:
        first = line.read()
        assert go.wait(20)
        line.answer(first, "late")
        line.answer(line.read(), "next")
        assert line.cancelled == [first["id"]]
        line.read()

    async with AsyncClient(scripted(script)) as client:
        task = client.submit.first()
        while not slots_of(client)[0].load:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slots_of(client)[0].load == 0
        go.set()
        assert await client.second() == "next"
        assert client.replies_dropped == 1


async def test_cancelling_the_first_call_leaves_the_connection_to_the_others(served: str) -> None:
    async with AsyncClient(served) as client:
        first, second = client.submit.sum(1, 2), client.submit.sum(3, 4)
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 7
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_many_deadlines_and_one_timer(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            if request["method"] == "echo":
                line.answer(request, request["params"][0])

    async with AsyncClient(scripted(script), timeout=20) as client:
        outcomes = await asyncio.gather(
            *(client.silence(timeout=0.01 * number) for number in range(1, 6)),
            *(client.echo(number) for number in range(5)),
            client.silence(timeout=0.001),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [CallTimeout] * 5 + [int] * 5 + [CallTimeout]
        assert slots_of(client)[0].load == 0


async def test_errors_of_a_shared_attempt_name_each_method(free_address: str) -> None:
    client = AsyncClient(free_address)
    errors = await asyncio.gather(client.a(), client.b(), client.c(), return_exceptions=True)
    assert [(type(error), error.method) for error in errors] == [  # type: ignore[union-attr]
        (ConnectFailed, "a"),
        (ConnectFailed, "b"),
        (ConnectFailed, "c"),
    ]
    await client.close()


async def test_closing_while_connecting(free_address: str) -> None:
    reached = asyncio.Event()

    async def connect(make_stream: Callable[[], LineStream]) -> LineStream:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    client = AsyncClient("nowhere", connect=connect)
    task = client.submit.sum(1, 2)
    await reached.wait()
    await client.close()
    with pytest.raises((ConnectFailed, RuntimeError), match="closed"):
        await task


async def test_submit_gives_a_task(served: str) -> None:
    async with AsyncClient(served) as client:
        task = client.submit("sum", a=1, b=2, returns=int)
        assert isinstance(task, asyncio.Task)
        gc.collect()
        assert await task == 3


async def test_the_same_client_in_memory() -> None:
    server = Server()

    @server
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with memory_client(server) as client:
        assert await client.greet("you") == "hello you"
        with pytest.raises(MethodNotFound, match="at memory"):
            await client.nothing()
        assert await asyncio.gather(*(client.greet(str(number)) for number in range(100))) == [
            f"hello {number}" for number in range(100)
        ]


def test_one_client_in_two_loops_one_after_the_other(served: str) -> None:
    client = AsyncClient(served)

    async def use() -> Any:
        try:
            return await client.sum(1, 2)
        finally:
            for place in slots_of(client):
                assert place.connection is not None
                place.connection.close("this loop ends")
                await place.connection.wait_closed(5)

    assert asyncio.run(use()) == 3
    assert asyncio.run(use()) == 3


async def test_a_connection_that_ends_between_calls_is_made_anew(scripted: Scripted) -> None:
    connections = []
    closed = threading.Event()

    def script(line: Any) -> None:
        connections.append(line)
        line.answer(line.read(), len(connections))
        if len(connections) == 1:
            line.socket.close()
            closed.set()
        else:
            line.read()

    async with AsyncClient(scripted(script)) as client:
        assert await client.a() == 1
        closed.wait(20)  # holds the loop up, so that it has not seen the end
        assert await client.b() == 2


async def test_a_loss_fails_all_calls_and_leaves_no_task(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        for _ in range(50):
            line.read()

    async with AsyncClient(scripted(script), timeout=None) as client:
        errors = await asyncio.gather(*(client.never() for _ in range(50)), return_exceptions=True)
        assert {type(error) for error in errors} == {ConnectionLost}
        assert asyncio.all_tasks() == {asyncio.current_task()}
