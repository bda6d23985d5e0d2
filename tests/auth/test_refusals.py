"""Refused logins and handshakes are counted, and logged with the address of the peer."""

from __future__ import annotations

import contextlib
import dataclasses
import ssl

import pytest

from rpcstream import AsyncClient, Server

from ..kit import authority, batch, client_side, request, server_tls, until
from ..kit.http import call, get, post
from ..kit.messages import as_bytes
from ..kit.websocket import UPGRADE
from .callers import TOKEN, http_connection, login, talking
from .test_over_http import bearer, of_host

CALL = as_bytes(request("f")) + b"\n"
COUNTERS = ("not_authenticated", "logins_refused", "handshakes_refused")


def counts(server: Server) -> tuple[int, ...]:
    stats = server.stats()
    return tuple(stats[name] for name in COUNTERS)


def lines(*messages: object) -> bytes:
    return b"".join(as_bytes(each) + b"\n" for each in messages)


@pytest.mark.parametrize(
    ("sent", "counted", "logged"),
    [
        (CALL, (1, 0, 0), "refused a request from ADDRESS: it has shown no token"),
        (lines(batch(request("f"), request("f"))), (2, 0, 0), "refused a request from ADDRESS"),
        (lines(login("guess")), (1, 1, 0), "refused a login from ADDRESS: the token is not accepted"),
        (lines(*[login(f"guess{n}") for n in range(4)]), (4, 4, 0), "refused a login from ADDRESS"),
        (post(call("f")), (1, 0, 0), "refused a request from ADDRESS: it has shown no token"),
        (post(call("f"), *bearer("guess")), (1, 1, 0), "refused a login from ADDRESS"),
        (post(call("f"), "Authorization: Basic YTpi"), (1, 1, 0), "refused a login"),
        (post(call("f"), f"Authorization: {TOKEN}"), (1, 1, 0), "refused a login"),
        (post(call("f"), *bearer(f"{TOKEN} guess")), (1, 1, 0), "refused a login from ADDRESS"),
        (get("/", *UPGRADE, *bearer("guess")), (1, 1, 0), "refused a login from ADDRESS"),
        (of_host(get("/", *UPGRADE), "evil.example"), (0, 0, 1), "its WebSocket handshake got 403: The host 'evil.ex"),
        (get("/", *UPGRADE[:2]), (0, 0, 1), "its WebSocket handshake got 400: "),
        (get("/", "Upgrade: h2c", "Connection: Upgrade"), (1, 0, 0), "it has shown no token"),
        (b"\x16\x03\x01\x00\x05hello", (0, 0, 1), "refused a handshake of ADDRESS: the client speaks TLS"),
        (lines(login(), request("rpc.ping")), (0, 0, 0), None),
        (post(call("f"), *bearer(TOKEN)), (0, 0, 0), None),
    ],
)
async def test_refusals_are_counted_and_logged(
    caplog: pytest.LogCaptureFixture, sent: bytes, counted: tuple[int, ...], logged: str | None
) -> None:
    server = Server(token=TOKEN)
    async with server.listening(port=0) as address:
        async with http_connection(address) as connection:
            connection.send(sent)
            connection.writer.write_eof()
            await connection.rest()
            own = "{}:{}".format(*connection.writer.get_extra_info("sockname"))
        async with AsyncClient(address, token=TOKEN) as client:
            stats = await client.request("rpc.stats")
        assert counts(server) == tuple(stats[name] for name in COUNTERS) == counted
    if logged is None:
        assert not caplog.text
    else:
        assert logged.replace("ADDRESS", own) in caplog.text
        assert TOKEN not in caplog.text
        assert "guess" not in caplog.text


async def test_a_guesser_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(token=TOKEN)
    async with talking(server) as raw:
        raw.send(*[request("f")] * 400)
        await raw.receive_many(400)
    assert counts(server) == (400, 0, 0)
    assert caplog.text.count("it has shown no token") == 10


async def test_tls_handshakes_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(tls=dataclasses.replace(server_tls(), ca=authority()))
    async with server.listening(port=0) as address:
        async with http_connection(address):
            pass  # a monitor that only looks whether the port is open
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # it has no certificate
            async with http_connection(address, client_side()) as connection:
                connection.send(CALL)
                assert await connection.rest() == b""
        await until(lambda: counts(server) == (0, 0, 1))
    assert "TLS failed: peer did not return a certificate" in caplog.text
