"""Rate-limited log lines: how many are written, how long they are, and the count of the others."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rpcstream import Server
from rpcstream.observe import limited_log
from rpcstream.observe.limited_log import EACH, PERIOD, TOTAL, TRACEBACK_MAX, VALUE_MAX, LimitedLog
from rpcstream.testing import memory_client

from ..internals import lines_counted

NAME = "rpcstream.test.limited"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> LimitedLog:
    caplog.set_level(logging.INFO, NAME)
    return LimitedLog(logging.getLogger(NAME), clock=clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_so_many_lines_of_a_key_and_then_how_many_were_left_out(
    log: LimitedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(EACH + 7):
        log.warning("a", "%s did %d", "a", number)
    assert lines(caplog) == [f"a did {number}" for number in range(EACH)]
    clock.now += PERIOD
    log.warning("a", "%s did %d", "a", 0)
    assert lines(caplog) == ["7 lines were left out of the log: 7 of '%s did %d'", "a did 0"]
    clock.now += PERIOD
    log.warning("a", "%s did %d", "a", 0)
    assert lines(caplog) == ["a did 0"]


def test_keys_and_kinds_do_not_count_against_each_other(log: LimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(EACH + 1):
        log.warning("a", "one")
        log.warning("b", "one")
        log.info("a", "another")
    assert sorted(lines(caplog)) == ["another"] * EACH + ["one"] * 2 * EACH


def test_all_keys_together_have_a_limit(log: LimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for key in range(100_000):
        log.warning(key, "one")
    log.warning("a", "another")
    assert lines(caplog) == ["one"] * TOTAL + ["another"]
    assert lines_counted(log) <= 1002
    log.flush()
    assert lines(caplog) == [f"{100_000 - TOTAL} lines were left out of the log: {100_000 - TOTAL} of 'one'"]


def test_values_are_shortened_and_nothing_in_them_is_obeyed(log: LimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        def __str__(self) -> str:
            raise ValueError

    log.warning(None, "%s %r %s %d %.2f", "x" * 10_000, "a\nb\x1b[2J", Bad(), 5, 0.5)
    (line,) = lines(caplog)
    assert len(line) < VALUE_MAX + 200
    assert line.isprintable()
    assert "\\u001b" in line
    assert line.endswith("(a Bad that has no text) 5 0.50")


def test_a_traceback_is_kept_and_a_long_one_cut(log: LimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    short, long = ValueError("short"), ValueError("x" * 1_000_000)
    log.error(None, "it failed", error=short)
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is short
    caplog.clear()
    log.error(None, "it failed", error=long)
    (line,) = lines(caplog)
    assert line.startswith("it failed\nValueError: xxx")
    assert len(line) < TRACEBACK_MAX + 1000


async def test_omitted_lines_are_reported_even_if_nothing_more_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, NAME)
    monkeypatch.setattr(limited_log, "PERIOD", 0.01)
    log = LimitedLog(logging.getLogger(NAME), clock=lambda: 0.0)
    for _ in range(EACH + 1):
        log.warning(None, "one")
    while not any("left out" in record.getMessage() for record in caplog.records):
        await asyncio.sleep(0)


# -- at a server ----------------------------------------------------------------------------------------------------


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


def of_server(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "rpcstream.server"]


async def test_bad_notifications_are_limited_for_each_connection(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    async with memory_client(server) as client:
        for _ in range(50):
            await client.notify.add("x" * 10_000, 1)
        await client.notify("add", **{"y\n" * 5000: 1})
        assert await client.add(1, 2) == 3
        logged = of_server(caplog)
        assert [record.getMessage()[:31] for record in logged] == ["notification of 'add' failed: ["] * EACH
        assert all(len(record.getMessage()) < VALUE_MAX + 100 for record in logged)


async def test_failures_are_limited_for_each_method(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    async with memory_client(server) as client:
        for _ in range(50):
            with pytest.raises(Exception, match="Internal"):
                await client.fail("x")
        with pytest.raises(Exception, match="Internal"):
            await client.fail_too()
    messages = [record.getMessage() for record in of_server(caplog) if record.levelno == logging.ERROR]
    expected = ["method 'fail' failed"] * EACH + ["method 'fail_too' failed"]
    assert [message.partition(", id ")[0] for message in messages] == expected
    assert len(set(messages)) == len(messages), "each has its id"
    assert server.counters.handler_failures == 51


async def test_what_was_left_out_is_said_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rpcstream.server")
    server = make_server()
    async with memory_client(server) as client:
        for _ in range(EACH + 5):
            await client.notify.add("x", 1)
        assert await client.add(1, 2) == 3
    said: list[Any] = [record.getMessage() for record in of_server(caplog) if "left out" in record.getMessage()]
    assert said == ["5 lines were left out of the log: 5 of 'notification of %r failed: %s'"]
