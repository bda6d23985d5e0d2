"""`rpcstream --stubs`: from a server and from a file, to standard output and to a file; and `--check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run, ended


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Path:
    """A file with what the server says of itself."""
    path = tmp_path / "openrpc.json"
    assert run("rpc.discover", "-o", str(path))[0] == 0
    return path


@pytest.mark.parametrize("language", ["python", "typescript"])
def test_of_a_server_and_of_a_file(run: Run, saved: Path, language: str, tmp_path: Path) -> None:
    status, text, err = run("--stubs", language)
    assert (status, err) == (0, "")
    assert "ramp" in text
    assert run("--stubs", language, str(saved), uri=None) == (0, text, "")
    # A file is written where it changes.
    path = tmp_path / "api"
    assert run("--stubs", language, str(saved), "-o", str(path), uri=None)[0] == 0
    assert path.read_text() == text
    before = path.stat().st_mtime_ns
    assert run("--stubs", language, str(saved), "--output", str(path), uri=None)[0] == 0
    assert path.stat().st_mtime_ns == before
    # Standard input may be a whole reply.
    reply = json.dumps({"jsonrpc": "2.0", "id": 1, "result": json.loads(saved.read_text())})
    assert ended("--stubs", language, "-", input=reply) == (0, text, "")


def test_check(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "api.py"
    text = run("--stubs", "python")[1]
    for current in (text, text.replace("\n", "\r\n")):
        path.write_bytes(current.encode())
        assert run("--stubs", "python", "--check", str(path)) == (0, "", "")
    path.write_text(text.replace("a: int, b: int = ...", "a: int, c: int = ..."))
    status, out, err = run("--stubs", "python", "--check", str(path))
    number = text[: text.index("a: int, b: int = ...")].count("\n") + 1
    assert (status, out) == (1, "")
    assert f"api.py' does not have the types that the server offers now (from line {number} on)" in err
    assert "c: int" in path.read_text(), "nothing is written"
    for content in (b"", b"x\n" * 50_000, b"\xff\x1b[31m\n"):
        path.write_bytes(content)
        status, out, err = run("--stubs", "python", "--check", str(path))
        assert (status, out, err.count("\n"), "\x1b" in err) == (1, "", 1, False)


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        (["--stubs", "python", "nothere.json"], 2, "cannot read 'nothere.json': No such file"),
        (["--stubs", "python", "text.txt"], 2, "'text.txt' is not JSON: "),
        (
            ["--stubs", "python", "list.json"],
            1,
            "no types can be written for this document: this is not an OpenRPC document",
        ),
        (["--stubs", "python", "list.json", "a=1"], 2, "--stubs takes no parameters"),
        (["--stubs", "python", "list.json", "--list"], 2, "--list does not go with --stubs"),
        (["--stubs", "python", "list.json", "--check", "a.py", "-o", "b.py"], 2, "--check writes nothing, so it does"),
        (["--stubs", "python", "good.json", "--check", "nothere.py"], 2, "cannot read 'nothere.py'"),
        (["--stubs", "python", "good.json", "-o", "nothere/api.py"], 2, "there is no folder"),
        (["--check", "api.py", "x"], 2, "--check goes with --stubs"),
        (["--stubs", "python", "--uri", "127.0.0.1:1", "-o", "api.py"], 3, "127.0.0.1:1"),
    ],
)
def test_mistakes(
    argv: list[str], status: int, text: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("hello")
    Path("list.json").write_text("[1]")
    Path("good.json").write_text('{"methods": []}')
    found, _, err = run(*argv, uri=None)
    assert (found, text in err) == (status, True), err
    assert not Path("api.py").exists()
