"""The first signal ends the process, whatever its handlers do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from rpcstream import Server
from rpcstream.process import join_names, task_name

if sys.platform == "win32":
    pytest.skip("signals", allow_module_level=True)

PROGRAM = """
    import asyncio, logging, sys, threading, time
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    import rpcstream.process
    import rpcstream.server.running
    import rpcstream.server.server
    from rpcstream import Server

    logging.basicConfig(level=logging.WARNING)
    rpcstream.process.CLEAN_UP = rpcstream.server.server.CLEAN_UP = rpcstream.server.running.CLEAN_UP = 0.15

    @asynccontextmanager
    async def lifespan(server):
        try:
            yield
        finally:
            await asyncio.sleep({leaving})
            print("left", flush=True)

    server = Server(drain_timeout=0.1, lifespan=lifespan)

    async def go_on():
        print("begun", flush=True)
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    @server
    async def swallow() -> None:
        await go_on()

    @server
    async def stream() -> AsyncIterator[int]:
        yield 1
        await go_on()

    @server.batched()
    async def batched(items: list[int]) -> list[int]:
        await go_on()

    @server.get("/page")
    async def page() -> str:
        await go_on()

    def hang() -> None:
        print("begun", flush=True)
        time.sleep(1000)

    server.add(hang, name="thread", offload="thread")

    @server
    async def to_thread() -> None:
        await asyncio.to_thread(hang)

    @server
    def block() -> None:
        hang()

    @server
    def keep_all() -> None:
        print("begun", flush=True)
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    server.run(port=0, on_listening=lambda address: print(address, flush=True))
    print("ended", flush=True)
"""


class Process:
    def __init__(self, leaving: float) -> None:
        program = textwrap.dedent(PROGRAM).format(leaving=leaving)
        self.popen = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self._out = self.popen.stdout
        self.port = int(self.line().rpartition(":")[2])
        self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def line(self) -> str:
        return self._out.readline().strip()

    def call(self, method: str) -> None:
        """Call it; it has begun when this returns."""
        if method == "page":
            self._socket.sendall(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
        else:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": [1] if method == "batched" else []}
            self._socket.sendall(orjson.dumps({**message, **({"stream": 5} if method == "stream" else {})}) + b"\n")
        assert self.line() == "begun"

    def end(self, *, kill: bool = False) -> tuple[int, str, str]:
        """Ask it to end once, and see how it does: status, output, log."""
        os.kill(self.popen.pid, signal.SIGKILL if kill else signal.SIGTERM)
        out, log = self.popen.communicate(timeout=20)
        self._socket.close()
        return self.popen.returncode, out, log


@contextlib.contextmanager
def process(leaving: float = 0) -> Iterator[Process]:
    started = Process(leaving)
    try:
        yield started
    finally:
        if started.popen.poll() is None:
            started.end(kill=True)


@pytest.mark.parametrize("method", ["swallow", "stream", "batched", "page"])
def test_handlers_that_swallow_their_cancellation_are_left_behind_and_named(method: str) -> None:
    with process() as server:
        server.call(method)
        status, out, log = server.end()
    assert (status, out) == (0, "left\nended\n")
    named = f"'{method}'" if method == "page" else f"methods '{method}'"
    assert f"left behind, since they did not end when they were cancelled: {named}" in log


@pytest.mark.parametrize("method", ["thread", "to_thread"])
def test_threads_that_do_not_end_are_left_behind_and_named(method: str) -> None:
    with process() as server:
        server.call(method)
        status, out, log = server.end()
    assert (status, out) == (0, "left\nended\n")
    assert f"methods at work: '{method}'" in log
    assert ("run_in_executor do not end, and are left: 1" in log) == (method == "to_thread")


def test_a_handler_that_keeps_the_loop_is_ended_as_by_a_second_signal() -> None:
    with process() as server:
        server.call("block")
        status, out, log = server.end()
    assert (status, out) == (128 + signal.SIGTERM, "left\n")
    assert "stopping now: the event loop has been blocked since the signal, by 'block'" in log


def test_a_handler_that_keeps_the_loop_whatever_is_raised_does_not_keep_the_process() -> None:
    with process() as server:
        server.call("keep_all")
        status, out, log = server.end()
    assert (status, out) == (128 + signal.SIGTERM, "")
    assert "exiting at once: the event loop is still blocked" in log
    assert "'keep_all'" in log


def test_a_lifespan_that_takes_its_time_is_not_cut_short() -> None:
    with process(leaving=1.0) as server:
        server.call("swallow")
        assert server.end()[:2] == (0, "left\nended\n")


# -- in this process ------------------------------------------------------------------------------------------------


async def test_serve_leaves_such_handlers_to_the_loop_it_runs_in(caplog: pytest.LogCaptureFixture) -> None:
    server, release, begun = Server(drain_timeout=0.01), asyncio.Event(), asyncio.Event()
    ended: list[asyncio.Task[None] | None] = []

    @server
    async def swallow() -> None:
        begun.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        ended.append(asyncio.current_task())

    caplog.set_level(logging.WARNING, "rpcstream.server")
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'{"jsonrpc":"2.0","method":"swallow","id":1}\n')
        await begun.wait()
        before = time.monotonic()
    assert time.monotonic() - before < 15
    assert "they did not end when they were cancelled: methods 'swallow'" in caplog.text
    assert not ended
    (task,) = [task for task in asyncio.all_tasks() if task_name(task).endswith("swallow")]
    release.set()
    await asyncio.wait({task}, timeout=20)
    assert ended == [task]
    writer.close()


def test_names_in_a_warning_are_few() -> None:
    assert join_names(["a"]) == "'a'"
    assert join_names([f"m{number}" for number in range(12)]).endswith("'m9' and 2 more")


def test_a_program_that_was_stopped_may_serve_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import os, signal
            from rpcstream import Server

            for number in range(2):
                server = Server()
                server.run(port=0, on_listening=lambda address: os.kill(os.getpid(), signal.SIGTERM))
                print("ended", number, flush=True)
        """)
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended 0\nended 1\n", "")
