"""jsonrpc4j (Maven Central) on the other end: over its own stream, which has no delimiter, and its two HTTP clients.

`jsonrpc4j/Peer.java` holds that end in a Java process and does what these tests say.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .service import CODE, DATA, LARGE, MANY, MEASURED, MESSAGE, TEXT, Service

FOLDER = Path(__file__).parent / "jsonrpc4j"
INSTALL = "mvn -f tests/interop/jsonrpc4j/pom.xml dependency:copy-dependencies"
JARS = sorted((FOLDER / "target" / "dependency").glob("*.jar"))


def jdk() -> int:
    """The version of the JDK; 0 where there is none."""
    if shutil.which("javac") is None or shutil.which("java") is None:
        return 0
    done = subprocess.run(["javac", "-version"], capture_output=True, text=True, timeout=50)
    found = re.search(r"^javac (\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0


pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(bool(JARS) and jdk() < 17, reason="there is no JDK of at least 17 (javac)"),
    pytest.mark.skipif(not JARS, reason=f"jsonrpc4j is not there ({INSTALL})"),
]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process with the peer, which is compiled here."""
    out = tmp_path_factory.mktemp("jsonrpc4j")
    jars = os.pathsep.join(map(str, JARS))
    options = ["-encoding", "UTF-8", "--release", "17", "-Xlint:all", "-Werror", "-cp", jars, "-d", str(out)]
    done = subprocess.run(["javac", *options, str(FOLDER / "Peer.java")], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    command = ["java", "-cp", os.pathsep.join([str(out), jars]), "Peer"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


class Peer:
    """A client of jsonrpc4j."""

    def __init__(self, process: subprocess.Popen[str], service: Service) -> None:
        self.service = service
        self._process = process

    def tell(self, *order: Any) -> Any:
        """Have it do this; gives what came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "Java has ended"
        return json.loads(line)

    def call(self, method: str, params: Any) -> Any:
        return self.tell("call", method, params)


@pytest.fixture(params=["stream", "http", "async"])
def peer(request: pytest.FixtureRequest, java: subprocess.Popen[str], service: Service) -> Iterator[Peer]:
    peer = Peer(java, service)
    assert peer.tell("connect", request.param, service.port) == {"result": None}
    yield peer
    assert peer.tell("close") == {"result": None}


def test_calls(peer: Peer) -> None:
    assert peer.call("add", [1, 2]) == {"result": 3}
    assert peer.call("add", {"b": 2, "a": 1}) == {"result": 3}
    assert peer.call("later", [TEXT]) == {"result": TEXT}
    assert peer.call("rpc.ping", []) == {"result": "pong"}
    value = {"": [1, 2.5, True, {"b": None}], "\u00fc": -(2**63)}
    assert peer.call("echo", [value]) == {"result": value}
    assert peer.service.connections == 1


def test_null_is_an_answer(peer: Peer) -> None:
    assert peer.call("echo", [None]) == {"result": None}
    assert peer.call("add", [1, 2]) == {"result": 3}
    assert peer.service.connections == 1


def test_errors(peer: Peer) -> None:
    assert peer.call("refuse", []) == {"error": [CODE, MESSAGE, DATA]}
    code, message, data = peer.call("missing", [])["error"]
    assert (code, message, data["method"]) == (-32601, "Method not found", "missing")
    code, _, data = peer.call("add", ["x", 2])["error"]
    assert (code, data["parameter"]) == (-32602, "a")
    code, message, _ = peer.call("fail", [])["error"]
    assert (code, message[:15]) == (-32603, "Internal error:")
    assert peer.call("add", [1, 2]) == {"result": 3}
    assert peer.service.connections == 1


def test_many_calls(peer: Peer) -> None:
    assert peer.tell("sequence", "echo", MANY) == {"result": list(range(MANY))}
    assert peer.service.connections == 1


def test_large_values(peer: Peer) -> None:
    assert peer.call("measure", [LARGE]) == {"result": MEASURED}
    assert peer.call("echo", [LARGE]) == {"result": LARGE}
    assert peer.call("add", [1, 2]) == {"result": 3}
    assert peer.service.connections == 1


@pytest.mark.parametrize("peer", ["stream", "http"], indirect=True)
def test_a_proxy_of_an_interface(peer: Peer) -> None:
    assert [peer.tell("add", n, n) for n in range(20)] == [{"result": n + n} for n in range(20)]
    assert peer.service.connections == 1


@pytest.mark.parametrize("peer", ["stream"], indirect=True)
def test_notifications(peer: Peer) -> None:
    """Nothing stands between what is sent: one follows the other at once."""
    assert peer.tell("notify", "note", [TEXT]) == {"result": None}
    assert peer.tell("notify", "refuse", []) == {"result": None}
    assert peer.tell("notify", "note", {"value": LARGE}) == {"result": None}
    assert peer.call("add", [1, 2]) == {"result": 3}
    assert peer.service.noted(2) == [TEXT, LARGE]
    assert peer.service.connections == 1


@pytest.mark.parametrize("peer", ["async"], indirect=True)
def test_calls_together(peer: Peer) -> None:
    assert peer.tell("together", "later", MANY) == {"result": list(range(MANY))}
    assert peer.service.connections <= MANY
