"""`--reload`: a change of a file is served, and a mistake in it is waited out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rpcstream import Client

from ..cli.conftest import environment
from ..kit import until_in_thread
from .conftest import APP, StartWorkers, serve_command

pytestmark = pytest.mark.slow

pytest.importorskip("watchfiles")

CHANGED = APP.replace("return os.getpid()", "return -1")


def test_a_change_is_served_and_a_mistake_is_waited_out(start: StartWorkers, tmp_path: Path) -> None:
    program = start("--reload")
    with Client(program.address) as client:
        assert client.pid() > 0
        (tmp_path / "app.py").write_text(CHANGED)
        until_in_thread(lambda: client.pid() == -1)
        (tmp_path / "app.py").write_text("def\n")
        until_in_thread(lambda: "reload failed" in program.log)
        assert "SyntaxError: invalid syntax" in program.log
        assert client.pid() == -1
        (tmp_path / "app.py").write_text(APP)
        until_in_thread(lambda: client.pid() > 0)
        (tmp_path / "notes.txt").write_text("no program")
    assert program.end() == 0
    assert program.log.count("starting again") == 3


def test_a_program_that_cannot_start_is_tried_again_when_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import not_there_at_all\n")
    command = serve_command("app.py", "-p", "0", "--reload")
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "tried again when a file changes" not in (line := process.stderr.readline()):
            assert line
        (tmp_path / "app.py").write_text(APP)
        assert process.stdout.readline().startswith("Listening at 127.0.0.1:")
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_without_watchfiles_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    hidden = "import sys; sys.modules['watchfiles'] = None; from rpcstream.cli.serve import main; sys.exit(main())"
    command = [sys.executable, "-c", hidden, "app.py", "-p", "0", "--reload"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert 'pip install "rpcstream[reload]"' in ended.stderr
