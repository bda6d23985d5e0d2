"""The plain JDK client of `examples/java`: a simulation that calls its controller on one connection."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from ..measure import Problems, Settings
from ..process import PEERS, Failed, Servers, Serving, Skipped, output_of
from ..results import Entry, Table

TITLE = "calls from Java on one connection"
MOST, FEWEST = 100_000, 2_000  # calls of each kind
METHODS = ("control_flowrate", "ping")
EXAMPLES = PEERS.parent.parent / "examples"
SOURCES = EXAMPLES / "java" / "src" / "main" / "java"
PROGRAM = "rpcstream.simulation.PlainSimulation"

_PRINTED = re.compile(r"^(\w+) +\d+ calls, all right: mean ([\d.]+) ms", re.MULTILINE)


@dataclass(frozen=True)
class ServingControllers(Serving):
    """The command `rpcstream-server` with the controllers of the examples."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "rpcstream.cli.serve", "-f", self.script, "-p", "0", *self.options]

    def ready(self, line: str) -> dict[str, Any]:
        """It prints its address."""
        return {"port": int(line.rpartition(":")[2])}


def java(settings: Settings) -> list[Table]:
    count = max(FEWEST, min(MOST, int(MOST * settings.seconds)))
    problems = Problems()
    figures: dict[str, list[float]] = {method: [] for method in METHODS}
    peak = None
    with problems.noted(PROGRAM), tempfile.TemporaryDirectory() as classes, Servers() as servers:
        _compile(classes)
        serving = ServingControllers("controlFunctions", cwd=EXAMPLES / "control_functions")
        servers.start(serving)
        with servers.awake(serving) as server:
            for number in range(settings.rounds):
                settings.tell(f"{TITLE}: round {number + 1}, {count:,} calls of each kind")
                for method, milliseconds in _simulate(classes, count, server.port).items():
                    figures[method].append(milliseconds)
            peak = server.peak_memory()
    problem = problems.of.get(PROGRAM)
    entries = [
        Entry(
            name=method,
            figures=() if problem else tuple(figures[method]),
            problem=problem,
            peak_memory=peak,
            ours=True,
            note=f"{count:,} calls a round",
        )
        for method in METHODS
    ]
    return [Table(title=TITLE, entries=tuple(entries), unit="ms")]


def _compile(classes: str) -> None:
    missing = [tool for tool in ("javac", "java") if shutil.which(tool) is None]
    if missing:
        raise Skipped(f"there is no {missing[0]}; a JDK of 17 or newer has it")
    source = SOURCES / f"{PROGRAM.replace('.', '/')}.java"
    output_of(["javac", "-d", classes, "-sourcepath", str(SOURCES), str(source)], 120)


def _simulate(classes: str, count: int, port: int) -> dict[str, float]:
    """Method -> milliseconds that a call took on average. The program ends with status 0 only if all was right."""
    printed = output_of(["java", "-cp", classes, PROGRAM, str(count), f"127.0.0.1:{port}"], 600)
    found = {method: float(mean) for method, mean in _PRINTED.findall(printed)}
    if set(found) != set(METHODS):
        raise Failed(f"what it printed was not understood: {printed[:200]}")
    return found
