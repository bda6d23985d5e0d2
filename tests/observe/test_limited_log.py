"""Log lines that callers can cause without limit: how many are written, how long they are, the count of the others."""

from __future__ import annotations

import logging
import re
import traceback

import pytest

from rpcstream.errors import InternalError
from rpcstream.testing import memory_client

from ..kit import UsualServer, logged

#: Lines of one kind in a minute for one connection or method, and for all of them.
EACH, TOTAL = 10, 100


async def test_bad_notifications_are_limited_for_each_connection_and_values_are_shortened() -> None:
    server = UsualServer()
    with logged("rpcstream.server", logging.INFO) as log:
        for _ in range(2):
            async with memory_client(server) as client:
                await client.notify("add", **{"y\n\x1b[2J" * 5000: 1})
                for _ in range(EACH + 5):
                    await client.notify.add("x" * 10_000, 1)
                assert await client.add(1, 2) == 3
    lines = log.matching("notification of 'add' failed: ")
    assert len(lines) == 2 * EACH
    assert all(len(line) < 800 and line.isprintable() for line in lines)


async def test_all_methods_together_have_a_limit_and_each_kind_its_own() -> None:
    server = UsualServer()
    names = [f"fail_{number}" for number in range(TOTAL + 10)]
    for name in names:
        server.add(lambda value: 1 / 0, name=name)
    with logged("rpcstream.server", logging.INFO, alone=True) as log:
        async with memory_client(server) as client:
            for name in names:
                await client.notify(name, 1)
            await client.notify.add("another kind", 1)
            assert await client.add(1, 2) == 3
    assert len(log.matching("^notification of 'add' failed")) == 1
    assert len(log.matching("^method 'fail_")) == TOTAL
    assert len(log.matching("^10 lines were left out")) == 1


async def test_failures_are_limited_for_each_method_and_long_tracebacks_cut() -> None:
    server = UsualServer()
    server.add(lambda text: {}[text], name="get")
    with logged("rpcstream.server", alone=True) as log:
        async with memory_client(server) as client:
            for method, *params in (*[("get", text) for text in ("short", "x" * 100_000, *"x" * 18)], ("crash",)):
                with pytest.raises(InternalError):
                    await client.call(method, *params)
    records = [each for each in log.records if each.levelno == logging.ERROR]
    lines = [each.getMessage() for each in records]
    expected = ["method 'get' failed"] * EACH + ["method 'crash' failed"]
    assert [line.partition(", id ")[0] for line in lines] == expected
    assert len(set(lines)) == len(lines), "each has its id"
    assert server.counters.handler_failures == 21
    assert "'short'" in str(records[0].exc_info)
    cut = re.search(r"(Traceback(?:.|\n)*)\n\[… ([0-9]+) characters …\]\n((?:.|\n)*)", lines[1])
    assert cut is not None
    # The whole traceback of the key of 100,000 characters, quoted once, is as long as the other, but for the key.
    short = "".join(traceback.format_exception(records[0].exc_info[1]))  # type: ignore[index]
    assert len(cut[1]) + int(cut[2]) + len(cut[3]) == len(short) + 100_000 - len("short")
    assert len(lines[1]) < 17 * 1024 + 1000
