"""Authentication and access rules over HTTP on a real server, with raw requests as a browser sends them."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import Context, Server
from rpcstream.peer.credentials import Credentials

from .test_gate import Connect, Desk, code_of, request
from .test_peer_certificates import Authority, has_peer_credentials

PAGE = "https://page.example"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Answer:
    """A response, its connection closed."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}

    @property
    def reply(self) -> Any:
        assert self.status == 200, (self.status, self.body)
        return orjson.loads(self.body)


async def ask(
    address: str,
    message: Any = None,
    *,
    method: str = "POST",
    path: str = "/",
    tls: ssl.SSLContext | None = None,
    **headers: str | None,
) -> Answer:
    """Send one request. A header that is None is left out."""
    body = b"" if message is None else orjson.dumps(message)
    given = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    given.update({name.replace("_", "-"): value for name, value in headers.items()})  # type: ignore[misc]
    lines = [f"{method} {path} HTTP/1.1", *[f"{name}: {value}" for name, value in given.items() if value is not None]]
    place = address.rpartition("://")[2]
    if place.startswith("/"):
        reader, writer = await asyncio.open_unix_connection(place)
    else:
        host, _, port = place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    with closing(writer):
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        if method != "GET":
            return Answer(await asyncio.wait_for(reader.read(), 20))
        return Answer(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20))


def serving(**options: Any) -> Server:
    server = Server(**options)
    server.state.called = []

    @server
    def who(ctx: Context) -> Any:
        server.state.called.append(ctx.identity)
        return [ctx.identity, ctx.credentials.uid, list(ctx.credentials.names), ctx.headers["host"]]

    return server


WHO = request("who")


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Basic c2VjcmV0", "secret", "Bearer secret x"]
)
async def test_without_the_token_nothing_is_called(authorization: str | None) -> None:
    server = serving(token="secret")
    async with server.listening(port=0) as address:
        answer = await ask(address, WHO, Authorization=authorization)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        shaken = await ask(address, method="GET", Authorization=authorization, **UPGRADE)
        assert shaken.status == (101 if authorization is None else 401)  # a browser may say it with its first call
    assert server.state.called == []


async def test_the_token_is_good_for_one_request() -> None:
    async with serving(token="secret").listening(port=0) as address:
        assert (await ask(address, WHO, Authorization="Bearer secret")).reply["result"][0] == "token"
        assert (await ask(address, WHO)).status == 401
        # To say it in a call is for connections that stay.
        login = request("rpc.authenticate", ["secret"])
        assert (await ask(address, login)).status == 401
        assert code_of((await ask(address, login, Authorization="Bearer secret")).reply) == -32600


async def test_requests_of_one_connection_have_each_their_own_identity(connect: Connect) -> None:
    desk = Desk()
    desk.go.set()
    async with serving(authenticate=desk).listening(port=0) as address:
        raw = await connect(address)
        body = orjson.dumps(WHO)
        head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n"
        for token in ("alice-secret", "bob-secret", "nobody", "alice-secret"):
            await raw.send(head.format(len(body), f"Authorization: Bearer {token}\r\n").encode() + body)
        await raw.send(head.format(len(body), "Connection: close\r\n").encode() + body)
        answers = await asyncio.wait_for(raw.reader.read(), 20)
        found = [each.split(b"\r\n\r\n") for each in answers.split(b"HTTP/1.1 ")[1:]]
        assert [int(head[:3]) for head, _ in found] == [200, 200, 401, 200, 401]
        assert [orjson.loads(found[n][1])["result"][0] for n in (0, 1, 3)] == ["alice", "bob", "alice"]


async def test_allow_counts_over_http() -> None:
    desk = Desk()
    desk.go.set()
    server = serving(authenticate=desk)
    server.add(lambda: "erased", name="erase", allow="alice")
    async with server.listening(port=0) as address:
        erase = request("erase")
        assert (await ask(address, erase, Authorization="Bearer alice-secret")).reply["result"] == "erased"
        answer = await ask(address, [erase, WHO], Authorization="Bearer bob-secret")
        assert [each.get("error", {}).get("code") for each in answer.reply] == [-32006, None]


@has_peer_credentials
async def test_a_unix_socket_needs_neither_host_nor_token(tmp_path: Path) -> None:
    def find(credentials: Credentials) -> str | None:
        return "owner" if credentials.uid == os.getuid() else None

    async with serving(authenticate=find).listening(unix=tmp_path / "socket") as address:
        reply = (await ask(address, WHO, Host="whatever.example")).reply
        assert reply["result"] == ["owner", os.getuid(), [], "whatever.example"]
        assert (await ask(address, WHO, Host="page.example", Origin=PAGE)).status == 403


async def test_a_certificate_is_enough_over_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def find(credentials: Credentials) -> str | None:
        return credentials.names[0] if credentials.names else None

    async with serving(authenticate=find, tls=authority.tls).listening(port=0) as address:
        reply = (await ask(address, WHO, tls=authority.client("robot.example"))).reply
        assert reply["result"][:3] == ["robot.example", None, ["robot.example"]]


# -- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "OPTIONS"])
@pytest.mark.parametrize("more", [{"Origin": PAGE}, {"Origin": "null"}, {"Host": "page.example"}])
async def test_a_page_cannot_call(method: str, more: dict[str, str]) -> None:
    """With the token or without, and whatever it asks for."""
    server = serving(token="secret")
    async with server.listening(port=0) as address:
        for token in ({}, {"Authorization": "Bearer secret"}):
            answer = await ask(address, WHO, method=method, **more, **token)
            assert answer.status == 403
            assert not [name for name in answer.headers if name.startswith("access-")]
            assert (await ask(address, method="GET", **UPGRADE, **more, **token)).status == 403
    assert server.state.called == []


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_allowed_page_is_told_why_it_cannot(is_async: bool) -> None:
    """Its browser would hide a 401 from it that does not say so; whatever it asked for."""

    def accept(credentials: Credentials) -> Any:
        return None

    async def accept_later(credentials: Credentials) -> Any:
        return None

    server = Server(authenticate=accept_later if is_async else accept, origins=[PAGE])
    server.get("/page")(lambda: "hello")
    async with server.listening(port=0) as address:
        for token in ({}, {"Authorization": "Bearer wrong"}):
            for asked in ({}, {"Accept": "application/x-ndjson"}, {"path": "/page", "method": "GET"}):
                answer = await ask(address, WHO, Origin=PAGE, **asked, **token)
                assert answer.status == 401
                assert answer.headers["access-control-allow-origin"] == PAGE
                assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-origin" not in (await ask(address, WHO, **token)).headers


async def test_an_allowed_page_can() -> None:
    async with serving(token="secret", origins=[PAGE], hosts=["api.example"]).listening(port=0) as address:
        for host in ("api.example", "localhost"):
            asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
            allowed = await ask(address, method="OPTIONS", Host=host, Origin=PAGE, **asked)
            assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, PAGE)
            answer = await ask(address, WHO, Host=host, Origin=PAGE, Authorization="Bearer secret")
            assert answer.reply["result"][0] == "token"
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
        assert (await ask(address, WHO, Origin="https://other.example", Authorization="Bearer secret")).status == 403
