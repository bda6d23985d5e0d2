"""Pages and `GET /openrpc.json` over real connections: in which order, who may see them, and where the server is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, Http, Hub, Info, Server
from rpcstream.web import html

from ..kit import UsualServer, authority, server_tls
from ..kit.http import Answer, RawHttpConnection, call, get, post
from .conftest import RoutesClient

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
    async with server.listening(port=0) as address:
        http = RawHttpConnection(*await asyncio.open_connection(*address.split(":")))
        yield http
        await http.close()


async def test_pages_and_calls_share_a_connection_and_come_in_order(http: RawHttpConnection) -> None:
    http.send(*(get(path) for path in SIZES), post(call("add", 1, 2)), get("/nothing"), get("/files/no"))
    for path, size in SIZES.items():
        answer = await http.answer()
        assert (answer.status, len(answer.body)) == (200, size), path
    assert (await http.answer()).json == {"jsonrpc": "2.0", "id": 1, "result": 3}
    assert [(await http.answer()).status for _ in range(2)] == [204, 404]
    answer = await http.ask(get("/hello/2", "Connection: close"))
    assert (answer.headers["connection"], await http.rest()) == ("close", b"")


async def test_where_the_explorer_is_off_the_answer_names_its_option(http: RawHttpConnection) -> None:
    answer = await http.ask(get("/docs"))
    assert (answer.status, b"Server(docs=True)" in answer.body) == (404, True)


async def test_head_has_everything_but_the_body(http: RawHttpConnection) -> None:
    for path in (*SIZES, "/files/no"):
        answer = await http.ask(get(path))
        http.send(get(path, method="HEAD"))
        told = await http.answer(to_head=True)
        for each in (answer.headers, told.headers):
            each.pop("date", None)
        assert told == Answer(answer.status, answer.headers, b"")
        assert int(told.headers["content-length"]) == len(answer.body)


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
        assert (answer.status, b"--set hosts=" in answer.body) == (403, True)
    for path in ("/healthz", "/readyz"):
        for host in ("10.1.2.3:8545", "evil.example", "[::2]", "no host at all"):
            assert (await ask(path, host=host))[::2] == (200, b"ok")
            assert (await ask(path, host=host, method="HEAD")).status == 200
            assert (await ask(path, host=host, method="POST")).status == 403
        answer = await ask(path, "Origin: http://10.1.2.3", host="10.1.2.3")
        assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)
        assert b"--set origins=" in answer.body


# -- /openrpc.json ----------------------------------------------------------------------------------------------------


def names(document: Any) -> set[str]:
    return {method["name"] for method in document["methods"] if not method["name"].startswith("rpc.")}


async def ask(port: str, host: str, query: str = "") -> Answer:
    """The document, as a caller gets it who names this host."""
    http = RawHttpConnection(*await asyncio.open_connection("127.0.0.1", int(port)))
    named = f"Host: {host}".encode()
    answer = await http.ask(get(f"/openrpc.json{query}").replace(b"Host: 127.0.0.1", named))
    await http.close()
    return answer


async def test_it_is_fetched_again_only_when_it_has_changed() -> None:
    server = Server(info=Info(title="a service"))
    server.add(lambda a: a, name="one")
    async with RoutesClient(server) as service:
        page = await service.page("/openrpc.json")
        assert (page.status, page.headers["content-type"]) == (200, "application/json")
        assert page.headers["x-content-type-options"] == "nosniff"
        assert names(page.json) == {"one"}
        again = await service.page("/openrpc.json", if_none_match=page.headers["etag"])
        assert (again.status, again.content) == (304, b"")
        service.server.add(lambda: 2, name="two")
        again = await service.page("/openrpc.json", if_none_match=page.headers["etag"])
        assert (again.status, names(again.json)) == (200, {"one", "two"})
        assert (await service.page("/openrpc.json?compat=1.2.6")).json["openrpc"] == "1.2.6"
        for query in ("compat=1.3", "compat=", "compat=1.2.6&compat=2", "&".join(["a=1"] * 20)):
            page = await service.page(f"/openrpc.json?{query}")
            assert (page.status, b"{" in page.content) == (400, False)
        service.static("/openrpc.json", b"{}")
        assert await service.text("/openrpc.json") == (200, "{}")


async def test_it_says_how_callers_are_authenticated() -> None:
    async with RoutesClient(token="secret-of-the-test", info=Info(description="*All* of it.")) as site:
        made = (await site.page("/openrpc.json", authorization="Bearer secret-of-the-test")).json
    assert made["info"]["description"] == "*All* of it."
    assert [(each["type"], each["scheme"]) for each in made["x-security"]] == [("http", "bearer")]


@pytest.mark.parametrize(
    ("options", "hosts", "urls"),
    [
        (
            {"http": Http(hosts=["a.example"])},
            ("localhost:PORT", "a.example"),
            ["http://HOST/", "ws://HOST/", "tcp://HOST"],
        ),
        (
            {"http": Http(path=("/rp c", "/b"))},
            ("127.0.0.1:PORT",),
            ["http://HOST/rp%20c", "ws://HOST/rp%20c", "tcp://HOST"],
        ),
        (
            {"info": Info(public_urls=["https://a.example/", "unix:///b"])},
            ("localhost",),
            ["https://a.example/", "unix:///b"],
        ),
    ],
)
async def test_servers_are_those_that_the_caller_can_reach(
    options: dict[str, Any], hosts: tuple[str, ...], urls: list[str]
) -> None:
    async with Server(**options).listening(port=0) as address:
        port = address.rpartition(":")[2]
        for host in (each.replace("PORT", port) for each in hosts):
            servers = (await ask(port, host)).json["servers"]
            assert [each["url"] for each in servers] == [url.replace("HOST", host) for url in urls]


async def test_servers_as_clients_of_other_transports_are_told_them(tmp_path: Path) -> None:
    async def told(where: str, **options: Any) -> list[str]:
        async with AsyncClient(where, **options) as client:
            return [each["url"] for each in (await client.discover())["servers"]]

    async with Server().listening(unix=tmp_path / "socket") as address:
        assert await told(address) == [f"unix://{tmp_path / 'socket'}"]
    async with Server().listening(host="0.0.0.0", port=0) as address:
        port = address.rpartition(":")[2]
        expected = [f"http://localhost:{port}/", f"ws://localhost:{port}/", f"tcp://localhost:{port}"]
        assert await told(f"127.0.0.1:{port}") == expected
    async with Server(tls=server_tls()).listening(port=0) as address:
        expected = [f"https://{address}/", f"wss://{address}/", f"tls://{address}"]
        assert await told(f"tls://{address}", tls=authority()) == expected


async def test_at_a_hub_it_has_what_members_offer() -> None:
    async with Hub().listening(port=0) as address, AsyncClient(address, name="gpu") as member:

        @member
        def pair(value: tuple[int, str]) -> None: ...

        await member.offer()
        port = address.rpartition(":")[2]
        new, old = await ask(port, address), await ask(port, address, "?compat=1.2.6")
        assert new.json == await member.discover() == await member.request("rpc.discover", [None])
        assert old.json == await member.call("rpc.discover", compat="1.2.6")
        for wrong in ({"compat": 5}, {"other": None}):
            with pytest.raises(Exception, match=r"compat|is unknown"):
                await member.request("rpc.discover", wrong)
    assert {"pair"} <= names(new.json) == names(old.json)
    assert [b"prefixItems" in each.body for each in (new, old)] == [True, False]


@pytest.mark.parametrize("wrong", ["https://a.b", [5], ["example.org"], ["ftp://a"], ["https:///x"]])
def test_what_is_no_url_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="public_urls"):
        Server(info=Info(public_urls=wrong))
