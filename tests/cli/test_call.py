"""`rpcstream` against a real server: output, exit statuses, files, start-up time, and one line for bad input."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream.cli.call import main
from rpcstream.codec import avif

from .conftest import environment

#: The line of -v about the times of a call.
TIMES = re.compile(r"\* connect ([\d.]+) ms, sent ([\d.]+) ms, first byte ([\d.]+) ms, done ([\d.]+) ms")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(address: str, capfd: pytest.CaptureFixture[str]) -> Run:
    """`status, out, err = run("sum", "a=1")`, in this process, output into pipes."""

    def run(*argv: str, uri: str = address) -> tuple[int, str, str]:
        status = main([*argv, "--uri", uri])
        return status, *capfd.readouterr()

    return run


@contextmanager
def somebody_who_answers(reply: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A peer that reads one line, says something and hangs up: its address, and what it has heard."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            peer, _ = listening.accept()
            with peer, peer.makefile("rb") as lines:
                heard.append(lines.readline())
                peer.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", heard
        thread.join()


class TestResults:
    def test_by_name_and_by_position(self, run: Run) -> None:
        assert run("sum", "a=1", "b=-5") == (0, "-4\n", "")
        assert run("sum", "--positional", "1", "-5") == (0, "-4\n", "")
        assert run("sum", "--positional", "1") == (0, "3\n", "")

    def test_json_on_one_line(self, run: Run) -> None:
        items = ("a=-1e3", "b:str=1", 'c:=[1,{"d":null}]', "e=\u00e9", "f=")
        status, out, err = run("echo", *items)
        assert (status, err, out.count("\n")) == (0, "", 1)
        assert json.loads(out) == {"a": -1000.0, "b": "1", "c": [1, {"d": None}], "e": "\u00e9", "f": ""}
        assert run("echo", "a=\u00e9") == (0, '{"a":"\u00e9"}\n', "")
        assert run("echo") == (0, "null\n", "")

    def test_large_integers_stay_exact(self, run: Run) -> None:
        assert run("echo", "a=18446744073709551615")[:2] == (0, '{"a":18446744073709551615}\n')

    def test_names_that_python_could_not_write(self, run: Run) -> None:
        names = ("timeout", "returns", "self", "method", "a-b", "class")
        out = run("echo", *(f"{name}={at}" for at, name in enumerate(names)))[1]
        assert json.loads(out) == {name: at for at, name in enumerate(names)}

    def test_raw(self, run: Run) -> None:
        assert run("say", "text=a \u00e9", "--format", "raw") == (0, "a \u00e9\n", "")
        assert run("sum", "a=1", "--format", "raw") == (0, "3\n", "")

    def test_rich_values_in_a_pipe_are_tagged(self, run: Run) -> None:
        status, out, _ = run("ramp", "n=2")
        assert (status, json.loads(out)) == (
            0,
            {"$type": "ndarray", "dtype": "<f4", "shape": [2], "data": "AAAAAAAAgD8="},
        )

    def test_text_for_people_in_a_pipe(self, run: Run) -> None:
        assert run("ramp", "n=2", "--format", "text") == (0, "ndarray float32 (2,)\n  [0. 1.]\n", "")
        assert run("square", "side=2", "--format", "text") == (0, "image PNG 2 x 2 RGB\n", "")
        assert run("sum", "--describe", "--format", "text")[1].startswith("sum(a: int, b: int = 2) -> int\n")

    def test_a_table(self, run: Run) -> None:
        rows = 'a:=[{"n": 1, "text": "x\\u001b"}, {"n": 20}]'
        assert run("echo", rows, "--format", "table")[1] == 'a  [{"n": 1, "text": "x\\u001b"}, {"n": 20}]\n'
        assert run("echo", "--positional", "1", ":=[2]", "--format", "table") == (0, "1\n[2]\n", "")

    @pytest.mark.parametrize("other", [["-o", "x"], ["--stream"]])
    def test_what_does_not_go_with_a_table(self, run: Run, other: list[str]) -> None:
        assert run("sum", "a=1", "--format", "table", *other)[0] == 2

    def test_raw_bytes(self, address: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        assert main(["blob", "n=3", "--format", "raw", "--uri", address]) == 0
        assert capfdbinary.readouterr().out == b"\xff\xff\xff"
        assert main(["ramp", "n=3", "-o", "-", "--uri", address]) == 0
        assert np.array_equal(np.load(io.BytesIO(capfdbinary.readouterr().out)), [0, 1, 2])

    def test_a_notification_prints_nothing(self, run: Run) -> None:
        assert run("sum", "a=1", "--notify") == (0, "", "")
        assert run("sum", "--positional", "1", "--notify") == (0, "", "")
        assert run("echo", "--notify") == (0, "", "")


class TestUploads:
    def test_an_image_in_each_format(self, run: Run, tmp_path: Path) -> None:
        for ending in ("png", "jpg", "webp", "bmp", "gif", "tiff", *(["avif"] if avif.is_there() else [])):
            path = tmp_path / f"a.{ending}"
            Image.new("RGB", (30, 20), "blue").save(path)
            assert run("size", "-i", f"photo={path}") == (0, "[30,20]\n", "")
            assert run("size", "-i", str(path)) == (0, "[30,20]\n", "")
            assert run("size", f"photo:image={path}") == (0, "[30,20]\n", "")

    def test_the_file_goes_out_as_it_is(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "noise.jpg"
        Image.effect_noise((64, 64), 80).convert("RGB").save(path, quality=20)
        with somebody_who_answers(b'{"jsonrpc": "2.0", "id": 1, "result": null}\n') as (uri, heard):
            assert run("size", "-i", f"photo={path}", uri=uri) == (0, "null\n", "")
        photo = json.loads(heard[0])["params"]["photo"]
        assert photo == {"$type": "image", "format": "jpeg", "data": b64encode(path.read_bytes()).decode()}

    def test_what_is_no_image(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(b"hello")
        status, out, err = run("size", "-i", f"photo={tmp_path / 'a.png'}")
        assert (status, out) == (2, "")
        assert "not an image" in err
        assert err.count("\n") == 1

    def test_bytes_and_arrays(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(bytes(range(256)) * 10)
        assert run("length", "-f", f"data={tmp_path / 'data'}") == (0, "2560\n", "")
        np.save(tmp_path / "a.npy", np.zeros((2, 3), dtype="f4"))
        assert run("shape", f"array:ndarray={tmp_path / 'a.npy'}") == (0, '["float32",2,3]\n', "")
        assert run("shape", "array:ndarray:uint8=[[1,2]]") == (0, '["uint8",1,2]\n', "")

    def test_more_than_a_mebibyte(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(b"x" * 5_000_000)
        assert run("length", "-f", f"data={tmp_path / 'data'}") == (0, "5000000\n", "")


class TestErrors:
    def test_an_error_reply(self, run: Run) -> None:
        status, out, err = run("sum", "a=x")
        assert (status, out) == (1, "")
        assert err.startswith("error -32602: ")
        assert "Invalid params: a: expected " in err
        assert err.count("\n") == 1
        status, out, err = run("nothing")
        assert (status, out) == (1, "")
        assert err.startswith("error -32601: Method not found")

    def test_an_error_of_the_handlers_own(self, run: Run) -> None:
        assert run("fail") == (1, "", 'error 7: it failed \\u001b[2J, data {"why": "because"}\n')

    @pytest.mark.parametrize(
        "argv",
        [
            ["sum", "a"],
            ["sum", "a:int=x"],
            ["sum", "a=@/no/such"],
            ["sum", "a=1", "--positional", "2"],
            ["echo", "a=" + "9" * 400 + ".0"],
            ["echo", 'a:="\\ud800"'],
            ["sum", "a=1", "-o", "/no/such/folder/x"],
            ["sum", "--frobnicate"],
            ["sum", "-p", "x"],
        ],
    )
    def test_wrong_use(self, argv: list[str], run: Run) -> None:
        status, out, err = run(*argv)
        assert (status, out) == (2, "")
        assert "Traceback" not in err
        assert err.splitlines()[-1].startswith("rpcstream: ")

    @pytest.mark.parametrize("uri", ["host:name:port", "ftp://x", "unix://x", "ho st:1", "x:0"])
    def test_a_wrong_address(self, uri: str, run: Run) -> None:
        status, out, err = run("sum", uri=uri)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1

    def test_nobody_there(self, run: Run) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        status, out, err = run("sum", "a=1", uri=f"127.0.0.1:{port}")
        assert (status, out) == (3, "")
        assert f"127.0.0.1:{port}" in err
        assert err.count("\n") == 1
        assert run("sum", uri="unix:///no/such/socket")[0] == 3

    def test_a_lost_connection(self, run: Run) -> None:
        with somebody_who_answers(b"") as (uri, _):
            status, out, err = run("sum", "a=1", uri=uri)
        assert (status, out) == (3, "")
        assert err.count("\n") == 1

    def test_time_outs_of_either_side(self, run: Run) -> None:
        status, out, err = run("never", "--timeout", "0.05")
        assert (status, out) == (4, "")
        assert err.count("\n") == 1
        assert run("late")[0] == 4

    def test_somebody_who_speaks_something_else(self, run: Run) -> None:
        with somebody_who_answers(b"SSH-2.0-OpenSSH\r\n") as (uri, _):
            status, out, err = run("sum", "a=1", uri=uri)
        assert (status, out) == (3, "")
        assert "Traceback" not in err

    def test_a_reply_that_is_nested_deep(self, run: Run) -> None:
        deep = b"[" * 500 + b"]" * 500
        with somebody_who_answers(b'{"jsonrpc": "2.0", "id": 1, "result": ' + deep + b"}\n") as (uri, _):
            status, out, err = run("sum", uri=uri)
        assert (status, out, err) in ((0, deep.decode() + "\n", ""), (1, "", err))
        assert "Traceback" not in err

    def test_an_output_that_takes_nothing(self, address: str) -> None:
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "rpcstream", "sum", "a=1", "--uri", address]
            pipe = subprocess.PIPE
            ended = subprocess.run(
                command, env=environment(), stdout=full, stderr=pipe, text=True, timeout=30, check=False
            )
        assert (ended.returncode, ended.stderr) == (2, "rpcstream: cannot write the result: No space left on device\n")


class TestFiles:
    def test_each_kind_of_result(self, run: Run, tmp_path: Path) -> None:
        assert run("ramp", "n=3", "-o", str(tmp_path / "a.npy")) == (0, "", "")
        assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]
        assert run("square", "side=4", "-o", str(tmp_path / "a.jpg")) == (0, "", "")
        with Image.open(tmp_path / "a.jpg") as image:
            assert image.format == "JPEG"
        assert run("blob", "n=2", "-o", str(tmp_path / "a.bin")) == (0, "", "")
        assert (tmp_path / "a.bin").read_bytes() == b"\xff\xff"
        assert run("sum", "a=1", "-o", str(tmp_path / "a.json")) == (0, "", "")
        assert (tmp_path / "a.json").read_text() == "3\n"

    def test_a_result_of_another_kind_is_kept_and_complained_about(self, run: Run, tmp_path: Path) -> None:
        status, out, err = run("ramp", "n=3", "-o", str(tmp_path / "a.png"))
        assert (status, out) == (2, "")
        assert err.startswith(f"rpcstream: the result is an array: {tmp_path / 'a.png'} holds .npy data")
        assert np.load(tmp_path / "a.png").tolist() == [0, 1, 2]

    def test_a_failed_call_leaves_the_file_alone(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("before")
        assert run("fail", "-o", str(tmp_path / "a"))[0] == 1
        assert (tmp_path / "a").read_text() == "before"

    def test_a_file_that_fails_after_the_call_does_not_lose_the_result(self, run: Run) -> None:
        status, out, err = run("sum", "a=1", "-o", "/dev/full")
        assert (status, out) == (2, "3\n")
        assert "cannot write '/dev/full'" in err


class TestDescription:
    def test_a_list_for_programs(self, run: Run) -> None:
        status, out, _ = run("--list", "--format", "json")
        methods = {method["name"]: method for method in json.loads(out)}
        assert status == 0
        assert methods["sum"]["summary"] == "Adds two numbers."
        assert [parameter["name"] for parameter in methods["sum"]["params"]] == ["a", "b"]

    def test_a_list_for_people_in_a_pipe(self, run: Run) -> None:
        lines = run("--list")[1].splitlines()
        assert "sum(a: int, b: int = 2) -> int  # Adds two numbers." in lines
        assert run("--list", "--format", "text")[1].splitlines() == lines

    def test_a_list_as_a_table(self, run: Run) -> None:
        first, *rows = run("--list", "--format", "table")[1].splitlines()
        assert first.split() == ["method", "summary"]
        assert "Adds two numbers." in next(row for row in rows if row.startswith("sum(a: int, b: int = 2) -> int"))

    def test_names_alone(self, run: Run) -> None:
        names = run("--list", "--format", "raw")[1].split()
        assert names == sorted(names)
        assert {"sum", "rpc.discover"} <= set(names)

    def test_one_method(self, run: Run, tmp_path: Path) -> None:
        status, out, _ = run("sum", "--describe")
        assert (status, json.loads(out)["name"]) == (0, "sum")
        assert run("sum", "--describe", "-o", str(tmp_path / "a.json")) == (0, "", "")
        assert json.loads((tmp_path / "a.json").read_text())["name"] == "sum"
        assert "has no method 'sume' (did you mean 'sum'?)" in run("sume", "--describe")[2]
        assert run("nothing", "--describe") == (
            1,
            "",
            "rpcstream: the server has no method 'nothing'; --list shows its methods\n",
        )


def test_verbose_shows_the_wire_shortened(run: Run) -> None:
    status, out, err = run("-v", "say", "text:str=" + "x" * 500)
    assert (status, len(out)) == (0, 503)
    sent, received, times = err.splitlines()
    assert sent.startswith('> {"jsonrpc":"2.0"')
    assert '"method":"say"' in sent
    assert sent.endswith('"text":"' + "x" * 60 + '..." (500 characters)}}')
    assert received.startswith("< {")
    assert "(500 characters)" in received
    assert TIMES.fullmatch(times)


@pytest.mark.parametrize("scheme", ["tcp", "http", "ws"])
def test_verbose_shows_times_over_each_transport(scheme: str, address: str, run: Run) -> None:
    *_, times = run("-v", "sum", "a=1", uri=f"{scheme}://{address}")[2].splitlines()
    found = TIMES.fullmatch(times)
    assert found is not None, times
    steps = [float(text) for text in found.groups()]
    assert steps == sorted(steps)


def test_verbose_shows_times_of_failures(run: Run) -> None:
    assert TIMES.search(run("-v", "nothing")[2])
    assert "first byte" not in run("-v", "never", "--timeout", "0.01")[2].splitlines()[1]


# -- as processes ---------------------------------------------------------------------------------------------------


def process(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rpcstream", *argv]
    env = environment()
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False, **options)


def started(*argv: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-m", "rpcstream", *argv], subprocess.PIPE
    return subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True)


def test_python_m_and_standard_input(address: str) -> None:
    ended = process("sum", "-", "--uri", address, input='{"a": 1, "b": 5}')
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "6\n", "")
    ended = process("sum", "-", "--uri", address, input="{")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("command", "file", "status"),
    [("square side=2", "t.png", 2), ("ramp n=2", "t.npy", 2), ("ramp n=2", "t.json", 0), ("sum a=1", "t.png", 0)],
)
def test_json_in_a_file_for_images(command: str, file: str, status: int, address: str, tmp_path: Path) -> None:
    with (tmp_path / file).open("wb") as out:
        argv = [sys.executable, "-m", "rpcstream", *command.split(), "--uri", address]
        done = subprocess.run(argv, env=environment(), stdout=out, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == status
    assert (f"-o {file}, or --format raw > {file}" in done.stderr) is bool(status)
    assert json.loads((tmp_path / file).read_bytes())


@pytest.mark.parametrize(("closing", "status"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("<&-", 2)])
def test_closed_standard_streams(closing: str, status: int, address: str) -> None:
    items = "-" if closing == "<&-" else "a=1"
    command = f"{sys.executable} -m rpcstream sum {items} --uri {address} {closing}"
    ended = subprocess.run(command, shell=True, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr


def test_a_reader_who_leaves_is_no_error(address: str) -> None:
    with started("ramp", "n=300000", "--uri", address) as calling:
        assert calling.stdout is not None
        assert calling.stderr is not None
        calling.stdout.read(10)
        calling.stdout.close()
        assert calling.stderr.read() == ""
        assert calling.wait(30) == 141


def test_interrupted(address: str) -> None:
    with started("never", "-v", "--uri", address) as calling:
        assert calling.stderr is not None
        assert calling.stderr.readline().startswith("> ")
        calling.send_signal(signal.SIGINT)
        out, err = calling.communicate(timeout=30)
    assert (calling.returncode, out, err) == (130, "", "")


def test_a_plain_call_imports_little(address: str) -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "from rpcstream.cli.call import main\n"
        f"status = main(['sum', 'a=1', 'b=2', '--uri', {address!r}])\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('rpcstream', 'concurrent'))))\n"
        "sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=30, check=True
    )
    result, modules, own = ended.stdout.splitlines()
    assert result == "3"
    heavy = {"numpy", "PIL", "msgspec", "asyncio", "logging", "concurrent", "pybase64", "argcomplete", "shutil"}
    assert heavy.isdisjoint(modules.split())
    assert {"rpcstream.server", "rpcstream.client.aio", "rpcstream.codec.hints"}.isdisjoint(own.split())
