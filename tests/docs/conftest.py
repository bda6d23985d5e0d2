"""Runs a page of the documentation as a reader would: its blocks from top to bottom, in an empty folder.

What the first words behind the three backticks say:

* `python`: run, in one namespace for the page. Behind an expression `# -> text` is what it gives (its repr, or what a
  `print` prints), `# raises text` how the exception begins; three dots stand for anything.
* `await` behind `python`: a cell of a notebook, which may await; all of a page in one event loop.
* `console`: the lines behind `$ ` are run by the shell, on a terminal without colour; what they print must be the lines
  below. A command that ends with `&` runs until the end of the page; `rpcstream-server` until the next one of these.
  Commands whose program is not installed are skipped.
* `text talk`: lines on one connection of their own to that server. Those behind `-->` are sent, those behind `<--` must
  come, in this order; three dots stand for anything. A word before the arrow names one of several connections.
* `sh`: run by bash, and must end with status 0.
* `file=NAME` behind the language: not run, but written to that file, for the blocks below.
* `no-run=REASON` behind the language (`REASONS` in blocks.py), and every other language: not run.

* `needs=PROGRAM`, `imports=PACKAGE` behind the language: run where that program or package is installed.

So that pages can name the default port, 8080, and the port of NATS, they are replaced by free ones; the first is added
where it is left out, and so is the last for `nats-server`, which is waited for and whose log is not compared.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fcntl
import fnmatch
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client

from .blocks import PROGRAMS, ROOT, Block, blocks_of

_EXPECTED = re.compile(r"#\s*(->|raises)\s+(.*\S)\s*$")

#: A warning that any handler may cause on a busy machine.
_SLOW = re.compile(r"^\S+ \S+ WARNING rpcstream\.server: method .* blocked the event loop for .*\n", re.MULTILINE)


def matches(actual: str, expected: str) -> bool:
    """Whether two texts are the same, where three dots in the expected one stand for any text."""
    pattern = "".join(f"[{letter}]" if letter in "[?*" else letter for letter in expected.replace("...", "\0"))
    return fnmatch.fnmatchcase(actual, pattern.replace("\0", "*"))


class PageRun:
    """The blocks of one page, run one after the other."""

    def __init__(self, page: Path, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
        self._module.__dict__["__expected__"] = _expected
        self._server: subprocess.Popen[str] | None = None
        self._beside: list[subprocess.Popen[str]] = []
        self._runner = asyncio.Runner()
        self._ports = dict(zip(("8545", "8080", "4222"), _free_ports(3), strict=True))
        self._port = self._ports["8545"]
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._environment = {
            **inherited,
            "PATH": PROGRAMS,
            "PYTHONPATH": path,
            "NO_COLOR": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "rpcstream.pytest_plugin",
        }

    def run(self) -> None:
        sys.modules[self._module.__name__] = self._module
        try:
            for block in blocks_of(self._page.read_text()):
                self._run_block(block)
        finally:
            for process in self._beside:
                _end(process)
            self._stop_server()
            for value in vars(self._module).values():
                if isinstance(value, Client):
                    value.close()
            self._runner.close()
            del sys.modules[self._module.__name__]

    def _run_block(self, block: Block) -> None:
        if block.file:
            (self._folder / block.file).write_text(self._on_free_port(block.code))
        elif block.skipped or not block.can_run:
            return
        elif "talk" in block.options:
            self._talk(block)
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "console":
            self._run_console(block)
        elif block.language == "sh":
            self._run_script(block)

    # -- Python -----------------------------------------------------------------------------------------------------

    def _run_python(self, block: Block) -> None:
        source = "\n" * block.line + self._on_free_port(block.code)
        tree = _Expecting(source.splitlines()).visit(ast.parse(source, str(self._page)))
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if "await" in block.options else 0
        running = eval(compile(tree, str(self._page), "exec", flags=flags), vars(self._module))
        if running is not None:
            self._runner.run(running)

    def _on_free_port(self, code: str) -> str:
        code = re.sub(r"\b(AsyncClient|Client|server\.run|server\.listening)\(\)", self._with_port, code)
        return self._with_free_ports(code)

    def _with_free_ports(self, text: str) -> str:
        # Whole numbers: a free port may begin as one of the others, which it is in the command already.
        return re.sub(rf"\b({'|'.join(self._ports)})\b", lambda found: self._ports[found[0]], text)

    @staticmethod
    def _with_port(found: re.Match[str]) -> str:
        return found[1] + ('("127.0.0.1:8545")' if found[1].endswith("Client") else "(port=8545)")

    # -- lines on the wire ------------------------------------------------------------------------------------------

    def _talk(self, block: Block) -> None:
        with contextlib.ExitStack() as stack:
            connections: dict[str, Any] = {}
            for line in block.code.splitlines():
                found = re.fullmatch(r"(\w* *)(-->|<--) (.*)", line)
                assert found is not None, line
                name, direction, text = found[1].strip(), found[2], found[3]
                if name not in connections:
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", int(self._port)), 20))
                    connections[name] = stack.enter_context(connection.makefile("rwb"))
                lines = connections[name]
                if direction == "-->":
                    lines.write(text.encode() + b"\n")
                    lines.flush()
                else:
                    said = lines.readline().decode()
                    assert matches(_spaced(said), _spaced(text)), f"got\n{said}instead of\n{text}"

    # -- commands ---------------------------------------------------------------------------------------------------

    def _run_console(self, block: Block) -> None:
        text = re.sub(r"\\\n> ", "", block.code)
        for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = entry.partition("\n")
            self._run_command(command, self._with_free_ports(expected))

    def _run_script(self, block: Block) -> None:
        script = "set -eu\n" + self._on_free_port(block.code)
        done = subprocess.run(
            ["bash", "-c", script], cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, f"{block.code}\nended with status {done.returncode}\n{done.stderr}"

    def _run_command(self, command: str, expected: str) -> None:
        words = command.split()
        if words[0] == "bash":
            words += (self._folder / words[1]).read_text().split()
        if any(program in words and shutil.which(program) is None for program in ("nc", "java", "curl", "node")):
            return
        line = self._own(command)
        if command.endswith("&"):
            is_server = command.startswith("rpcstream-server ") and "nats_only" not in command
            printed = self._begin(line.removesuffix("&"), len(expected.splitlines()), is_server=is_server)
        else:
            printed = self._on_terminal(line)
        printed = _SLOW.sub("", printed)
        assert matches(printed, expected), f"{command}\nprinted\n{printed}\ninstead of\n{expected}"

    def _on_terminal(self, line: str) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
        command = ["bash", "-c", line]
        process = subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        printed = b""
        with open(ours, "rb", buffering=0) as terminal, process:
            while part := _read(terminal):
                printed += part
        return printed.decode().replace("\r\n", "\n")

    def _begin(self, line: str, count: int, *, is_server: bool) -> str:
        """Its first lines."""
        if is_server:
            self._stop_server()
        out: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = ["bash", "-c", "exec " + line]
        process = subprocess.Popen(command, cwd=self._folder, env=self._environment, start_new_session=True, **out)
        if is_server:
            self._server = process
        else:
            self._beside.append(process)
        assert process.stdout is not None
        if line.startswith("nats-server "):
            ready = any("Server is ready" in said for said in iter(process.stdout.readline, ""))
            return "" if ready else "nothing that says it is ready"
        return "".join(process.stdout.readline() for _ in range(count))

    def _own(self, command: str) -> str:
        """The command with this Python, this source tree and a free port."""
        if command.startswith("nats-server "):
            return command.replace("nats-server ", f"nats-server -a 127.0.0.1 -p {self._ports['4222']} ")
        port = "" if re.search(r"--uri|--unix| -p |--port|nats_only|--help|--mcp", command) else f" -p {self._port}"
        for name, module in (("rpcstream-server", "rpcstream.cli.serve"), ("rpcstream", "rpcstream.cli.call")):
            command = re.sub(rf"(^|\| ){name}(?= )", rf"\1{sys.executable} -m {module}{port}", command)
        return re.sub(r"(^|\| )python(?= )", rf"\1{sys.executable}", self._with_free_ports(command))

    def _stop_server(self) -> None:
        if self._server is not None:
            with self._server as process:
                process.terminate()
                process.stdout.read()  # type: ignore[union-attr]
            assert process.returncode == 0
            self._server = None


def _free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(probe.getsockname()[1]) for probe in probes]


def _end(process: subprocess.Popen[str]) -> None:
    """A program with all that it has started."""
    with process, contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


def _read(terminal: io.FileIO) -> bytes:
    try:
        return terminal.read(65536) or b""
    except OSError:  # Linux's way of saying that nobody is at the other end any more
        return b""


def _spaced(text: str) -> str:
    """JSON with the blanks that it is written with in the pages, where it can be read at all."""
    try:
        return json.dumps(json.loads(text))
    except ValueError:  # of a page, with three dots
        return text


class _Expecting(ast.NodeTransformer):
    """Puts every expression whose line says what it gives into a block that checks it."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        found = _EXPECTED.search(self._lines[(node.end_lineno or node.lineno) - 1])
        if found is None:
            return node
        call = ast.parse(f"with __expected__({found[1]!r}, {found[2]!r}) as __result__: pass").body[0]
        assert isinstance(call, ast.With)
        prints = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "print"
        append = ast.parse("__result__.append(None)", mode="eval").body
        assert isinstance(append, ast.Call)
        append.args = [node.value]
        call.body = [node if prints else ast.Expr(append)]
        for part in ast.walk(call):
            if isinstance(part, ast.expr | ast.stmt):
                ast.copy_location(part, node)
        return ast.fix_missing_locations(call)


@contextlib.contextmanager
def _expected(kind: str, text: str) -> Iterator[list[object]]:
    results: list[object] = []
    printed = io.StringIO()
    raised = "nothing"
    try:
        with contextlib.redirect_stdout(printed):
            yield results
    except Exception as error:
        if kind != "raises":
            raise
        raised = f"{type(error).__name__}: {error}"
    if kind == "raises":
        assert matches(raised, f"{text}..."), f"raised {raised}, not {text}"
    else:
        actual = repr(results[0]) if results else printed.getvalue().rstrip("\n")
        assert matches(actual, text), f"gave {actual}, not {text}"


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """`run_page(path)`: run all blocks of a page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def run(page: Path) -> None:
        try:
            PageRun(page, tmp_path).run()
        finally:
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                    del sys.modules[name]

    return run
