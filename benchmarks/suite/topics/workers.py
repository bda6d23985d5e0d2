"""Handlers that compute in Python for some milliseconds, on a server with two workers, beside one with one.

All processors are shared: the workers and the load run anywhere.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from ..calls import Call, fits_reply, line
from ..load import Load, LoadFailed, run_load
from ..measure import Problems, Settings
from ..process import Failed
from ..results import Entry, Table
from ..templates import learn

TITLE = "a handler of 5 ms of pure Python, 8 connections"
ONE, TWO = "rpcstream, 1 worker", "rpcstream, 2 workers"
WORKERS = {ONE: 1, TWO: 2}
CONNECTIONS = 8
WARMUP = 0.3
WORK = Call("work", lambda n: {"number": n}, lambda n: n)

#: The loop is as long as it takes 5 ms on the machine, measured by the first worker alone.
PROGRAM = """\
from rpcstream import Server

server = Server()


@server
def work(number: int) -> int:
    total = 0
    for each in range(COUNT):
        total += each
    return number
"""
MEASURE = """\
from time import perf_counter

def best(count):
    times = []
    for _ in range(9):
        began = perf_counter()
        total = 0
        for each in range(count):
            total += each
        times.append(perf_counter() - began)
    return min(times)

print(int(0.005 * 100_000 / best(100_000)))
"""


def workers(settings: Settings) -> list[Table]:
    problems = Problems()
    figures: dict[str, list[float]] = {name: [] for name in WORKERS}
    with problems.noted(TWO), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        measured = _output([sys.executable, "-c", MEASURE])
        Path(folder, "app.py").write_text(f"COUNT = {measured}\n{PROGRAM}")
        ports = {name: _started(stack, folder, count) for name, count in WORKERS.items()}
        reply = learn("line", ports[ONE], line(WORK), fits_reply(WORK))
        for number in range(settings.rounds):
            settings.tell(f"{TITLE}: round {number + 1}")
            for name, port in ports.items():
                figures[name].append(_load(port, reply, settings.seconds).rate)
    entries = [
        Entry(
            name=name,
            figures=() if problems.of else tuple(figures[name]),
            problem=next(iter(problems.of.values()), None),
            ours=True,
        )
        for name in figures
    ]
    return [Table(title=TITLE, entries=tuple(entries), bases=(ONE,))]


def _load(port: int, reply: bytes, seconds: float) -> Load:
    return run_load(port, line(WORK), reply, connections=CONNECTIONS, seconds=seconds, warmup=WARMUP, pinned=False)


def _started(stack: ExitStack, folder: str, count: int) -> int:
    """Start a server with so many workers, which is stopped with the stack; gives its port."""
    command = [sys.executable, "-m", "rpcstream.cli.serve", "app.py", "--port", "0", "--workers", str(count)]
    process = stack.enter_context(Popen(command, cwd=folder, stdout=PIPE, stderr=DEVNULL, text=True))
    stack.callback(process.terminate)
    assert process.stdout is not None
    banner = process.stdout.readline()
    if not banner.startswith("Listening at "):
        raise Failed(f"no server with {count} workers: {banner!r}")
    return int(banner.rpartition(":")[2])


def _output(command: list[str]) -> str:
    with Popen(command, stdout=PIPE, text=True) as process:
        output, _ = process.communicate(timeout=60)
    if process.returncode:
        raise LoadFailed(f"{command[0]} ended with status {process.returncode}")
    return output.strip()
