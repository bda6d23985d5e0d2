"""Both commands: in this process, on a terminal, and as processes of their own; and a server that they call."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest
from PIL import Image

from rpcstream import Codec, Context, Info, Limits, RpcError
from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, notification
from ..kit.scripted import ScriptedConnection, ScriptedServer

ROOT = Path(__file__).resolve().parents[2]

#: `status, out, err = run("sum", "a=1")`.
Run = Callable[..., tuple[int, str, str]]


def environment(**more: str) -> dict[str, str]:
    """The environment for a command: this source tree, without the user's colour settings and those of the tests."""
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RPCSTREAM_TRANSPORTS", "RPCSTREAM_THOROUGH")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "", **more}


# -- commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(address: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`rpcstream` in this process, output into pipes, against the server of the module; with these variables."""

    def run(*argv: str, uri: str | None = address, **variables: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            status = main([*(["--uri", uri] if uri is not None else []), *argv])
        return status, *capfd.readouterr()

    return run


def on_a_terminal(*argv: str, encoding: str = "utf-8", **variables: str) -> tuple[int, str]:
    """The exit status, and all that `rpcstream` writes to a terminal that is output and error alike."""
    master, slave = pty.openpty()
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                seen.extend(os.read(master, 65536))
            except OSError:  # Linux: the other end is closed
                return

    reader = threading.Thread(target=read)
    reader.start()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with (
        open(slave, "w", buffering=1, encoding=encoding) as both,
        mock.patch.multiple(sys, stdin=both, stdout=both, stderr=both),
        mock.patch.dict(os.environ, {**kept, "TERM": "xterm-256color", **variables}, clear=True),
    ):
        status = main([*argv])
    reader.join()
    os.close(master)
    return status, seen.decode().replace("\r\n", "\n")


@contextmanager
def started(*argv: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`rpcstream` as a process, with pipes; it has ended when the block ends."""
    pipe = subprocess.PIPE
    given = {"env": environment(), "stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True, **options}
    process = subprocess.Popen([sys.executable, "-m", "rpcstream", *argv], **given)
    try:
        with process:
            yield process
    finally:
        process.kill()


def ended(*argv: str, input: Any = None, **options: Any) -> tuple[int, str, str]:
    """The status, output and errors of `rpcstream` as a process."""
    more = {"stdin": subprocess.PIPE} if input is not None else {}
    with started(*argv, **more, **options) as process:
        out, err = process.communicate(input, timeout=30)
    return process.returncode, out, err


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
        return self.banner[0].rpartition("istening at ")[2].removeprefix("jsonrpc2://")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def rest(self) -> tuple[int, str, str]:
        """Wait for the end: exit status, what it printed after the banner, standard error."""
        out, err = self.process.communicate(timeout=30)
        # What a busy machine makes it say.
        said = [line for line in err.splitlines(keepends=True) if "blocked the event loop for" not in line]
        return self.process.returncode, out, "".join(said)

    def stop(self) -> str:
        """Stop it with SIGTERM; what it said on standard error."""
        self.process.terminate()
        status, out, err = self.rest()
        assert (status, out) == (0, "")
        return err


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """`start_server("target.py", "-p", "0", cwd=folder)`; ended with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*argv: str, cwd: Path | None = None, **variables: str) -> ServerProcess:
        command, pipe = [sys.executable, "-m", "rpcstream.cli.serve", *argv], subprocess.PIPE
        env = environment(**variables)
        null = subprocess.DEVNULL
        running.append(subprocess.Popen(command, cwd=cwd, env=env, stdin=null, stdout=pipe, stderr=pipe, text=True))
        return ServerProcess(running[-1])

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_server(*argv: str, cwd: Path, **variables: str) -> tuple[int, str]:
    """The status of an `rpcstream-server` that is to fail, and what it says."""
    command = [sys.executable, "-m", "rpcstream.cli.serve", *argv]
    env = environment(**variables)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr


# -- servers --------------------------------------------------------------------------------------------------------


class Called(UsualServer):
    """What the commands of these tests call; `left` has what ended that waited."""

    def __init__(self) -> None:
        # A quarter of that time after a caller was killed, the server notices.
        super().__init__(info=Info(title="test"), drain_timeout=0.1, limits=Limits(message_timeout=2))
        self.left: list[str] = []
        for name in ("sum", "take", "say", "ramp", "square", "photo_size", "shape", "blob", "never", "ticks", "train"):
            self.add(getattr(self, f"do_{name}"), name=name)
        for name in ("frames", "ramps", "chunks", "numbers", "whole", "hang"):
            self.add(getattr(self, f"do_{name}"), name=name)
        self.add(self.do_never, name="late", timeout=0.01)

    def do_sum(self, a: int, b: int = 2) -> int:
        """Adds two numbers.

        Nothing else.
        """
        return a + b

    @staticmethod
    def do_take(*args: Any, **kwargs: Any) -> Any:
        return list(args) if args else kwargs or None

    def do_say(self, text: str) -> str:
        return text

    def do_ramp(self, n: int) -> np.ndarray:
        return np.arange(n, dtype=np.float32)

    def do_square(self, side: int) -> Image.Image:
        return Image.new("RGB", (side, side), (255, 0, 0))

    def do_photo_size(self, photo: Image.Image) -> tuple[int, int]:
        return photo.size

    def do_shape(self, array: np.ndarray) -> list[Any]:
        return [str(array.dtype), *array.shape]

    def do_blob(self, n: int) -> bytes:
        return b"\xff" * n

    def do_whole(self, data: np.ndarray) -> bytes:
        return data.tobytes()

    async def do_never(self) -> None:
        await asyncio.Event().wait()

    async def do_hang(self, ctx: Context) -> None:
        ctx.progress("hanging")
        await asyncio.Event().wait()

    async def do_ticks(self) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            self.left.append("ticks")

    def do_numbers(self, n: int, fail: bool = False) -> Iterator[int]:
        try:
            yield from range(n)
            if fail:
                raise RpcError(7, "it failed")
        finally:
            self.left.append("numbers")
        return "the return value"

    def do_frames(self, n: int) -> Iterator[Image.Image]:
        for number in range(n):
            yield Image.new("RGB", (number + 1, 1))

    def do_ramps(self, n: int) -> Iterator[np.ndarray]:
        for number in range(n):
            yield np.full(2, number, np.float32)

    def do_chunks(self) -> Iterator[bytes]:
        yield b"\x00one"
        yield b"\xfftwo"

    async def do_train(self, n: int, ctx: Context, data: bytes = b"") -> AsyncIterator[int]:
        for step in range(n):
            ctx.progress(step + 1, n, "training")
            await asyncio.sleep(0.01)
            yield step


@pytest.fixture(scope="session")
def server() -> Called:
    return Called()


@pytest.fixture(scope="session")
def address(server: Called) -> Iterator[str]:
    with serve_in_thread(server) as where:
        yield where


class Stranger:
    """Servers that answer every request alike, whatever it is: `stranger(progress, result=…)` gives the address.

    Attributes:
        heard: all messages that have come.
    """

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.servers: list[ScriptedServer] = []

    def __call__(self, *progress: Any, raw: bytes | None = None, **reply: Any) -> str:
        def script(line: ScriptedConnection) -> None:
            while (message := line.read()) is not None:
                self.heard.append(message)
                if raw is not None:
                    return line.raw(raw)
                for value in progress:
                    line.say(notification("$/progress", token=message["id"], value=value))
                line.say({"jsonrpc": "2.0", "id": message["id"], **reply})

        self.servers.append(ScriptedServer(script))
        return self.servers[-1].address

    def giving(self, value: Any) -> str:
        """One whose result is this value, as a server writes it."""
        return self(result=orjson.loads(Codec().dumps(value)))


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    made = Stranger()
    yield made
    for each in made.servers:
        each.close()
