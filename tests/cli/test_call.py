"""`rpcstream` against a real server: results, items of streams, files, errors and exit statuses."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, until_in_thread
from .conftest import Called, Run, Stranger, ended, environment, started

RAMP = '{"$type":"ndarray","dtype":"<f4","shape":[2],"data":"%s"}'
#: Names that Python could not write.
ODD_NAMES = [f"{name}=1" for name in ("timeout", "returns", "on_progress", "self", "method", "params", "a-b", "class")]
ODD_RESULT = '{"timeout":1,"returns":1,"on_progress":1,"self":1,"method":1,"params":1,"a-b":1,"class":1}'
FLOATS = np.arange(5000, dtype=np.float32)


# -- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "out"),
    [
        (["sum", "a=1", "b=-5"], "-4"),
        (["sum", "--positional", "1", "-5"], "-4"),
        (["sum", "--positional", "1"], "3"),
        (["take"], "null"),
        (["take", "a=\u00e9", 'c:=[1,{"d":null}]'], '{"a":"\u00e9","c":[1,{"d":null}]}'),
        (["take", "a=18446744073709551615"], '{"a":18446744073709551615}'),
        (["take", *ODD_NAMES], ODD_RESULT),
        (["say", "text=a \u00e9", "--format", "raw"], "a \u00e9"),
        (["sum", "a=1", "--format", "raw"], "3"),
        (["ramp", "n=2"], RAMP % "AAAAAAAAgD8="),
        (["ramp", "n=2", "--format", "text"], "ndarray float32 (2,)\n  [0. 1.]"),
        (["square", "side=2", "--format", "text"], "image PNG 2 x 2 RGB"),
        (["sum", "a=1", "-o", "-"], "3"),
        # Streams: without the option the items are one array.
        (["numbers", "n=4"], "[0,1,2,3]"),
        (["--stream", "numbers", "n=4"], "0\n1\n2\n3"),
        (["--stream", "numbers", "--positional", "2"], "0\n1"),
        (["--stream", "numbers", "n=3", "-o", "-"], "0\n1\n2"),
        (["--stream", "numbers", "n=2", "--format", "raw"], "0\n1"),
        (["--stream", "sum", "a=1"], "3"),
        (["--stream", "take", *ODD_NAMES], ODD_RESULT),
        (["--stream", "ramps", "n=2"], "\n".join(RAMP % data for data in ("AAAAAAAAAAA=", "AACAPwAAgD8="))),
    ],
)  # fmt: skip
def test_results_on_standard_output(run: Run, argv: list[str], out: str) -> None:
    assert run(*argv) == (0, f"{out}\n", "")


@pytest.mark.parametrize(
    "argv",
    [
        ["--stream", "take"],
        ["--stream", "numbers", "n=3", "-o", "/dev/null"],
        ["sum", "a=1", "--notify"],
        ["sum", "--positional", "1", "--notify"],
        ["take", "--notify"],
    ],
)
def test_nothing_to_show(run: Run, argv: list[str]) -> None:
    assert run(*argv) == (0, "", "")


def test_raw_bytes(address: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for argv, data in [
        (["blob", "n=3", "--format", "raw"], b"\xff\xff\xff"),
        (["--stream", "chunks", "--format", "raw"], b"\x00one\xfftwo"),
    ]:
        assert main([*argv, "--uri", address]) == 0
        assert capfdbinary.readouterr().out == data
    assert main(["ramp", "n=3", "-o", "-", "--uri", address]) == 0
    assert np.array_equal(np.load(io.BytesIO(capfdbinary.readouterr().out)), [0, 1, 2])


# -- files ----------------------------------------------------------------------------------------------------------


def test_images_go_out_as_they_are(run: Run, tmp_path: Path, stranger: Stranger) -> None:
    for ending in ("png", "jpg", "webp", "bmp", "gif", "tiff", *(["avif"] if features.check("avif") else [])):
        path = tmp_path / f"a.{ending}"
        Image.new("RGB", (30, 20), "blue").save(path)
        for argv in (["-i", f"photo={path}"], ["-i", str(path)], [f"photo:image={path}"]):
            assert run("photo_size", *argv) == (0, "[30,20]\n", "")
    path = tmp_path / "noise.jpg"
    Image.effect_noise((64, 64), 80).convert("RGB").save(path, quality=20)
    assert run("photo_size", "-i", f"photo={path}", uri=stranger(result=None)) == (0, "null\n", "")
    data = b64encode(path.read_bytes()).decode()
    assert stranger.heard[-1]["params"]["photo"] == {"$type": "image", "format": "jpeg", "data": data}


def test_bytes_and_arrays_go_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 5_000_000)
    assert run("size", "-f", f"value={tmp_path / 'data'}") == (0, "5000000\n", "")
    np.save(tmp_path / "a.npy", np.zeros((2, 3), dtype="f4"))
    assert run("shape", f"array:ndarray={tmp_path / 'a.npy'}") == (0, '["float32",2,3]\n', "")
    assert run("shape", "array:ndarray=[[1,2]]") == (0, '["int64",1,2]\n', "")


def test_each_kind_of_result_in_a_file(run: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "a")
    assert run("ramp", "n=3", "-o", f"{out}.npy") == run("square", "side=4", "-o", f"{out}.jpg") == (0, "", "")
    assert run("blob", "n=2", "-o", f"{out}.bin") == run("sum", "a=1", "-o", f"{out}.json") == (0, "", "")
    assert np.load(f"{out}.npy").tolist() == [0, 1, 2]
    with Image.open(f"{out}.jpg") as image:
        assert image.format == "JPEG"
    assert (tmp_path / "a.bin").read_bytes() == b"\xff\xff"
    assert (tmp_path / "a.json").read_text() == "3\n"
    status, shown, err = run("ramp", "n=3", "-o", f"{out}.png")
    assert (status, shown) == (2, "ndarray float32 (3,) [0. 1. 2.]\n")
    assert err.startswith(f"rpcstream: cannot write '{out}.png': the result is ndarray float32 (3,): ")
    assert not Path(f"{out}.png").exists()
    (tmp_path / "a").write_text("before")
    assert run("fail", "-o", out)[0] == 1
    assert (tmp_path / "a").read_text() == "before"


def test_items_are_numbered(run: Run, tmp_path: Path, server: Called) -> None:
    assert run("--stream", "frames", "n=3", "-o", str(tmp_path / "frame.png")) == (0, "", "")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["frame-0001.png", "frame-0002.png", "frame-0003.png"]
    with Image.open(tmp_path / "frame-0003.png") as image:
        assert image.size == (3, 1)
    assert run("--stream", "numbers", "n=2", "-o", str(tmp_path / "plain")) == (0, "", "")
    assert (tmp_path / "plain-0002").read_text() == "1\n"
    status, out, err = run("--stream", "ramps", "n=2", "-o", str(tmp_path / "x.png"))
    assert (status, out.count("\n"), err.count("\n")) == (2, 2, 2)
    assert "x-0001.png': the result is ndarray" in err
    # Where nothing can be written, nothing is called.
    server.left.clear()
    assert "there is no folder" in run("--stream", "numbers", "n=3", "-o", str(tmp_path / "no" / "x.png"))[2]
    (tmp_path / "y-0001.png").mkdir()
    assert run("--stream", "numbers", "n=3", "-o", str(tmp_path / "y.png"))[0] == 2
    assert server.left == []


def test_frames_are_shown_and_saved_as_if_they_had_come_as_text(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", FLOATS)
    given = f"value:ndarray=@{tmp_path / 'floats.npy'}"
    out = tmp_path / "out.npy"
    status, _, err = run("echo", given, "-o", str(out), "-v")
    assert status == 0
    hello, call, answer, reply, time = err.splitlines()
    assert hello == '> {"jsonrpc":"2.0","id":2,"method":"rpc.hello","params":{"binary":1}}'
    assert call.startswith('> {"jsonrpc":"2.0","id":1,"method":"echo"')
    assert answer.startswith('< {"jsonrpc":"2.0","id":2,"result":{"binary":1')
    array = '{"$type":"ndarray","dtype":"<f4","shape":[5000],"data":{"$bin":0}}'
    assert reply == f'< {{"jsonrpc":"2.0","id":1,"result":{array}}} + payloads of 20000 bytes'
    assert time.startswith("* done in ")
    assert out.read_bytes() == (tmp_path / "floats.npy").read_bytes()
    framed = run("echo", given)
    assert framed == run("echo", given, "--no-binary")
    assert json.loads(framed[1])["$type"] == "ndarray"
    assert "rpc.hello" not in run("echo", given, "--no-binary", "-v")[2]
    assert run("echo", given, "--format", "text")[1].startswith("ndarray float32 (5000,)\n")
    data = given.replace("value", "data")
    assert run("whole", data, "-o", str(tmp_path / "raw"))[0] == 0
    assert (tmp_path / "raw").read_bytes() == FLOATS.tobytes()


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "status", "out", "words"),
    [
        (["sum", "a=x"], 1, "", "error -32602: Invalid params: a: expected "),
        (["nothing"], 1, "", "error -32601: Method not found"),
        (["fail", "code=7", "message=\x1b[2J", 'data:={"a":1}'], 1, "", 'error 7: \\u001b[2J, data {"a": 1}\n'),
        (["never", "--timeout", "0.05"], 4, "", ""),  # whichever end sees it first
        (["late"], 4, "", "error -32003"),
        (["--stream", "numbers", "n=2", "fail=true"], 1, "0\n1\n", "error 7: it failed\n"),
        (["--stream", "ticks", "--timeout", "1.5"], 4, "1\n", ""),
        (["sum", "a=1", "-o", "/dev/full"], 2, "3\n", "rpcstream: cannot write '/dev/full'"),
        (["sum", "a=1", "-o", "/no/such/folder/x"], 2, "", "rpcstream: cannot write"),
        (["echo", "value:=" + "9" * 400 + ".0"], 2, "", "rpcstream: "),
        (["echo", 'value:="\\ud800"'], 2, "", "rpcstream: "),
        (["photo_size", "-i", f"photo={__file__}"], 2, "", "rpcstream: "),
        (["numbers", "--stream", "--notify"], 2, "", "--stream does not go with"),
        (["numbers", "--stream", "--describe"], 2, "", "--stream does not go with"),
    ],
)  # fmt: skip
def test_errors_are_one_line(argv: list[str], status: int, out: str, words: str, run: Run) -> None:
    found, shown, err = run(*argv)
    assert (found, shown) == (status, out)
    assert words in err
    assert err.count("\n") == 1 or err.startswith("usage: ")


@pytest.mark.parametrize("uri", ["host:name:port", "ftp://x", "unix://x", "ho st:1", "x:0"])
def test_a_wrong_address(uri: str, run: Run) -> None:
    status, out, err = run("sum", uri=uri)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_nobody_there(run: Run, stranger: Stranger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for uri in (f"127.0.0.1:{port}", "unix:///no/such/socket", stranger(raw=b""), stranger(raw=b"SSH-2.0-OpenSSH\r\n")):
        status, out, err = run("sum", "a=1", uri=uri)
        assert (status, out) == (3, "")
        assert "Traceback" not in err
    assert f"127.0.0.1:{port}" in run("sum", uri=f"127.0.0.1:{port}")[2]
    deep = "[" * 500 + "]" * 500
    reply = f'{{"jsonrpc": "2.0", "id": 1, "result": {deep}}}\n'.encode()
    status, out, err = run("sum", uri=stranger(raw=reply))
    assert (status, out, err) in ((0, f"{deep}\n", ""), (1, "", err))
    assert "Traceback" not in err


# -- descriptions ---------------------------------------------------------------------------------------------------


def test_the_methods_of_a_server(run: Run, tmp_path: Path) -> None:
    methods = {method["name"]: method for method in json.loads(run("--list", "--format", "json")[1])}
    assert methods["sum"]["summary"] == "Adds two numbers."
    assert [parameter["name"] for parameter in methods["sum"]["params"]] == ["a", "b"]
    lines = run("--list")[1].splitlines()
    assert "sum(a: int, b: int = 2) -> int  # Adds two numbers." in lines
    assert run("--list", "--format", "text")[1].splitlines() == lines
    names = run("--list", "--format", "raw")[1].split()
    assert names == sorted(names, key=lambda name: (name.startswith("rpc."), name))
    assert {"sum", "rpc.discover"} <= set(names)
    status, out, _ = run("sum", "--describe")
    assert (status, json.loads(out)["name"]) == (0, "sum")
    assert run("sum", "--describe", "--format", "text")[1].startswith("sum(a: int, b: int = 2) -> int\n")
    assert run("sum", "--describe", "-o", str(tmp_path / "a.json")) == (0, "", "")
    assert json.loads((tmp_path / "a.json").read_text())["name"] == "sum"
    assert "has no method 'sume' (did you mean 'sum'?)" in run("sume", "--describe")[2]
    none = "rpcstream: the server has no method 'nothing'; --list shows its methods\n"
    assert run("nothing", "--describe") == (1, "", none)


# -- profiles and the environment -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with serve_in_thread(UsualServer(token="right")) as where:
        yield where


@pytest.fixture
def folder(guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for configurations with a file of profiles, which is the user's."""
    folder = tmp_path / "rpcstream"
    folder.mkdir()
    (folder / "token").write_text("right")
    lab = f'[profiles.lab]\naddress = "{guarded}"\ntoken_file = "token"\nname = "of-a-program"\n'
    (folder / "config.toml").write_text(f"{lab}[profiles.wrong]\nprot = 1")
    for path in folder.iterdir():
        path.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


def test_options_by_arguments_variables_and_profiles(run: Run, guarded: str, folder: Path) -> None:
    add = ("add", "a:int=1", "b:int=2")
    port = guarded.rpartition(":")[2]
    token = str(folder / "token")
    right = (0, "3\n", "")
    assert run(*add, "--profile", "lab", uri=None) == run(*add, uri=None, RPCSTREAM_PROFILE="lab") == right
    assert run(*add, uri=None, RPCSTREAM_ADDRESS=guarded, RPCSTREAM_TOKEN="right") == right
    assert run(*add, "-p", port, "--token", "right", uri=None, RPCSTREAM_PROFILE="lab") == right
    assert run(*add, "--token-file", token, uri=guarded) == right
    assert run(*add, uri=None, RPCSTREAM_ADDRESS=guarded)[0] == 1
    assert run(*add, "--token", "", uri=None, RPCSTREAM_PROFILE="lab")[0] == 1
    little = {"RPCSTREAM_PROFILE": "lab", "RPCSTREAM_TIMEOUT": "0.000001"}
    assert run("rpc.ping", "--timeout", "0", uri=None, **little)[0] == 0
    assert run("rpc.ping", uri=None, **little)[0] in (3, 4)
    moved = (folder / "config.toml").rename(folder / "other.toml")
    assert run(*add, "--profile", "lab", "--config", str(moved), uri=None) == right
    assert run(*add, uri=None, RPCSTREAM_PROFILE="lab", RPCSTREAM_CONFIG=str(moved)) == right


@pytest.mark.parametrize(
    ("argv", "variables", "complaint"),
    [
        (["--profile", "lap"], {}, "--profile: FILE has no profile 'lap' (did you mean 'lab'?); it has: lab, wrong"),
        (["--profile", "wrong"], {}, "FILE: wrong: unknown option 'prot' of a client (did you mean 'port'?)"),
        ([], {"RPCSTREAM_TIMEOUT": "x"}, "environment variable RPCSTREAM_TIMEOUT: expected a number"),
        (["--config", "/no/such"], {}, "cannot read '/no/such': No such file or directory"),
        (["--token-file", "/no/such"], {}, "token_file: cannot read '/no/such': No such file or directory"),
        (["-p", "0", "--profile", "lab"], {}, "--port: expected a number from 1 to 65535, got 0"),
        (["--ca", "x", "--uri", "127.0.0.1:1"], {}, "--ca"),
        (["--key", "x", "--uri", "tls://127.0.0.1:1"], {}, "--key"),
    ],
)
def test_mistakes_name_the_option(
    run: Run, folder: Path, argv: list[str], variables: dict[str, str], complaint: str
) -> None:
    status, out, err = run("add", *argv, uri=None, **variables)
    assert (status, out) == (2, "")
    assert err.replace(str(folder / "config.toml"), "FILE").startswith(f"rpcstream: {complaint}")
    assert err.count("\n") == 1


# -- as processes ---------------------------------------------------------------------------------------------------


def test_python_m_and_standard_input(address: str) -> None:
    assert ended("sum", "-", "--uri", address, input='{"a": 1, "b": 5}') == (0, "6\n", "")
    status, _, err = ended("sum", "-", "--uri", address, input="{")
    assert (status, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("command", "status", "out"),
    [
        ("sum a=1 --uri {} >&-", 0, ""),
        ("sum a=1 --uri {} 2>&-", 0, "3\n"),
        ("sum a=1 --uri {} >&- 2>&-", 0, ""),
        ("sum - --uri {} <&-", 2, ""),
        ("sum a=1 --uri {} >/dev/full", 2, ""),
        ("--stream numbers n=1000000000 --uri {} | head -2", 0, "0\n1\n"),
    ],
)
def test_standard_streams_that_are_closed_or_full(command: str, status: int, out: str, address: str) -> None:
    shell = f"{sys.executable} -m rpcstream {command.format(address)}"
    done = subprocess.run(shell, shell=True, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, out)
    assert "Traceback" not in done.stderr
    if "full" in command:
        assert done.stderr == "rpcstream: cannot write the result: No space left on device\n"


@pytest.mark.parametrize(
    ("argv", "left"), [(["ramp", "n=300000"], None), (["--stream", "numbers", "n=1000000000"], "numbers")]
)
def test_a_reader_who_leaves_is_no_error(argv: list[str], left: str | None, address: str, server: Called) -> None:
    server.left.clear()
    with started(*argv, "--uri", address) as calling:
        assert calling.stdout is not None
        assert calling.stderr is not None
        calling.stdout.read(10)
        calling.stdout.close()
        assert (calling.stderr.read(), calling.wait(30)) == ("", 141)
    until_in_thread(lambda: left in (None, *server.left))


def sleeps(pid: int) -> bool:
    """Whether the main thread of a process waits for something, as far as the system tells."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize(
    ("argv", "first"),
    [(["never", "-v"], '> {"json'), (["hang", "--progress"], "hanging"), (["--stream", "ticks"], "1")],
)
def test_interrupted(argv: list[str], first: str, address: str, server: Called) -> None:
    server.left.clear()
    requests = server.counters.requests
    with started(*argv, "--uri", address, stderr=subprocess.STDOUT) as calling:
        assert calling.stdout is not None
        assert calling.stdout.readline().startswith(first)
        assert calling.poll() is None
        # A call that is interrupted while it is sent ends its connection, and is not cancelled.
        until_in_thread(lambda: server.counters.requests > requests and sleeps(calling.pid))
        calling.send_signal(signal.SIGINT)
        cancel = '> {"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}\n' if "-v" in argv else ""
        assert (calling.communicate(timeout=30)[0], calling.returncode) == (cancel, 130)
    until_in_thread(lambda: "--stream" not in argv or server.left == ["ticks"])


def test_a_program_that_is_killed_ends_its_stream(address: str, server: Called) -> None:
    server.left.clear()
    with started("--stream", "ticks", "--uri", address) as calling:
        assert calling.stdout is not None
        assert calling.stdout.readline() == "1\n"
        calling.kill()
    until_in_thread(lambda: server.left == ["ticks"])


@pytest.mark.parametrize("argv", [["sum", "a=1", "b=2"], ["progress", "n=3", "--progress"]])
def test_a_plain_call_imports_little(argv: list[str], address: str) -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "from rpcstream.cli.call import main\n"
        f"status = main([*{argv!r}, '--uri', {address!r}])\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('rpcstream', 'concurrent'))))\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", script]
    done: Any = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=True)
    result, modules, own = done.stdout.splitlines()
    assert result == "3"
    heavy = {"numpy", "PIL", "msgspec", "asyncio", "logging", "concurrent", "pybase64", "argcomplete"}
    assert heavy.isdisjoint(modules.split())
    assert {"rpcstream.server", "rpcstream.client.aio", "rpcstream.codec.hints"}.isdisjoint(own.split())
