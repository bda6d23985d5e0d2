"""The paths at which HTTP and WebSocket are served: `Server(http=Http(path=…))`."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream import AsyncClient, Client, ConnectFailed, Http, Server
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer
from ..kit.http import call, get, post
from ..kit.websocket import UPGRADE
from .conftest import Serve, Served

ADD = call("add", 2, 3)


async def ask(served: Served, request: bytes) -> tuple[int, bytes]:
    """The status and the body of the response to a request on a connection of its own."""
    http = await served.http()
    http.send(request)
    status, headers = await http.head()
    return status, await http.reader.readexactly(int(headers.get("content-length", 0)))


@pytest.mark.parametrize(
    ("path", "posts", "sockets"),
    [
        (None, {"/"}, {"/", "/rpc", "/api/v1", "/rpc/"}),
        ("/rpc", {"/rpc"}, {"/rpc"}),
        (("/api/v1", "/rpc/"), {"/api/v1", "/rpc/"}, {"/api/v1", "/rpc/"}),
    ],
)
async def test_where_calls_are_taken(serve: Serve, path: Any, posts: set[str], sockets: set[str]) -> None:
    served = await serve(http=Http(path=path))
    for place in ("/", "/rpc", "/rpc/", "/api/v1"):
        for target in (place, f"{place}?key=1"):
            status, body = await ask(served, post(ADD, target=target))
            assert status == (200 if place in posts else 404)
            assert place in posts or b"calls go to" in body
            assert (await ask(served, get(target, *UPGRADE)))[0] == (101 if place in sockets else 404)


async def test_what_else_is_at_a_path(serve: Serve) -> None:
    """GET is a route's, POST and WebSockets are calls; a route elsewhere takes no calls."""
    server = UsualServer(http=Http(path=["/rpc", "/files/"]))
    server.static("/rpc", b"<h1>how to call</h1>", type="text/html")
    server.get("/page", lambda: "a page")
    served = await serve(server)
    for request, status in (
        (get("/rpc", method="PUT"), 405),
        (get("/healthz"), 200),
        (post(ADD, target="/RPC"), 404),
        (post(ADD, target="/%72pc"), 200),  # as it is read, so it is the same
    ):
        assert (await ask(served, request))[0] == status

    @server.get("/{rest:path}")
    def rest(rest: str) -> str:
        return rest

    for request, expected in (
        (get("/rpc"), (200, b"<h1>how to call</h1>")),
        (post(ADD, target="/rpc"), (200, b'{"jsonrpc":"2.0","id":1,"result":5}')),
        (get("/rpc", *UPGRADE), (101, b"")),
        (get("/page"), (200, b"a page")),
        (get("/files/"), (200, b"files/")),
        (post(ADD, target="/files/"), (200, b'{"jsonrpc":"2.0","id":1,"result":5}')),
    ):
        assert await ask(served, request) == expected
    assert (await ask(served, get("/page", *UPGRADE)))[0] == 404
    assert (await ask(served, post(ADD, target="/page")))[0] == 405


async def test_strangers_and_paths(serve: Serve) -> None:
    served = await serve(http=Http(path="/rpc"), token="secret")
    for request, status in (
        (get("/", *UPGRADE, "Authorization: Bearer wrong"), 404),
        (get("/rpc", *UPGRADE, "Authorization: Bearer wrong"), 401),
        (post(ADD, target="/"), 401),
        (post(ADD, "Authorization: Bearer secret", target="/"), 404),
    ):
        assert (await ask(served, request))[0] == status


@pytest.mark.parametrize("kind", [Server, Hub])
async def test_clients_with_a_path(kind: Any) -> None:
    server = kind(http=Http(path="/rpc"))
    server.add(lambda a, b: a + b, name="add")
    with serve_in_thread(server) as address:
        for scheme in ("http", "ws"):
            with Client(f"{scheme}://{address}/rpc?key=1") as client:
                assert client.add(2, 3) == 5
            async with AsyncClient(f"{scheme}://{address}/rpc") as other:
                assert await other.add(2, 3) == 5
            with Client(f"{scheme}://{address}") as client, pytest.raises(ConnectFailed, match="calls go to /rpc"):
                client.add(2, 3)
        with Client(address) as client:  # a line has no path
            assert client.add(2, 3) == 5


@pytest.mark.parametrize("path", ["rpc", "", [], ["/", "x"], "/rpc?x=1", "/a#b", "/%20", "/a\nb", [1], ["/", None]])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ValueError, match="path"):
        Server(http=Http(path=path))
