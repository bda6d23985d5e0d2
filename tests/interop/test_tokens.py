"""Clients that others wrote, at a server that requires a token.

What else they can do is seen in the files with their names.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .service import TEXT, Service, serving

pytestmark = pytest.mark.tools

TOKEN = "s3cret-\u007e_token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def guarded() -> Iterator[Service]:
    with serving(token=TOKEN) as service:
        yield service


def test_jsonrpclib(guarded: Service) -> None:
    jsonrpclib = pytest.importorskip("jsonrpclib", reason="jsonrpclib-pelix is not installed")
    url = f"http://{guarded.address}"
    stranger, known = jsonrpclib.ServerProxy(url), jsonrpclib.ServerProxy(url, headers=BEARER)
    with pytest.raises(jsonrpclib.jsonrpc.TransportError) as caught:
        stranger.note(1)
    assert caught.value.errcode == 401
    assert [known.later(TEXT), known.add(1, 2)] == [TEXT, 3]
    assert guarded.connections == 2
    assert guarded.nothing_noted
    for proxy in (stranger, known):
        proxy("close")()


def test_pjrpc(guarded: Service) -> None:
    backend = pytest.importorskip("pjrpc.client.backend.requests", reason="pjrpc and requests are not installed")
    import requests

    with requests.Session() as session:
        client = backend.Client(f"http://{guarded.address}", session=session)
        with pytest.raises(requests.HTTPError) as caught:
            client("note", 1)
        assert caught.value.response.status_code == 401
        session.headers.update(BEARER)
        assert [client("later", TEXT), client("add", 1, 2)] == [TEXT, 3]
    assert guarded.nothing_noted


def test_web3(guarded: Service) -> None:
    depth = sys.getrecursionlimit()
    web3 = pytest.importorskip("web3", reason="web3 is not installed (pip install 'rpcstream[interop]')")
    sys.setrecursionlimit(depth)  # see test_web3
    import requests

    url = f"http://{guarded.address}"
    with requests.Session() as session:
        with pytest.raises(requests.HTTPError):
            web3.HTTPProvider(url, session=session).make_request("note", [1])
        headers = {**BEARER, "Content-Type": "application/json"}
        known = web3.HTTPProvider(url, session=session, request_kwargs={"headers": headers})
        assert known.make_request("later", [TEXT])["result"] == TEXT
    assert guarded.nothing_noted


async def test_jsonrpc_websocket(guarded: Service) -> None:
    module = pytest.importorskip("jsonrpc_websocket", reason="jsonrpc-websocket is not installed")
    url = f"ws://{guarded.address}"
    stranger = module.Server(url, headers={"Authorization": "Bearer of ill news"})
    with pytest.raises(module.TransportError) as caught:
        await stranger.ws_connect()
    assert caught.value.args[1].status == 401
    await stranger.close()
    known = module.Server(url, headers=dict(BEARER), timeout=20)
    reading = await known.ws_connect()
    assert [await known.later(TEXT), await known.add(1, 2)] == [TEXT, 3]
    await known.close()
    await asyncio.wait_for(reading, 20)


@pytest.mark.parametrize("way", ["WebSocket", "line stream"])
async def test_aiorpcx(guarded: Service, way: str) -> None:
    """The token comes with the first call: on the line stream nothing has a head, and browsers cannot change it."""
    aiorpcx = pytest.importorskip("aiorpcx", reason="aiorpcX is not installed")

    def connecting() -> Any:
        if way == "WebSocket":
            return aiorpcx.connect_ws(f"ws://{guarded.address}")
        return aiorpcx.connect_rs("127.0.0.1", guarded.port)

    async with connecting() as session:
        with pytest.raises(aiorpcx.RPCError) as caught:
            await session.send_request("note", [1])
        assert caught.value.code == -32005
        await session.send_request("rpc.authenticate", {"token": TOKEN})
        assert await session.send_request("later", [TEXT]) == TEXT
    async with connecting() as session:
        with pytest.raises(aiorpcx.RPCError) as caught:
            await session.send_request("rpc.authenticate", {"token": TOKEN + "?"})
        assert caught.value.code == -32005
    assert guarded.nothing_noted
