"""The pool of connections: which one takes the next call, and when a new one is opened."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from rpcstream import AsyncClient, CallTimeout, Client, ConnectionLost, Context, Server
from rpcstream.client.slots import choose_slot
from rpcstream.testing import serve_in_thread

from ..internals import engine_of, socket_of, threads_in_line


@dataclass
class Place:
    load: int
    is_open: bool = True


def test_the_fewest_calls_win_and_an_open_one_before_a_new_one() -> None:
    assert choose_slot([Place(3), Place(1), Place(2)]).load == 1
    assert choose_slot([Place(0, is_open=False), Place(0)]).is_open
    assert not choose_slot([Place(1), Place(0, is_open=False)]).is_open
    only = Place(9)
    assert choose_slot([only]) is only


class CountedConnections:
    """A script that answers calls of "hold" only when it is told to, and counts its connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.held = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, line: Any) -> None:
        self.connections += 1
        while (request := line.read()) is not None:
            if request["method"] == "hold":
                self.held.release()
                assert self.go.wait(20)
            line.answer(request, self.connections)


def test_a_connection_is_opened_only_when_all_others_are_busy(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    with Client(scripted(script), pool=3) as client, ThreadPoolExecutor(3) as executor:
        for _ in range(5):
            assert client.quick() == 1
        holding = []
        for _ in range(3):
            holding.append(executor.submit(client.hold))
            assert script.held.acquire(timeout=20)
        assert script.connections == 3
        script.go.set()
        assert [future.result() for future in holding] == [3, 3, 3]
        assert client.quick() == 3


def test_the_same_for_futures(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    with Client(scripted(script), pool=3) as client:
        assert client.submit.quick().result() == 1
        holding = []
        for _ in range(3):
            holding.append(client.submit.hold())
            assert script.held.acquire(timeout=20)
        assert script.connections == 3
        script.go.set()
        assert [future.result() for future in holding] == [3, 3, 3]


def test_futures_share_one_connection_unless_a_pool_is_asked_for(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    script.go.set()
    with Client(scripted(script)) as client:
        assert [future.result() for future in [client.submit.hold() for _ in range(20)]] == [1] * 20


def test_a_thread_waits_while_all_connections_are_in_use(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    with Client(scripted(script), pool=2) as client, ThreadPoolExecutor(6) as executor:
        holding = [executor.submit(client.hold) for _ in range(2)]
        for _ in range(2):
            assert script.held.acquire(timeout=20)
        with pytest.raises(CallTimeout, match=r"all 2 \(pool=2\) were in use \(method 'quick' at 127"):
            client.quick(timeout=0.05)
        with pytest.raises(CallTimeout, match="were in use"):
            client.notify.quick(timeout=0.05)
        with pytest.raises(CallTimeout, match="were in use"):
            client.quick(timeout=-1)
        waiting = [executor.submit(client.quick) for _ in range(4)]
        while threads_in_line(client) < 4:
            threading.Event().wait(0.001)
        script.go.set()
        assert [future.result(20) for future in holding + waiting] == [2] * 6
        assert script.connections == 2
        assert client.quick() == 2


def test_threads_have_connections_in_the_order_in_which_they_came(scripted: Callable[..., str]) -> None:
    asked: list[int] = []
    go = threading.Event()

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            asked.append(request["params"][0])
            assert go.wait(20)
            line.answer(request, None)

    with Client(scripted(script), pool=1) as client, ThreadPoolExecutor(6) as executor:
        waiting = []
        for number in range(6):
            waiting.append(executor.submit(client.ask, number))
            while len(asked) + threads_in_line(client) <= number:
                threading.Event().wait(0.001)
        go.set()
        for future in waiting:
            future.result(20)
    assert asked == list(range(6))


def test_who_waits_gets_room_for_a_new_connection_when_one_is_lost(scripted: Callable[..., str]) -> None:
    go = threading.Event()
    connections: list[Any] = []

    def script(line: Any) -> None:
        connections.append(line)
        request = line.read()
        if len(connections) == 1:
            assert go.wait(20)
        else:
            line.answer(request, "here")
            line.read()

    with Client(scripted(script), pool=1) as client, ThreadPoolExecutor(2) as executor:
        lost = executor.submit(client.first)
        while not connections:
            threading.Event().wait(0.001)
        waiting = executor.submit(client.second)
        while not threads_in_line(client):
            threading.Event().wait(0.001)
        go.set()
        assert isinstance(lost.exception(20), ConnectionLost)
        assert waiting.result(20) == "here"


def test_who_waits_for_a_connection_ends_with_the_client(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    client = Client(scripted(script), pool=1)
    with ThreadPoolExecutor(2) as executor:
        holding = executor.submit(client.hold)
        assert script.held.acquire(timeout=20)
        waiting = executor.submit(client.quick)
        while not threads_in_line(client):
            threading.Event().wait(0.001)
        client.close()
        for future in (holding, waiting):
            with pytest.raises(ConnectionLost, match="the client was closed"):
                future.result(20)
    script.go.set()


def test_a_thread_does_not_wait_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server
    async def steps(ctx: Context) -> str:
        ctx.progress(1)
        return "done"

    with serve_in_thread(server) as address, Client(address, pool=1) as client:
        assert client.steps(on_progress=lambda value: client.rpc.ping()) == "done"
        assert client.rpc.ping() == "pong"
    assert "'rpc.ping' was called in on_progress, while all 1 connections are in use" in caplog.text


def test_a_connection_that_was_not_given_back_makes_room(served: str) -> None:
    """A thread may be interrupted in the very moment in which it has taken one."""
    with Client(served, pool=1) as client:
        connection: Any = engine_of(client).pool.take("nothing", float("inf"))
        with pytest.raises(CallTimeout):
            client.sum(1, 2, timeout=0.05)
        socket_of(connection).close()
        del connection
        gc.collect()
        assert client.sum(1, 2) == 3


async def test_the_same_for_the_async_client(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    async with AsyncClient(scripted(script), pool=3) as client:
        assert await client.quick() == 1
        holding = []
        for _ in range(3):
            holding.append(client.submit.hold())
            assert await asyncio.to_thread(script.held.acquire, timeout=20)
        assert script.connections == 3
        script.go.set()
        assert await asyncio.gather(*holding) == [3, 3, 3]


@pytest.mark.parametrize("face", [Client, AsyncClient])
def test_senseless_options_are_refused(face: Any) -> None:
    for options, said in [
        ({"pool": 0}, "pool must be at least 1"),
        ({"retries": -1}, "retries must not be negative"),
        ({"timeout": 0}, "timeout must be positive or None"),
        ({"connect_timeout": -1}, "connect_timeout must be positive"),
        ({"delimiter": b""}, "at least one byte"),
    ]:
        with pytest.raises(ValueError, match=said):
            face(**options)
