"""Hosts and origins of HTTP requests, without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream.transports.access import AccessRules
from rpcstream.wire.http_messages import Request

EVERYBODY = AccessRules(hosts="*", origins="*")


def asking(host: str | None = "localhost", origin: str | None = None, method: str = "POST", **more: Any) -> Request:
    headers = {name.replace("_", "-"): value for name, value in more.pop("headers", {}).items()}
    if host is not None:
        headers["host"] = host
    if origin is not None:
        headers["origin"] = origin
    return Request(method, more.pop("target", "/"), headers, **more)


def status(rules: AccessRules, *args: Any, **options: Any) -> int | None:
    """None: the request is answered."""
    refusal = rules.check(asking(*args, **options))
    if refusal is None:
        return None
    assert refusal.head(len(refusal.body), True).startswith(b"HTTP/1.1 ")
    return refusal.status


# -- hosts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8545",
        "LOCALHOST",
        "LocalHost:1",
        "127.0.0.1",
        "127.0.0.1:65535",
        "127.255.1.2",
        "[::1]",
        "[::1]:8545",
        "[0:0:0:0:0:0:0:1]",
        "[0000::0001]:80",
        "a.localhost",
        "b.a.localhost:3000",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "OPTIONS", "PUT", "BREW"])
def test_loopback_may_be_named(host: str, method: str) -> None:
    assert status(AccessRules(), host, method=method) is None


HOSTILE = [
    "",
    " ",
    "evil.example",
    "evil.example:8545",
    "localhost.evil.example",
    "evillocalhost",
    "-localhost",
    "localhost-",
    "localhost.",
    "localhost.:80",
    "127.0.0.1.",
    ".localhost",
    "a..localhost",
    "*.localhost",
    "*",
    "localhost@evil.example",
    "evil.example@localhost",
    "user:pass@localhost",
    "localhost, evil.example",
    "evil.example, localhost",
    "localhost localhost",
    "localhost\tx",
    "localhost\n",
    "localhost\x00",
    "localhost\xa0",
    "localhost/",
    "localhost\\",
    "localhost?",
    "localhost#",
    "http://localhost",
    "//localhost",
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:80:80",
    "localhost:8a",
    "localhost:+80",
    "localhost:-1",
    "localhost:\u0661",
    "\uff4cocalhost",
    "\u212aocalhost",
    "local\u017fhost",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0.0.1",
    "127.1",
    "127.0.1",
    "127.0.0.01",
    "0177.0.0.1",
    "127.0.0.256",
    "127.0.0.1.example",
    "127.example",
    "127.0.0.1.1",
    "0",
    "0.0.0.0",
    "[::]",
    "::1",
    "[::1",
    "::1]",
    "[]",
    "[::1]x",
    "[::1%lo]",
    "[::1%25lo]",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[v1.x]",
    "[localhost]",
    "10.0.0.1",
    "192.168.1.5:8545",
    "128.0.0.1",
    "xn--lcalhost-n3a",
    "%6cocalhost",
    "localhost%00",
    "a" * 300 + ".localhost",
    "a." * 100_000 + "localhost",
    "localhost" * 100_000,
    "localhost:" + "0" * 100_000 + "80",
]


@pytest.mark.parametrize("host", HOSTILE, ids=lambda host: ascii(host)[:40])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_whatever_else_is_named_is_refused(host: str, method: str) -> None:
    assert status(AccessRules(), host, method=method) == 403


def test_a_refusal_names_the_host_and_stays_short() -> None:
    refusal = AccessRules().check(asking("evil.example\r\nSet-Cookie: x" + "y" * 10_000))
    assert refusal is not None
    assert "evil.example" in refusal.text
    assert "\r" not in refusal.text
    assert len(refusal.body) < 300
    assert not any("evil" in value for _, value in refusal.headers)


def test_a_host_must_be_named() -> None:
    assert status(AccessRules(), None) == 400
    assert status(EVERYBODY, None) == 400
    # No browser speaks HTTP/1.0 without it.
    assert status(AccessRules(), None, is_http10=True) is None
    assert status(AccessRules(), None, "http://evil.example", is_http10=True) == 400
    assert status(AccessRules(), "evil.example", is_http10=True) == 403


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://localhost/x", None),
        ("http://localhost:8545", None),
        ("HTTP://LOCALHOST/", None),
        ("http://evil.example/", 403),
        ("http://evil.example@localhost/", 403),
        ("http:///", 403),
        ("x://", 403),
        ("/a?b=http://evil.example", None),
        ("//evil.example/x", None),
    ],
)
def test_a_target_with_a_host_counts_as_well(target: str, expected: int | None) -> None:
    assert status(AccessRules(), "localhost", target=target) == expected


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
def test_further_hosts(hosts: Any, good: list[str], bad: list[str]) -> None:
    rules = AccessRules(hosts=hosts)
    assert [host for host in [*good, "localhost", "127.0.0.1"] if status(rules, host) is not None] == []
    assert [host for host in bad if status(rules, host) is None] == []


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "http://a",
        "a:80",
        "a/",
        "a.",
        "*a",
        "*.",
        "a.*",
        "*.*",
        "**",
        "a b",
        "a,b",
        "2130706433",
        "[::1%lo]",
        "ö.org",
    ],
)
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="hosts: "):
        AccessRules(hosts=[host])


@pytest.mark.parametrize(
    ("at", "good", "bad"),
    [
        ("192.168.1.5", ["192.168.1.5:8545", "localhost"], ["192.168.1.6"]),
        ("fd00::1", ["[fd00::1]:8545"], ["[fd00::2]"]),
        ("Box.local", ["box.local"], ["local"]),
        ("0.0.0.0", ["localhost"], ["0.0.0.0", "192.168.1.5"]),
        ("::", ["[::1]"], ["[::]"]),
        ("", ["localhost"], ["", "x"]),
    ],
)
def test_the_address_listened_at_may_be_named(at: str, good: list[str], bad: list[str]) -> None:
    before = AccessRules()
    rules = before.at(at)
    assert [host for host in good if status(rules, host) is not None] == []
    assert [host for host in bad if status(rules, host) is None] == []
    assert status(before, "192.168.1.5") == 403


def test_at_a_unix_socket_the_host_says_nothing() -> None:
    rules = AccessRules().at(None)
    for host in [*HOSTILE, None]:
        assert status(rules, host) is None
    # An origin does: a proxy in front of the socket passes on what browsers send.
    assert status(rules, "evil.example", "http://evil.example") == 403
    assert status(rules, "localhost", "http://localhost") is None


# -- origins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", "http://localhost"),
        ("localhost:8545", "http://localhost:8545"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("localhost", "https://localhost"),
        ("localhost", "https://localhost:443"),
        ("[::1]:8545", "http://[::1]:8545"),
        ("127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("a.localhost:1", "HTTP://A.LOCALHOST:1"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_page_of_the_host_itself_may(host: str, origin: str, method: str) -> None:
    assert status(AccessRules(), host, origin, method=method) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8545", "http://evil.example"),
        ("localhost:8545", "http://localhost:3000"),
        ("localhost:8545", "http://localhost"),
        ("localhost:8545", "http://127.0.0.1:8545"),
        ("localhost:8545", "http://a.localhost:8545"),
        ("localhost:8545", "http://localhost.evil.example:8545"),
        ("localhost:8545", "http://localhost:8545@evil.example"),
        ("localhost:8545", "http://evil.example@localhost:8545"),
        ("localhost:8545", "http://localhost:8545/"),
        ("localhost:8545", "http://localhost:8545."),
        ("localhost:8545", "http://localhost.:8545"),
        ("localhost:8545", "http://localhost:8545 http://evil.example"),
        ("localhost:8545", "http://evil.example, http://localhost:8545"),
        ("localhost:8545", "http://localhost:8545, http://localhost:8545"),
        ("localhost:8545", "ws://localhost:8545"),
        ("localhost:8545", "file://localhost:8545"),
        ("localhost:8545", "javascript://localhost:8545"),
        ("localhost:8545", "chrome-extension://localhost:8545"),
        ("localhost:8545", "//localhost:8545"),
        ("localhost:8545", "localhost:8545"),
        ("localhost:8545", "null"),
        ("localhost:8545", "NULL"),
        ("localhost:8545", ""),
        ("localhost:8545", "*"),
        ("localhost:8545", "http://*"),
        ("localhost:8545", "http://"),
        ("localhost:8545", "http://localhost:8545" + "x" * 100_000),
        ("localhost:8545", "http" * 100_000 + "://localhost:8545"),
        ("[::1]:8545", "http://[::1%25lo]:8545"),
        ("127.0.0.1:8545", "http://2130706433:8545"),
        ("localhost", "https://localhost:80"),
        ("localhost:443", "http://localhost"),
    ],
    ids=lambda text: text[:50],
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_no_other_page_may(host: str, origin: str, method: str) -> None:
    assert status(AccessRules(), host, origin, method=method) == 403
    assert not [name for name, _ in AccessRules().cors(asking(host, origin)) if name.startswith("Access-")]


def test_a_rebound_name_is_no_host_though_the_origin_is_the_same() -> None:
    assert status(AccessRules(), "evil.example:8545", "http://evil.example:8545") == 403


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
def test_further_origins(origins: Any, good: list[str], bad: list[str]) -> None:
    rules = AccessRules(origins=origins)
    assert [origin for origin in good if status(rules, "localhost", origin) is not None] == []
    assert [origin for origin in bad if status(rules, "localhost", origin) is None] == []
    # The host counts all the same.
    assert status(rules, "evil.example", good[0]) == 403


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "example.org",
        "https://example.org/",
        "https://*.example.org",
        "https://a b",
        "https://a@b",
        "NULL",
        "https://",
    ],
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(ValueError, match="origins: "):
        AccessRules(origins=[origin])


# -- CORS -----------------------------------------------------------------------------------------------------------


def test_a_page_may_read_the_answer() -> None:
    rules = AccessRules(origins=["https://example.org"])
    assert rules.cors(asking("localhost", "https://example.org")) == [
        ("Access-Control-Allow-Origin", "https://example.org"),
        ("Vary", "Origin"),
    ]
    # An answer that may be kept says that another page would get another one.
    assert rules.cors(asking("localhost")) == [("Vary", "Origin")]
    assert rules.cors(asking("localhost", "https://evil.example")) == [("Vary", "Origin")]
    assert AccessRules().cors(asking("localhost")) == []


def test_any_origin_is_answered_with_its_name() -> None:
    headers = dict(EVERYBODY.cors(asking("localhost", "https://a.example")))
    assert headers["Access-Control-Allow-Origin"] == "https://a.example"
    assert "Access-Control-Allow-Credentials" not in headers


def preflight(origin: str | None, host: str = "localhost", **headers: str) -> Request:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type", **headers}
    return asking(host, origin, method="OPTIONS", headers=asked)


def test_a_browser_is_told_what_a_page_may_send() -> None:
    response = AccessRules(origins=["https://example.org"]).preflight(preflight("https://example.org"))
    assert response is not None
    headers = dict(response.headers)
    assert (response.status, response.body) == (204, b"")
    assert headers["Access-Control-Allow-Origin"] == "https://example.org"
    assert headers["Vary"] == "Origin"
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert {"Authorization", "Content-Type"} <= set(headers["Access-Control-Allow-Headers"].split(", "))
    assert int(headers["Access-Control-Max-Age"]) > 0
    assert "Access-Control-Allow-Credentials" not in headers
    assert response.head(0, True).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://localhost:3000"])
def test_a_browser_is_told_nothing_about_other_pages(origin: str) -> None:
    response = AccessRules(origins=["https://example.org"]).preflight(preflight(origin))
    assert response is not None
    assert response.status == 403
    assert not [name for name, _ in response.headers if name.startswith("Access-")]


def test_a_preflight_for_another_host_is_refused() -> None:
    response = AccessRules(origins="*").preflight(preflight("https://example.org", host="evil.example"))
    assert response is not None
    assert response.status == 403


@pytest.mark.parametrize(
    "request_",
    [
        asking(method="OPTIONS"),
        asking(origin="https://example.org", method="OPTIONS"),
        asking(origin="https://example.org", headers={"access-control-request-method": "POST"}),
        preflight(None),
    ],
    ids=["plain", "no question", "no OPTIONS", "no origin"],
)
def test_what_is_no_preflight(request_: Request) -> None:
    assert AccessRules(origins="*").preflight(request_) is None
