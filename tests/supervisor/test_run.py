"""`rpcstream.run`: which server workers find again, and what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("target", "options", "text"),
    [
        (Server(), {"workers": 2}, "give an import string"),
        (Hub(), {"workers": 2}, "a hub is one process"),
        *[("module:server", {"workers": each}, "no number of processes") for each in (0, -1, True, "many", 1.5)],
        ("not_there_at_all:server", {}, "there is no module 'not_there_at_all'"),
        *[("module:server", {"workers": 2, "start_timeout": each}, "start_timeout must be a p") for each in (0, -1.0)],
    ],
)
def test_what_makes_no_sense_is_refused(target: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rpcstream.run(target, **options)
