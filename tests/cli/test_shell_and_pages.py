"""`rpcstream --shell`, `--format table`, `--help` and `rpcstream help TOPIC`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rpcstream.cli.call import main
from rpcstream.cli.serve import main as serve_main

from .conftest import Called, Run, ended, started


def test_a_script_for_the_shell(address: str, tmp_path: Path) -> None:
    """Lines are carried out one after the other; wrong ones do not end it, and the last one gives the status."""
    at = ("--shell", "--uri", address)
    file = tmp_path / "a.json"
    lines = f"sum a=1\n\n  --stream numbers n=2\nsay 'text:str=a b' -o '{file}'\nhelp sum\nexit\nsum a=5\n"
    status, out, err = ended(*at, input=lines)
    assert (status, out.splitlines()[:3], err) == (0, ["3", "0", "1"], "")
    assert '"name":"sum"' in out
    assert file.read_text() == '"a b"\n'
    wrong = "sum a\nsum 'a=1\nnothing\nsum --frobnicate\nsum a=1 --uri x\nsum a=1\n"
    status, out, err = ended(*at, input=wrong)
    assert (status, out, err.count("\n")) == (0, "3\n", 5)
    assert ended(*at, "-v", input="nothing")[0] == 1
    for more in (["sum"], ["--stream"], ["-o", "x"]):
        assert ended(*at, *more, input="")[0] == 2
    assert ended("--shell", "--uri", "unix:///no/such", input="sum a=1\n")[0] == 3


@pytest.mark.slow
def test_the_shell_on_a_terminal(address: str, tmp_path: Path, server: Called) -> None:
    """Tab completes, Ctrl-C gives up a call, Ctrl-D ends it; the history is private."""
    pytest.importorskip("prompt_toolkit")
    import pty

    from .conftest import environment

    ours, theirs = pty.openpty()
    env = environment(TERM="xterm", HOME=str(tmp_path), PROMPT_TOOLKIT_NO_CPR="1", XDG_STATE_HOME="", LC_ALL="C.UTF-8")
    shell = started("--shell", "--progress", "--uri", address, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    seen = ""
    with shell as process:
        os.close(theirs)
        for typed, shown in [
            ("", "rpcstream>"),
            ("sum a=40\r", "42\n(.|\n)*rpcstream>"),
            ("photo_\t", "photo_size"),
            (" ph\t", "photo="),
            ("\x03", "rpcstream>"),
            ("hang\r", "hanging"),
            ("", "given up\n(.|\n)*rpcstream>"),
        ]:
            os.write(ours, typed.encode())
            if shown.startswith("given up"):
                process.send_signal(signal.SIGINT)
            while not (found := re.search(shown, seen)):
                seen += re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 65536).decode().replace("\r", ""))
            seen = seen[found.end() :]
        while process.poll() is None:  # between two lines the terminal may lose it
            os.write(ours, b"\x04")
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
    os.close(ours)
    assert process.returncode == 0
    history = tmp_path / ".local" / "state" / "rpcstream" / "history"
    assert history.read_text() == "sum a=40\nhang\n"
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            '[{"name": "roof", "heat": 31.5}, {"name": "cellar", "heat": 9, "wet": true}]',
            "name    heat  wet\nroof    31.5\ncellar     9  true",
        ),
        ('[[1, "a"], [22, "b", null]]', " 1  a\n22  b  null"),
        ('{"a": 1, "long": [1, {"b": 2}]}', 'a     1\nlong  [1, {"b": 2}]'),
        ('["x\\u001b", 1]', "x\\u001b\n1"),
        ("5", "5"),
        ("[]", "[]"),
    ],
)
def test_a_table(run: Run, value: str, text: str) -> None:
    assert run("echo", f"value:={value}", "--format", "table", "--no-schema") == (0, f"{text}\n", "")
    assert run("--list", "--format", "table")[1].splitlines()[0].split() == ["method", "summary"]
    for other in (["-o", "x"], ["--stream"]):
        assert run("echo", "value=1", "--format", "table", *other)[0] == 2


@pytest.mark.parametrize("command", [main, serve_main])
def test_help_fits_a_terminal_and_names_pages(
    command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(["--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: " in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    for topic in re.findall(r"help ([a-z-]+)[,)]", text):
        assert main(["help", topic]) == 0
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []
    assert main(["help", "value"]) == 2
    assert "no help about 'value' (did you mean 'values'?)" in capsys.readouterr().err
