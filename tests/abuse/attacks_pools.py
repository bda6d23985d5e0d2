"""Attacks on threads, worker processes and a server's stop: dying workers, cancelled calls, endless handlers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from rpcstream import Server

from .harness import KIB, MIB, PATIENCE, RawConnection, ServerStarter, ServerUnderAttack, attack, request

LOST = {"reason": "worker lost"}


def process_id(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def workers() -> Server:
    server = Server(processes=2)
    server.add(process_id, offload="process")
    server.add(die, offload="process")
    return server


def threads() -> Server:
    server = Server(threads=2)
    release = threading.Event()

    @server(offload="thread")
    def hang(payload: str) -> None:
        release.wait()

    return server


def swallowing() -> Server:
    server = Server(drain_timeout=0.2)

    @server
    async def swallow() -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    @server
    async def keep_thread() -> None:
        await asyncio.to_thread(time.sleep, 1000)

    @server
    def keep_loop() -> None:
        time.sleep(1000)

    return server


@attack(4, "one of two worker processes is killed while 56 calls wait", workers, memory=32 * MIB, in_suite=False)
async def killed_worker(target: ServerUnderAttack) -> None:
    await _kill(target, 1)


@attack(4, "all worker processes are killed at once, 56 calls wait", workers, memory=32 * MIB, in_suite=False)
async def killed_workers(target: ServerUnderAttack) -> None:
    await _kill(target, 2)


async def _kill(target: ServerUnderAttack, victims: int) -> None:
    """Fails unless at most the calls at work fail, and say why."""
    raw = await target.connect()
    raw.write(b"".join(request("process_id", [0.3], number) for number in range(4)))  # both workers are started
    seen = {(await raw.reply())["result"] for _ in range(4)}
    assert len(seen) == 2, f"{len(seen)} workers ran"
    raw.write(b"".join(request("process_id", [0.05], number) for number in range(56)))
    replies = [await raw.reply()]
    for victim in list(seen)[:victims]:
        os.kill(victim, signal.SIGKILL)
    replies += await raw.replies(55)
    failed = [reply["error"] for reply in replies if "error" in reply]
    assert len(failed) <= victims, f"{len(failed)} of 56 calls failed when {victims} workers were killed"
    assert all(error["data"] == LOST for error in failed), failed


@attack(4, "a function that kills its worker each time, again and again", workers, memory=32 * MIB, in_suite=False)
async def killers(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    deaths, end = 0, time.monotonic() + (15 if target.whole else 5)
    raw.write(request("die") * 4)
    while time.monotonic() < end:
        assert (await raw.reply())["error"]["code"] == -32603
        deaths += 1
        raw.write(request("die"))
    # Two places, each with pauses of 0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5 ... seconds, and one answer each beside.
    assert deaths <= (22 if target.whole else 16), f"{deaths} worker processes were started and died"


@attack(16, "calls for threads that are cancelled at once, while no thread is free", threads, memory=16 * MIB)
async def cancelled_for_threads(target: ServerUnderAttack) -> None:
    hanging, raw = await target.connect(), await target.connect()
    hanging.write(request("hang", [""]) * 2)
    calls = 100_000 if target.whole else 30_000
    for first in range(0, calls, 500):
        numbers = range(first, first + 500)
        cancels = b"".join(request("$/cancelRequest", {"id": number}, None) for number in numbers)
        raw.write(b"".join(request("hang", ["x" * 200], number) for number in numbers) + cancels)
        for _ in numbers:
            assert (await raw.reply())["error"]["code"] == -32800


@attack(
    22,
    "SIGTERM while handlers swallow their cancellation, keep a thread, keep the loop",
    swallowing,
    memory=16 * MIB,
    in_suite=False,
)
async def first_signal(target: ServerUnderAttack) -> None:
    """On servers of its own, since the target must go on."""
    loops = ["asyncio", *["uvloop"] * (target.whole and importlib.util.find_spec("uvloop") is not None)]
    for loop, method in itertools.product(loops, ("swallow", "keep_thread", "keep_loop")):
        status, log = await _stopped(loop, method)
        assert status == (128 + signal.SIGTERM if method == "keep_loop" else 0), (loop, method, status)
        assert method in log, f"the log does not name {method}: {log[-2000:]}"
        assert len(log) < 16 * KIB


async def _stopped(loop: str, method: str) -> tuple[int, str]:
    """The status and the log of a server that gets one SIGTERM while this method is at work."""
    starter = ServerStarter()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(starter):
        with starter.run(swallowing, loop, Path(folder)) as server:
            host, _, port = server.address.rpartition(":")
            raw = RawConnection(*await asyncio.open_connection(host, int(port)))
            await raw.call("rpc.ping")
            raw.write(request(method) + request("rpc.ping"))
            # The method runs: what is asked after it is answered, or is not, where it keeps the loop.
            answered = asyncio.ensure_future(raw.reply())
            await asyncio.wait({answered}, timeout=1.0 if method == "keep_loop" else PATIENCE)
            assert answered.done() == (method != "keep_loop")
            answered.cancel()
            os.kill(server.pid, signal.SIGTERM)
            async with asyncio.timeout(PATIENCE / 3):
                while not server.has_ended():
                    await asyncio.sleep(0.05)
            raw.close()
            await asyncio.sleep(0.3)  # until its parent can be told
        assert server.status is not None
        return server.status, server.log.read_text(errors="replace")
