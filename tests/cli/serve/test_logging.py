"""`rpcstream-server`: `--metrics`, `--access-log`, `--log-slow-calls` and `--log-config`; a real Prometheus asks."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client

from ...kit.example_count import IS_THOROUGH
from ...observe.reading import check_with_promtool, outcomes
from ..conftest import StartServer, environment

APP = """
import time
from rpcstream import Server

server = Server()

@server
def add(a: int, b: int) -> int:
    return a + b

@server
def pause() -> None:
    time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture(params=[(), ("--workers", "2")], ids=["one process", "workers"])
def processes(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Options that say in how many processes the server runs: each option of logging does the same in all."""
    options: tuple[str, ...] = request.param
    return options


def metrics_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as response:
        text: str = response.read().decode()
    return text


@pytest.mark.parametrize("target", [["app"], ["--hub"]])
def test_metrics_of_a_server_and_of_a_hub(target: list[str], folder: Path, start_server: StartServer) -> None:
    server = start_server(*target, "-p", "0", "--metrics", cwd=folder)
    with Client(server.address) as client:
        client.request("rpc.ping")
    text = metrics_of(server.address)
    assert outcomes(text)["rpc.ping", "0"] == 1
    check_with_promtool(text)


def test_lines_of_the_access_log_and_of_slow_calls_are_on_standard_error(
    processes: tuple[str, ...], folder: Path, start_server: StartServer
) -> None:
    logging = ("--access-log", "json", "--log-slow-calls", "0.01", "--log-level", "error")
    server = start_server("app", "-p", "0", *logging, *processes, cwd=folder)
    with Client(server.address) as client:
        assert client.add(1, 2) == 3
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.rest()
    (line,) = err.splitlines()
    assert json.loads(line).items() >= {"transport": "tcp", "method": "add", "id": 1, "code": 0}.items()


def test_the_access_log_as_text(processes: tuple[str, ...], folder: Path, start_server: StartServer) -> None:
    server = start_server("app", "-p", "0", "--access-log", "text", *processes, cwd=folder)
    with Client(server.address) as client:
        client.add(1, 2)
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.rest()
    (line,) = err.splitlines()
    assert " add id=1 code=0 " in line
    assert "rpcstream.access" not in line


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (("--log-level", "info"), {"rpcstream.server"}),
        (("--debug",), {"rpcstream.server", "rpcstream.wire"}),
        ((), set()),
    ],
)
def test_the_level_of_the_log(
    level: tuple[str, ...], names: set[str], processes: tuple[str, ...], folder: Path, start_server: StartServer
) -> None:
    server = start_server("app", "-p", "0", *level, *processes, cwd=folder)
    with Client(server.address) as client:
        client.add(1, 2)
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.rest()
    found = {line.split(" INFO ")[1].partition(":")[0] for line in err.splitlines()}
    assert found - {"rpcstream.supervisor"} == names


def test_a_slow_call_is_named(processes: tuple[str, ...], folder: Path, start_server: StartServer) -> None:
    server = start_server("app", "-p", "0", "--log-slow-calls", "0.01", *processes, cwd=folder)
    with Client(server.address) as client:
        client.pause()
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.rest()
    assert "WARNING rpcstream.server: slow call: pause took 0." in err


def test_a_hub_takes_them_from_its_configuration(folder: Path, start_server: StartServer) -> None:
    (folder / "hub.toml").write_text('metrics = "public"\naccess_log = "text"\nlog_slow_calls = 5\ntoken = "horse"\n')
    server = start_server("--hub", "--config", "hub.toml", "-p", "0", cwd=folder)
    with Client(server.address, token="horse") as client:
        client.request("rpc.ping")
    assert outcomes(metrics_of(server.address))["rpc.ping", "0"] == 1
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.rest()
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

INI = """
[loggers]
keys=root
[handlers]
keys=file
[formatters]
keys=plain
[logger_root]
level=INFO
handlers=file
[handler_file]
class=FileHandler
args=("out.log",)
formatter=plain
[formatter_plain]
format=<%(name)s> %(message)s
"""


@pytest.mark.parametrize(("name", "text"), [("log.json", json.dumps(CONFIG)), ("log.toml", TOML), ("log.ini", INI)])
def test_logging_is_set_up_by_a_file(
    name: str, text: str, processes: tuple[str, ...], folder: Path, start_server: StartServer
) -> None:
    (folder / name).write_text(text)
    server = start_server("app", "-p", "0", "--log-config", name, "--access-log", "text", *processes, cwd=folder)
    with Client(server.address) as client:
        client.add(1, 2)
    server.process.send_signal(signal.SIGTERM)
    status, _, err = server.rest()
    lines = (folder / "out.log").read_text().splitlines()
    assert (status, err) == (0, "")
    assert [line for line in lines if line.startswith("<rpcstream.access> ") and " add id=1 code=0 " in line]
    assert "<rpcstream.server> stopped" in lines


def test_the_level_counts_beside_a_file(processes: tuple[str, ...], folder: Path, start_server: StartServer) -> None:
    (folder / "log.toml").write_text(TOML)
    logging = ("--log-config", "log.toml", "--access-log", "text", "--log-level", "error")
    server = start_server("app", "-p", "0", *logging, *processes, cwd=folder)
    with Client(server.address) as client:
        client.add(1, 2)
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.rest()
    (line,) = (folder / "out.log").read_text().splitlines()
    assert line.startswith("<rpcstream.access> ")
    assert err == ""


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.json", None, "No such file or directory"),
        ("none.ini", None, "No such file or directory"),
        ("bad.json", "{", "this is not JSON"),
        ("bad.toml", "a =", "this is not TOML"),
        ("wrong.json", '{"root": {"handlers": ["nothing"]}}', "nothing"),
        ("bad.ini", "[loggers]\n", "'formatters' is missing"),
    ],
)
def test_a_file_that_makes_no_sense_is_said_in_a_line(name: str, text: str | None, words: str, folder: Path) -> None:
    if text is not None:
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "rpcstream.cli.serve", "app", "--log-config", name]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rpcstream-server: --log-config {name}: ")
    assert words in line


PROMETHEUS = """
global: {scrape_interval: 200ms}
scrape_configs:
  - job_name: rpcstream
    authorization: {credentials: horse}
    static_configs: [{targets: ["%s"]}]
"""


@pytest.mark.thorough  # it takes some seconds to begin
@pytest.mark.skipif(not IS_THOROUGH, reason="RPCSTREAM_THOROUGH is not set")
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_prometheus_server_reads_them(folder: Path, start_server: StartServer) -> None:
    (folder / "token").write_text("horse")
    server = start_server("app", "-p", "0", "--metrics", "--token-file", "token", cwd=folder)
    with Client(server.address, token="horse") as client:
        for _ in range(7):
            client.add(1, 2)
    (folder / "prometheus.yml").write_text(PROMETHEUS % server.address)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    asked = urllib.parse.quote('rpcstream_calls_total{method="add",code="0"}')
    with open(folder / "prometheus.log", "wb") as log:
        prometheus = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        found: list[Any] = []
        until = time.monotonic() + 20
        while not found and time.monotonic() < until:
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={asked}", timeout=5) as reply:
                    found = json.load(reply)["data"]["result"]
            except urllib.error.URLError:
                assert prometheus.poll() is None, (folder / "prometheus.log").read_text()
        assert found[0]["value"][1] == "7"
    finally:
        prometheus.kill()
        prometheus.wait(20)
