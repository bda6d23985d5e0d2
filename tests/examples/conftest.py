"""Runs the examples as a reader would: as programs, by the commands in their docstrings, with ports that are free."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rpcstream

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rpcstream.__file__).parents[1]), "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of the examples."""
    return EXAMPLES


@pytest.fixture(scope="session")
def load_example() -> Callable[[str], ModuleType]:
    """`load_example("vectorize.py")`: the example as a module, imported anew."""

    def load(path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{Path(path).stem}", EXAMPLES / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """`python("examples/x.py", "argument")` in the root of the repository: what it prints; it must not complain."""

    def run(*arguments: object) -> str:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=50)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture(scope="session")
def on_a_terminal() -> Callable[..., str]:
    """As `python`, with a terminal behind standard output."""
    pty = pytest.importorskip("pty")

    def run(*arguments: object) -> str:
        ours, theirs = pty.openpty()
        with open(ours, "rb", buffering=0) as terminal:
            command = [sys.executable, *map(str, arguments)]
            with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=theirs) as process:
                os.close(theirs)
                shown = b""
                try:
                    while part := terminal.read(65536):
                        shown += part
                except OSError:  # how Linux says that nobody writes to the terminal any more
                    pass
            assert process.returncode == 0
        return shown.decode().replace("\r\n", "\n")

    return run


@pytest.fixture(scope="session")
def promised() -> Callable[[str], str]:
    """`promised("call_vectorize.py")`: what the example prints, as its docstring says at its end."""

    def read(path: str) -> str:
        text = ast.get_docstring(ast.parse((EXAMPLES / path).read_text())) or ""
        output = text.partition("prints")[2].partition("\n\n")[2].partition("\n\n")[0]
        lines = output.splitlines()
        assert lines
        assert all(line.startswith("    ") for line in lines)
        return "".join(f"{line[4:]}\n" for line in lines)

    return read


@pytest.fixture
def served() -> Iterator[Callable[..., tuple[str, subprocess.Popen[str]]]]:
    """`address, process = served("examples/x.py")`: a server by `rpcstream-server`; it ends with the test."""
    processes = []

    def start(*arguments: str, cwd: Path = ROOT) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-m", "rpcstream.cli.serve", *arguments, "-p", "0"]
        process = subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        first = process.stdout.readline().split()
        assert first, f"the server did not start: {process.wait()}"
        return first[-1].removeprefix("jsonrpc2://"), process

    yield start
    for process in processes:
        with ended(process):
            process.terminate()


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[str, subprocess.Popen[str]]]]:
    """`line, process = started("examples/x.py", "argument")`: a program that stays, and its first line; it ends with
    the test, by Ctrl-C, and must not have complained."""
    processes = []

    def start(*arguments: str) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-W", "error", *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes)
        processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline(), process

    yield start
    complaints = []
    for process in processes:
        with ended(process):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            # On a busy machine, anything may block.
            complaints += [line for line in process.stderr if "blocked the event loop" not in line]
    assert not complaints


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Wait for a process that the block tells to end; kill it when it does not."""
    with process:
        yield
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
