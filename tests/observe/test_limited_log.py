"""Log lines that callers can cause without limit: how many are written, how long they are, the count of the others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rpcstream import InternalError, Server
from rpcstream.testing import FakeTimeLoop, memory_client

from ..kit import LogLines, logged

#: Lines of one kind in a minute for one connection or method, and for all of them.
EACH, TOTAL = 10, 100

LEFT_OUT = "{0} lines were left out of the log: {0} of 'notification of %r failed: %s'"


def make_server() -> Server:
    server = Server()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def fail(text: str) -> None:
        raise ValueError(text)

    @server
    def fail_too() -> None:
        raise ValueError

    return server


def messages(log: LogLines) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


async def test_bad_notifications_are_limited_for_each_connection_and_values_are_shortened() -> None:
    server = make_server()
    with logged("rpcstream.server", logging.INFO) as log:
        for _ in range(2):
            async with memory_client(server) as client:
                await client.notify("add", **{"y\n\x1b[2J" * 5000: 1})
                for _ in range(50):
                    await client.notify.add("x" * 10_000, 1)
                assert await client.add(1, 2) == 3
    lines = [each.getMessage() for each in log.records if "notification of 'add' failed" in each.getMessage()]
    assert len(lines) == 2 * EACH
    assert all(len(line) < 400 and line.isprintable() for line in lines)


async def test_all_methods_together_have_a_limit() -> None:
    def fail(value: int) -> None:
        raise ValueError(value)

    server = make_server()
    names = [f"fail_{number}" for number in range(1_100)]
    for name in names:
        server.add(fail, name=name)
    with logged("rpcstream.server", logging.INFO) as log:
        async with memory_client(server) as client:
            for name in names:
                await client.notify(name, 1)
            await client.notify.add("another kind", 1)
            assert await client.add(1, 2) == 3
    lines = [each.getMessage() for each in log.records]
    assert len([line for line in lines if line.startswith("notification of 'add' failed")]) == 1
    assert len([line for line in lines if "'fail_" in line and "left out" not in line]) == TOTAL
    assert [line for line in lines if line.startswith(f"{len(names) - TOTAL} lines were left out")]


async def test_failures_are_limited_for_each_method() -> None:
    server = make_server()
    with logged("rpcstream.server") as log:
        async with memory_client(server) as client:
            for _ in range(50):
                with pytest.raises(InternalError):
                    await client.fail("x")
            with pytest.raises(InternalError):
                await client.fail_too()
    lines = [each.getMessage() for each in log.records if each.levelno == logging.ERROR]
    expected = ["method 'fail' failed"] * EACH + ["method 'fail_too' failed"]
    assert [line.partition(", id ")[0] for line in lines] == expected
    assert len(set(lines)) == len(lines), "each has its id"
    assert server.counters.handler_failures == 51


async def test_a_traceback_is_kept_and_a_long_one_cut() -> None:
    with logged("rpcstream.server") as log:
        async with memory_client(make_server()) as client:
            for text in ("short", "x" * 1_000_000):
                with pytest.raises(InternalError):
                    await client.fail(text)
    short, long = [each for each in log.records if each.levelno == logging.ERROR]
    assert short.exc_info is not None
    assert str(short.exc_info[1]) == "short"
    assert "Traceback" in long.getMessage()
    assert "characters" in long.getMessage()
    assert len(long.getMessage()) < 17 * 1024 + 1000


@pytest.mark.parametrize("seconds", [0, 61], ids=["at the end", "after a minute"])
def test_how_many_were_left_out_is_said(seconds: float) -> None:
    async def main() -> None:
        async with memory_client(make_server()) as client:
            for _ in range(EACH + 5):
                await client.notify.add("x", 1)
            assert await client.add(1, 2) == 3
            await asyncio.sleep(seconds)
            assert (LEFT_OUT.format(5) in messages(log)) == bool(seconds)
        assert messages(log).count(LEFT_OUT.format(5)) == 1

    with logged("rpcstream.server", logging.INFO) as log, asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())
