"""Fixtures: servers with several workers, as programs of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client, Retry

from ..cli.conftest import environment
from ..kit import until_in_thread

APP = """
import asyncio
import os
import time

from rpcstream import Context, Server

server = Server(drain_timeout=5)

@server
def pid() -> int:
    return os.getpid()

@server
async def wait(seconds: float, ctx: Context) -> int:
    ctx.progress("begun")
    await asyncio.sleep(seconds)
    return os.getpid()

@server
def stop() -> None:
    server.stop()
"""


class WorkersProcess:
    """A running program with workers, from its banner on.

    Attributes:
        folder: of the program, `app.py`.
        process: the supervisor.
        banner: what it has printed first.
    """

    def __init__(self, command: list[str], folder: Path, **variables: str) -> None:
        self.folder = folder
        self._log = folder / "stderr.txt"
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.banner = []
        for line in self.process.stdout:
            self.banner.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                break

    @property
    def address(self) -> str:
        return self.banner[0].removeprefix("Listening at ")

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    @property
    def log(self) -> str:
        """What has been printed to standard error so far."""
        return self._log.read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def workers(self) -> list[dict[str, int]]:
        """What `rpc.stats` says of the workers. One that was killed a moment ago may have got the connection."""
        with Client(self.address, retry=Retry(times=10, repeats="all")) as client:
            return client.call("rpc.stats")["workers"]

    def supervisor(self) -> dict[str, Any]:
        """What `rpc.stats` says of the supervisor."""
        with Client(self.address, retries=10, retry="all") as client:
            return client.call("rpc.stats")["supervisor"]

    def pids(self) -> set[int]:
        """The process numbers of the workers; None stands for one that is being replaced."""
        return {worker["pid"] for worker in self.workers()}

    def wait_until_whole(self) -> set[int]:
        """Wait until there is a worker at each place; gives their process numbers."""
        until_in_thread(lambda: None not in self.pids())
        return self.pids()

    def wait_until_free(self) -> None:
        """Wait until the connections of earlier tests are closed."""
        with Client(self.address) as client:
            until_in_thread(lambda: client.call("rpc.stats")["connections"] == 1)

    def end(self) -> int:
        """Tell it to stop; gives the exit status."""
        self.send(signal.SIGTERM)
        return self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def serve_command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "rpcstream.cli.serve", *argv]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A program that ends by itself."""
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=30)


@contextmanager
def running(folder: Path, *argv: str, app: str = APP) -> Iterator[WorkersProcess]:
    """A server with these options while the block runs."""
    (folder / "app.py").write_text(app)
    program = WorkersProcess(serve_command("app.py", *(() if "--unix" in argv else ("-p", "0")), *argv), folder)
    try:
        yield program
    finally:
        program.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersProcess]:
    """A server with three workers, for all tests of a module."""
    with running(tmp_path_factory.mktemp("three"), "--workers", "3") as program:
        yield program
        assert program.end() == 0, program.log


StartWorkers = Callable[..., WorkersProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartWorkers]:
    """`start("--workers", "2", app=TEXT)`; ended with the test."""
    with ExitStack() as stack:
        yield lambda *argv, app=APP: stack.enter_context(running(tmp_path, *argv, app=app))


def has_ended(pid: int) -> bool:
    """Whether no process has this number, or one that has ended and is not waited for."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
