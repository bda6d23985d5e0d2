"""jsonrpc4j (Maven Central) on the other end: over its own stream, which has no delimiter, and its two HTTP clients.

`jsonrpc4j/Peer.java` holds that end in a Java process and does what these tests say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .foreign import Foreign, compiled, needs_java, running
from .service import LARGE, MANY, TEXT, Service, check_calls

FOLDER = Path(__file__).parent / "jsonrpc4j"
INSTALL = "mvn -f tests/interop/jsonrpc4j/pom.xml dependency:copy-dependencies"
JARS = sorted((FOLDER / "target" / "dependency").glob("*.jar"))

pytestmark = [
    pytest.mark.tools,
    needs_java(),
    pytest.mark.skipif(not JARS, reason=f"jsonrpc4j is not there ({INSTALL})"),
]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """The process with the peer, which is compiled here."""
    out = tmp_path_factory.mktemp("jsonrpc4j")
    jars = os.pathsep.join(map(str, JARS))
    compiled("--release", "17", "-cp", jars, "-d", out, "Peer.java", folder=FOLDER)
    with running("java", "-cp", os.pathsep.join([str(out), jars]), "Peer") as peer:
        yield peer


@pytest.fixture(params=["stream", "http", "async"])
def peer(request: pytest.FixtureRequest, java: Foreign, service: Service) -> Iterator[Foreign]:
    assert java.tell("connect", request.param, service.port) == {"result": None}
    yield java
    assert java.tell("close") == {"result": None}


def test_calls_and_errors(peer: Foreign, service: Service) -> None:
    check_calls(lambda method, params: peer.tell("call", method, params))
    assert peer.tell("sequence", "echo", MANY) == {"result": list(range(MANY))}
    assert service.connections == 1


@pytest.mark.parametrize("peer", ["stream", "http"], indirect=True)
def test_a_proxy_of_an_interface(peer: Foreign, service: Service) -> None:
    assert [peer.tell("add", n, n) for n in range(20)] == [{"result": n + n} for n in range(20)]
    assert service.connections == 1


@pytest.mark.parametrize("peer", ["stream"], indirect=True)
def test_notifications(peer: Foreign, service: Service) -> None:
    """Nothing stands between what is sent: one follows the other at once."""
    for method, params in (("note", [TEXT]), ("refuse", []), ("note", {"value": LARGE})):
        assert peer.tell("notify", method, params) == {"result": None}
    assert peer.tell("call", "add", [1, 2]) == {"result": 3}
    assert service.noted(2) == [TEXT, LARGE]
    assert service.connections == 1


@pytest.mark.parametrize("peer", ["async"], indirect=True)
def test_calls_together(peer: Foreign, service: Service) -> None:
    assert peer.tell("together", "later", MANY) == {"result": list(range(MANY))}
    assert service.connections <= MANY
