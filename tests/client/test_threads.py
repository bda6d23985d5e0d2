"""One sync client used by many threads: its pool of connections, and its futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rpcstream import CallTimeout, Client, ConnectionLost

from ..kit import until_in_thread
from .conftest import Connections, Scripted, answering


@pytest.fixture
def client(served: str) -> Iterator[Client]:
    with Client(served) as client:
        yield client


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(work, range(count)))


class Holding:
    """A script that answers calls of "hold" only when it is told to, and counts its connections.

    Attributes:
        asked: the first argument, or the method, of each call that came.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.asked: list[Any] = []
        self.go = threading.Event()

    def __call__(self, line: Any) -> None:
        self.connections += 1
        while (call := line.read()) is not None:
            self.asked.append(*call.get("params") or [call["method"]])
            if call["method"] == "hold":
                assert self.go.wait(20)
            line.answer(call, self.connections)

    def holds(self, count: int) -> None:
        until_in_thread(lambda: self.asked.count("hold") == count)


@pytest.mark.parametrize("pool", [None, 3])
def test_every_thread_gets_its_own_answers(served: str, pool: int | None) -> None:
    together = threading.Barrier(8)

    def work(thread: int) -> None:
        together.wait()
        for start in range(0, 50, 25):
            values = [thread * 1000 + number for number in range(start, start + 25)]
            waiting = [pooled.submit.echo_after(value, 0.001 * (value % 3)) for value in values[::4]]
            assert [pooled.echo_after(value, 0.0005) for value in values[1::4]] == values[1::4]
            assert [pooled.add(value, 1) for value in values] == [value + 1 for value in values]
            assert [future.result() for future in waiting] == values[::4]

    with Client(served, **({} if pool is None else {"pool": pool})) as pooled:
        in_threads(8, work)
        assert pooled.replies_dropped == 0


@pytest.mark.parametrize("kind", ["threads", "futures"])
def test_a_connection_is_opened_only_when_all_others_are_busy(scripted: Scripted, kind: str) -> None:
    script = Holding()
    with Client(scripted(script), pool=3) as client, ThreadPoolExecutor(3) as executor:
        quick = client.quick if kind == "threads" else lambda: client.submit.quick().result()
        assert [quick() for _ in range(5)] == [1] * 5
        holding = []
        for count in range(1, 4):
            holding.append(executor.submit(client.hold) if kind == "threads" else client.submit.hold())
            script.holds(count)
        assert script.connections == 3
        script.go.set()
        assert [future.result() for future in holding] == [3, 3, 3]
        assert quick() == 3
    script = Holding()
    script.go.set()
    with Client(scripted(script)) as client:  # without a pool futures share one connection
        assert [future.result() for future in [client.submit.hold() for _ in range(20)]] == [1] * 20


def test_a_thread_waits_while_all_connections_are_in_use(scripted: Scripted) -> None:
    script = Holding()
    with Client(scripted(script), pool=2) as client, ThreadPoolExecutor(6) as executor:
        holding = [executor.submit(client.hold) for _ in range(2)]
        script.holds(2)
        for attempt, timeout in ((client.quick, 0.05), (client.notify.quick, 0.05), (client.quick, -1)):
            with pytest.raises(CallTimeout, match=r"all 2 \(pool=2\) were in use \(method 'quick' at 127"):
                attempt(timeout=timeout)
        waiting = [executor.submit(client.quick) for _ in range(4)]
        script.go.set()
        assert [future.result(20) for future in holding + waiting] == [2] * 6
        assert script.connections == 2


@pytest.mark.parametrize("ending", ["lost", "closed"])
def test_who_waits_for_a_connection_when_one_ends(scripted: Scripted, ending: str) -> None:
    """A loss makes room for a new one; with the client all waiting ends."""
    begun, go = threading.Event(), threading.Event()

    def hold(line: Any) -> None:
        line.read()
        begun.set()
        assert go.wait(20)

    client = Client(scripted(Connections(hold, answering("here"))), pool=1)
    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(client.first)
        assert begun.wait(20)
        waiting = executor.submit(client.second)
        with pytest.raises(CallTimeout, match="were in use"):
            client.third(timeout=0.05)
        client.close() if ending == "closed" else go.set()
        assert isinstance(first.exception(20), ConnectionLost)
        if ending == "lost":
            assert waiting.result(20) == "here"
        else:
            with pytest.raises(ConnectionLost, match="the client was closed"):
                waiting.result(20)
    go.set()
    client.close()


@pytest.mark.parametrize("timeout", [20, None])
def test_a_thread_does_not_wait_for_itself(served: str, caplog: pytest.LogCaptureFixture, timeout: int | None) -> None:
    with Client(served, pool=1, timeout=timeout) as client:
        assert client.progress(1, on_progress=lambda value: client.rpc.ping()) == 1
        assert client.rpc.ping() == "pong"
    assert "'rpc.ping' was called in on_progress while all 1 connections (pool=1) are in use" in caplog.text


def test_futures_of_many_calls(client: Client) -> None:
    still = client.submit.wait()
    futures = [client.submit.add(number, 1) for number in range(300)]
    assert [future.result() for future in concurrent.futures.as_completed(futures, timeout=20)]
    assert [future.result() for future in futures] == list(range(1, 301))

    async def awaited() -> Any:
        return await asyncio.gather(*(asyncio.wrap_future(client.submit.add(number, 1)) for number in range(10)))

    assert asyncio.run(awaited()) == list(range(1, 11))
    assert client.add(1, 1) == 2
    assert not still.done()
    assert still.cancel()


@pytest.mark.parametrize("options", [{}, {"keepalive": 60.0}], ids=["blocking", "loop"])
def test_callbacks_may_call_and_run_in_order_in_one_thread_whatever_they_raise(
    served: str, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[Any] = []
    threads: set[threading.Thread] = set()
    with Client(served, **options) as client:

        def callback(future: Future[Any]) -> None:
            threads.add(threading.current_thread())
            results.extend((future.result(), client.add(10, 1), client.submit.add(20, 1).result(20)))
            with client.batch() as batch:
                call = batch.add(30, 1)
            results.append(call.result())
            raise ValueError("a mistake in a callback")

        futures = [client.submit.add(number, 0) for number in range(20)]
        for future in futures:
            future.result()
            future.add_done_callback(callback)
        until_in_thread(lambda: results == [each for number in range(20) for each in (number, 11, 21, 31)])
        assert len({*threads, threading.current_thread()}) == 2
    assert "a mistake in a callback" in caplog.text


def test_threads_are_there_as_long_as_they_are_needed(served: str) -> None:
    """None for plain calls; those of futures end with the client, which nothing keeps alive then."""
    before = set(threading.enumerate())
    client = Client(served)
    assert client.add(1, 2) == 3
    assert not set(threading.enumerate()) - before
    future = client.submit.echo_after(1, 0.0)
    future.add_done_callback(lambda future: None)
    assert future.result(10) == 1
    waiting = client.submit.wait()
    mine = set(threading.enumerate()) - before
    assert len(mine) == 2
    client.close()
    assert isinstance(waiting.exception(10), ConnectionLost)
    for thread in mine:
        thread.join(4)
    assert not any(thread.is_alive() for thread in mine)
    gone = weakref.ref(client)
    del client, future, waiting
    gc.collect()
    assert gone() is None
