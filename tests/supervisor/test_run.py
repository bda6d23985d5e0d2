"""`rpcstream.run`: which server workers find again, and what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rpcstream
from rpcstream import Client, Hub, Server

from ..cli.conftest import environment

pytestmark = pytest.mark.slow

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
        ('if __name__ == "__main__":\n    rpcstream.run(server, workers=2, port=0)', "script"),
        ("rpcstream.run(server, workers=2, port=0)", "script"),
        ('if __name__ == "__main__":\n    rpcstream.run("other:server", workers=2, port=0)', "other"),
    ],
)
def test_a_script_runs_its_server_in_several_processes(call: str, module: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(call=call) + "\nprint('over')\n")
    (tmp_path / "other.py").write_text(SCRIPT.format(call=""))
    command = [sys.executable, "script.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = line.removeprefix("Listening at ").split()[0]
        with Client(address) as one, Client(address) as other:
            pids = [client.pid() for client in (one, other)]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert {name for _, name in pids} == {module}
    assert len({pid for pid, _ in pids} - {process.pid}) == 2
    assert "over" in out


def test_a_server_without_a_name_in_a_module_is_refused() -> None:
    with pytest.raises(ValueError, match="give an import string"):
        rpcstream.run(Server(), workers=2)


def test_a_hub_is_one_process() -> None:
    with pytest.raises(ValueError, match="a hub is one process"):
        rpcstream.run(Hub(), workers=2)


@pytest.mark.parametrize("workers", [0, -1, True, "many", 1.5])
def test_the_number_of_workers_must_be_one(workers: object) -> None:
    with pytest.raises(ValueError, match="no number of processes"):
        rpcstream.run("module:server", workers=workers)


def test_a_target_that_is_not_there_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="there is no module 'not_there_at_all'"):
        rpcstream.run("not_there_at_all:server")


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_the_time_for_a_start_must_be_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match="start_timeout must be a positive number of seconds, or None"):
        rpcstream.run("module:server", workers=2, start_timeout=seconds)
