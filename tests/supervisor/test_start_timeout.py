"""Workers that hang while they start: each is killed and replaced, and health checks are answered meanwhile."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..cli.conftest import environment
from ..kit import until_in_thread
from ..server.activation import PASS_ON
from .conftest import APP, StartWorkers, WorkersProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")]

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


def test_a_first_start_that_hangs_is_tried_again(start: StartWorkers) -> None:
    program = start("--workers", "2", "--start-timeout", "3", app=HANGS_ONCE + APP)
    assert KILLED.search(program.log)
    assert "it is tried again in 0.1 s" in program.log
    assert health(program)[0] == 200
    assert program.end() == 0


class TestAfterADeath:
    @pytest.fixture
    def program(self, start: StartWorkers) -> WorkersProcess:
        """A program without any worker, since the new one hangs while the file `hang` is there."""
        program = start("--start-timeout", "3", app=HANGS_WHILE_FILE + APP)
        (program.folder / "hang").touch()
        (pid,) = program.pids()
        os.kill(pid, signal.SIGKILL)
        until_in_thread(lambda: "has ended with" in program.log)
        return program

    def test_another_one_is_tried_until_one_serves(self, program: WorkersProcess) -> None:
        with socket.create_connection(program.place, timeout=60) as waiting:
            waiting.sendall(b'{"jsonrpc":"2.0","id":1,"method":"pid"}\n')
            until_in_thread(lambda: KILLED.search(program.log))
            until_in_thread(lambda: "could not be started, killed by SIGKILL: it is tried again in" in program.log)
            (program.folder / "hang").unlink()
            reply = json.loads(waiting.makefile().readline())
            assert reply["result"] in program.pids()
        assert health(program)[0] == 200
        assert program.end() == 0

    def test_health_checks_are_answered_whoever_else_waits(self, program: WorkersProcess) -> None:
        assert health(program) == (503, b"no worker runs.\n")
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(program.place, timeout=20))
            assert health(program, "/readyz?verbose") == (503, b"no worker runs.\n")
            assert health(program, "/readyz", "HEAD") == (503, b"")
        assert program.end() == 0

    def test_clients_that_have_left_keep_no_health_check_out(self, program: WorkersProcess) -> None:
        resource.prlimit(program.process.pid, resource.RLIMIT_NOFILE, (120, 120))
        for _ in range(200):
            with socket.create_connection(program.place, timeout=20) as leaving:
                leaving.sendall(b'{"jsonrpc":"2.0","id":1,"method":"pid"}\n')
        assert health(program) == (503, b"no worker runs.\n")
        assert program.end() == 0


def test_health_checks_at_sockets_that_were_passed_are_answered_while_the_first_start_hangs(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    (tmp_path / "app.py").write_text(HANGS_WHILE_FILE + APP)
    with socket.create_server(("127.0.0.1", 0)) as passed:
        host, port = passed.getsockname()
        own = ["-m", "rpcstream.cli.serve", "app.py", "--workers", "2", "--start-timeout", "20"]
        command = [sys.executable, "-c", PASS_ON, str(passed.fileno()), *own]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), pass_fds=[passed.fileno()], stdout=subprocess.DEVNULL
        )
        try:
            with socket.create_connection((host, port), timeout=15) as check:
                check.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert check.makefile().readline() == "HTTP/1.1 503 Service Unavailable\n"
        finally:
            process.terminate()
            assert process.wait(20) == 0
