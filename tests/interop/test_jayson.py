"""jayson (npm) on the other end: its clients for TCP, TLS, HTTP, HTTPS and WebSocket.

`jayson/peer.mjs` holds that end in a Node process and does what these tests say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..kit import authority, server_tls
from .foreign import Foreign, needs_node, running
from .service import CODE, DATA, MANY, MESSAGE, PATIENCE, TEXT, Service, check_calls, serving

FOLDER = Path(__file__).parent / "jayson"

pytestmark = [pytest.mark.tools, *needs_node(FOLDER)]

#: These open a connection for each call.
SHORT = ("tcp", "tls")


class Jayson:
    """A client of jayson: `kind` is its name there."""

    def __init__(self, peer: Foreign, kind: str, service: Service) -> None:
        self.tell = peer.tell
        self.kind = kind
        self.service = service
        self.calls = 0

    def call(self, method: str, params: Any) -> Any:
        self.calls += 1
        reply = self.tell("call", method, params)["reply"]
        assert reply.pop("jsonrpc") == "2.0"
        assert len(reply.pop("id")) == 36
        error = reply.get("error")
        return reply if error is None else {"error": [error["code"], error["message"], error.get("data")]}


@pytest.fixture(params=["tcp", "tls", "http", "https", "websocket"])
def jayson(request: pytest.FixtureRequest) -> Iterator[Jayson]:
    kind: str = request.param
    options, tls = {}, None
    if kind in ("tls", "https"):
        options, tls = {"ca": authority().read_text()}, server_tls()
    with serving(tls=tls) as service, running("node", FOLDER / "peer.mjs") as peer:
        client = Jayson(peer, kind, service)
        where = {"host": "127.0.0.1", "port": service.port}
        if kind == "websocket":
            where = {"url": f"ws://{service.address}", "timeout": PATIENCE * 1000}
        assert client.tell("connect", kind, {**where, **options}) == {"reply": None}
        yield client
        assert client.tell("close") == {"reply": 1005 if kind == "websocket" else None}


def test_calls_and_errors(jayson: Jayson) -> None:
    check_calls(jayson.call)
    assert jayson.service.connections == (jayson.calls if jayson.kind in SHORT else 1)


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
    error = {"code": CODE, "message": MESSAGE, "data": DATA}
    assert [reply.get("result", reply.get("error")) for reply in replies] == [2, error, TEXT]
    assert jayson.service.noted() == ["in a batch"]
    if jayson.kind in ("http", "https"):  # the others wait for a reply to every batch
        assert jayson.tell("batch", [["note", ["alone"], True]]) == {"reply": None}
        assert jayson.service.noted() == ["alone"]
    assert jayson.call("add", [1, 2]) == {"result": 3}


@pytest.mark.parametrize("order", ["sequence", "together"])
def test_many_calls(jayson: Jayson, order: str) -> None:
    number = 50 if jayson.kind in ("tls", "https") else MANY  # a handshake each
    assert jayson.tell(order, "later", number) == {"reply": list(range(number))}
    one = jayson.kind == "websocket" or (order == "sequence" and jayson.kind not in SHORT)
    assert jayson.service.connections <= (1 if one else number)
