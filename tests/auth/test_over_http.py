"""Authentication over HTTP and WebSocket, with raw requests as a browser sends them: tokens, pages, time, attempts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Credentials, Http, Limits, Server

from ..kit import RawPeer, client_side, raw_peers, request, server_tls
from ..kit.http import Answer, RawHttpConnection, call, get, post
from ..kit.websocket import UPGRADE, RawWebSocket
from .callers import (
    REFUSED,
    Authority,
    Desk,
    Door,
    has_peer_credentials,
    http_connection,
    login,
    outcome,
    outcomes,
)

PAGE = "https://page.example"
WHO = call("who")


def bearer(token: str | None) -> tuple[str, ...]:
    return () if token is None else (f"Authorization: Bearer {token}",)


async def ask(address: str, data: bytes, **options: Any) -> Answer:
    """One request, on a connection of its own."""
    async with http_connection(address, **options) as connection:
        return await connection.ask(data)


async def statuses(connection: RawHttpConnection, *requests: bytes) -> list[int]:
    """The statuses of requests, one after the other."""
    return [(await connection.ask(each)).status for each in requests]


def of_host(data: bytes, host: str) -> bytes:
    return data.replace(b"Host: 127.0.0.1", f"Host: {host}".encode())


async def test_the_token_is_good_for_one_request() -> None:
    async with Door(token="secret").listening(port=0) as address:
        assert (await ask(address, post(WHO, *bearer("secret")))).json["result"] == "token"
        head = post(WHO, "Expect: 100-continue", *bearer("wrong")).removesuffix(WHO)
        answer = await ask(address, head)  # before its body comes
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        # To say it in a call is for connections that stay.
        said = call("rpc.authenticate", "secret")
        async with http_connection(address) as connection:
            assert await statuses(connection, post(said), post(WHO)) == [401, 401]
        assert outcome((await ask(address, post(said, *bearer("secret")))).json) == -32600


async def test_requests_of_one_connection_have_each_their_own_identity() -> None:
    server = Door(authenticate=Desk(is_open=True))
    server.add(lambda: "erased", name="erase", allow="alice")
    async with server.listening(port=0) as address, http_connection(address) as connection:
        for token in ("alice-secret", "bob-secret", "nobody", "alice-secret"):
            connection.send(post(WHO, *bearer(token)))
        answers = [await connection.answer() for _ in range(4)]
        assert [each.status for each in answers] == [200, 200, 401, 200]
        assert [answers[n].json["result"] for n in (0, 1, 3)] == ["alice", "bob", "alice"]
        both = b"[%b,%b]" % (call("erase"), WHO)
        assert outcome((await connection.ask(post(both, *bearer("alice-secret")))).json) == ["erased", "alice"]
        assert outcome((await connection.ask(post(both, *bearer("bob-secret")))).json) == [-32006, "bob"]


@has_peer_credentials
async def test_a_unix_socket_needs_neither_host_nor_token(tmp_path: Path) -> None:
    def find(credentials: Credentials) -> str | None:
        return "owner" if credentials.uid == os.getuid() else None

    async with Door(authenticate=find).listening(unix=tmp_path / "socket") as address:
        assert (await ask(address, of_host(post(WHO), "whatever.example"))).json["result"] == "owner"
        assert (await ask(address, of_host(post(WHO, f"Origin: {PAGE}"), "page.example"))).status == 403


async def test_a_certificate_is_enough_over_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Door(authenticate=Desk(is_open=True), tls=authority.tls).listening(port=0) as address:
        answer = await ask(address, post(WHO), tls=authority.client("robot.example"))
        assert answer.json["result"] == "robot.example"


async def test_a_page_calls_where_its_origin_is_allowed() -> None:
    """And nowhere else, with the token or without, and whatever it asks for."""
    server = Door(token="secret", http=Http(origins=[PAGE], hosts=["api.example"]))
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
    async with server.listening(port=0) as address:
        for host in ("api.example", "localhost"):
            allowed = await ask(address, of_host(get("/", f"Origin: {PAGE}", *asked, method="OPTIONS"), host))
            assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, PAGE)
            answer = await ask(address, of_host(post(WHO, f"Origin: {PAGE}", *bearer("secret")), host))
            assert answer.json["result"] == "token"
            assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (PAGE, "Origin")
        for origin, host in [("https://other.example", "localhost"), ("null", "localhost"), (PAGE, "page.example")]:
            for lines in ((f"Origin: {origin}",), (f"Origin: {origin}", *bearer("secret"))):
                others = [get("/", *lines, method=method) for method in ("GET", "PUT", "OPTIONS")]
                for data in (post(call("note", 1), *lines), get("/", *UPGRADE, *lines), *others):
                    answer = await ask(address, of_host(data, host))
                    assert answer.status == 403
                    assert not [name for name in answer.headers if name.startswith("access-")]
    assert server.noted == []


async def test_an_allowed_page_is_told_why_it_cannot() -> None:
    """Its browser would hide a 401 from it that does not say so; whatever it asked for."""
    server = Server(authenticate=Desk(is_open=True), http=Http(origins=[PAGE]))
    server.get("/page")(lambda: "hello")
    async with server.listening(port=0) as address:
        for token in (None, "wrong"):
            lines = (f"Origin: {PAGE}", *bearer(token))
            for data in (post(WHO, *lines), post(WHO, "Accept: application/x-ndjson", *lines), get("/page", *lines)):
                answer = await ask(address, data)
                assert answer.status == 401
                assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (PAGE, "Origin")
            assert "access-control-allow-origin" not in (await ask(address, post(WHO, *bearer(token)))).headers


@pytest.mark.parametrize(("token", "is_async"), [("wrong", False), (None, True)])
async def test_the_third_401_is_the_last(token: str | None, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str | None] = []

    def now(credentials: Credentials) -> Any:
        asked.append(credentials.token)

    async def later(credentials: Credentials) -> Any:
        now(credentials)

    server = Server(authenticate=later if is_async else now, limits=Limits(auth_timeout=None))
    async with server.listening(port=0) as address, http_connection(address) as connection:
        connection.send(post(WHO, *bearer(token)) * 50)  # in one go: those behind the third are not looked at
        answers = [await connection.answer() for _ in range(3)]
        assert [each.status for each in answers] == [401, 401, 401]
        assert [each.headers.get("connection") for each in answers] == [None, None, "close"]
        assert await ends(connection)
    assert len(asked) == 3
    assert "3 requests without an accepted token" in caplog.text
    assert server.stats()["closed_for_limits"] == 1


async def ends(connection: RawHttpConnection) -> bool:
    """Wait until the server closes, or the connection is lost; nothing may come until then."""
    with contextlib.suppress(ConnectionError):
        assert await connection.rest() == b""
    return True


async def test_calls_that_succeed_and_pages_count_no_less() -> None:
    server = Door(token="right")
    server.get("/secret")(lambda: "secret")
    wrong, right = post(WHO, *bearer("wrong")), post(WHO, *bearer("right"))
    page, upgrade = get("/secret"), get("/", *UPGRADE, *bearer("wrong"))
    async with server.listening(port=0) as address:
        for asked in ((wrong, right, wrong, right, wrong), (page, page, upgrade)):
            async with http_connection(address) as connection:
                assert await statuses(connection, *asked) == [200 if each is right else 401 for each in asked]
                assert await ends(connection)


async def test_401_does_not_prolong_it(caplog: pytest.LogCaptureFixture) -> None:
    server = Door(token="right", limits=Limits(auth_timeout=1))
    wrong, right = post(WHO, *bearer("wrong")), post(WHO, *bearer("right"))
    async with (
        server.listening(port=0) as address,
        http_connection(address) as known,
        http_connection(address) as raw,
        http_connection(address) as late,
    ):
        assert await statuses(known, right) == [200]
        assert await statuses(raw, wrong) == [401]
        late.send(right[:60])  # the head has not come when the time is over
        answer = await late.answer()
        assert answer.status == 408
        assert b"auth_timeout" in answer.body
        assert await ends(raw)
        assert await ends(late)
        assert await statuses(known, wrong, right) == [401, 200]
    assert caplog.text.count("not authenticated after 1 s (auth_timeout)") == 2


async def test_pages_for_everybody_do_not_prolong_it(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(token="right", limits=Limits(auth_timeout=0.5))
    going = asyncio.Event()

    @server.get("/slow", public=True)
    async def slow() -> str:
        await going.wait()
        return "done"

    async with (
        server.listening(port=0) as address,
        http_connection(address) as waiting,
        http_connection(address) as quick,
    ):
        waiting.send(get("/slow"))
        assert await statuses(quick, get("/healthz")) == [200]
        assert await ends(quick)  # the time of the other one, which is older, is over as well
        going.set()
        answer = await waiting.answer()  # what was begun is finished, and is the last
        assert (answer.status, answer.headers["connection"], answer.body) == (200, "close", b"done")
        assert await ends(waiting)


async def test_a_function_that_takes_long_does_not_prolong_it() -> None:
    """Not even one that does not let itself be cancelled, and finds in the end that the peer is known."""
    going = asyncio.Event()
    asked = 0

    async def stubborn(credentials: Credentials) -> Any:
        nonlocal asked
        asked += 1
        while not going.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await going.wait()
        return "me"

    server = Door(authenticate=stubborn, limits=Limits(auth_timeout=0.1))
    async with server.listening(port=0) as address, http_connection(address) as connection:
        answer = await connection.ask(post(WHO, *bearer("any")))
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert await ends(connection)
        assert asked == 1
        going.set()


@pytest.mark.parametrize("said", [b"", b"PO", b"\x16\x03\x01"])
async def test_what_was_said_before_is_in_it(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The time of a connection counts from its beginning, whatever it speaks, also before the handshake of TLS."""
    tls = server_tls() if len(said) == 3 else None
    server = Server(token="secret", tls=tls, limits=Limits(auth_timeout=0.1, message_timeout=None))
    async with raw_peers(server) as connect:
        raw = await connect()
        raw.write(said)
        assert await raw.rest() == []
    assert server.stats()["closed_for_limits"] == (0 if tls else 1)
    assert ("not authenticated after 0.1 s (auth_timeout)" in caplog.text) is (tls is None)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_the_first_call_tells(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the line stream: a message that is too long is skipped, and answered with an error."""
    monkeypatch.setattr("rpcstream.auth.gate.MAX_AUTH_MESSAGE", 1000)
    tls = server_tls() if scheme == "wss" else None
    server = Door(token="secret", tls=tls)
    async with server.listening(port=0) as address:
        raw = await RawPeer.open(f"{scheme}://{address.rpartition('/')[2]}/", tls=client_side() if tls else None)
        assert await outcomes(raw, request("who")) == [REFUSED]
        reply = await raw.ask(request("echo", "x" * 5000))
        assert (outcome(reply), reply["id"], reply["error"]["data"]["limit"]) == (-32001, 1, 1000)
        assert await outcomes(raw, login("x" * 1000), login("wrong")) == [-32001, REFUSED]
        assert await outcomes(raw, login("secret"), request("who")) == [True, "token"]
        assert len(await raw.result("echo", "x" * 5000)) == 5000
        raw.close()


async def test_the_handshake_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcstream.auth.gate.MAX_AUTH_MESSAGE", 1000)
    server = Door(token="secret")
    async with server.listening(port=0) as address:
        raw = await RawWebSocket.open(address, *bearer("secret"))
        assert await raw.result("size", "x" * 2000) == 1500  # of base64
        raw.abort()
