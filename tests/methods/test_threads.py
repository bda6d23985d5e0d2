"""Threads of a server: as many as are needed, in order, and nothing is kept of calls that were given up."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest

from rpcstream import Client, Limits, Server
from rpcstream.errors import InternalError
from rpcstream.testing import memory_client, serve_in_thread

from ..kit import notification, raw_peers, request, until, until_in_thread


class Pool:
    """A server with threads, in which `note` notes its argument, and `block` waits."""

    def __init__(self, **options: Any) -> None:
        self.server = Server(drain_timeout=0.1, **options)
        self.release = threading.Event()
        self.ran: list[Any] = []
        self.threads: set[str] = set()
        self.server.add(self.block, name="block", offload="thread")
        self.server.add(self.note, name="note", offload="thread")

    def block(self) -> None:
        self.ran.append("block")
        assert self.release.wait(20)

    def note(self, value: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.ran.append(value)


async def test_calls_that_were_cancelled_while_no_thread_was_free_leave_nothing() -> None:
    pool = Pool(threads=1, limits=Limits(max_calls=50))
    async with raw_peers(pool.server) as connect:
        raw = await connect()
        raw.call("block", id="block")
        await until(lambda: pool.ran)

        async def come_and_go(times: int) -> None:
            for _ in range(times):
                raw.send(*[request("note", "x" * 100, id=n) for n in range(20)])
                raw.send(*[notification("$/cancelRequest", id=n) for n in range(20)])
                assert {each["error"]["code"] for each in await raw.receive_many(20)} == {-32800}

        await come_and_go(10)
        gc.collect()
        before = sys.getallocatedblocks()
        await come_and_go(60)
        gc.collect()
        assert sys.getallocatedblocks() - before < 1200
        pool.release.set()
        assert (await raw.reply())["id"] == "block"
    assert pool.ran == ["block"]


def test_threads_are_started_as_they_are_needed_and_end_with_the_server() -> None:
    pool = Pool(threads=3)
    barrier = threading.Barrier(4)
    pool.server.add(lambda: barrier.wait(20), name="meet", offload="thread")
    with serve_in_thread(pool.server) as address, Client(address) as client:
        for n in range(5):
            client.note(n)
        # One is enough, but a call may come before the thread of the one before it waits again.
        assert len(pool.threads) < 3
        calls = [client.submit.meet() for _ in range(3)]
        barrier.wait(20)
        for call in [*calls, *(client.submit.note(n) for n in range(100))]:
            call.result()
        assert len(pool.threads) <= 3
    until_in_thread(lambda: not {each.name for each in threading.enumerate()} & pool.threads)


async def test_what_would_end_the_program_fails_one_call() -> None:
    server = Server(threads=1)
    errors: list[BaseException] = [SystemExit(1), KeyboardInterrupt(), StopIteration(1)]

    def fail() -> None:
        raise errors.pop()

    server.add(fail, offload="thread")
    server.add(lambda: 5, name="five", offload="thread")
    async with memory_client(server) as client:
        while errors:
            with pytest.raises(InternalError):
                await client.fail()
        assert await client.five() == 5
