"""Servers in processes of their own: started on the server's core, put to sleep while others are measured, stopped.

Knows the contract of the scripts in `../peers`: a ready line on standard output, status 77 when a module is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .load import ECHO, build
from .machine import cores, on_core, peak_memory

PEERS = Path(__file__).resolve().parent.parent / "peers"
MISSING = 77  # the status of a script that lacks a module
START_SECONDS = 60.0
STOP_SECONDS = 5.0


class Skipped(Exception):
    """A peer cannot be measured on this machine; the text says what is missing."""


class Failed(Exception):
    """A process failed; the text says how."""


@dataclass(frozen=True)
class Serving:
    """The command line of a server. Equal ones share a process within a case."""

    #: The script in `../peers`, without its ending; "echo" is the one in C.
    script: str
    options: tuple[str, ...] = ()
    directory: Path = PEERS
    #: Where it runs; None for where we do.
    cwd: Path | None = None
    #: The checkout from which it, and its own client, import rpcstream; None for the one that we import.
    checkout: Path | None = None

    def command(self) -> list[str]:
        if self.script == "echo":
            build()
            return [str(ECHO)]
        return [sys.executable, str(self.directory / f"{self.script}.py"), "serve", *self.options]

    def environment(self) -> dict[str, str]:
        """The variables of the server and of its own client."""
        return dict(os.environ) if self.checkout is None else {**os.environ, "PYTHONPATH": str(self.checkout)}

    def ready(self, line: str) -> dict[str, Any]:
        """Parse the ready line: the `port`, or the `path` of a Unix socket, and `versions` of the libraries in use."""
        said: dict[str, Any] = json.loads(line)
        return said


class Running:
    """A server process that listens.

    Raises:
        Skipped: a module is missing.
        Failed: it did not start.
    """

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        with on_core(cores().server):
            # A session of its own: what it starts is put to sleep and stopped with it.
            self._process = subprocess.Popen(
                serving.command(),
                cwd=serving.cwd,
                env=serving.environment(),
                stdout=self._output,
                stderr=self._errors,
                start_new_session=True,
            )
        try:
            ready = self._ready_line()
        except BaseException:
            self.stop()
            raise
        self.port: int = ready.get("port", 0)
        #: Of the Unix socket that it listens at, in place of the port.
        self.path: str | None = ready.get("path")
        self.versions: dict[str, str] = ready.get("versions", {})

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def peak_memory(self) -> int | None:
        return peak_memory(self.pid)

    def end(self) -> str | None:
        """Return how the process ended; None while it runs."""
        status = self._process.poll()
        return None if status is None else _ended(status, self._errors)

    def sleep(self) -> None:
        """Suspend the process, since some peers poll and would take time from those that are measured."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self.wake()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._output.close()
        self._errors.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _ready_line(self) -> dict[str, Any]:
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            status = self._process.poll()
            line, newline, _ = _text(self._output).partition("\n")
            if newline:
                return self.serving.ready(line)
            if status == MISSING:
                raise Skipped(last_line(_text(self._errors)))
            if status is not None:
                raise Failed(f"the server ended: {_ended(status, self._errors)}")
            time.sleep(0.01)
        raise Failed(f"did not listen within {START_SECONDS:.0f} s")


class Servers:
    """The servers of one case, each started once and suspended while others are measured."""

    def __init__(self) -> None:
        self._running: dict[Serving, Running] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for running in self._running.values():
            running.stop()

    def __getitem__(self, serving: Serving) -> Running:
        return self._running[serving]

    def find(self, serving: Serving) -> Running | None:
        return self._running.get(serving)

    def start(self, serving: Serving) -> None:
        if serving not in self._running:
            self._running[serving] = Running(serving)
            self._running[serving].sleep()

    @contextlib.contextmanager
    def awake(self, serving: Serving) -> Iterator[Running]:
        running = self._running[serving]
        running.wake()
        try:
            yield running
        finally:
            running.sleep()


def run_script(
    command: list[str], timeout: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end on the load's core.

    Args:
        environment: its variables; None for ours.

    Raises:
        Skipped: a module is missing.
        Failed: it did not end in time.
    """
    with on_core(cores().load):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {timeout:.0f} s") from None
    if done.returncode == MISSING:
        raise Skipped(last_line(done.stderr))
    return done


def output_of(command: list[str], timeout: float) -> str:
    """Run a script and return its output; raises `Failed` where its status is not 0, and as `run_script`."""
    done = run_script(command, timeout)
    if done.returncode:
        raise Failed(f"status {done.returncode}: {last_line(done.stderr)}")
    return done.stdout


def last_line(text: str) -> str:
    """Return the last line of a program's output, which mostly says why it ended."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing").strip()


def _text(file: IO[bytes]) -> str:
    """Read a whole file that another process writes, without moving its position."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")


def _ended(status: int, errors: IO[bytes]) -> str:
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{how}: {last_line(_text(errors))}"
