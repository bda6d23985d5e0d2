"""`rpcstream --shell`: scripts, lines at a terminal, completion and the history."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import queue
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rpcstream import Context, Server
from rpcstream.cli.call_options import make_parser, parse
from rpcstream.cli.shell import Shell, split_line
from rpcstream.testing import serve_in_thread

from .conftest import environment

#: Calls of `hang` that were cancelled.
given_up: queue.SimpleQueue[int] = queue.SimpleQueue()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server(drain_timeout=0.1)

    @server
    def add(a: int, b: int = 2) -> int:
        """Adds two numbers."""
        return a + b

    @server
    def count(upto: int) -> Iterator[int]:
        yield from range(upto)

    @server
    def paint(colour: Literal["red", "green"], fill: bool = False) -> str:
        return f"{colour} {fill}"

    @server(name="vision.look")
    def look() -> int:
        return 1

    @server
    async def hang(ctx: Context) -> None:
        import asyncio

        ctx.progress("hanging")
        try:
            await asyncio.Event().wait()
        finally:
            given_up.put(1)

    @server
    def square(side: int = 4) -> Image.Image:
        return Image.new("RGB", (side, side), (255, 0, 0))

    with serve_in_thread(server) as where:
        yield where


#: What a line editor writes besides text.
ESCAPES = re.compile("\x1b\\[[0-9;?]*[a-zA-Z]")


class TestScripts:
    def run(self, address: str, text: str, *argv: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "rpcstream", "--shell", "--uri", address, *argv]
        done = subprocess.run(command, env=environment(), input=text, capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout, done.stderr

    def test_lines_are_carried_out_one_after_the_other(self, address: str) -> None:
        lines = "add a=1\n\n  --stream count upto=2\npaint 'colour=red' fill=true\nexit\nadd a=5\n"
        assert self.run(address, lines) == (0, '3\n0\n1\n"red True"\n', "")

    def test_results_are_saved(self, address: str, tmp_path: Path) -> None:
        path = tmp_path / "x.png"
        assert self.run(address, f"square side=3 -o '{path}'\n") == (0, "", "")
        with Image.open(path) as image:
            assert image.size == (3, 3)

    def test_wrong_lines_do_not_end_it(self, address: str) -> None:
        lines = "add a\nadd 'a=1\nnothing\nadd --frobnicate\nadd a=1 --uri x\nadd a=1\n"
        status, out, err = self.run(address, lines)
        assert (status, out) == (0, "3\n")
        first, quote, unknown, option, start = err.splitlines()
        assert "is not an item" in first
        assert quote == "rpcstream: No closing quotation"
        assert unknown.startswith("error -32601")
        assert option == "rpcstream: unrecognized arguments: --frobnicate"
        assert "--uri is given when the shell is started" in start

    def test_the_status_is_that_of_the_last_line(self, address: str) -> None:
        assert self.run(address, "add a=1\nnothing")[0] == 1
        assert self.run(address, "nothing\nadd 1")[0] == 2

    def test_options_of_the_start_are_for_all_lines(self, address: str) -> None:
        status, out, err = self.run(address, "count upto=2\n", "--format", "text", "-v")
        assert (status, out) == (0, "[0, 1]\n")
        assert '"method":"count"' in err

    def test_help(self, address: str) -> None:
        status, out, _ = self.run(address, "help\nhelp values\nhelp add\nhelp nonsense\nhelp --describe\n--list\n")
        assert status == 0
        assert "METHOD [ITEM ...]" in out
        assert "key:TYPE=value" in out
        assert '"name":"add"' in out
        assert "vision.look() -> int" in out

    def test_no_server(self) -> None:
        status, out, err = self.run("unix:///no/such", "add a=1\n")
        assert (status, out, err.count("\n")) == (3, "", 1)

    @pytest.mark.parametrize("more", [["add"], ["--stream"], ["-o", "x"]])
    def test_what_does_not_go_with_it(self, more: list[str], address: str) -> None:
        assert self.run(address, "", *more)[0] == 2


class Terminal:
    """A shell on a terminal: what is typed, and what it shows."""

    def __init__(self, address: str, home: Path, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        env = environment(TERM="xterm", HOME=str(home), PROMPT_TOOLKIT_NO_CPR="1", XDG_STATE_HOME="", LC_ALL="C.UTF-8")
        argv = [*(command or (sys.executable, "-m", "rpcstream")), "--shell", "--progress", "--uri", address]
        self.process = subprocess.Popen(
            argv,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Wait until this is shown behind what was waited for before; gives what came until then."""
        while not (found := re.search(pattern, self._seen)):
            assert select.select([self._ours], [], [], 30)[0], self._seen
            self._seen += os.read(self._ours, 65536).decode().replace("\r", "")
            self._seen = ESCAPES.sub("", self._seen)
        before, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return before

    def end(self) -> int:
        """Press Ctrl-D until the program has ended: between two lines the terminal may lose it. Gives the status."""
        for _ in range(60):
            self.type("\x04")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
                break
        os.close(self._ours)
        assert self.process.returncode is not None, self._seen
        return self.process.returncode


@pytest.fixture
def terminal(address: str, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*command: str) -> Terminal:
        made.append(Terminal(address, tmp_path, *command))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.wait()


class TestTerminal:
    def test_calls_and_their_end(self, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
        shell = terminal()
        shell.wait_for("methods; help, Ctrl-D leaves(.|\n)*rpcstream>")
        shell.type("add a=40\r")
        shell.wait_for("42\n(.|\n)*rpcstream>")
        for typed, shown in (
            ("pai\t", "paint"),
            (" c\t", "colour="),
            ("r\t", "red"),
            (" fi\t", "fill="),
            ("t\t", "true"),
        ):
            shell.type(typed)
            shell.wait_for(shown)
        shell.type("\r")
        shell.wait_for('"red True"\n(.|\n)*rpcstream>')
        shell.type("hang\r")
        shell.wait_for("hanging")
        shell.process.send_signal(signal.SIGINT)
        shell.wait_for("given up\n(.|\n)*rpcstream>")
        given_up.get(timeout=20)
        shell.type("square\r")
        shell.wait_for("image PNG 4 x 4 RGB\n +\u2580{4}\n +\u2580{4}\n(.|\n)*rpcstream>")
        shell.type(" add a=7\r")
        shell.wait_for("9\n(.|\n)*rpcstream>")
        shell.type("half a line\x03")
        shell.wait_for("rpcstream>")
        assert shell.end() == 0
        history = tmp_path / ".local" / "state" / "rpcstream" / "history"
        assert history.read_text() == "add a=40\npaint colour=red fill=true\nhang\nsquare\n"
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700

    def test_without_prompt_toolkit(self, terminal: Callable[..., Terminal]) -> None:
        hidden = (
            "import sys; sys.modules['prompt_toolkit'] = None\nfrom rpcstream.cli.call import main\nsys.exit(main())"
        )
        shell = terminal(sys.executable, "-c", hidden)
        shell.wait_for(r'pip install "rpcstream\[shell\]"\n(.|\n)*rpcstream>')
        shell.type("add a=40\n")
        shell.wait_for(r"42\n(.|\n)*rpcstream>")
        assert shell.end() == 0


METHODS: list[dict[str, Any]] = [
    {
        "name": "paint",
        "summary": "Paints \x1b[2J",
        "params": [
            {"name": "colour", "schema": {"enum": ["red", "green", "$(rm)"]}},
            {"name": "fill", "schema": {"type": "boolean"}},
            {"name": "photo", "schema": {}},
            {"name": "$(touch no)", "schema": {}},
        ],
    },
    {"name": "pay"},
    {"name": "`reboot`"},
    {"name": "rpc.discover"},
]


@pytest.fixture
def suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").touch()
    options = parse(make_parser(), ["--shell"])
    shell = Shell(options, lambda options: 0, lambda: {"methods": METHODS})
    monkeypatch.setattr(sys, "stdin", None)
    assert shell.run("x") == 0
    return lambda text: [word for word, _ in shell.suggestions(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["paint", "pay"]),
        ("pai", ["paint"]),
        ("rpc.", ["rpc.discover"]),
        ("help pa", ["paint", "pay"]),
        ("--stream pa", []),
        ("paint ", ["colour=", "fill=", "photo="]),
        ("paint colour=red f", ["fill="]),
        ("paint colour:str=red c", []),
        ("paint colour=", ["colour=red", "colour=green"]),
        ("paint fill=t", ["fill=true"]),
        ("paint photo:image=c", ["photo:image=cat.png"]),
        ("paint -i photo=c", ["photo=cat.png"]),
        ("paint -o c", ["cat.png"]),
        ("paint --format t", ["text", "table"]),
        ("paint --fo", ["--format"]),
        ("paint --ur", []),
        ("nothing ", []),
        ("paint 'colour=", []),
        ("x" * 8_000 + " paint ", ["colour=", "fill=", "photo="]),
        ("x" * 10_000_000 + " paint ", []),
    ],
    ids=lambda value: str(value)[:20],
)
def test_suggestions(text: str, words: list[str], suggested: Callable[[str], list[str]]) -> None:
    assert suggested(text) == words


@given(st.text(alphabet="ab'\"\\ \t\n=\u00e9#", max_size=20))
def test_a_line_is_split_as_in_a_shell(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"No (closing quotation|escaped character)"):
            split_line(text)
    else:
        assert split_line(text) == expected


def test_the_history_is_bounded_and_private(tmp_path: Path) -> None:
    prompt = pytest.importorskip("rpcstream.cli.prompt")
    path = tmp_path / "state" / "history"
    history = prompt.PrivateHistory(str(path))
    for line in ("first", " secret", "", "second"):
        history.store_string(line)
    assert list(prompt.PrivateHistory(str(path)).load_history_strings()) == ["second", "first"]
    path.chmod(0o644)
    history.store_string("third")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("x" * 99 + "\n" + "line\n" * 60_000)
    assert set(prompt.PrivateHistory(str(path)).load_history_strings()) == {"line"}
    assert path.stat().st_size <= 128 * 1024


def test_a_history_that_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    prompt = pytest.importorskip("rpcstream.cli.prompt")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "history", tmp_path):
        history = prompt.PrivateHistory(str(path))
        history.store_string("line")
        assert list(history.load_history_strings()) == []
    (tmp_path / "link").symlink_to(tmp_path / "file")
    prompt.PrivateHistory(str(tmp_path / "link")).store_string("line")
    assert (tmp_path / "file").read_text() == ""


def test_the_line_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = pytest.importorskip("rpcstream.cli.prompt")
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with create_pipe_input() as typed, create_app_session(input=typed, output=DummyOutput()):
        read = prompt.make_reader("> ", lambda text: [("colour=", "a remark")] if text == "paint co" else [])
        (found,) = read.__self__.completer.get_completions(Document("paint co"), CompleteEvent())
        assert (found.text, found.start_position, found.display_meta_text) == ("colour=", -2, "a remark")
        typed.send_text("paint x\r")
        assert read() == "paint x"
        typed.send_text("\x1b[A\r")
        assert read() == "paint x"
        typed.send_text("\x04")
        with pytest.raises(EOFError):
            read()
    assert (tmp_path / "rpcstream" / "history").read_text() == "paint x\n"


def test_json_of_a_script_is_exact(address: str) -> None:
    status, out, _ = TestScripts().run(address, "count upto=3\npaint colour:='\"red\"'\n")
    assert (status, [json.loads(line) for line in out.splitlines()]) == (0, [[0, 1, 2], "red False"])
