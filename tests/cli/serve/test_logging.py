"""`rpcstream-server`: `--metrics`, `--access-log`, `--log-slow-calls` and `--log-config`; a real Prometheus asks."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client

from ...kit import until_in_thread
from ...kit.example_count import IS_THOROUGH
from ...observe.reading import check_with_promtool, outcomes
from ..conftest import StartServer
from .conftest import TOKEN

pytestmark = pytest.mark.slow


def metrics_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as response:
        text: str = response.read().decode()
    return text


@pytest.mark.parametrize("target", [["app:server"], ["--hub"]])
def test_metrics_of_a_server_and_of_a_hub(target: list[str], folder: Path, start_server: StartServer) -> None:
    server = start_server(*target, "-p", "0", "--metrics", cwd=folder)
    with Client(server.address) as client:
        client.request("rpc.ping")
    text = metrics_of(server.address)
    assert outcomes(text)["rpc.ping", "0"] == 1
    check_with_promtool(text)


def test_a_hub_takes_them_from_its_configuration(folder: Path, start_server: StartServer) -> None:
    (folder / "hub.toml").write_text('metrics = "public"\naccess_log = "text"\nlog_slow_calls = 5\ntoken = "horse"\n')
    server = start_server("--hub", "--config", "hub.toml", "-p", "0", cwd=folder)
    with Client(server.address, token="horse") as client:
        client.request("rpc.ping")
    assert outcomes(metrics_of(server.address))["rpc.ping", "0"] == 1
    err = server.stop()
    assert " tcp token rpc.ping id=2 code=0 " in err
    assert "horse" not in err


CONFIG: dict[str, Any] = {
    "version": 1,
    "formatters": {"plain": {"format": "<%(name)s> %(message)s"}},
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "out.log", "formatter": "plain"}},
    "root": {"level": "INFO", "handlers": ["file"]},
}
TOML = """
[formatters.plain]
format = "<%(name)s> %(message)s"
[handlers.file]
class = "logging.FileHandler"
filename = "out.log"
formatter = "plain"
[root]
level = "INFO"
handlers = ["file"]
"""
CONFIGS = {"json": json.dumps(CONFIG), "toml": TOML}
ACCESS = " double id=1 code=0 "


@pytest.mark.parametrize(
    ("argv", "words", "count"),
    [
        # Words that stand in all lines, but for those of a supervisor; and how many lines there are.
        (["--access-log", "text"], [ACCESS], 1),
        (["--access-log", "json", "--set", "log_slow_calls=0.01", "--log-level", "error"], ['"method":"double"'], 1),
        (["--set", "log_slow_calls=0.00000001"], ["WARNING rpcstream.server: slow call: double took 0."], 1),
        (["--log-level", "info"], [" INFO rpcstream.server: "], None),
        (["--debug"], [" INFO rpcstream.server: ", " INFO rpcstream.wire: "], None),
        ([], [], 0),
        *(
            (["--set", f"log_config={name}", "--access-log", "text"], ["<rpcstream."], None)
            for name in ("a.json", "a.toml")
        ),
        (["--set", "log_config=a.toml", "--access-log", "text", "--log-level", "error"], ["<rpcstream.access> "], 1),
    ],
)
@pytest.mark.parametrize("processes", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_the_log(
    argv: list[str],
    words: list[str],
    count: int | None,
    processes: tuple[str, ...],
    folder: Path,
    start_server: StartServer,
) -> None:
    """Each option does the same in one process and in several."""
    for form, text in CONFIGS.items():
        (folder / f"a.{form}").write_text(text)
    server = start_server("app:server", "-p", "0", *argv, *processes, cwd=folder)
    with Client(server.address) as client:
        client.double(4)
    log = server.stop()
    has_file = any("log_config" in each for each in argv)
    if has_file:
        assert log == ""
        log = (folder / "out.log").read_text()
    if processes and "--log-config" not in argv:
        assert re.search(r"(?m)^[^{}]*(WARNING|INFO) rpcstream", log) is None  # each line has the number of its process
        log = re.sub(r"(WARNING|INFO) \[\d+\] rpcstream", r"\1 rpcstream", log)
    lines = [line for line in log.splitlines() if "rpcstream.supervisor" not in line]
    assert len(lines) == count or count is None
    assert [line for line in lines if not any(word in line for word in words)] == []
    assert [word for word in words if word not in log] == []
    if "json" in argv:
        found = {"transport": "tcp", "method": "double", "id": 1, "code": 0}
        assert json.loads(lines[0]).items() >= found.items()
    elif "--access-log" in argv:
        assert ACCESS in log
        assert ("rpcstream.access" in log) is has_file
    assert ("<rpcstream.server> stopped" in log) is (has_file and count is None)


PROMETHEUS = """
global: {scrape_interval: 200ms}
scrape_configs:
  - job_name: rpcstream
    authorization: {credentials: %s}
    static_configs: [{targets: ["%s"]}]
"""


@pytest.mark.thorough  # it takes some seconds to begin
@pytest.mark.skipif(not IS_THOROUGH, reason="RPCSTREAM_THOROUGH is not set")
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_prometheus_server_reads_them(folder: Path, start_server: StartServer) -> None:
    server = start_server("app:server", "-p", "0", "--metrics", "--token-file", "token", cwd=folder)
    with Client(server.address, token=TOKEN) as client:
        for _ in range(7):
            client.double(1)
    (folder / "prometheus.yml").write_text(PROMETHEUS % (TOKEN, server.address))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    asked = urllib.parse.quote('rpcstream_calls_total{method="double",code="0"}')
    found: list[Any] = []

    def is_found() -> bool:
        assert prometheus.poll() is None, (folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={asked}", timeout=5) as reply:
                found[:] = json.load(reply)["data"]["result"]
        except urllib.error.URLError:
            return False
        return bool(found)

    with open(folder / "prometheus.log", "wb") as log:
        prometheus = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        until_in_thread(is_found)
        assert found[0]["value"][1] == "7"
    finally:
        prometheus.kill()
        prometheus.wait(20)
