"""Fixtures: commands as processes of their own, and a server that they call."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import RpcError, Server
from rpcstream.testing import serve_in_thread

ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """The environment for a command: this source tree, without the user's colour settings and those of the tests."""
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RPCSTREAM_TRANSPORTS", "RPCSTREAM_THOROUGH")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "", **more}


class ServerProcess:
    """A running `rpcstream-server`, after its banner."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.banner: list[str] = []
        for line in process.stdout:
            self.banner.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                break

    @property
    def address(self) -> str:
        return (
            self.banner[0].removeprefix("Hub listening at ").removeprefix("Listening at ").removeprefix("jsonrpc2://")
        )

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def rest(self) -> tuple[int, str, str]:
        """Wait for the end: exit status, what it printed after the banner, standard error."""
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """`start_server("target.py", "-p", "0", cwd=folder)`; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str, cwd: Path | None = None, **variables: str) -> ServerProcess:
        command = [sys.executable, "-m", "rpcstream.cli.serve", *argv]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        started.append(process)
        return ServerProcess(process)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def make_server() -> Server:
    """What the commands of these tests call."""
    server = Server(title="test", drain_timeout=0.1)  # for `never`

    @server
    def sum(a: int, b: int = 2) -> int:
        """Adds two numbers.

        Nothing else.
        """
        return a + b

    @server
    def echo(*args: Any, **kwargs: Any) -> Any:
        return list(args) if args else kwargs or None

    @server
    def say(text: str) -> str:
        return text

    @server
    def ramp(n: int) -> np.ndarray:
        return np.arange(n, dtype=np.float32)

    @server
    def square(side: int) -> Image.Image:
        return Image.new("RGB", (side, side), (255, 0, 0))

    @server
    def size(photo: Image.Image) -> tuple[int, int]:
        return photo.size

    @server
    def shape(array: np.ndarray) -> list[Any]:
        return [str(array.dtype), *array.shape]

    @server
    def length(data: bytes) -> int:
        return len(data)

    @server
    def blob(n: int) -> bytes:
        return b"\xff" * n

    @server
    def fail(code: int = 7) -> None:
        raise RpcError(code, "it failed \x1b[2J", {"why": "because"})

    @server(timeout=0.01)
    async def late() -> None:
        import asyncio

        await asyncio.Event().wait()

    @server
    async def never() -> None:
        import asyncio

        await asyncio.Event().wait()

    return server


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with serve_in_thread(make_server()) as where:
        yield where
