"""Clients that others wrote, at a server with a certificate.

What else they can do is seen in the files with their names; curl and jayson have their own part of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from .service import LARGE, MEASURED, TEXT, Service, serving

pytest.importorskip("trustme", reason="trustme is not installed")

from ..kit import authority, client_side, server_tls

# What aiohttp says of every large body that is given to it as text.
pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")]


@pytest.fixture
def service() -> Iterator[Service]:
    with serving(tls=server_tls()) as service:
        yield service


@pytest.fixture
def host(service: Service) -> str:
    return f"127.0.0.1:{service.port}"


def test_jsonrpclib(service: Service, host: str) -> None:
    jsonrpclib = pytest.importorskip("jsonrpclib", reason="jsonrpclib-pelix is not installed")
    proxy = jsonrpclib.ServerProxy(f"https://{host}", context=client_side())
    assert [proxy.later(TEXT), proxy.measure(LARGE), proxy.add(1, 2)] == [TEXT, MEASURED, 3]
    assert service.connections == 1
    proxy("close")()


def test_pjrpc(service: Service, host: str) -> None:
    backend = pytest.importorskip("pjrpc.client.backend.requests", reason="pjrpc and requests are not installed")
    import requests

    with requests.Session() as session:
        session.trust_env = False  # else a variable may put another authority before the session's
        client = backend.Client(f"https://{host}", session=session)
        with pytest.raises(requests.exceptions.SSLError):
            client("note", 1)
        session.verify = str(authority())
        assert [client("later", TEXT), client("measure", LARGE), client("add", 1, 2)] == [TEXT, MEASURED, 3]
    assert service.connections == 1
    assert service.nothing_noted


async def test_jsonrpc_websocket(service: Service, host: str) -> None:
    module = pytest.importorskip("jsonrpc_websocket", reason="jsonrpc-websocket is not installed")
    server = module.Server(f"wss://{host}", timeout=20, ssl=client_side())
    reading = await server.ws_connect()
    assert [await server.later(TEXT), await server.measure(LARGE), await server.add(1, 2)] == [TEXT, MEASURED, 3]
    assert service.connections == 1
    await server.close()
    await asyncio.wait_for(reading, 20)


@pytest.mark.parametrize("way", ["WebSocket", "line stream"])
async def test_aiorpcx(service: Service, host: str, way: str) -> None:
    aiorpcx = pytest.importorskip("aiorpcx", reason="aiorpcX is not installed")
    if way == "WebSocket":
        connecting = aiorpcx.connect_ws(f"wss://{host}", ssl=client_side())
    else:
        connecting = aiorpcx.connect_rs("127.0.0.1", service.port, ssl=client_side())
    async with connecting as session:
        assert await session.send_request("later", [TEXT]) == TEXT
        assert await session.send_request("measure", [LARGE]) == MEASURED
        calls = (session.send_request("later", [n]) for n in range(50))
        assert await asyncio.gather(*calls) == list(range(50))
    assert service.connections == 1
