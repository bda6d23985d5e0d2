"""`rpcstream --stream` against a real server: items as they come, and how a stream ends."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Context, Limits, RpcError, Server
from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread

from .conftest import environment
from .test_terminal import on_a_terminal

Run = Callable[..., tuple[int, str, str]]

#: What generators of the server have come to.
ended: queue.SimpleQueue[str] = queue.SimpleQueue()


def make_server() -> Server:
    # A quarter of that time after a caller was killed, the server notices.
    server = Server(title="test", drain_timeout=0.1, limits=Limits(message_timeout=2))

    @server
    def count(n: int, fail: bool = False) -> Iterator[int]:
        try:
            yield from range(n)
            if fail:
                raise RpcError(7, "it failed")
        finally:
            ended.put("count")
        return "the return value"

    @server
    async def ticks() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.put("ticks")

    @server
    def frames(n: int) -> Iterator[Image.Image]:
        for number in range(n):
            yield Image.new("RGB", (number + 1, 1))

    @server
    def ramps(n: int) -> Iterator[np.ndarray]:
        for number in range(n):
            yield np.full(2, number, np.float32)

    @server
    def chunks() -> Iterator[bytes]:
        yield b"\x00one"
        yield b"\xfftwo"

    @server
    def echo(**values: Any) -> Iterator[Any]:
        yield values

    @server
    async def steps(n: int, ctx: Context) -> AsyncIterator[int]:
        for step in range(n):
            ctx.progress([step, n])
            await asyncio.sleep(0.01)
            yield step

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def nothing() -> None: ...

    return server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve_in_thread(make_server()) as where:
        yield where


@pytest.fixture
def run(address: str, capfd: pytest.CaptureFixture[str]) -> Run:
    """`status, out, err = run("count", "n=3")`, in this process, output into pipes; with --stream."""
    while not ended.empty():
        ended.get()

    def run(*argv: str) -> tuple[int, str, str]:
        status = main([*argv, "--stream", "--uri", address])
        return status, *capfd.readouterr()

    return run


def started(*argv: str) -> subprocess.Popen[str]:
    while not ended.empty():
        ended.get()
    command = [sys.executable, "-m", "rpcstream", "--stream", *argv]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)


class TestItems:
    def test_one_on_each_line(self, run: Run) -> None:
        assert run("count", "n=4") == (0, "0\n1\n2\n3\n", "")
        assert run("count", "--positional", "2") == (0, "0\n1\n", "")
        assert run("count", "n=0") == (0, "", "")

    def test_without_the_option_they_are_one_array(self, address: str, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["count", "n=4", "--uri", address]) == 0
        assert capfd.readouterr() == ("[0,1,2,3]\n", "")

    def test_a_method_that_does_not_stream(self, run: Run) -> None:
        assert run("add", "a=1", "b=2") == (0, "3\n", "")
        assert run("nothing") == (0, "null\n", "")

    def test_the_return_value_is_in_the_messages_only(self, run: Run) -> None:
        status, out, err = run("count", "n=1", "-v")
        assert (status, out) == (0, "0\n")
        assert '> {"jsonrpc":"2.0","id":1,"method":"count","stream":' in err
        assert "the return value" in err

    def test_names_that_python_could_not_write(self, run: Run) -> None:
        names = ("timeout", "returns", "on_progress", "self", "method", "params", "a-b")
        out = run("echo", *(f"{name}={at}" for at, name in enumerate(names)))[1]
        assert json.loads(out) == {name: at for at, name in enumerate(names)}

    def test_rich_items_go_as_they_came(self, run: Run) -> None:
        status, out, _ = run("ramps", "n=2")
        assert status == 0
        assert [json.loads(line)["data"] for line in out.splitlines()] == ["AAAAAAAAAAA=", "AACAPwAAgD8="]

    def test_raw(self, run: Run, address: str) -> None:
        assert run("count", "n=2", "--format", "raw") == (0, "0\n1\n", "")
        with started("chunks", "--format", "raw", "--uri", address) as calling:
            assert calling.stdout is not None
            assert calling.stdout.buffer.read() == b"\x00one\xfftwo"  # type: ignore[attr-defined]

    def test_on_a_terminal(self, address: str) -> None:
        status, text = on_a_terminal("--stream", "ramps", "n=2", "--uri", address, NO_COLOR="1")
        assert (status, text) == (0, "ndarray float32 (2,)\n  [0. 0.]\nndarray float32 (2,)\n  [1. 1.]\n")

    def test_each_is_there_at_once(self, address: str) -> None:
        with started("ticks", "--uri", address) as calling:
            assert calling.stdout is not None
            assert calling.stdout.readline() == "1\n"
            assert calling.poll() is None
            calling.kill()
        assert ended.get(timeout=20) == "ticks"


class TestFiles:
    def test_they_are_numbered(self, run: Run, tmp_path: Path) -> None:
        assert run("frames", "n=3", "-o", str(tmp_path / "frame.png")) == (0, "", "")
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["frame-0001.png", "frame-0002.png", "frame-0003.png"]
        with Image.open(tmp_path / "frame-0003.png") as image:
            assert image.size == (3, 1)
        assert run("count", "n=2", "-o", str(tmp_path / "plain")) == (0, "", "")
        assert (tmp_path / "plain-0002").read_text() == "1\n"

    def test_standard_output_and_devices_take_all(self, run: Run, tmp_path: Path) -> None:
        assert run("count", "n=3", "-o", "-") == (0, "0\n1\n2\n", "")
        assert run("count", "n=3", "-o", "/dev/null") == (0, "", "")

    def test_items_that_do_not_fit_the_ending(self, run: Run, tmp_path: Path) -> None:
        status, out, err = run("ramps", "n=2", "-o", str(tmp_path / "x.png"))
        assert (status, out) == (2, "")
        assert "x-0001.png holds .npy data" in err
        assert np.load(tmp_path / "x-0002.png").tolist() == [1.0, 1.0]

    def test_where_nothing_can_be_written(self, run: Run, tmp_path: Path) -> None:
        status, out, err = run("count", "n=3", "-o", str(tmp_path / "no" / "x.png"))
        assert (status, out) == (2, "")
        assert "there is no folder" in err
        (tmp_path / "x-0001.png").mkdir()
        assert run("count", "n=3", "-o", str(tmp_path / "x.png"))[0] == 2
        assert ended.empty()


class TestEnds:
    def test_an_error_behind_the_items(self, run: Run) -> None:
        status, out, err = run("count", "n=2", "fail=true")
        assert (status, out) == (1, "0\n1\n")
        assert err == "error 7: it failed\n"

    def test_a_time_out_for_the_whole(self, run: Run) -> None:
        status, out, err = run("ticks", "--timeout", "0.2")
        assert (status, out) == (4, "1\n")
        assert err.count("\n") == 1
        assert ended.get(timeout=20) == "ticks"

    def test_ctrl_c_stops_the_generator(self, address: str) -> None:
        with started("ticks", "--uri", address) as calling:
            assert calling.stdout is not None
            assert calling.stdout.readline() == "1\n"
            calling.send_signal(signal.SIGINT)
            out, err = calling.communicate(timeout=30)
        assert (calling.returncode, out, err) == (130, "", "")
        assert ended.get(timeout=20) == "ticks"

    def test_a_reader_who_leaves_stops_the_generator(self, address: str) -> None:
        with started("count", "n=1000000000", "--uri", address) as calling:
            assert calling.stdout is not None
            assert calling.stderr is not None
            assert calling.stdout.readline() == "0\n"
            calling.stdout.close()
            assert calling.stderr.read() == ""
            assert calling.wait(30) == 141
        assert ended.get(timeout=20) == "count"

    def test_head(self, address: str) -> None:
        command = f"{sys.executable} -m rpcstream --stream count n=1000000000 --uri {address} | head -2"
        done = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, timeout=30)
        assert (done.stdout, done.stderr) == ("0\n1\n", "")

    @pytest.mark.parametrize("other", ["--notify", "--describe"])
    def test_what_does_not_go_together(self, run: Run, other: str) -> None:
        status, out, err = run("count", other)
        assert (status, out) == (2, "")
        assert "--stream does not go with" in err


def test_items_and_progress_share_a_terminal(address: str) -> None:
    status, text = on_a_terminal("--stream", "steps", "n=3", "--uri", address, NO_COLOR="1")
    assert status == 0
    assert "\r[####################..........]  67% 2 of 3" in text
    # What is left to see: each item at the beginning of a line of its own.
    assert [line.rpartition("\r")[2].rstrip() for line in text.split("\n")] == ["0", "1", "2", ""]
