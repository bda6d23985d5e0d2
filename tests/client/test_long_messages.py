"""Long messages in both directions at once: neither end waits for the other for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import AsyncClient, CallTimeout, Client

from ..internals import engine_of, slots_of

Scripted = Callable[[Callable[[Any], None]], str]

LONG = "x" * 3_000_000


def test_long_messages_pipelined_both_ways(served: str) -> None:
    with Client(served) as client:
        futures = [client.submit.echo(LONG) for _ in range(8)]
        assert client.echo(LONG) == LONG
        assert all(future.result() == LONG for future in futures)


def test_long_messages_from_several_threads(served: str) -> None:
    with Client(served) as client:
        right = []

        def work() -> None:
            right.extend(client.echo(LONG) == LONG and client.sum(1, 2) == 3 for _ in range(3))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right == [True] * 12


async def test_long_messages_both_ways_async(served: str) -> None:
    async with AsyncClient(served) as client:
        results = await asyncio.gather(*(client.echo(LONG) for _ in range(8)))
        assert all(result == LONG for result in results)


def test_a_server_that_answers_before_it_reads_on(scripted: Scripted) -> None:
    """It writes a long reply to the first call, which was given up, while the second, long one is on its way, and reads
    only after that."""
    has_begun = threading.Event()

    def script(line: Any) -> None:
        first = line.read()
        assert has_begun.wait(20)
        line.answer(first, LONG * 2)
        line.answer(line.read(), "second")
        line.read()

    def trace(direction: str, message: bytes) -> None:
        if b"second" in message:
            has_begun.set()

    with Client(scripted(script), trace=trace) as client:
        with pytest.raises(CallTimeout):
            client.first(timeout=0.05)
        assert client.second(LONG * 2) == "second"
        assert client.replies_dropped == 1


def test_a_server_that_answers_before_it_reads_on_futures(scripted: Scripted) -> None:
    has_read = threading.Event()

    def script(line: Any) -> None:
        first = line.read()
        has_read.set()
        line.answer(first, LONG * 2)
        line.answer(line.read(), "second")
        line.read()

    with Client(scripted(script)) as client:
        first = client.submit.first()
        assert has_read.wait(20)
        second = client.submit.second(LONG * 2)
        assert second.result() == "second"
        assert first.result() == LONG * 2


async def test_a_server_that_answers_before_it_reads_on_async(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        first = line.read()
        line.answer(first, LONG * 2)
        line.answer(line.read(), "second")
        line.read()

    async with AsyncClient(scripted(script)) as client:
        first, second = await asyncio.gather(client.first(), client.second(LONG * 2))
        assert (first, second) == (LONG * 2, "second")


def test_a_server_that_does_not_read(scripted: Scripted) -> None:
    """A message that went out in part cannot be taken back: the connection is lost, the next call makes a new one."""
    go = threading.Event()
    connections = []

    def script(line: Any) -> None:
        connections.append(line)
        if len(connections) == 1:
            assert go.wait(20)
        else:
            line.answer(line.read(), "fine")
            line.read()

    with Client(scripted(script)) as client:
        with pytest.raises(CallTimeout, match=r"did not take the call in time \(method 'long'"):
            client.long(LONG * 5, timeout=0.1)
        assert not engine_of(client).pool.has_open
        go.set()
        assert client.call("next") == "fine"


async def test_calls_wait_while_the_server_does_not_read(scripted: Scripted) -> None:
    go = threading.Event()

    def script(line: Any) -> None:
        assert go.wait(20)
        while (request := line.read()) is not None:
            if "id" in request:
                line.answer(request, len(request["params"][0]))

    sent = []
    address = scripted(script)
    async with AsyncClient(address, trace=lambda direction, message: sent.append((direction, len(message)))) as client:
        calls = [client.submit.length(LONG) for _ in range(10)]
        for _ in range(50):
            await asyncio.sleep(0)
        # What is not written yet waits in the callers, not in a buffer.
        assert sum(size for direction, size in sent if direction == "send") <= 3 * len(LONG)
        with pytest.raises(CallTimeout):
            await client.length("short", timeout=0.05)
        go.set()
        assert await asyncio.gather(*calls) == [len(LONG)] * 10
        assert await client.length("short") == 5


async def test_notifications_do_not_pile_up(scripted: Scripted) -> None:
    received = []

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            if "id" in request:
                line.answer(request, len(received))
            else:
                received.append(request)

    most = 0
    async with AsyncClient(scripted(script)) as client:
        for _ in range(3000):
            await client.notify.note("x" * 1000)
            most = max(most, slots_of(client)[0].connection.session.write_gate.unsent)  # type: ignore[union-attr]
        assert await client.received() == 3000
    assert most < 1_000_000


async def test_a_client_that_closes_sends_what_it_was_given(scripted: Scripted) -> None:
    received: list[int] = []
    ended = threading.Event()

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            received.append(len(request["params"][0]))
        ended.set()

    async with AsyncClient(scripted(script)) as client:
        for _ in range(5):
            await client.notify.note(LONG)
    assert await asyncio.to_thread(ended.wait, 20)
    assert received == [len(LONG)] * 5
