"""The load generator in C: compiled when it is first needed, run in a process of its own, its figures read.

The programs lie in a temporary folder named after what is in their sources, so they are compiled once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .machine import cores, on_core

Protocol = Literal["line", "frame", "http", "websocket", "grpc"]

NATIVE = Path(__file__).resolve().parent.parent / "native"
FLAGS = ("-std=gnu11", "-O2")

WRONG_REPLY = 3
PATIENCE = 10.0  # seconds without a reply
SPARE = 60.0  # seconds over what was asked for; the generator gives up by itself long before


_USER = os.getuid() if hasattr(os, "getuid") else 0


def _folder() -> Path:
    digest = hashlib.sha256(repr(FLAGS).encode())
    for source in sorted(NATIVE.glob("*.[ch]")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return Path(tempfile.gettempdir()) / f"rpcstream-benchmarks-{_USER}-{digest.hexdigest()[:16]}"


_BUILT = _folder()
LOAD = _BUILT / "load"
ECHO = _BUILT / "echo"


class LoadFailed(Exception):
    """The load generator did not finish; the text says why."""


class WrongReply(LoadFailed):
    """A reply is not the expected one; the text has both."""


@dataclass(frozen=True)
class Latency:
    """Percentiles of the latency of a run's calls, in microseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True)
class Load:
    """The result of a run in which every reply was right."""

    calls: int
    seconds: float
    rate: float
    latency_us: Latency
    #: The share of the time that the generator itself was on its processor: near 1, it may be what was measured.
    cpu: float
    wrong: int = 0

    @classmethod
    def read(cls, line: str) -> Load:
        """Read the line of JSON that the generator and the drivers in `../peers` print."""
        found: dict[str, Any] = json.loads(line)
        known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        return cls(**known | {"latency_us": Latency(**found["latency_us"])})


def find_compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def build() -> None:
    """Compile the load generator and the echo server, if they are not there yet.

    Raises:
        LoadFailed: there is no C compiler, or it refuses.
    """
    _BUILT.mkdir(mode=0o700, exist_ok=True)
    if _BUILT.stat().st_uid != _USER:
        raise LoadFailed(f"{_BUILT} belongs to somebody else")
    if LOAD.exists() and ECHO.exists():
        return
    compiler = find_compiler()
    if compiler is None:
        raise LoadFailed("no C compiler: the load generator needs `cc` (or the one that $CC names)")
    parts = [source for source in NATIVE.glob("*.c") if source.stem != "echo"]
    _compile(compiler, parts, LOAD)
    _compile(compiler, [NATIVE / "echo.c"], ECHO)


def _compile(compiler: str, sources: list[Path], program: Path) -> None:
    """Compile into a temporary file and rename it, since other processes may do the same at the same time."""
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        made = Path(folder) / program.name
        done = subprocess.run([compiler, *FLAGS, "-o", made, *sources], capture_output=True, text=True)
        if done.returncode:
            raise LoadFailed(f"{compiler} does not compile {program.name}: {done.stderr.strip()}")
        made.replace(program)


def run_load(
    port: int,
    request: bytes,
    reply: bytes,
    *,
    protocol: Protocol = "line",
    path: str = "/",
    connections: int = 1,
    in_flight: int = 1,
    seconds: float = 1.0,
    warmup: float = 0.2,
    patience: float = PATIENCE,
    reconnect: bool = False,
    core: int | None = None,
    pinned: bool = True,
) -> Load:
    """Load a server with calls made of these templates (see `../native/load.c`), and return the result.

    Args:
        reply: the template of the expected replies, from `templates.learn`.
        patience: seconds to wait for a reply.
        reconnect: a new connection for each call (http only).
        core: the processor for the generator; None for that of loads.
        pinned: False: the generator may run on any processor.

    Raises:
        WrongReply: a reply differed from the template.
        LoadFailed: a connection was refused or lost, or no reply came.
    """
    build()
    command = [str(LOAD), f"--port={port}", f"--protocol={protocol}", f"--path={path}"]
    command += [f"--connections={connections}", f"--in-flight={in_flight}"]
    command += [f"--seconds={seconds}", f"--warmup={warmup}", f"--patience={patience}"] + ["--reconnect"] * reconnect
    where = on_core(cores().load if core is None else core) if pinned else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, where:
        for name, template in (("request", request), ("reply", reply)):
            Path(folder, name).write_bytes(template)
            command.append(f"--{name}={Path(folder, name)}")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + warmup + patience + SPARE)
        except subprocess.TimeoutExpired as error:
            raise LoadFailed(f"the load has not ended after {error.timeout:.0f} s") from None
    return read_output(done.returncode, done.stdout, done.stderr)


def read_output(status: int, output: str, errors: str = "") -> Load:
    """Read the output of a load generator; raises as `run_load`."""
    if status == 0:
        return Load.read(output)
    try:
        reason = str(json.loads(output)["error"])
    except (ValueError, KeyError, TypeError):
        reason = errors.strip() or f"status {status}"
    raise (WrongReply if status == WRONG_REPLY else LoadFailed)(reason)
