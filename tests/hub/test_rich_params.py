"""Rich values in every param of the methods of server and hub: refused with an error."""

from __future__ import annotations

import base64
import io
import itertools
import json
import logging
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Server
from rpcstream.hub import Hub, Rule

from .conftest import OpenHub, RawPeer, RunningHub

_PNG = io.BytesIO()
Image.new("RGB", (2, 2)).save(_PNG, "png")

RICH: list[Any] = [
    {"$type": "ndarray", "dtype": "<f4", "shape": [2], "data": base64.b64encode(np.ones(2, "<f4")).decode()},
    {"$type": "ndarray", "dtype": "<f4", "shape": [], "data": base64.b64encode(np.ones(1, "<f4")).decode()},
    {"$type": "ndarray", "dtype": "<U1", "shape": [1], "data": "eAAAAA=="},
    {"$type": "image", "format": "png", "data": base64.b64encode(_PNG.getvalue()).decode()},
    {"$type": "bytes", "data": "QUJD"},
    {"$type": "complex", "real": 1.0, "imag": "nan"},
    {"$type": "stream", "id": "s1"},
    {"$type": "unknown"},
    {"$type": 7},
    2**70,
    1e300,
    True,
    None,
    "text",
    [],
    {},
]

#: Those with parameters, each with good ones.
METHODS: dict[str, dict[str, Any]] = {
    "rpc.register": {
        "name": "p",
        "methods": [{"name": "m", "shared": True, "description": "d", "params": [{"name": "x"}], "result": {}}],
        "components": {"X": {"type": "object"}},
        "key": "k",
    },
    "rpc.unregister": {"methods": ["m"]},
    "rpc.publish": {"topic": "t", "value": 1, "retain": True},
    "rpc.notify": {"client": "p", "method": "m", "params": [1]},
    "rpc.subscribe": {"topic": "t"},
    "rpc.unsubscribe": {"topic": "t"},
    "rpc.authenticate": {"token": "ada"},
    "rpc.clients": {},
    "rpc.methods": {},
    "rpc.discover": {},
    "rpc.stats": {},
    "rpc.ping": {},
    "keepAlive": {},
    "get_server_stats": {},
}

#: -32603 would be a failure of the server's own.
TOLD = {-32600, -32602, -32601, -32005, -32006}


def spoilt(value: Any) -> Any:
    """The same with a rich value in the place of each part of it, one after the other; first in that of the whole."""
    yield from RICH
    if isinstance(value, dict):
        for name in value:
            for other in spoilt(value[name]):
                yield {**value, name: other}
    elif isinstance(value, list):
        for running_hub, part in enumerate(value):
            for other in spoilt(part):
                yield [*value[:running_hub], other, *value[running_hub + 1 :]]


async def ask_all(peer: RawPeer, method: str, caplog: pytest.LogCaptureFixture) -> int:
    """Ask each at once; how many were told that it is wrong."""
    wrong = 0
    good = METHODS[method]
    asked = list(itertools.chain(spoilt(good), spoilt(list(good.values()))))
    for params in asked:
        peer.say({"jsonrpc": "2.0", "id": "x", "method": method, "params": _plain(params)})
        peer.say({"jsonrpc": "2.0", "id": "end", "method": "rpc.ping"})
        reply: Any = {}
        while reply.get("id") != "end":
            reply = await peer.hear()
            assert reply is not None, params
            if reply.get("id") == "x" and "error" in reply:
                assert reply["error"]["code"] in TOLD, (method, params, reply)
                wrong += 1
        for record in caplog.records:
            assert record.levelno < logging.ERROR, (method, params, record.getMessage())
    return wrong


def _plain(params: Any) -> Any:
    """Written by `json`, since orjson takes no integers over 64 bits."""
    return _Text(json.dumps(params)) if "1180591620717411303424" in json.dumps(params) else params


class _Text(str):
    """JSON that is said as it is."""


@pytest.mark.parametrize("method", METHODS)
async def test_of_a_hub(open_hub: OpenHub, method: str, caplog: pytest.LogCaptureFixture) -> None:
    running_hub = await open_hub(
        Hub(
            rules=[Rule("*", name="*", register=">", call=">", publish=">", subscribe=">")],
            authenticate=lambda credentials: credentials.token,
            drain_timeout=5,
        )
    )
    peer = await running_hub.peer()
    await peer.result("rpc.authenticate", {"token": "ada"})
    wrong = await ask_all(_Writing(peer), method, caplog)
    assert wrong > len(RICH) / 2


@pytest.mark.parametrize("method", ["rpc.subscribe", "rpc.unsubscribe", "rpc.discover", "rpc.stats", "rpc.ping"])
async def test_of_a_server(method: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    async with server.listening(port=0) as address:
        running_hub = RunningHub(server, address)  # type: ignore[arg-type]
        peer = await running_hub.peer()
        try:
            assert await ask_all(_Writing(peer), method, caplog) > len(RICH) / 2
        finally:
            peer.close()


class _Writing(RawPeer):
    """The same connection, for requests whose params are text already."""

    def __init__(self, peer: RawPeer) -> None:
        self.lines, self.transport, self._parts = peer.lines, peer.transport, []

    def say(self, *messages: Any) -> None:
        for each in messages:
            if isinstance(each.get("params"), _Text):
                head = json.dumps({name: value for name, value in each.items() if name != "params"})
                super().say(f'{head[:-1]},"params":{each["params"]}}}')
            else:
                super().say(each)
