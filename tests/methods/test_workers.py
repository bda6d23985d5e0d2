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

from rpcstream import AsyncClient, InternalError, Limits, MessageTooLarge, Server
from rpcstream.methods import workers as pool
from rpcstream.methods.invoke import Invoker
from rpcstream.testing import memory_client

from ..internals import invoker_of

if sys.platform == "win32":
    pytest.skip("signals", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    (tmp_path / "release").touch()


@contextlib.asynccontextmanager
async def serving(workers: Any, processes: int, **limits: Any) -> AsyncIterator[tuple[AsyncClient, Invoker]]:
    server = Server(processes=processes, drain_timeout=0.01, limits=Limits(**limits))
    for name in ("process_id", "hold", "deaf_hold", "die", "blob", "close_pipe", "odd_result"):
        server.add(getattr(workers, name), offload="process")
    async with memory_client(server) as client:
        yield client, invoker_of(server)


async def begun(folder: Path, name: str) -> int:
    """The id of the worker that `hold` runs in."""
    async with asyncio.timeout(20):
        while not (folder / name).exists():
            await asyncio.sleep(0.005)
    return int((folder / name).read_text())


def outcomes(results: list[Any]) -> tuple[int, list[Any]]:
    """How many succeeded, and what the others' errors say."""
    failed = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(error, InternalError) for error in failed), failed
    return len(results) - len(failed), [error.data for error in failed if isinstance(error, InternalError)]


async def test_only_the_call_of_a_killed_worker_fails(
    workers: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(workers, 2) as (client, _):
        held = [client.submit.hold(str(folder), name) for name in ("a", "b")]
        waiting = [client.submit.process_id() for _ in range(54)]
        victim = await begun(folder, "a")
        await begun(folder, "b")
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(InternalError) as failed:
            await held[0]
        assert failed.value.data == {"reason": "worker lost"}
        (folder / "release").touch()
        assert await held[1] == "b"
        assert outcomes(await asyncio.gather(*waiting, return_exceptions=True)) == (54, [])
    assert f"worker process {victim} ended while it ran 'hold': killed by SIGKILL" in caplog.text
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def test_when_all_are_killed_at_once_those_at_work_fail_and_the_others_run(workers: Any, folder: Path) -> None:
    async with serving(workers, 2) as (client, _):
        held = [client.submit.hold(str(folder), name) for name in ("a", "b")]
        waiting = [client.submit.process_id() for _ in range(54)]
        for victim in [await begun(folder, "a"), await begun(folder, "b")]:
            os.kill(victim, signal.SIGKILL)
        lost = [{"reason": "worker lost"}]
        assert outcomes(await asyncio.gather(*held, return_exceptions=True)) == (0, 2 * lost)
        assert outcomes(await asyncio.gather(*waiting, return_exceptions=True)) == (54, [])


async def test_workers_that_are_killed_while_they_have_nothing_to_do_fail_no_call(workers: Any) -> None:
    async with serving(workers, 1) as (client, invoker):
        victim = await client.process_id()
        assert invoker.worker_ids == [victim]
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(20):
            while invoker.worker_ids:
                await asyncio.sleep(0.005)
        assert await client.process_id() != victim


async def test_a_worker_that_lives_without_its_pipe_is_lost_and_killed(workers: Any) -> None:
    async with serving(workers, 1) as (client, _):
        before = await client.process_id()
        with pytest.raises(InternalError) as failed:
            await client.close_pipe()
        assert failed.value.data == {"reason": "worker lost"}
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        assert await client.process_id() != before


async def test_a_function_that_kills_its_worker_each_time_waits_longer_each_time(
    workers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LONGEST_PAUSE", 0.3)
    async with serving(workers, 1) as (client, _):
        results = await asyncio.gather(*[client.submit.die() for _ in range(5)], return_exceptions=True)
        assert outcomes(results) == (0, 5 * [{"reason": "worker lost"}])
        assert await client.process_id()
    said = [record.getMessage() for record in caplog.records if "ended while it ran 'die'" in record.getMessage()]
    assert [line.partition("exit status 3")[2] for line in said] == [
        "",
        "; the next one starts in 0.1 s",
        "; the next one starts in 0.2 s",
        "; the next one starts in 0.3 s",
        "; the next one starts in 0.3 s",
    ]


def test_pauses_grow_up_to_some_seconds() -> None:
    assert [pool.pause(early) for early in (-1, 0, 1, 2, 3)] == [0, 0, 0.1, 0.2, 0.4]
    assert pool.pause(10**6) == pool.LONGEST_PAUSE == 5


async def test_workers_that_cannot_start_fail_the_calls_and_are_not_tried_for_each(
    workers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SHORTEST_PAUSE", 1000.0)
    monkeypatch.setattr(pool, "LONGEST_PAUSE", 1000.0)
    async with serving(workers, 1) as (client, _):
        with monkeypatch.context() as patch:
            patch.setattr(pool, "serve_calls", workers.never_ready)
            results = await asyncio.gather(*[client.submit.process_id() for _ in range(50)], return_exceptions=True)
            reason = {"reason": "no worker process could be started"}
            assert outcomes(results) == (0, 50 * [reason])
    assert len([record for record in caplog.records if "before it was ready" in record.getMessage()]) == 1


async def test_a_worker_that_could_not_be_started_may_be_later(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SHORTEST_PAUSE", 0.001)
    async with serving(workers, 1) as (client, _):
        with monkeypatch.context() as patch:
            patch.setattr(pool, "serve_calls", workers.never_ready)
            with pytest.raises(InternalError, match="no worker process could be started"):
                await client.process_id()
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(InternalError):  # until the pause is over
                    assert await client.process_id() > 0
                    break


async def test_a_result_over_the_limit_stays_in_its_worker(workers: Any) -> None:
    async with serving(workers, 1, max_worker_result=10_000) as (client, _):
        assert len(await client.blob(9000)) == 9000
        with pytest.raises(MessageTooLarge) as failed:
            await client.blob(20_000)
        assert failed.value.data["limit"] == 10_000
        assert failed.value.data["size"] > 20_000


async def test_calls_that_are_given_up_before_a_worker_takes_them_are_not_begun(workers: Any, folder: Path) -> None:
    async with serving(workers, 1) as (client, invoker):
        held = client.submit.hold(str(folder), "a")
        await begun(folder, "a")
        late = [client.submit.hold(str(folder), f"late {number}") for number in range(20)]
        async with asyncio.timeout(20):
            while invoker.waiting < 20:
                await asyncio.sleep(0)
            for future in late:
                future.cancel()
            while invoker.waiting:
                await asyncio.sleep(0)
        (folder / "release").touch()
        assert await held == "a"
        assert await client.process_id()
    assert not list(folder.glob("late*"))


def test_a_call_that_was_given_up_holds_no_arguments() -> None:
    call = pool.WorkerCall("m", len, ([],), {})
    assert call.packed()
    assert call.packed() is None
    call = pool.WorkerCall("m", len, ([],), {})
    call.give_up()
    assert call.packed() is None


async def test_a_worker_that_ignores_sigterm_is_killed_when_the_server_ends(workers: Any, folder: Path) -> None:
    async with serving(workers, 1) as (client, _):
        client.submit.deaf_hold(str(folder), "a")
        worker = await begun(folder, "a")
    async with asyncio.timeout(20):
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(worker, 0)
                await asyncio.sleep(0.01)
