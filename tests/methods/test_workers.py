"""Worker processes that are killed, crash, cannot be started or do not end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, Limits, Server
from rpcstream.errors import DeadlineExceeded, InternalError, MessageTooLarge
from rpcstream.testing import memory_client

from ..kit import until

if sys.platform == "win32":
    pytest.skip("signals", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    (tmp_path / "release").touch()


@contextlib.asynccontextmanager
async def serving(workers: Any, processes: int, **limits: Any) -> AsyncIterator[tuple[AsyncClient, Server]]:
    server = Server(processes=processes, drain_timeout=0.01, metrics=True, limits=Limits(**limits))
    for name in ("process_id", "hold", "die", "blob", "close_pipe"):
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
        assert "ended while it ran 'hold': killed by signal 9" in record.getMessage()
        victims = {await client.process_id() for _ in range(20)}
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        left = f"\nrpcstream_worker_processes {2 - len(victims)}\n"
        await until(lambda: left in server.metrics_text())
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
        since = asyncio.get_running_loop().time()
        results = await asyncio.gather(*[client.submit.die() for _ in range(3)], return_exceptions=True)
        assert [error.data for error in results] == 3 * [{"reason": "worker lost"}]
        assert await client.process_id()
        assert asyncio.get_running_loop().time() - since > 4  # two pauses of 2 s
    said = [record.getMessage() for record in caplog.records if "ended while it ran 'die'" in record.getMessage()]
    assert [line.rpartition(": ")[2] for line in said] == ["exit status 3"] * 3


async def test_results_over_the_limit_and_calls_that_are_given_up_cost_a_worker_nothing(
    workers: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpcstream.methods.workers.MAX_RESULT", 10_000)
    async with serving(workers, 1) as (client, _):
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


def is_gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
async def test_a_call_that_is_cancelled_or_late_ends_its_worker_and_no_other_call(
    workers: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(workers, 1) as (client, server):
        server.add(workers.hold, name="late", offload="process", timeout=1.0)
        given_up = client.submit.hold(str(folder), "a")
        first = await begun(folder, "a")
        waiting = client.submit.process_id()
        given_up.cancel()
        assert await waiting != first
        late = client.submit.late(str(folder), "b")
        second = await begun(folder, "b")
        with pytest.raises(DeadlineExceeded):
            await late
        assert await client.process_id() not in (first, second)
        await until(lambda: is_gone(first) and is_gone(second))
        client.submit.hold(str(folder), "c")
        last = await begun(folder, "c")
    await until(lambda: is_gone(last))
    assert not [record for record in caplog.records if record.name == "rpcstream.server"]
