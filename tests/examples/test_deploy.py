"""The files of examples/deploy, as far as they can be checked without a running systemd, docker and a cluster.

`python -m tests.examples.containers` builds the image and runs it, where there is docker.
"""

from __future__ import annotations

import configparser
import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Client
from rpcstream.cli.serve import main
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread

pytestmark = pytest.mark.slow

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
SERVICES = ["vectors.service", "hub.service"]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string((DEPLOY / name).read_text())
    return parser


def load_yaml(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def docker_lines(instruction: str) -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(f"{instruction} ")]


def commands() -> list[list[str]]:
    """All command lines that start `rpcstream-server`, without its name."""
    found = [shlex.split(unit(name)["Service"]["ExecStart"]) for name in SERVICES]
    found += [orjson.loads(line) for line in docker_lines("CMD")]
    found += [service["command"] for service in load_yaml("compose.yaml")[0]["services"].values()]
    for document in load_yaml("kubernetes.yaml"):
        if document["kind"] == "Deployment":
            found += [container["command"] for container in document["spec"]["template"]["spec"]["containers"]]
    assert all(Path(command[0]).name == "rpcstream-server" for command in found)
    return [command[1:] for command in found]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_are_ones_that_the_server_takes(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    options = {word.partition("=")[0] for word in command if word.startswith("--")}
    assert options <= known
    assert "--token-file" in options
    files = [word for word in command if word.endswith((".py", ".toml"))]
    assert files
    assert all((DEPLOY / name).is_file() for name in files)


def test_the_service_answers_and_the_hubs_configuration_is_one(load_example: Callable[[str], ModuleType]) -> None:
    with serve_in_thread(load_example("deploy/service.py").server) as address, Client(address) as client:
        assert np.isclose(np.linalg.norm(client.embed("a red bicycle")), 1)
    Hub.from_config(DEPLOY / "hub.toml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for name in [*SERVICES, "vectors.socket"]:
        text = (DEPLOY / name).read_text()
        (tmp_path / name).write_text(re.sub(r"(?<=^ExecStart=)\S+", sys.executable, text, flags=re.MULTILINE))
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(DEPLOY / "alerts.yaml")], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 4 rules found" in done.stdout


def test_the_rules_use_metrics_that_the_server_has() -> None:
    used = set(re.findall(r"rpcstream_\w+", (DEPLOY / "alerts.yaml").read_text()))
    hub = Hub(metrics=True)
    with serve_in_thread(hub) as address, Client(address) as client:
        client.call("rpc.clients")
        shown = hub.metrics_text()
    assert used
    assert [name for name in used if name.removesuffix("_bucket") not in shown] == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_stop_has_longer_than_the_server_takes(name: str) -> None:
    service = unit(name)["Service"]
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"]) > Hub().time_to_stop


def test_a_pod_has_longer_than_its_server_takes(
    load_example: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_yaml("kubernetes.yaml")[0]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    time_to_stop = load_example("deploy/service.py").server.time_to_stop
    assert time_to_stop > 15
    assert spec["terminationGracePeriodSeconds"] > time_to_stop
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/healthz", "/readyz")
        assert container[probe]["httpGet"]["port"] in [port["name"] for port in container["ports"]]


def test_the_cluster_finds_the_pods() -> None:
    deployment, service = load_yaml("kubernetes.yaml")
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    (container,), volumes = template["spec"]["containers"], template["spec"]["volumes"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in volumes}
    secret = container["command"][container["command"].index("--token-file") + 1]
    assert Path(secret).parent in [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    assert (service["metadata"]["name"], container["command"][-2:]) == ("vectors", ["--set", "hosts=vectors"])


def test_what_the_image_copies_is_there() -> None:
    for line in docker_lines("COPY"):
        assert all("*" in source or (DEPLOY / source).is_file() for source in line.split()[:-1])


def test_the_page_shows_the_unit_and_the_section_of_the_container() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    assert f" file=vectors.service\n{(DEPLOY / 'vectors.service').read_text()}```" in page
    shown = re.search(r"```yaml file=container\.yaml\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    indented = re.sub(r"^(?=.)", " " * 10, shown[1], flags=re.MULTILINE)
    assert indented in (DEPLOY / "kubernetes.yaml").read_text()


def test_the_service_of_the_page_reads_the_variables_of_the_container() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    service = page.split("```python file=service.py\n")[1].split("```")[0]
    container = page.split("```yaml file=container.yaml\n")[1].split("```")[0]
    names = [variable["name"] for variable in yaml.safe_load(container)["env"]]
    assert names
    assert [name for name in names if f'os.environ.get("{name}"' not in service] == []
