"""Worker processes that are killed, crash, cannot be started or do not end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, InternalError, Limits, MessageTooLarge, Server
from rpcstream.testing import memory_client

from ..kit import raw_peers, until

if sys.platform == "win32":
    pytest.skip("signals", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    (tmp_path / "release").touch()


@contextlib.asynccontextmanager
async def serving(workers: Any, processes: int, **limits: Any) -> AsyncIterator[tuple[AsyncClient, Server]]:
    server = Server(processes=processes, drain_timeout=0.01, metrics=True, limits=Limits(**limits))
    for name in ("process_id", "hold", "deaf_hold", "die", "blob", "close_pipe", "odd_result"):
        server.add(getattr(workers, name), offload="process")
    async with memory_client(server) as client:
        yield client, server


async def begun(folder: Path, name: str) -> int:
    """The id of the worker that `hold` runs in."""
    async with asyncio.timeout(20):
        while not (folder / name).exists():
            await asyncio.sleep(0.005)
    return int((folder / name).read_text())


@pytest.mark.slow
async def test_only_the_calls_of_killed_workers_fail(
    workers: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one of two, then of both at once, then of one that has nothing to do."""
    async with serving(workers, 2) as (client, server):
        for names, count in (("ab", 1), ("cd", 2)):
            held = [client.submit.hold(str(folder), name) for name in names]
            waiting = [client.submit.process_id() for _ in range(54)]
            victims = [await begun(folder, name) for name in names][:count]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            for call in held[:count]:
                with pytest.raises(InternalError) as failed:
                    await call
                assert failed.value.data == {"reason": "worker lost"}
            (folder / "release").touch()
            assert await asyncio.gather(*held[count:]) == list(names[count:])
            assert all(isinstance(each, int) for each in await asyncio.gather(*waiting))
            (folder / "release").unlink()
        (record, *_) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert "ended while it ran 'hold': killed by SIGKILL, as the system does when memory" in record.getMessage()
        for victim in {await client.process_id() for _ in range(20)}:
            os.kill(victim, signal.SIGKILL)
        await until(lambda: re.search(r"\nrpcstream_worker_processes\S* [01]\n", server.metrics_text()))
        assert await client.process_id()


@pytest.mark.slow
async def test_a_worker_that_lives_without_its_pipe_is_lost_and_killed_and_one_that_dies_each_time_waits(
    workers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(workers, 1) as (client, _):
        before = await client.process_id()
        with pytest.raises(InternalError, match="worker lost"):
            await client.close_pipe()
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        assert await client.process_id() != before
        results = await asyncio.gather(*[client.submit.die() for _ in range(3)], return_exceptions=True)
        assert [error.data for error in results] == 3 * [{"reason": "worker lost"}]
        assert await client.process_id()
    said = [record.getMessage() for record in caplog.records if "ended while it ran 'die'" in record.getMessage()]
    assert [line.partition("exit status 3; the next one starts in ")[2] for line in said] == ["0.1 s", "0.2 s", "0.4 s"]


async def test_results_over_the_limit_and_calls_that_are_given_up_cost_a_worker_nothing(
    workers: Any, folder: Path
) -> None:
    async with serving(workers, 1, max_worker_result=10_000) as (client, _):
        worker = await client.process_id()
        os.kill(worker, signal.SIGINT)  # as Ctrl-C sends it to all processes of a terminal
        assert len(await client.blob(9000)) == 9000
        with pytest.raises(MessageTooLarge) as failed:
            await client.blob(20_000)
        assert failed.value.data["limit"] == 10_000
        assert failed.value.data["size"] > 20_000
        held = client.submit.hold(str(folder), "a")
        await begun(folder, "a")
        late = [client.submit.hold(str(folder), f"late {number}") for number in range(20)]
        assert await client.call("rpc.ping") == "pong"
        for future in late:
            future.cancel()
        assert await client.call("rpc.ping") == "pong"
        (folder / "release").touch()
        assert await held == "a"
        assert await client.process_id() == worker
    assert not list(folder.glob("late*"))


@pytest.mark.slow
async def test_a_worker_that_ignores_sigterm_is_killed_when_the_server_ends(workers: Any, folder: Path) -> None:
    async with serving(workers, 1) as (client, _):
        client.submit.deaf_hold(str(folder), "a")
        worker = await begun(folder, "a")
    async with asyncio.timeout(20):
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(worker, 0)
                await asyncio.sleep(0.01)


ENDLESS, SHORT = 10**12, {"timeout": 0.15}


async def test_of_generators_all_items_come_and_those_that_do_not_end_are_stopped(workers: Any, folder: Path) -> None:
    """By the size of what they give, or by the time-out, which they know; or they would have the worker for ever."""
    server = Server(limits=Limits(max_message_size=200_000), processes=1)
    for name, function, options in (("numbers", "numbers", {}), ("texts", "texts", {}), ("short", "numbers", SHORT)):
        server.add(getattr(workers, function), name=name, offload="process", **options)
    async with raw_peers(server) as connect:
        raw = await connect()
        for to in (0, 1, 255, 256, 257, 3000):
            assert await raw.result("numbers", to) == list(range(to))
        endless: tuple[Any, ...] = (("numbers", [ENDLESS], {}), ("texts", [ENDLESS, 10_000], {}))
        for method, params, members in (*endless, ("numbers", [ENDLESS], {"stream": 5})):
            error = (await raw.reply(method, *params, **members))["error"]
            assert (error["code"], error["data"]["limit"]) == (-32001, 200_000)
        # Of a notification nothing is kept, so that no size ends it.
        note = folder / "notified"
        raw.send({"jsonrpc": "2.0", "method": "short", "params": [ENDLESS, str(note)]})
        assert await raw.code("short", ENDLESS) in (-32003, -32001)
        await until(note.exists)
        assert await raw.result("numbers", 3) == [0, 1, 2]
