"""jayson (npm) on the other end: its clients for TCP, TLS, HTTP, HTTPS and WebSocket.

`jayson/peer.mjs` holds that end in a Node process and does what these tests say.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .service import CODE, DATA, LARGE, MANY, MEASURED, MESSAGE, PATIENCE, TEXT, Service, serving

PEER = Path(__file__).parent / "jayson" / "peer.mjs"
INSTALL = "npm install --prefix tests/interop/jayson"
IS_INSTALLED = (PEER.parent / "node_modules" / "jayson").is_dir()


def node() -> int:
    """The version of Node.js; 0 where there is none."""
    if shutil.which("node") is None:
        return 0
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=50)
    return int(done.stdout.strip().removeprefix("v").partition(".")[0])


pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(IS_INSTALLED and node() < 20, reason="there is no Node.js of at least 20 (node)"),
    pytest.mark.skipif(not IS_INSTALLED, reason=f"jayson is not there ({INSTALL})"),
]

ERROR = {"code": CODE, "message": MESSAGE, "data": DATA}

#: These open a connection for each call.
SHORT = ("tcp", "tls")


class Jayson:
    """A client of jayson: `kind` is its name there."""

    def __init__(self, process: subprocess.Popen[str], kind: str, service: Service) -> None:
        self.kind = kind
        self.service = service
        self._process = process

    def tell(self, *order: Any) -> Any:
        """Have it do this; gives what came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "Node has ended"
        return json.loads(line)

    def call(self, method: str, params: Any) -> Any:
        """The reply without what all replies have."""
        reply = self.tell("call", method, params)["reply"]
        assert reply.pop("jsonrpc") == "2.0"
        assert len(reply.pop("id")) == 36
        return reply

    def took(self, calls: int) -> None:
        """That many calls, on no more connections than this client opens for them."""
        assert self.service.connections == (calls if self.kind in SHORT else 1)


@pytest.fixture(params=["tcp", "tls", "http", "https", "websocket"])
def jayson(request: pytest.FixtureRequest) -> Iterator[Jayson]:
    kind: str = request.param
    options, tls = {}, None
    if kind in ("tls", "https"):
        pytest.importorskip("trustme")
        from ..kit import authority, server_tls

        options, tls = {"ca": authority().read_text()}, server_tls()
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with serving(tls=tls) as service, subprocess.Popen(["node", str(PEER)], **pipes) as process:
        try:
            client = Jayson(process, kind, service)
            where = {"host": "127.0.0.1", "port": service.port}
            if kind == "websocket":
                where = {"url": f"ws://{service.address}", "timeout": PATIENCE * 1000}
            assert client.tell("connect", kind, {**where, **options}) == {"reply": None}
            yield client
            assert client.tell("close") == {"reply": 1005 if kind == "websocket" else None}
        finally:
            process.kill()


def test_calls(jayson: Jayson) -> None:
    assert jayson.call("add", [1, 2]) == {"result": 3}
    assert jayson.call("add", {"b": 2, "a": 1}) == {"result": 3}
    assert jayson.call("later", [TEXT]) == {"result": TEXT}
    assert jayson.call("echo", [None]) == {"result": None}
    assert jayson.call("rpc.ping", None) == {"result": "pong"}
    jayson.took(5)


def test_errors(jayson: Jayson) -> None:
    assert jayson.call("refuse", []) == {"error": ERROR}
    assert jayson.call("missing", [])["error"]["code"] == -32601
    assert jayson.call("add", ["x", 2])["error"]["data"]["parameter"] == "a"
    error = jayson.call("fail", [])["error"]
    assert (error.pop("message")[:15], error) == ("Internal error:", {"code": -32603})
    assert jayson.call("add", [1, 2]) == {"result": 3}
    jayson.took(5)


def test_notifications(jayson: Jayson) -> None:
    assert jayson.tell("notify", "note", [TEXT]) == {"reply": None}
    assert jayson.service.noted() == [TEXT]
    assert jayson.tell("notify", "refuse", []) == {"reply": None}
    assert jayson.tell("notify", "note", {"value": "by name"}) == {"reply": None}
    assert jayson.service.noted() == ["by name"]
    assert jayson.call("add", [1, 2]) == {"result": 3}


def test_batches(jayson: Jayson) -> None:
    calls = [["add", [1, 1]], ["note", ["in a batch"], True], ["refuse", []], ["later", [TEXT]]]
    replies = jayson.tell("batch", calls)["reply"]
    assert [reply.get("result", reply.get("error")) for reply in replies] == [2, ERROR, TEXT]
    assert jayson.service.noted() == ["in a batch"]
    if jayson.kind in ("http", "https"):  # the others wait for a reply to every batch
        assert jayson.tell("batch", [["note", ["alone"], True]]) == {"reply": None}
        assert jayson.service.noted() == ["alone"]
    assert jayson.call("add", [1, 2]) == {"result": 3}


def test_many_calls(jayson: Jayson) -> None:
    number = 50 if jayson.kind == "tls" else MANY  # a handshake each
    assert jayson.tell("sequence", "echo", number) == {"reply": list(range(number))}
    jayson.took(number)


def test_many_calls_together(jayson: Jayson) -> None:
    number = 50 if jayson.kind in ("tls", "https") else MANY
    assert jayson.tell("together", "later", number) == {"reply": list(range(number))}
    connections = 1 if jayson.kind == "websocket" else number
    assert jayson.service.connections <= connections


def test_large_values(jayson: Jayson) -> None:
    assert jayson.call("measure", [LARGE]) == {"result": MEASURED}
    assert jayson.call("echo", [LARGE]) == {"result": LARGE}
    jayson.took(2)
