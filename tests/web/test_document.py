"""`GET /openrpc.json`: what it answers, to whom, and where it says that the server is."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Hub, Server
from rpcstream.server.addresses import checked_urls, server_objects


async def get(address: str, target: str, more: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response to a GET."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    headers = {"Host": address, "Connection": "close", **(more or {})}
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *others = head.decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in others)
    return int(first.split()[1]), {name.lower(): value for name, value in pairs}, body


def names(body: bytes) -> set[str]:
    return {method["name"] for method in orjson.loads(body)["methods"] if not method["name"].startswith("rpc.")}


@pytest.fixture
def server() -> Server:
    server = Server(title="a service")
    server.add(lambda a: a, name="one")
    return server


async def test_it_is_the_document_of_rpc_discover(server: Server) -> None:
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        status, headers, body = await get(address, "/openrpc.json")
        assert (status, headers["content-type"]) == (200, "application/json")
        assert headers["x-content-type-options"] == "nosniff"
        assert orjson.loads(body) == await client.discover()
        status, _, nothing = await get(address, "/openrpc.json", {"If-None-Match": headers["etag"]})
        assert (status, nothing) == (304, b"")
        server.add(lambda: 2, name="two")
        status, _, body = await get(address, "/openrpc.json", {"If-None-Match": headers["etag"]})
        assert (status, names(body)) == (200, {"one", "two"})


async def test_the_variant_for_older_tools(server: Server) -> None:
    async with server.listening(port=0) as address:
        _, _, body = await get(address, "/openrpc.json?compat=1.2.6")
        assert orjson.loads(body)["openrpc"] == "1.2.6"
        for query in ("compat=1.3", "compat=", "compat=1.2.6&compat=2", "&".join(["a=1"] * 20)):
            status, _, body = await get(address, f"/openrpc.json?{query}")
            assert (status, b"{" in body) == (400, False)


async def test_only_callers_that_are_authenticated_get_it() -> None:
    server = Server(token="secret-of-the-test", description="*All* of it.")
    async with server.listening(port=0) as address:
        status, _, body = await get(address, "/openrpc.json")
        assert (status, b"openrpc" in body) == (401, False)
        _, _, body = await get(address, "/openrpc.json", {"Authorization": "Bearer secret-of-the-test"})
        made = orjson.loads(body)
    assert made["info"]["description"] == "*All* of it."
    assert [(each["type"], each["scheme"]) for each in made["x-security"]] == [("http", "bearer")]


async def test_a_route_of_the_user_takes_its_place(server: Server) -> None:
    server.static("/openrpc.json", b"{}")
    async with server.listening(port=0) as address:
        assert (await get(address, "/openrpc.json"))[2] == b"{}"


async def test_servers_are_those_that_the_caller_can_reach() -> None:
    server = Server(hosts=["api.example.org"])
    async with server.listening(port=0) as address:
        for host, expected in (
            (address, address),
            ("api.example.org", "api.example.org"),
            (f"localhost:{address.rpartition(':')[2]}", f"localhost:{address.rpartition(':')[2]}"),
        ):
            _, _, body = await get(address, "/openrpc.json", {"Host": host})
            assert orjson.loads(body)["servers"] == [
                {"name": "http", "url": f"http://{expected}/"},
                {"name": "websocket", "url": f"ws://{expected}/"},
                {"name": "stream", "url": f"tcp://{expected}"},
            ]


async def test_public_urls_stand_in_the_place_of_addresses() -> None:
    urls = ["https://example.org/rpc", "wss://example.org/rpc"]
    async with Server(public_urls=urls).listening(port=0) as address:
        _, _, body = await get(address, "/openrpc.json")
    assert [each["url"] for each in orjson.loads(body)["servers"]] == urls


async def test_at_a_hub_it_has_what_members_offer() -> None:
    hub = Hub()
    async with hub.listening(port=0) as address, AsyncClient(address, name="gpu") as member:

        @member
        def pair(value: tuple[int, str], tree: dict[str, tuple[int]]) -> None: ...

        await member.offer()
        _, _, new = await get(address, "/openrpc.json")
        _, _, old = await get(address, "/openrpc.json?compat=1.2.6")
        assert orjson.loads(new) == await member.discover()
        assert orjson.loads(old) == await member.call("rpc.discover", compat="1.2.6")
        assert orjson.loads(old) == await member.call("rpc.discover", "1.2.6")
        for wrong in ({"compat": "1"}, {"compat": 5}, {"other": None}, [None, None]):
            with pytest.raises(Exception, match=r"compat"):
                await member.request("rpc.discover", wrong)
        assert await member.request("rpc.discover", [None]) == orjson.loads(new)
    assert {"pair"} <= names(new) == names(old)
    assert (b"rpc.ping" in new, b"rpc.ping" in old) == (True, False)
    assert b"prefixItems" in new
    assert b"prefixItems" not in old
    (method,) = [each for each in orjson.loads(old)["methods"] if each["name"] == "pair"]
    assert method["params"][0]["schema"]["items"] == [
        {"type": "integer", "title": "Integer"},
        {"type": "string", "title": "Str"},
    ]


@pytest.mark.parametrize(
    ("addresses", "options", "urls"),
    [
        (["127.0.0.1:80"], {}, ["http://127.0.0.1:80/", "ws://127.0.0.1:80/", "tcp://127.0.0.1:80"]),
        (["[::1]:80"], {"is_encrypted": True}, ["https://[::1]:80/", "wss://[::1]:80/", "tls://[::1]:80"]),
        (["a:1"], {"paths": ("/rp c", "/b")}, ["http://a:1/rp%20c", "ws://a:1/rp%20c", "tcp://a:1"]),
        (["0.0.0.0:1", "[::]:1"], {}, ["http://localhost:1/", "ws://localhost:1/", "tcp://localhost:1"]),
        (["unix:///run/a"], {}, ["unix:///run/a"]),
        (["unix:///run/a", "a:1"], {}, ["http://a:1/", "ws://a:1/", "tcp://a:1"]),
        ([], {}, []),
    ],
)
def test_server_objects(addresses: list[str], options: dict[str, Any], urls: list[str]) -> None:
    made = server_objects(addresses, **{"paths": None, "is_encrypted": False, **options})
    assert [each["url"] for each in made] == urls


@pytest.mark.parametrize("wrong", ["https://a.b", [5], ["example.org"], ["ftp://a"], ["https:///x"]])
def test_what_is_no_url_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="public_urls"):
        checked_urls(wrong)
