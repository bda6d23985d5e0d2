"""The paths at which HTTP and WebSocket are served: `Server(path=…)`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, ConnectFailed, Server
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread

from ..kit.http import RawHttpConnection, call, get, post

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def adding(**options: Any) -> Server:
    server = Server(**options)
    server.add(lambda a, b: a + b, name="add")
    return server


@contextlib.asynccontextmanager
async def asked(server: Server) -> AsyncIterator[Any]:
    """Asks a request on a connection of its own; gives status and body."""
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")

        async def ask(request: bytes) -> tuple[int, bytes]:
            raw_http = RawHttpConnection(*await asyncio.open_connection(host, int(port)))
            try:
                if b"Upgrade" not in request:
                    answer = await raw_http.ask(request)
                    return answer.status, answer.body
                raw_http.send(request)
                status, headers = await raw_http.head()
                return status, await raw_http.reader.readexactly(int(headers.get("content-length", 0)))
            finally:
                await raw_http.close()

        yield ask


@pytest.mark.parametrize(
    ("path", "posts", "sockets"),
    [
        (None, {"/"}, {"/", "/rpc", "/api/v1", "/rpc/"}),
        ("/", {"/"}, {"/"}),
        ("/rpc", {"/rpc"}, {"/rpc"}),
        (["/", "/rpc"], {"/", "/rpc"}, {"/", "/rpc"}),
        (("/api/v1", "/rpc/"), {"/api/v1", "/rpc/"}, {"/api/v1", "/rpc/"}),
    ],
)
async def test_where_calls_are_taken(path: Any, posts: set[str], sockets: set[str]) -> None:
    async with asked(adding(path=path)) as ask:
        for place in ("/", "/rpc", "/rpc/", "/api/v1"):
            for target in (place, f"{place}?key=1", f"http://127.0.0.1{place}"):
                status, body = await ask(post(call("add", 2, 3), target=target))
                assert status == (200 if place in posts else 404)
                assert place in posts or b"calls go to" in body
                status, _ = await ask(get(target, *UPGRADE))
                assert status == (101 if place in sockets else 404)


async def test_what_else_is_at_the_path() -> None:
    async with asked(adding(path="/rpc")) as ask:
        assert (await ask(get("/rpc")))[0] == 405
        assert (await ask(get("/")))[0] == 404
        assert (await ask(get("/rpc", method="PUT")))[0] == 405
        assert (await ask(get("/healthz"))) == (200, b"ok")
        assert (await ask(post(call("add", 2, 3), target="/RPC")))[0] == 404
        assert (await ask(post(call("add", 2, 3), target="/%72pc")))[0] == 200  # as it is read, so it is the same


async def test_routes_of_the_same_path() -> None:
    """GET is the route's, POST and WebSockets are calls; a route elsewhere takes no calls."""
    server = adding(path=["/rpc", "/files/"])
    server.static("/rpc", b"<h1>how to call</h1>", type="text/html")
    server.get("/page", lambda: "a page")

    @server.get("/{rest:path}")
    def rest(rest: str) -> str:
        return rest

    async with asked(server) as ask:
        assert await ask(get("/rpc")) == (200, b"<h1>how to call</h1>")
        assert (await ask(post(call("add", 2, 3), target="/rpc")))[1].endswith(b'"result":5}')
        assert (await ask(get("/rpc", *UPGRADE)))[0] == 101
        assert await ask(get("/page")) == (200, b"a page")
        assert (await ask(get("/page", *UPGRADE)))[0] == 404
        assert (await ask(post(call("add", 2, 3), target="/page")))[0] == 405
        assert await ask(get("/files/")) == (200, b"files/")
        assert (await ask(post(call("add", 2, 3), target="/files/")))[0] == 200


async def test_strangers_and_paths() -> None:
    async with asked(adding(path="/rpc", token="secret")) as ask:
        assert (await ask(get("/", *UPGRADE, "Authorization: Bearer wrong")))[0] == 404
        assert (await ask(get("/rpc", *UPGRADE, "Authorization: Bearer wrong")))[0] == 401
        assert (await ask(post(call("add", 2, 3), target="/")))[0] == 401
        assert (await ask(post(call("add", 2, 3), "Authorization: Bearer secret", target="/")))[0] == 404


@pytest.mark.parametrize("kind", [Server, Hub])
def test_clients_with_a_path(kind: Any) -> None:
    server = kind(path="/rpc")
    server.add(lambda a, b: a + b, name="add")
    with serve_in_thread(server) as address:
        for scheme in ("http", "ws"):
            for target in ("/rpc", "/rpc?key=1"):
                with Client(f"{scheme}://{address}{target}") as client:
                    assert client.add(2, 3) == 5
            with Client(f"{scheme}://{address}") as client, pytest.raises(ConnectFailed, match="calls go to /rpc"):
                client.add(2, 3)
        with Client(address) as client:  # a line has no path
            assert client.add(2, 3) == 5


async def test_async_clients_with_a_path() -> None:
    async with adding(path=["/a", "/b"]).listening(port=0) as address:
        for url in (f"http://{address}/a", f"ws://{address}/b"):
            async with AsyncClient(url) as client:
                assert await client.add(2, 3) == 5


@pytest.mark.parametrize("path", ["rpc", "", [], ["/", "x"], "/rpc?x=1", "/a#b", "/%20", "/a\nb", [1], ["/", None]])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ValueError, match="path"):
        Server(path=path)


def test_what_is_neither_text_nor_a_list() -> None:
    with pytest.raises(TypeError):
        Server(path=3)  # type: ignore[arg-type]


async def test_it_is_said_before_the_server_runs() -> None:
    server = adding()
    assert server.path is None
    server.take_calls_at("/rpc")
    assert server.path == ("/rpc",)
    async with asked(server) as ask:
        assert (await ask(post(call("add", 2, 3), target="/rpc")))[0] == 200
        with pytest.raises(RuntimeError, match="running"):
            server.take_calls_at("/")
    with pytest.raises(ValueError, match="path"):
        server.take_calls_at("x")
