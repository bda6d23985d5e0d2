"""How long a shell waits: the command `rpcstream` as a whole process, against Python with the least it needs."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from ..contenders import SERVE_RPCSTREAM
from ..load import WrongReply
from ..machine import cores, on_core
from ..measure import Problems, Settings
from ..process import Failed, Servers
from ..results import Entry, Table

TITLE = "a whole process"
COMMAND, PYTHON = "rpcstream sum a=1 b=2", 'python -c "import socket, json"'
WARM, FEWEST = 2, 3  # pairs
#: As an installer writes it.
SCRIPT = "import sys\nfrom rpcstream.cli.call import main\nsys.exit(main())\n"


def startup(settings: Settings) -> list[Table]:
    problems = Problems()
    figures: dict[str, list[float]] = {COMMAND: [], PYTHON: []}
    with problems.noted(COMMAND), Servers() as servers, tempfile.TemporaryDirectory() as folder:
        servers.start(SERVE_RPCSTREAM)
        with servers.awake(SERVE_RPCSTREAM) as server:
            commands = _commands(Path(folder), server.port)
            _pairs(commands, folder, WARM, 0.0)
            for number in range(settings.rounds):
                settings.tell(f"{TITLE}: round {number + 1}")
                for name, times in _pairs(commands, folder, FEWEST, settings.seconds).items():
                    figures[name].append(statistics.median(times) * 1000)
    entries = [
        Entry(
            name=name,
            figures=() if problems.of else tuple(figures[name]),
            problem=next(iter(problems.of.values()), None),
            ours=True,
        )
        for name in figures
    ]
    return [Table(title=TITLE, entries=tuple(entries), bases=(PYTHON,), unit="ms")]


def _commands(folder: Path, port: int) -> dict[str, list[str]]:
    """A copy of the package and the script of the command lie in the folder, so that bytecode can be kept there."""
    import rpcstream

    package = Path(rpcstream.__file__).parent
    shutil.copytree(package, folder / "rpcstream", ignore=shutil.ignore_patterns("__pycache__"))
    script = folder / "command.py"
    script.write_text(SCRIPT)
    return {
        COMMAND: [sys.executable, str(script), "sum", "a=1", "b=2", "--port", str(port)],
        PYTHON: [sys.executable, "-c", "import socket, json"],
    }


def _pairs(commands: dict[str, list[str]], folder: str, fewest: int, seconds: float) -> dict[str, list[float]]:
    """The one and the other in turn, for so many seconds; what each took."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = folder
    times: dict[str, list[float]] = {name: [] for name in commands}
    began = perf_counter()
    while len(times[PYTHON]) < fewest or perf_counter() < began + seconds:
        for name, command in commands.items():
            times[name].append(_run(command, environment, "3\n" if name == COMMAND else ""))
    return times


def _run(command: list[str], environment: dict[str, str], expected: str) -> float:
    with on_core(cores().load):
        began = perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        taken = perf_counter() - began
    if done.returncode:
        raise Failed(f"exit status {done.returncode}: {done.stderr.strip()[-200:]}")
    if done.stdout != expected:
        raise WrongReply(f"expected {expected!r}, got {done.stdout!r}")
    return taken
