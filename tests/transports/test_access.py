"""Hosts and origins of HTTP requests: who may call from where, and what browsers are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import Http, Server

from ..kit.asgi import Driver, call, http_scope
from ..kit.http import RawHttpConnection, get, post
from ..kit.http import call as call_bytes
from .conftest import Serve


async def asked(app: Any, host: str, origin: str | None, method: str = "POST", **headers: str) -> Driver:
    """The response of an application to a ping."""
    scope = http_scope(method, "/")
    given = {"host": host, **({} if origin is None else {"origin": origin}), **headers}
    scope["headers"] = [each for each in scope["headers"] if each[0] != b"host"]
    scope["headers"] += [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    driver = Driver(app, scope)
    driver.body(orjson.dumps(call("rpc.ping")))
    return await driver.ended()


async def answer(options: dict[str, Any], host: str = "localhost", origin: str | None = None, **more: str) -> Driver:
    """The response of a server with these options."""
    app = Server(http=Http(**options)).asgi()
    async with app.lifespan():
        return await asked(app, host, origin, **more)


async def refused(options: dict[str, Any], cases: list[Any], **more: str) -> list[Any]:
    """Those hosts, or hosts and origins, that are refused; nothing tells a page that it may read that."""
    app, found = Server(http=Http(**options)).asgi(), []
    async with app.lifespan():
        for each in cases:
            host, origin = (each, None) if isinstance(each, str) else each
            driver = await asked(app, host, origin, **more)
            assert driver.status != 400
            if driver.status == 403:
                assert not any(name.startswith("access-") for name in driver.headers)
                found.append(each)
    return found


LOOPBACK = ["localhost", "localhost:8545", "LOCALHOST", "LocalHost:1", "a.localhost", "b.a.localhost:3000", "127.0.0.1"]
LOOPBACK += ["127.0.0.1:65535", "127.255.1.2", "[::1]", "[::1]:8545", "[0:0:0:0:0:0:0:1]", "[0000::0001]:80"]

HOSTILE = [
    "", " ", "evil.example", "evil.example:8545",
    "localhost.evil.example", "evillocalhost", "-localhost", "localhost-", "localhost.", "localhost.:80", "127.0.0.1.",
    ".localhost", "a..localhost", "*.localhost", "*",
    "localhost@evil.example", "evil.example@localhost", "user:pass@localhost",
    "localhost, evil.example", "evil.example, localhost", "localhost localhost", "localhost\tx", "localhost\n",
    "localhost\x00", "localhost\xa0", "localhost/", "localhost\\", "localhost?", "localhost#", "http://localhost",
    "//localhost",
    "localhost:", "localhost:0", "localhost:65536", "localhost:80:80", "localhost:8a", "localhost:+80", "localhost:-1",
    "localhost:\u0661", "\uff4cocalhost", "\u212aocalhost", "local\u017fhost", "xn--lcalhost-n3a", "%6cocalhost",
    "localhost%00",
    "2130706433", "017700000001", "0x7f000001", "0x7f.1", "0x7f.0.0.1", "127.1", "127.0.1", "127.0.0.01", "0177.0.0.1",
    "127.0.0.256", "127.0.0.1.example", "127.example", "127.0.0.1.1", "0", "0.0.0.0",
    "[::]", "::1", "[::1", "::1]", "[]", "[::1]x", "[::1%lo]", "[::1%25lo]", "[::ffff:127.0.0.1]", "[::127.0.0.1]",
    "[v1.x]", "[localhost]", "10.0.0.1", "192.168.1.5:8545", "128.0.0.1",
    "a" * 300 + ".localhost", "a." * 20_000 + "localhost", "localhost" * 20_000, "localhost:" + "0" * 20_000 + "80",
]  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "BREW"])
async def test_loopback_may_be_named_and_nothing_else(method: str) -> None:
    assert await refused({}, LOOPBACK, method=method) == []
    assert set(HOSTILE) == set(await refused({}, HOSTILE, method=method))


async def test_a_refusal_names_the_host_and_stays_short() -> None:
    refusal = await answer({}, "evil.example\r\nSet-Cookie: x" + "y" * 10_000)
    assert b"evil.example" in refusal.content
    assert b"\r" not in refusal.content
    assert len(refusal.content) < 300
    assert not any("evil" in value for value in refusal.headers.values())


@pytest.mark.parametrize(
    ("hosts", "good", "bad"),
    [
        (["example.org"], ["example.org", "EXAMPLE.org:8545"], ["www.example.org", "example.org.", "example.orgs"]),
        ("example.org", ["example.org"], ["e"]),
        (["*.example.org"], ["a.example.org", "b.a.example.org:1"], ["example.org", "aexample.org", ".example.org"]),
        (["*.example.org", "example.org"], ["example.org", "x.example.org"], ["example.com"]),
        (["10.1.2.3", "fd00::1", "[fd00::2]"], ["10.1.2.3:80", "[fd00::1]", "[FD00:0::2]:8"], ["10.1.2.4", "fd00::1"]),
        (["Kiosk_1"], ["kiosk_1", "KIOSK_1:9"], ["kiosk", "\u212aiosk_1"]),
        (["*"], ["evil.example", "10.0.0.1:5", "[fd00::1]"], ["", "a b", "a@b", "a, b", "[::1%lo]", "2130706433"]),
    ],
)
async def test_further_hosts(hosts: Any, good: list[str], bad: list[str]) -> None:
    assert await refused({"hosts": hosts}, [*good, "localhost", "127.0.0.1", *bad]) == bad


NO_HOSTS = ["", " ", "http://a", "a:80", "a/", "a.", "*a", "*.", "a.*", "*.*", "**", "a b", "a,b", "2130706433"]
NO_HOSTS += ["[::1%lo]", "ö.org"]
NO_ORIGINS = ["", "example.org", "https://example.org/", "https://*.example.org", "https://a b", "https://a@b"]
NO_ORIGINS += ["NULL", "https://"]


@pytest.mark.parametrize(("option", "values"), [("hosts", NO_HOSTS), ("origins", NO_ORIGINS)])
def test_what_is_no_host_and_no_origin(option: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{option}: "):
            Server(http=Http(**{option: [value]}))  # type: ignore[arg-type]


OWN = [
    ("localhost", "http://localhost"),
    ("localhost:8545", "http://localhost:8545"),
    ("localhost:80", "http://localhost"),
    ("localhost", "http://localhost:80"),
    ("localhost", "https://localhost"),
    ("localhost", "https://localhost:443"),
    ("[::1]:8545", "http://[::1]:8545"),
    ("127.0.0.1:8545", "http://127.0.0.1:8545"),
    ("a.localhost:1", "HTTP://A.LOCALHOST:1"),
]

FOREIGN = [
    *[("localhost:8545", origin) for origin in (
        "http://evil.example", "http://localhost:3000", "http://localhost", "http://127.0.0.1:8545",
        "http://a.localhost:8545", "http://localhost.evil.example:8545", "http://localhost:8545@evil.example",
        "http://evil.example@localhost:8545", "http://localhost:8545/", "http://localhost:8545.",
        "http://localhost.:8545", "http://localhost:8545 http://evil.example",
        "http://evil.example, http://localhost:8545", "http://localhost:8545, http://localhost:8545",
        "ws://localhost:8545", "file://localhost:8545", "javascript://localhost:8545",
        "chrome-extension://localhost:8545", "//localhost:8545", "localhost:8545", "null", "NULL", "", "*", "http://*",
        "http://", "http://localhost:8545" + "x" * 20_000, "http" * 20_000 + "://localhost:8545",
    )],
    ("[::1]:8545", "http://[::1%25lo]:8545"),
    ("127.0.0.1:8545", "http://2130706433:8545"),
    ("localhost", "https://localhost:80"),
    ("localhost:443", "http://localhost"),
    # A name that leads to this machine now (rebinding), though the origin is the same.
    ("evil.example:8545", "http://evil.example:8545"),
]  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_a_page_of_the_host_itself_may_and_no_other(method: str) -> None:
    assert await refused({}, OWN, method=method) == []
    assert await refused({}, FOREIGN, method=method) == FOREIGN


@pytest.mark.parametrize(
    ("origins", "good", "bad"),
    [
        (["https://example.org"], ["https://example.org", "https://example.org:443", "HTTPS://Example.ORG"],
         ["http://example.org", "https://example.org:444", "https://a.example.org", "https://example.org.evil.example"]),
        (["http://localhost:3000"], ["http://localhost:3000"], ["http://localhost:3001", "https://localhost:3000"]),
        ("https://example.org", ["https://example.org"], ["h"]),
        (["chrome-extension://abcdef"], ["chrome-extension://abcdef"], ["chrome-extension://abc", "https://abcdef"]),
        (["*"], ["https://any.example", "http://10.0.0.1:5"], ["null", "", "x", "http://a@b", "http://a, http://b"]),
        (["null"], ["null"], ["https://any.example", "NULL", "nul"]),
        (["*", "null"], ["null", "https://any.example"], [""]),
    ],
)  # fmt: skip
async def test_further_origins(origins: Any, good: list[str], bad: list[str]) -> None:
    right = [("localhost", origin) for origin in good]
    wrong = [*(("localhost", origin) for origin in bad), *(("evil.example", origin) for origin in good)]
    assert await refused({"origins": origins}, right + wrong) == wrong  # the host counts all the same


ORIGIN = {"origins": ["https://example.org"]}
ASKED = {"access_control_request_method": "POST", "access_control_request_headers": "content-type"}


async def test_a_page_may_read_the_answer() -> None:
    headers = (await answer(ORIGIN, origin="https://example.org")).headers
    assert (headers["access-control-allow-origin"], headers["vary"]) == ("https://example.org", "Origin")
    # An answer that may be kept says that another page would get another one.
    assert (await answer(ORIGIN)).headers["vary"] == "Origin"
    assert "vary" not in (await answer({})).headers
    headers = (await answer({"hosts": "*", "origins": "*"}, origin="https://a.example")).headers
    assert headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-credentials" not in headers


async def test_a_browser_is_told_what_a_page_may_send() -> None:
    told = await answer(ORIGIN, origin="https://example.org", method="OPTIONS", **ASKED)
    assert (told.status, told.content) == (204, b"")
    assert told.headers["access-control-allow-origin"] == "https://example.org"
    assert told.headers["vary"] == "Origin"
    assert "POST" in told.headers["access-control-allow-methods"]
    assert {"Authorization", "Content-Type"} <= set(told.headers["access-control-allow-headers"].split(", "))
    assert int(told.headers["access-control-max-age"]) > 0
    assert "access-control-allow-credentials" not in told.headers
    evil = [("localhost", origin) for origin in ("https://evil.example", "null", "", "http://localhost:3000")]
    assert await refused(ORIGIN, evil, method="OPTIONS", **ASKED) == evil
    # These are no questions of a browser.
    for origin, headers in ((None, {}), ("https://example.org", {}), (None, ASKED)):
        found = await answer({"origins": "*"}, origin=origin, method="OPTIONS", **headers)
        assert found.status == 405


HOST = b"Host: 127.0.0.1\r\n"
OLD = post(call_bytes("rpc.ping"), version="1.0")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (post(call_bytes("rpc.ping"), target="http://127.0.0.1/"), 400),
        (get("//evil.example/x"), 404),
        (get("/healthz?b=http://evil.example"), 200),
        # No browser speaks HTTP/1.0 without a host.
        (OLD.replace(HOST, b""), 200),
        (OLD.replace(HOST, b"Origin: http://evil.example\r\n"), 400),
        (OLD.replace(HOST, b"Host: evil.example\r\n"), 403),
    ],
)
async def test_only_the_header_names_a_host(serve: Serve, request_: bytes, expected: int) -> None:
    assert (await (await (await serve()).http()).ask(request_)).status == expected


async def test_at_a_unix_socket_the_host_says_nothing(tmp_path: Path) -> None:
    """An origin does: a proxy in front of the socket passes on what browsers send."""
    async with Server().listening(unix=tmp_path / "s"):
        for line, expected in ((b"", 200), (b"Origin: http://evil.example\r\n", 403)):
            http = RawHttpConnection(*await asyncio.open_unix_connection(tmp_path / "s"))
            request = get("/healthz").replace(HOST, b"Host: evil.example\r\n" + line)
            assert (await http.ask(request)).status == expected
            await http.close()
