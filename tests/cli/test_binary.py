"""Arrays, images and bytes that come as binary frames: shown, saved and measured as if they had come as text."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Client, Context, Server
from rpcstream.cli.call import main
from rpcstream.cli.diagnostics import Timeline, shortened_message
from rpcstream.cli.output import Terminal
from rpcstream.testing import serve_in_thread

from .conftest import StartServer

Run = Callable[..., tuple[int, str, str]]

FLOATS = np.arange(5000, dtype=np.float32)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server(title="test", drain_timeout=0.1)

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def noise(like: np.ndarray) -> Image.Image:
        return Image.fromarray(np.random.default_rng(0).integers(0, 255, (100, 100, 3), dtype=np.uint8))

    @server
    def whole(data: np.ndarray) -> bytes:
        return data.tobytes()

    @server
    def parts(data: np.ndarray, ctx: Context) -> Iterator[np.ndarray]:
        ctx.progress({"done": 1, "total": 2})
        yield from (data, data + 1)

    with serve_in_thread(server) as where:
        yield where


@pytest.fixture
def run(address: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., tuple[int, bytes, str]]:
    def run(*argv: str) -> tuple[int, bytes, str]:
        status = main([*argv, "--uri", address, "-v"])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run


@pytest.fixture
def floats(tmp_path: Path) -> str:
    np.save(tmp_path / "floats.npy", FLOATS)
    return str(tmp_path / "floats.npy")


def came_as_frame(err: str, size: int) -> bool:
    return f" + {size:,} bytes as a binary frame" in err


class TestResults:
    """The argument makes the client ask for frames; the result then comes as one."""

    def test_an_array_is_saved(self, run: Any, floats: str, tmp_path: Path) -> None:
        out = tmp_path / "out.npy"
        status, _, err = run("echo", f"value:ndarray=@{floats}", "-o", str(out))
        assert status == 0
        assert came_as_frame(err, FLOATS.nbytes)
        assert out.read_bytes() == Path(floats).read_bytes()

    def test_an_image_is_saved_and_written_raw(self, run: Any, floats: str, tmp_path: Path) -> None:
        out = tmp_path / "out.png"
        status, _, err = run("noise", f"like:ndarray=@{floats}", "-o", str(out))
        assert status == 0
        assert " as a binary frame" in err
        with Image.open(out) as image:
            assert image.size == (100, 100)
            pixels = image.tobytes()
        status, raw, _ = run("noise", f"like:ndarray=@{floats}", "--format", "raw")
        assert status == 0
        if raw.startswith(b"\x89PNG"):
            assert Image.open(io.BytesIO(raw)).tobytes() == pixels

    def test_bytes_are_written_as_they_are(self, run: Any, floats: str) -> None:
        status, raw, err = run("whole", f"data:ndarray=@{floats}", "--format", "raw")
        assert (status, raw) == (0, FLOATS.tobytes())
        assert came_as_frame(err, FLOATS.nbytes)

    def test_a_pipe_gets_the_same_json_as_without_frames(self, run: Any, floats: str) -> None:
        framed = run("echo", f"value:ndarray=@{floats}")
        plain = run("echo", f"value:ndarray=@{floats}", "--no-binary")
        assert framed[:2] == plain[:2]
        assert json.loads(framed[1])["$type"] == "ndarray"
        assert came_as_frame(framed[2], FLOATS.nbytes)
        assert "rpc.hello" not in plain[2]
        assert "binary frame" not in plain[2]

    def test_it_is_described_as_text(self, run: Any, floats: str) -> None:
        status, out, _ = run("echo", f"value:ndarray=@{floats}", "--format", "text")
        assert (status, out.splitlines()[0]) == (0, b"ndarray float32 (5000,)")

    def test_items_are_saved_as_they_come(self, run: Any, floats: str, tmp_path: Path) -> None:
        status, _, err = run("parts", f"data:ndarray=@{floats}", "--stream", "-o", str(tmp_path / "part.npy"))
        assert status == 0
        assert err.count(f" + {FLOATS.nbytes:,} bytes as a binary frame") == 2
        assert (np.load(tmp_path / "part-0002.npy") == FLOATS + 1).all()

    def test_no_payload_stands_in_the_messages_shown(self, run: Any, floats: str) -> None:
        _, _, err = run("echo", f"value:ndarray=@{floats}")
        hello, call, answer, reply, times = err.splitlines()
        assert hello == '> {"jsonrpc":"2.0","id":2,"method":"rpc.hello","params":{"binary":1}}'
        assert call.startswith('> {"jsonrpc":"2.0","id":1,"method":"echo"')
        assert answer.startswith('< {"jsonrpc":"2.0","id":2,"result":{"binary":1')
        assert reply == (
            '< {"jsonrpc":"2.0","id":1,"result":'
            '{"$type":"ndarray","dtype":"<f4","shape":[5000],"data":{"$bin":0}}} + 20,000 bytes as a binary frame'
        )
        assert re.fullmatch(r"\* connect .* ms, sent .* ms, first byte .* ms, done .* ms", times)

    def test_the_time_of_many_calls_is_measured(
        self, address: str, floats: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        argv = ["echo", f"value:ndarray=@{floats}", "--repeat", "20", "--concurrency", "2", "--format", "json"]
        assert main([*argv, "--uri", address]) == 0
        report = json.loads(capfd.readouterr().out)
        assert (report["calls"], report["errors"]) == (20, {})

    def test_the_environment_switches_frames_off(self, run: Any, floats: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RPCSTREAM_BINARY", "false")
        status, _, err = run("echo", f"value:ndarray=@{floats}")
        assert status == 0
        assert "rpc.hello" not in err


def test_many_payloads_are_shown_by_their_sum() -> None:
    head = b'@2 5000 6000 {"jsonrpc":"2.0"}\n'
    assert shortened_message(head) == '{"jsonrpc":"2.0"} + 5,000 + 6,000 bytes as a binary frame'
    head = b"@2 5000 5000 5000 5000 5000 {}"
    assert shortened_message(head) == "{} + 5 payloads of 25,000 bytes as a binary frame"
    assert shortened_message(b"@2 0:5000 {}") == "{} + 5,000 bytes in shared memory"
    assert shortened_message(b"@2 0:5000 9 {}") == "{} + 5,000 + 9 bytes, 1 of them in shared memory"


@pytest.mark.parametrize(
    "message", [b"@", b"@2 5000", b"@2 {}", b"@2 x {}", b"@2 5000 x\x1b", b"@2" + b" 5000" * 300 + b" {}"]
)
def test_what_only_looks_like_a_header_is_shown_as_it_is(message: bytes) -> None:
    assert shortened_message(message) == message.decode().replace("\x1b", "\\u001b")


def test_the_answer_to_the_clients_own_question_is_not_the_first_byte() -> None:
    out = io.StringIO()
    ticks = iter(range(100))
    with Timeline(out, Terminal(), lambda direction, message: None, clock=lambda: next(ticks) / 1000) as timeline:
        timeline.trace("send", b"a call")
        timeline.on_receive(46)
        timeline.trace("receive", b'{"jsonrpc":"2.0","id":2,"result":{"binary":1,"shm":{"pid":1,"fd":5}}}')
        timeline.on_receive(100)
        timeline.trace("receive", b"the reply")
    assert out.getvalue() == "* connect 1.00 ms, sent 1.00 ms, first byte 3.00 ms, done 4.00 ms\n"


SERVER = """
from typing import Any
from rpcstream import Server

server = Server()

@server
def echo(value: Any) -> Any:
    return value
"""


def test_a_server_without_frames_says_so(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVER)
    server = start_server("app.py", "-p", "0", "--no-binary", cwd=tmp_path)
    with Client(server.address) as client:
        assert client.call("rpc.hello", 1) == {"binary": 0}
        assert (client.call("echo", FLOATS) == FLOATS).all()
        assert (client.call("echo", FLOATS) == FLOATS).all()
