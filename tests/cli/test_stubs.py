"""`rpcstream --stubs`: from a server and from a file, to standard output and to a file; and `--check`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import Client, Server
from rpcstream.cli.call import main
from rpcstream.cli.output import TaggedCodec
from rpcstream.stubs import LANGUAGES, stubs
from rpcstream.testing import serve_in_thread


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server(drain_timeout=0.1)

    @server
    def add(a: int, b: int = 2) -> int:
        return a + b

    with serve_in_thread(server) as where:
        yield where


@pytest.fixture
def document(address: str) -> Any:
    with Client(address, codec=TaggedCodec()) as client:
        return client.discover()


@pytest.fixture
def saved(document: Any, tmp_path: Path) -> str:
    path = tmp_path / "openrpc.json"
    path.write_bytes(orjson.dumps(document))
    return str(path)


@pytest.mark.parametrize("language", LANGUAGES)
def test_of_a_server_and_of_a_file(
    address: str, document: Any, saved: str, language: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for source in (["--uri", address], [saved]):
        assert main(["--stubs", language, *source]) == 0
        assert capsysbinary.readouterr().out.decode() == stubs(document, language)


def test_of_standard_input_which_may_be_a_whole_reply(
    document: Any, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    reply = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": document})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(reply)))
    assert main(["--stubs", "python", "-"]) == 0
    assert capsysbinary.readouterr().out.decode() == stubs(document, "python")


def test_a_file_is_written_where_it_changes(saved: str, document: Any, tmp_path: Path) -> None:
    path = tmp_path / "api.ts"
    for _ in range(2):
        assert main(["--stubs", "typescript", saved, "-o", str(path)]) == 0
        assert path.read_bytes().decode() == stubs(document, "typescript")
    before = path.stat().st_mtime_ns
    assert main(["--stubs", "typescript", saved, "--output", str(path)]) == 0
    assert path.stat().st_mtime_ns == before


def test_check(address: str, document: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "api.py"
    text = stubs(document, "python")
    asked = ["--stubs", "python", "--uri", address, "--check", str(path)]
    for current in (text, text.replace("\n", "\r\n")):
        path.write_bytes(current.encode())
        assert main(asked) == 0
        assert capfd.readouterr() == ("", "")

    path.write_text(text.replace("a: int, b: int = ...", "a: int, c: int = ..."))
    assert main(asked) == 1
    out, err = capfd.readouterr()
    number = text[: text.index("a: int, b: int = ...")].count("\n") + 1
    assert f"@@ -{number - 3}," in out
    assert "\n-    def __call__(self, a: int, c: int = ..., /" in out
    assert "\n+    def __call__(self, a: int, b: int = ..., /" in out
    assert f"api.py' does not have the types that the server offers now (from line {number} on)" in err
    assert "c: int" in path.read_text(), "nothing is written"


def test_check_of_a_file_that_has_nothing_in_common(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "api.py"
    for content, lines in ((b"", 200), (b"x\n" * 50_000, 0), (b"\xff\x1b[31m\n", 200)):
        path.write_bytes(content)
        assert main(["--stubs", "python", "--uri", address, "--check", str(path)]) == 1
        out, err = capfd.readouterr()
        assert out.count("\n") <= lines + 1
        assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nothere.json"], 2, "cannot read 'nothere.json': No such file"),
        (["text.txt"], 2, "'text.txt' is not JSON: "),
        (["list.json"], 1, "no types can be written for this document: it is no OpenRPC document"),
        (["list.json", "a=1"], 2, "--stubs takes no parameters"),
        (["list.json", "--list"], 2, "--list does not go with --stubs"),
        (["list.json", "--check", "a.py", "-o", "b.py"], 2, "--check writes nothing, so it does not go with -o"),
        (["good.json", "--check", "nothere.py"], 2, "cannot read 'nothere.py'"),
        (["good.json", "-o", "nothere/api.py"], 2, "there is no folder"),
    ],
)
def test_mistakes(
    arguments: list[str],
    status: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("hello")
    Path("list.json").write_text("[1]")
    Path("good.json").write_text('{"methods": []}')
    assert main(["--stubs", "python", *arguments]) == status
    assert text in capfd.readouterr().err


def test_check_without_stubs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "api.py", "x"]) == 2
    assert "--check goes with --stubs" in capfd.readouterr().err


def test_no_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "api.py"
    assert main(["--stubs", "python", "--uri", "127.0.0.1:1", "-o", str(path)]) == 3
    assert not path.exists()
