"""Refused logins and handshakes are counted, and logged with the address of the peer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import ssl

import orjson
import pytest

from rpcstream import AsyncClient, NotAuthenticated, Server

from ..kit import authority, client_side, server_tls, until

TOKEN = "a-long-secret"
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


async def ask(address: str, *sent: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """All that a server answers to this, until it closes."""
    host, _, port = address.removeprefix("tls://").rpartition(":")
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=tls, server_hostname="localhost" if tls else None
        )
        try:
            writer.write(b"".join(sent))
            if tls is None:
                writer.write_eof()
            return await reader.read()
        finally:
            writer.close()


def post(*headers: str) -> bytes:
    body = b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}'
    head = ["POST / HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + body


def get(*headers: str, host: str = "localhost") -> bytes:
    return "\r\n".join(["GET / HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


@pytest.fixture
def server() -> Server:
    return Server(token=TOKEN)


def counts(server: Server) -> tuple[int, int, int]:
    counters = server.counters
    return counters.not_authenticated, counters.logins_refused, counters.handshakes_refused


def login(token: str) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "rpc.authenticate", "params": [token]}) + b"\n"


CALL = b'{"jsonrpc":"2.0","id":1,"method":"f"}\n'


@pytest.mark.parametrize(
    ("sent", "counted", "logged"),
    [
        (CALL, (1, 0, 0), "refused a request from 127.0.0.1:PORT: it has shown no token"),
        (b"[%b,%b]\n" % (CALL[:-1], CALL[:-1]), (2, 0, 0), "refused a request from 127.0.0.1:PORT"),
        (login("guess"), (1, 1, 0), "refused a login from 127.0.0.1:PORT: the token is not accepted"),
        (login("a") + login("b") + login("c") + login("d"), (4, 4, 0), "refused a login from 127.0.0.1:PORT"),
        (post(), (1, 0, 0), "refused a request from 127.0.0.1:PORT: it has shown no token"),
        (post("Authorization: Bearer guess"), (1, 1, 0), "refused a login from 127.0.0.1:PORT"),
        (get(*HANDSHAKE, "Authorization: Bearer guess"), (1, 1, 0), "refused a login from 127.0.0.1:PORT"),
        (get(*HANDSHAKE, host="evil.example"), (0, 0, 1), "its WebSocket handshake got 403: The host 'evil.example'"),
        (get(*HANDSHAKE[:2]), (0, 0, 1), "its WebSocket handshake got 400: Sec-WebSocket-Key"),
        (get("Upgrade: h2c", "Connection: Upgrade"), (1, 0, 0), "it has shown no token"),
        (b"\x16\x03\x01\x00\x05hello", (0, 0, 1), "refused a handshake of 127.0.0.1:PORT: the client speaks TLS"),
        (login(TOKEN) + CALL, (0, 0, 0), None),
        (post(f"Authorization: Bearer {TOKEN}"), (0, 0, 0), None),
    ],
)
async def test_refusals_are_counted_and_logged(
    server: Server, caplog: pytest.LogCaptureFixture, sent: bytes, counted: tuple[int, int, int], logged: str | None
) -> None:
    async with server.listening(port=0) as address:
        await ask(address, sent)
        assert counts(server) == counted
        async with AsyncClient(address, token=TOKEN) as client:
            stats = await client.request("rpc.stats")
            assert (stats["not_authenticated"], stats["logins_refused"], stats["handshakes_refused"]) == counted
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if logged is None:
        assert warnings == []
    else:
        before, _, behind = logged.partition("127.0.0.1:PORT")
        assert any(before in line and behind in line for line in warnings), warnings
        assert TOKEN not in caplog.text
        assert "guess" not in caplog.text


async def test_a_guesser_does_not_fill_the_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with server.listening(port=0) as address:
        for _ in range(20):
            await ask(address, CALL * 20)
    assert server.counters.not_authenticated == 400
    assert caplog.text.count("it has shown no token") == 10


async def test_a_token_that_an_authenticated_peer_changes_to(server: Server) -> None:
    async with server.listening(port=0) as address, AsyncClient(address, token=TOKEN) as client:
        with pytest.raises(NotAuthenticated):
            await client.request("rpc.authenticate", {"token": "guess"})
        assert counts(server) == (1, 1, 0)


async def test_tls_handshakes_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(tls=dataclasses.replace(server_tls(), client_ca=authority()))
    async with server.listening(port=0) as address:
        await ask(address)  # a monitor that only looks whether the port is open
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await ask(address, CALL, tls=client_side()) == b"", "it has no certificate"
        await until(lambda: server.counters.handshakes_refused)
    assert server.counters.handshakes_refused == 1
    assert "TLS failed: peer did not return a certificate" in caplog.text
