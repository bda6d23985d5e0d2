"""Pages over a real connection, and who may see them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rpcstream import Server
from rpcstream.web import html

from ..kit import UsualServer
from ..kit.http import Answer, RawHttpConnection, call, get, post

#: The paths of pages of every kind, and the sizes of what they answer.
SIZES = {"/slow/1": 1, "/page.html": 7, "/hello/2": 4, "/files/a.txt": 1, "/large": 1_000_000, "/healthz": 2}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[RawHttpConnection]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.txt").write_text("a")
    (tmp_path / "secret.txt").write_text("secret")
    server = UsualServer()
    server.static("/page.html", b"<p>page")
    server.static("/large", b"x" * 1_000_000)
    server.static("/files/", tmp_path / "site")
    server.get("/hello/{name}", lambda name: html("<p>{name}", name=name))
    server.get("/slow/{name}", offload="thread")(lambda name: name)
    server.get("/nothing", lambda: None)
    async with connected(server) as http:
        yield http


@contextlib.asynccontextmanager
async def connected(server: Server) -> AsyncIterator[RawHttpConnection]:
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        http = RawHttpConnection(*await asyncio.open_connection(host, int(port)))
        yield http
        await http.close()


async def test_pages_and_calls_share_a_connection_and_come_in_order(http: RawHttpConnection) -> None:
    http.send(*(get(path) for path in SIZES), post(call("add", 1, 2)), get("/nothing"), get("/files/no"))
    for path, size in SIZES.items():
        answer = await http.answer()
        assert (answer.status, len(answer.body)) == (200, size), path
    assert (await http.answer()).json == {"jsonrpc": "2.0", "id": 1, "result": 3}
    assert [(await http.answer()).status for _ in range(2)] == [204, 404]


async def test_head_has_everything_but_the_body(http: RawHttpConnection) -> None:
    for path in (*SIZES, "/files/no"):
        answer = await http.ask(get(path))
        http.send(get(path, method="HEAD"))
        told = await http.answer(to_head=True)
        for each in (answer.headers, told.headers):
            each.pop("date", None)
        assert told == Answer(answer.status, answer.headers, b"")
        assert int(told.headers["content-length"]) == len(answer.body)


async def test_what_a_browser_has_is_not_sent_again(http: RawHttpConnection) -> None:
    for path in ("/page.html", "/large", "/files/a.txt"):
        answer = await http.ask(get(path))
        again = await http.ask(get(path, f"If-None-Match: {answer.headers['etag']}"))
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", answer.headers["etag"])
        assert await http.ask(get(path)) == answer


@pytest.mark.parametrize("path", ["/page.html", "/hello/2", "/slow/1"])
async def test_the_connection_closes_where_that_was_asked(http: RawHttpConnection, path: str) -> None:
    answer = await http.ask(get(path, "Connection: close"))
    assert (answer.headers["connection"], len(answer.body)) == ("close", SIZES[path])
    assert await http.rest() == b""


async def test_nothing_outside_of_a_folder_is_seen(http: RawHttpConnection) -> None:
    for name in ("../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "..%5csecret.txt", "a.txt%00.png"):
        answer = await http.ask(get(f"/files/{name}"))
        assert answer.status in (400, 404)
        assert b"secret" not in answer.body


async def test_a_page_of_another_name_is_not_shown(http: RawHttpConnection) -> None:
    """DNS rebinding: a site whose name leads here must see nothing. Monitors ask by any name, and are told nothing."""

    async def ask(path: str, *lines: str, host: str = "evil.example", method: str = "GET") -> Answer:
        http.send(get(path, *lines, method=method).replace(b"Host: 127.0.0.1", f"Host: {host}".encode()))
        return await http.answer(to_head=method == "HEAD")

    for path in ("/page.html", "/hello/2", "//healthz"):
        answer = await ask(path)
        assert answer.status == 403
        assert b"--allow-host" in answer.body
        assert b"hosts=" in answer.body
    for path in ("/healthz", "/readyz"):
        for host in ("10.1.2.3:8545", "evil.example", "[::2]", "no host at all"):
            assert (await ask(path, host=host))[::2] == (200, b"ok")
            assert (await ask(path, host=host, method="HEAD")).status == 200
            assert (await ask(path, host=host, method="POST")).status == 403
        answer = await ask(path, "Origin: http://10.1.2.3", host="10.1.2.3")
        assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)
        assert b"--allow-origin" in answer.body


async def test_a_page_at_the_path_of_a_health_check_is_a_page() -> None:
    server = Server()
    server.static("/healthz", b"mine")
    evil = b"Host: evil.example"
    async with connected(server) as http:
        for request, found in ((get("/healthz"), b"mine"), (get("/readyz").replace(b"Host: 127.0.0.1", evil), b"ok")):
            assert (await http.ask(request))[::2] == (200, found)
        assert (await http.ask(get("/healthz").replace(b"Host: 127.0.0.1", evil))).status == 403
