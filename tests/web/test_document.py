"""`GET /openrpc.json`: what it answers, to whom, and where it says that the server is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream import AsyncClient, Hub, Server

from ..kit import authority, server_tls
from ..kit.http import Answer, RawHttpConnection, get
from .routes_client import RoutesClient


def names(document: Any) -> set[str]:
    return {method["name"] for method in document["methods"] if not method["name"].startswith("rpc.")}


async def ask(port: str, host: str, query: str = "") -> Answer:
    """The document, as a caller gets it who names this host."""
    http = RawHttpConnection(*await asyncio.open_connection("127.0.0.1", int(port)))
    named = f"Host: {host}".encode()
    answer = await http.ask(get(f"/openrpc.json{query}").replace(b"Host: 127.0.0.1", named))
    await http.close()
    return answer


@pytest.fixture
async def service() -> AsyncIterator[RoutesClient]:
    server = Server(title="a service")
    server.add(lambda a: a, name="one")
    async with RoutesClient(server) as site:
        yield site


async def test_it_is_fetched_again_only_when_it_has_changed(service: RoutesClient) -> None:
    page = await service.page("/openrpc.json")
    assert (page.status, page.headers["content-type"]) == (200, "application/json")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert names(page.json) == {"one"}
    again = await service.page("/openrpc.json", if_none_match=page.headers["etag"])
    assert (again.status, again.content) == (304, b"")
    service.server.add(lambda: 2, name="two")
    again = await service.page("/openrpc.json", if_none_match=page.headers["etag"])
    assert (again.status, names(again.json)) == (200, {"one", "two"})
    service.static("/openrpc.json", b"{}")
    assert await service.text("/openrpc.json") == (200, "{}")


async def test_the_variant_for_older_tools(service: RoutesClient) -> None:
    assert (await service.page("/openrpc.json?compat=1.2.6")).json["openrpc"] == "1.2.6"
    for query in ("compat=1.3", "compat=", "compat=1.2.6&compat=2", "&".join(["a=1"] * 20)):
        page = await service.page(f"/openrpc.json?{query}")
        assert (page.status, b"{" in page.content) == (400, False)


async def test_it_says_how_callers_are_authenticated() -> None:
    async with RoutesClient(token="secret-of-the-test", description="*All* of it.") as site:
        made = (await site.page("/openrpc.json", authorization="Bearer secret-of-the-test")).json
    assert made["info"]["description"] == "*All* of it."
    assert [(each["type"], each["scheme"]) for each in made["x-security"]] == [("http", "bearer")]


@pytest.mark.parametrize(
    ("options", "where", "hosts", "urls"),
    [
        ({"hosts": ["a.example"]}, {}, ("localhost:PORT", "a.example"), ["http://HOST/", "ws://HOST/", "tcp://HOST"]),
        (
            {"path": ("/rp c", "/b")},
            {"host": "0.0.0.0"},
            ("127.0.0.1:PORT",),
            ["http://HOST/rp%20c", "ws://HOST/rp%20c", "tcp://HOST"],
        ),
        (
            {"public_urls": ["https://a.example/rpc", "unix:///b"]},
            {},
            ("localhost",),
            ["https://a.example/rpc", "unix:///b"],
        ),
    ],
)
async def test_servers_are_those_that_the_caller_can_reach(
    options: dict[str, Any], where: dict[str, str], hosts: tuple[str, ...], urls: list[str]
) -> None:
    async with Server(**options).listening(port=0, **where) as address:
        port = address.rpartition(":")[2]
        for host in (each.replace("PORT", port) for each in hosts):
            servers = (await ask(port, host)).json["servers"]
            assert [each["url"] for each in servers] == [url.replace("HOST", host) for url in urls]


async def test_servers_as_clients_of_other_transports_are_told_them(tmp_path: Path) -> None:
    async def told(where: str, **options: Any) -> list[str]:
        async with AsyncClient(where, **options) as client:
            return [each["url"] for each in (await client.discover())["servers"]]

    unix = str(tmp_path / "socket")
    async with Server().listening(unix=unix) as address:
        assert await told(address) == [f"unix://{unix}"]
    async with Server().listening(host="0.0.0.0", port=0) as address:
        port = address.rpartition(":")[2]
        expected = [f"http://localhost:{port}/", f"ws://localhost:{port}/", f"tcp://localhost:{port}"]
        assert await told(f"127.0.0.1:{port}") == expected
    async with Server(tls=server_tls()).listening(port=0) as address:
        expected = [f"https://{address}/", f"wss://{address}/", f"tls://{address}"]
        assert await told(f"tls://{address}", ca=authority()) == expected


async def test_at_a_hub_it_has_what_members_offer() -> None:
    hub = Hub()
    async with hub.listening(port=0) as address, AsyncClient(address, name="gpu") as member:

        @member
        def pair(value: tuple[int, str], tree: dict[str, tuple[int]]) -> None: ...

        await member.offer()
        port = address.rpartition(":")[2]
        new, old = await ask(port, address), await ask(port, address, "?compat=1.2.6")
        assert new.json == await member.discover() == await member.request("rpc.discover", [None])
        assert old.json == await member.call("rpc.discover", compat="1.2.6")
        assert old.json == await member.call("rpc.discover", "1.2.6")
        for wrong in ({"compat": "1"}, {"compat": 5}, {"other": None}, [None, None]):
            with pytest.raises(Exception, match=r"compat"):
                await member.request("rpc.discover", wrong)
    assert {"pair"} <= names(new.json) == names(old.json)
    for text in (b"rpc.ping", b"prefixItems"):
        assert (text in new.body, text in old.body) == (True, False)
    (method,) = [each for each in old.json["methods"] if each["name"] == "pair"]
    assert method["params"][0]["schema"]["items"] == [
        {"type": "integer", "title": "Integer"},
        {"type": "string", "title": "Str"},
    ]


@pytest.mark.parametrize("wrong", ["https://a.b", [5], ["example.org"], ["ftp://a"], ["https:///x"]])
def test_what_is_no_url_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="public_urls"):
        Server(public_urls=wrong)
