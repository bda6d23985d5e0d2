"""Programs in other languages that do what tests say: an order a line, what comes of it a line, in JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

Program = TypeVar("Program", bound="Foreign")

#: Options of a JVM that does little, which takes less to start so.
BRIEFLY = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


@cache
def version_of(program: str) -> int:
    """0 where there is none."""
    if shutil.which(program) is None:
        return 0
    option = "-version" if program == "javac" else "--version"
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=50)
    found = re.search(r"^\D*(\d+)", done.stdout)
    return int(found[1]) if found else 0


def needs_java() -> pytest.MarkDecorator:
    return pytest.mark.skipif(version_of("javac") < 17, reason="there is no JDK of at least 17 (javac)")


def needs_node(folder: Path) -> list[pytest.MarkDecorator]:
    """And what is in its package.json."""
    reason = f"it is not there (npm install --prefix tests/interop/{folder.name})"
    return [
        pytest.mark.skipif(version_of("node") < 20, reason="there is no Node.js of at least 20 (node)"),
        pytest.mark.skipif(not (folder / "node_modules").is_dir(), reason=reason),
    ]


def compiled(*arguments: object, folder: Path) -> None:
    options = [*(f"-J{option}" for option in BRIEFLY), "-encoding", "UTF-8", "-Xlint:all", "-Werror"]
    command = ["javac", *options, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


class Foreign:
    """A program that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def order(self, *orders: tuple[Any, ...]) -> None:
        """Have it do all this in one go."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(json.dumps(each) + "\n" for each in orders))
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    def tell(self, *order: Any) -> Any:
        """Have it do this; gives what came of it."""
        self.order(order)
        return self.hear()


@contextmanager
def running(*command: object, program: type[Program] = Foreign) -> Iterator[Program]:  # type: ignore[assignment]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen([str(word) for word in command], **pipes) as process:
        try:
            yield program(process)
        finally:
            process.kill()
