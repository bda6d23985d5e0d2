"""How a server in several processes starts: `Server.run`, `--reload`, and workers that hang meanwhile.

Those that hang are killed and replaced.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client, Hub, Server

from ..cli.conftest import environment
from ..kit import until_in_thread
from ..kit.nats_server import NatsServer, skip_without_program
from .conftest import APP, StartWorkers, WorkersProcess, has_ended, run, serve_command

pytestmark = pytest.mark.slow
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def started(folder: Path, *command: str, **options: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options
    )


SCRIPT = """
import os
import rpcstream

server = rpcstream.Server()

@server
def pid() -> tuple[int, str]:
    return os.getpid(), __name__

{call}
"""


@pytest.mark.parametrize(
    ("call", "module"),
    [
        ('if __name__ == "__main__":\n    server.run(workers=2, port=0)', "script"),
        ("server.run(workers=2, port=0)", "script"),
        ('if __name__ == "__main__":\n    from other import server\n    server.run(workers=2, port=0)', "other"),
    ],
)
def test_a_script_runs_its_server_in_several_processes(call: str, module: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(call=call) + "\nprint('over')\n")
    (tmp_path / "other.py").write_text(SCRIPT.format(call=""))
    with started(tmp_path, sys.executable, "script.py") as process:
        assert process.stderr is not None
        address = process.stderr.readline().removeprefix("Listening at ").split()[0]
        with Client(address) as one, Client(address) as other:
            pids = [client.pid() for client in (one, other)]
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert {name for _, name in pids} == {module}
    assert len({pid for pid, _ in pids} - {process.pid}) == 2
    assert "over" in out


@pytest.mark.parametrize(
    ("server", "options", "text"),
    [
        (Server(), {"workers": 2}, "give it a name"),
        (Hub(), {"workers": 2}, "a hub must be one process"),
        *[(Server(), {"workers": each}, "is not a number from 1 to 1,000") for each in (0, True, "many", 1.5)],
        *[(Server(), {"workers": 2, "start_timeout": each}, "start_timeout must be a p") for each in (0, -1.0)],
    ],
)
def test_what_makes_no_sense_is_refused(server: Server, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        server.run(**options)


# -- with --reload -----------------------------------------------------------------------------------------------------


def test_a_change_is_served_and_a_mistake_is_waited_out(start: StartWorkers, tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    program = start("--reload")
    with Client(program.address) as client:
        assert client.pid() > 0
        (tmp_path / "app.py").write_text(APP.replace("return os.getpid()", "return -1"))
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


def test_a_module_that_is_imported_from_elsewhere_is_watched_too(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    (tmp_path / "library").mkdir()
    (tmp_path / "program").mkdir()
    (tmp_path / "library" / "answers.py").write_text("ANSWER = 1\n")
    (tmp_path / "program" / "app.py").write_text(
        f"import sys\nsys.path.append({str(tmp_path / 'library')!r})\nimport answers\nfrom rpcstream import Server\n"
        "server = Server()\n@server\ndef answer() -> int:\n    return answers.ANSWER\n"
    )
    program = WorkersProcess(serve_command("app.py", "-p", "0", "--reload"), tmp_path / "program")
    try:
        with Client(program.address) as client:
            assert client.answer() == 1
            (tmp_path / "library" / "answers.py").write_text("ANSWER = 2\n")
            until_in_thread(lambda: client.answer() == 2)
            (tmp_path / "library" / "other.py").write_text("")  # the program has nothing to do with it
        assert program.end() == 0
        assert program.log.count("starting again") == 1
    finally:
        program.close()


def test_a_program_that_cannot_start_is_tried_again_when_it_has_changed(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    (tmp_path / "app.py").write_text("import not_there_at_all\n")
    with started(tmp_path, *serve_command("app.py", "-p", "0", "--reload")) as process:
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
    ended = run(tmp_path, sys.executable, "-c", hidden, "app.py", "-p", "0", "--reload")
    assert ended.returncode == 2
    assert 'pip install "rpcstream[reload]"' in ended.stderr


# -- workers that hang ------------------------------------------------------------------------------------------------

HANGS_ONCE = """
import pathlib, time
if not pathlib.Path("tried").exists():
    pathlib.Path("tried").touch()
    time.sleep(1000)
"""

HANGS_WHILE_FILE = """
import pathlib, time
while pathlib.Path("hang").exists():
    time.sleep(1000)
"""

#: What the supervisor logs of a worker that it kills.
KILLED = re.compile(r"worker 1 \(pid \d+\) was not ready within 3 s \(start_timeout\): it is killed")


def health(program: WorkersProcess, path: str = "/healthz", method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{program.address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@linux
def test_a_first_start_that_hangs_is_tried_again(start: StartWorkers) -> None:
    program = start("--workers", "2", "--set", "start_timeout=3", app=HANGS_ONCE + APP)
    assert KILLED.search(program.log)
    assert "it is tried again in 0.1 s" in program.log
    assert health(program)[0] == 200
    assert program.end() == 0


@pytest.fixture
def without_workers(start: StartWorkers) -> WorkersProcess:
    """A program whose worker was killed, and whose new one hangs while the file `hang` is there."""
    program = start("--set", "start_timeout=3", app=HANGS_WHILE_FILE + APP)
    (program.folder / "hang").touch()
    (pid,) = program.pids()
    os.kill(pid, signal.SIGKILL)
    until_in_thread(lambda: "has ended with" in program.log)
    return program


@linux
def test_after_a_death_another_one_is_tried_until_one_serves(without_workers: WorkersProcess) -> None:
    program = without_workers
    with socket.create_connection(program.place, timeout=60) as waiting:
        waiting.sendall(b'{"jsonrpc":"2.0","id":1,"method":"pid"}\n')
        until_in_thread(lambda: KILLED.search(program.log))
        until_in_thread(lambda: "could not be started, killed by SIGKILL: it is tried again in" in program.log)
        (program.folder / "hang").unlink()
        reply = json.loads(waiting.makefile().readline())
        assert reply["result"] in program.pids()
    assert health(program)[0] == 200
    assert program.end() == 0


WAITS_WHILE_FILE = """
import pathlib, time

while pathlib.Path("hold").exists():
    pathlib.Path("held").touch()
    time.sleep(0.01)
"""


@linux
@pytest.mark.nats
def test_a_worker_may_be_stopped_while_it_starts(tmp_path: Path) -> None:
    """It has joined its service at NATS, and the supervisor, which stands still, has not said yet that it may serve."""
    skip_without_program()
    (tmp_path / "app.py").write_text(WAITS_WHILE_FILE + APP)
    with NatsServer() as nats:
        address = f"{nats.url}/words"
        options = ("--nats", address, "--set", "nats_only=true", "--workers", "2", "--log-level", "info")
        program = WorkersProcess(serve_command("app.py", *options), tmp_path)
        try:
            with Client(address, timeout=20) as client:
                pids: set[int] = set()

                def has_seen(count: int) -> bool:
                    pids.add(client.pid())
                    return len(pids) == count

                until_in_thread(lambda: has_seen(2))
                before = set(pids)
                (tmp_path / "hold").touch()
                os.kill(min(pids), signal.SIGKILL)
                until_in_thread((tmp_path / "held").exists)
                program.send(signal.SIGSTOP)
                (tmp_path / "hold").unlink()
                until_in_thread(lambda: has_seen(3))
            (new,) = pids - before
            os.kill(new, signal.SIGTERM)
            until_in_thread(lambda: ": stopped\n" in program.log)
            program.send(signal.SIGCONT)
            until_in_thread(lambda: has_ended(new))
            until_in_thread(lambda: "with 0 connections, with status" in program.log)
            assert "with 0 connections, with status 0" in program.log
            assert program.end() == 0
        finally:
            program.close()
