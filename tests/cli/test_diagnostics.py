"""The progress line: its content, and that it is erased when the result comes."""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Context, Server
from rpcstream.cli.diagnostics import HandlerProgress, StatusLine, Timeline, UploadBar, progress_text
from rpcstream.cli.output import Terminal
from rpcstream.testing import serve_in_thread

from .conftest import environment
from .test_terminal import on_a_terminal

HALF = "[###############...............]  50%"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server(title="test", drain_timeout=0.1)

    @server
    async def work(steps: int) -> int:
        return steps

    @server
    async def train(n: int, ctx: Context, data: bytes = b"") -> int:
        for step in range(n):
            ctx.progress({"done": step + 1, "total": n, "phase": "training"})
            await asyncio.sleep(0.01)
        return n

    @server
    async def hang(ctx: Context) -> None:
        ctx.progress("hanging")
        await asyncio.Event().wait()

    with serve_in_thread(server) as where:
        yield where


def seen(text: str) -> str:
    """What is left on a terminal after all carriage returns; for lines that end in a line feed."""
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "[..............................]   0%"),
        (0.5, HALF),
        (1, "[##############################] 100%"),
        ({"done": 2, "total": 4}, f"{HALF} 2 of 4"),
        ([1500, 3000], f"{HALF} 1,500 of 3,000"),
        ([0.25, 0.5], f"{HALF} 0.25 of 0.5"),
        ({"done": 2, "total": 4, "phase": "over\x1b"}, f"{HALF} 2 of 4 over\\u001b"),
        ([10**400, 1], f"[##############################] 100% {10**400:,} of 1"),
        ([1, 0], "[1, 0]"),
        ([True, 2], "[true, 2]"),
        ([1, 2, 3], "[1, 2, 3]"),
        ({"done": 2, "total": 4, "message": "reading"}, f"{HALF} 2 of 4 reading"),
        ({"done": 1}, '{"done": 1}'),
        ({"done": -1, "total": 4}, '{"done": -1, "total": 4}'),
        (True, "true"),
        (42, "42"),
        (None, "null"),
        ("loading\n\x1b[2J", "loading\\u000a\\u001b[2J"),
    ],
)
def test_what_a_value_looks_like(value: Any, text: str) -> None:
    assert progress_text(value) == text


class TestStatusLine:
    def test_it_is_written_over_and_vanishes(self) -> None:
        out = io.StringIO()
        line = StatusLine(out, 80)
        for text in ("long text", "short", "short"):
            line.show(text)
        assert out.getvalue() == "\rlong text\rshort    "
        line.clear()
        assert out.getvalue().endswith("\r     \r")
        before = out.getvalue()
        line.clear()
        assert out.getvalue() == before

    def test_it_makes_room_for_others(self) -> None:
        out = io.StringIO()
        line = StatusLine(out, 80)
        line.show("at work")
        with line:
            out.write("item\n")
        line.show("at work")
        assert out.getvalue() == "\rat work\r       \ritem\n\rat work"

    @pytest.mark.parametrize("text", ["x" * 100, "\u4e16\u754c" * 50, "x" * 18 + "\u4e16"])
    def test_it_is_no_longer_than_a_line(self, text: str) -> None:
        out = io.StringIO()
        line = StatusLine(out, 20)
        line.show(text)
        line.show("y")
        line.clear()
        shown, blank = (part for part in out.getvalue().split("\r") if part.startswith((text[:3], " ")))
        assert sum(2 if letter > "\xff" else 1 for letter in shown) <= 19
        assert len(blank) <= 19
        assert seen(out.getvalue()) == ""

    def test_where_there_is_no_terminal_each_text_has_its_line(self) -> None:
        out = io.StringIO()
        line = StatusLine(out, is_rewritten=False)
        progress = HandlerProgress(line)
        for value in (0.5, 0.5, "text"):
            progress(value)
        line.clear()
        assert out.getvalue() == f"{HALF}\ntext\n"

    def test_an_upload_and_the_handler_have_one_line(self) -> None:
        out = io.StringIO()
        line = StatusLine(out)
        sending, progress = UploadBar(line), HandlerProgress(line)
        sending(2**20, 4 * 2**20)
        assert out.getvalue() == "\rsending [#######.......................]  25% of 4.0 MiB"
        sending(4 * 2**20, 4 * 2**20)
        assert seen(out.getvalue()) == ""
        progress(0.5)
        assert seen(out.getvalue()) == HALF
        line.clear()
        assert seen(out.getvalue()) == ""


class TestTimeline:
    @pytest.fixture
    def out(self) -> io.StringIO:
        return io.StringIO()

    @pytest.fixture
    def timeline(self, out: io.StringIO) -> Timeline:
        ticks = iter(range(100))
        return Timeline(out, Terminal(), lambda direction, message: None, clock=lambda: next(ticks) / 1000)

    def test_the_last_message_that_was_sent_is_the_call(self, timeline: Timeline, out: io.StringIO) -> None:
        with timeline:
            timeline.on_receive(5)  # of the handshake
            timeline.trace("send", b"rpc.authenticate")
            timeline.on_receive(5)
            timeline.trace("receive", b"welcome")
            timeline.trace("send", b"a call")
            timeline.on_send(1, 2)
            timeline.on_send(2, 2)
            timeline.on_receive(5)
            timeline.on_receive(5)
        assert out.getvalue() == "* connect 1.00 ms, sent 4.00 ms, first byte 5.00 ms, done 6.00 ms\n"

    def test_what_did_not_come_is_left_out(self, timeline: Timeline, out: io.StringIO) -> None:
        with pytest.raises(ValueError, match="no"), timeline:
            raise ValueError("no")
        assert out.getvalue() == "* done 1.00 ms\n"

    def test_nothing_is_said_after_ctrl_c(self, timeline: Timeline, out: io.StringIO) -> None:
        with pytest.raises(KeyboardInterrupt), timeline:
            raise KeyboardInterrupt
        assert out.getvalue() == ""


class TestCommand:
    def test_on_a_terminal(self, address: str) -> None:
        status, text = on_a_terminal("train", "n=3", "--uri", address, NO_COLOR="1")
        assert status == 0
        assert "\r[####################..........]  67% 2 of 3 training" in text
        assert seen(text) == "3\n"

    def test_behind_an_upload(self, address: str, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(b"x" * 20_000_000)
        status, text = on_a_terminal("train", "n=2", "-f", f"data={tmp_path / 'data'}", "--uri", address, NO_COLOR="1")
        assert status == 0
        assert 0 <= text.index("\rsending [") < text.index("100% 2 of 2 training")
        assert seen(text) == "2\n"

    @pytest.mark.parametrize("option", ["--no-progress", "-v"])
    def test_not_wanted(self, option: str, address: str) -> None:
        status, text = on_a_terminal("train", "n=3", option, "--uri", address, NO_COLOR="1")
        assert status == 0
        assert "of 3 training" not in text
        assert text.endswith("3\n")

    @pytest.mark.parametrize(("options", "lines"), [([], 0), (["--progress"], 3), (["--progress", "--no-progress"], 0)])
    def test_in_a_pipe(self, options: list[str], lines: int, address: str) -> None:
        command = [sys.executable, "-m", "rpcstream", "train", "n=3", "--uri", address, *options]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout) == (0, "3\n")
        assert len(done.stderr.splitlines()) == lines
        assert done.stderr.endswith("3 of 3 training\n") is bool(lines)

    def test_ctrl_c_leaves_a_clean_line(self, address: str) -> None:
        command = [sys.executable, "-m", "rpcstream", "hang", "--progress", "--uri", address]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True) as calling:
            assert calling.stderr is not None
            assert calling.stderr.readline() == "hanging\n"
            calling.send_signal(signal.SIGINT)
            out, err = calling.communicate(timeout=30)
        assert (calling.returncode, out, err) == (130, "", "")

    def test_it_imports_little(self, address: str) -> None:
        script = (
            "import sys\nfrom rpcstream.cli.call import main\n"
            f"status = main(['train', 'n=1', '--progress', '--uri', {address!r}])\n"
            "print(*sorted({name.partition('.')[0] for name in sys.modules}))\nsys.exit(status)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=30, check=True
        )
        result, modules = done.stdout.splitlines()
        assert result == "1"
        assert {"asyncio", "logging", "concurrent", "numpy"}.isdisjoint(modules.split())
