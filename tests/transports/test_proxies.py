"""`trusted_proxies=`: whose word is taken for the address of a client, in headers and in the PROXY protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from rpcstream import Context, Server
from rpcstream.transports.access import ProxyHeaderError, TrustedProxies, read_proxy_header

from ..kit.asgi import connected
from ..kit.asgi import post as asgi_post
from ..kit.http import call, post
from .conftest import Served

#: A line of version 1, and headers of version 2 for IPv4 and IPv6, as HAProxy and nginx send them.
V1 = b"PROXY TCP4 203.0.113.7 10.0.0.2 50412 8545\r\n"
V1_IPV6 = b"PROXY TCP6 2001:db8::7 2001:db8::2 50412 8545\r\n"
V2_START = b"\r\n\r\n\0\r\nQUIT\n"
V2 = V2_START + b"\x21\x11\x00\x0c" + bytes((203, 0, 113, 7, 10, 0, 0, 2)) + b"\xc4\xec\x21\x61"
V2_IPV6 = (
    V2_START
    + b"\x21\x21\x00\x29"
    + bytes.fromhex("20010db8000000000000000000000007" * 2)
    + b"\xc4\xec\x21\x61"
    + b"\4\0\2ab"
)
V2_LOCAL = V2_START + b"\x20\x00\x00\x00"


def where(*proxies: str) -> Server:
    """A server that trusts these proxies, or else this machine."""
    server = Server(trusted_proxies=proxies or ["127.0.0.0/8"])

    @server
    def address(ctx: Context) -> str:
        return ctx.address

    return server


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (V1, ("203.0.113.7:50412", len(V1))),
        (V1_IPV6, ("[2001:db8::7]:50412", len(V1_IPV6))),
        (b"PROXY UNKNOWN ffff 1\r\n", (None, 22)),
        (V2, ("203.0.113.7:50412", len(V2))),
        (V2_IPV6, ("[2001:db8::7]:50412", len(V2_IPV6))),
        (V2_LOCAL, (None, len(V2_LOCAL))),
        (V2_START + b"\x21\x31\x00\xd8" + bytes(216), (None, 232)),  # by Unix sockets
        (b'{"jsonrpc"', (None, 0)),
        (b"PRI * HTTP/2.0\r\n", (None, 0)),
        (b"\r\n\r\nPOST / HTTP/1.1", (None, 0)),
    ],
)
def test_headers_of_the_proxy_protocol(data: bytes, found: Any) -> None:
    assert read_proxy_header(data) == found
    assert read_proxy_header(data + b"more") == found
    for size in range(1, found[1]):
        assert read_proxy_header(data[:size]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 203.0.113.7 10.0.0.2 50412\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.2 50412 8545 9\r\n",
        b"PROXY TCP4 203.0.113.777 10.0.0.2 50412 8545\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::2 50412 8545\r\n",
        b"PROXY TCP6 203.0.113.7 10.0.0.2 50412 8545\r\n",
        b"PROXY TCP4 203.0.113.7:1 10.0.0.2 50412 8545\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.2 -1 8545\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.2 \xb2 8545\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 " + b"1" * 107,
        V2_START + b"\x11\x11\x00\x0c" + bytes(12),
        V2_START + b"\x22\x11\x00\x0c" + bytes(12),
        V2_START + b"\x21\x11\x00\x0b" + bytes(11),
        V2_START + b"\x21\x21\x00\x0c" + bytes(12),
    ],
)
def test_malformed_headers_of_the_proxy_protocol(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(data)


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({}, "10.0.0.2:1"),
        ({"x-forwarded-for": "203.0.113.7"}, "203.0.113.7"),
        ({"x-forwarded-for": "198.51.100.1, 203.0.113.7"}, "203.0.113.7"),
        ({"x-forwarded-for": "203.0.113.7, 10.0.0.9"}, "203.0.113.7"),
        ({"x-forwarded-for": "203.0.113.7, 198.51.100.1,10.0.0.9"}, "198.51.100.1"),
        ({"x-forwarded-for": "203.0.113.7, ::ffff:10.0.0.9"}, "203.0.113.7"),
        ({"x-forwarded-for": "10.1.1.1, 10.0.0.9"}, "10.1.1.1"),
        ({"x-forwarded-for": "203.0.113.7, unknown"}, "10.0.0.2:1"),
        ({"x-forwarded-for": "203.0.113.7, unknown, 10.0.0.9"}, "10.0.0.9"),
        ({"x-forwarded-for": "203.0.113.7:50412"}, "203.0.113.7:50412"),
        ({"x-forwarded-for": "2001:db8::7"}, "[2001:db8::7]"),
        ({"x-forwarded-for": ""}, "10.0.0.2:1"),
        ({"x-forwarded-for": "999.0.0.1"}, "10.0.0.2:1"),
        ({"forwarded": "for=203.0.113.7;proto=https;by=10.0.0.2"}, "203.0.113.7"),
        ({"forwarded": 'for=198.51.100.1, For="[2001:db8::7]:50412"'}, "[2001:db8::7]:50412"),
        ({"forwarded": 'proto=http;for="203.0.113.7", for=10.0.0.9'}, "203.0.113.7"),
        ({"forwarded": 'for="198.51.100.1, for=203.0.113.7'}, "203.0.113.7"),
        ({"forwarded": "for=_hidden"}, "10.0.0.2:1"),
        ({"forwarded": "proto=https"}, "10.0.0.2:1"),
        ({"forwarded": "for=203.0.113.7", "x-forwarded-for": "203.0.113.7"}, "203.0.113.7"),
        ({"forwarded": "for=198.51.100.1", "x-forwarded-for": "203.0.113.7"}, "10.0.0.2:1"),
    ],
)
def test_headers_of_proxies(headers: dict[str, str], address: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    assert proxies.client_of(headers, "10.0.0.2:1") == address
    assert proxies.client_of(headers, "192.0.2.1:1") == "192.0.2.1:1"  # anyone may send a header


def test_networks_of_proxies() -> None:
    proxies = TrustedProxies(["10.0.0.0/8", "2001:db8::1", "unix"])
    trusted = ["10.1.2.3:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1", "unix:///run/rpc", "unix://", "unknown"]
    assert all(map(proxies.trusts, trusted))
    assert not any(map(proxies.trusts, ["11.1.2.3:1", "[2001:db8::2]:1", "", "10.0.0.1.example.org:1"]))
    assert not any(map(TrustedProxies().trusts, trusted))
    assert TrustedProxies("10.0.0.0/8").trusts("10.1.2.3:1")
    with pytest.raises(ValueError, match=r"^trusted_proxies: 10\.0\.0\.1/8 has host bits set"):
        Server(trusted_proxies=["10.0.0.1/8"])


@pytest.fixture
async def proxied(serve: Callable[..., Awaitable[Served]]) -> Served:
    return await serve(where())


async def test_requests_of_one_proxy_have_the_addresses_of_their_clients(proxied: Served) -> None:
    """On one connection, in turn: a proxy keeps its connections open."""
    http = await proxied.http()
    for client in ("203.0.113.7", "203.0.113.8", "203.0.113.8"):
        answer = await http.ask(post(call("address"), f"X-Forwarded-For: 198.51.100.1, {client}"))
        assert answer.json["result"] == client
    assert (await http.ask(post(call("address")))).json["result"].startswith("127.0.0.1:")


async def test_headers_of_others_than_proxies_are_not_read(serve: Callable[..., Awaitable[Served]]) -> None:
    served = await serve(where("10.0.0.0/8"))
    http = await served.http()
    answer = await http.ask(post(call("address"), "X-Forwarded-For: 203.0.113.7"))
    assert answer.json["result"].startswith("127.0.0.1:")
    line = await served.line()
    line.write(V1)
    assert (await line.receive())["error"]["code"] == -32700


async def test_a_websocket_of_a_proxy_has_the_address_of_its_client(proxied: Served) -> None:
    websocket = await proxied.websocket("X-Forwarded-For: 203.0.113.7")
    assert await websocket.result("address") == "203.0.113.7"


@pytest.mark.parametrize(
    ("header", "address"),
    [(V1, "203.0.113.7:50412"), (V2, "203.0.113.7:50412"), (V2_IPV6, "[2001:db8::7]:50412"), (V2_LOCAL, "127.0.0.1:")],
)
async def test_the_proxy_protocol_in_front_of_a_line_stream(proxied: Served, header: bytes, address: str) -> None:
    for pieces in ([header + call("address") + b"\n"], [bytes((byte,)) for byte in header] + [call("address") + b"\n"]):
        host, _, port = proxied.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        assert orjson.loads(await reader.readline())["result"].startswith(address)
        writer.close()


async def test_the_proxy_protocol_in_front_of_http(proxied: Served) -> None:
    http = await proxied.http()
    assert (await http.ask(V1, post(call("address")))).json["result"] == "203.0.113.7:50412"
    # The client itself is no proxy.
    answer = await http.ask(post(call("address"), "X-Forwarded-For: 198.51.100.1"))
    assert answer.json["result"] == "203.0.113.7:50412"


async def test_a_malformed_header_closes_the_connection(proxied: Served, caplog: pytest.LogCaptureFixture) -> None:
    http = await proxied.http()
    http.writer.write(b"PROXY TCP4 nonsense\r\n" + post(call("address")))
    assert await http.rest() == b""
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "PROXY protocol: not a line of version 1: b'PROXY TCP4 nonsense'" in record.getMessage()
    assert proxied.server.stats()["handshakes_refused"] == 1
    caplog.clear()


async def test_behind_an_asgi_server() -> None:
    app = where().asgi()
    async with app.lifespan():
        headers = {"x_forwarded_for": "203.0.113.7"}
        assert (await asgi_post(app, call("address"), **headers)).json["result"] == "203.0.113.7"
        websocket = await connected(app, **headers)
        websocket.text(call("address").decode())
        await websocket.has_sent(2)
        assert websocket.messages[0]["result"] == "203.0.113.7"
        websocket.close()
        await websocket.ended()
