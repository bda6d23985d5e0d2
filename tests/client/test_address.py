"""Addresses: every form that is accepted, and the errors for others."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream.client.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "kind", "members"),
    [
        ("127.0.0.1:2102", "tcp", {"host": "127.0.0.1", "port": 2102}),
        ("localhost", "tcp", {"host": "localhost", "port": 8545}),
        ("[::1]", "tcp", {"host": "::1", "port": 8545}),
        ("[fe80::1%eth0]:7", "tcp", {"host": "fe80::1%eth0", "port": 7}),
        ("tcp://example.org:99/", "tcp", {"host": "example.org", "port": 99}),
        (":4000", "tcp", {"host": "127.0.0.1", "port": 4000}),
        ("unix:///run/a b.sock", "unix", {"path": "/run/a b.sock"}),
        ("unix://@abstract", "unix", {"path": "\0abstract"}),
        ("http://host", "http", {"host": "host", "port": 80, "target": "/"}),
        ("HTTPS://host:8545/rpc?x=1", "https", {"host": "host", "port": 8545, "target": "/rpc?x=1"}),
        ("http://host?x=/", "http", {"host": "host", "port": 80, "target": "/?x=/"}),
        ("http://host/b\u00e4r", "http", {"host": "host", "port": 80, "target": "/b%C3%A4r"}),
        ("ws://[::1]:1/", "ws", {"host": "::1", "port": 1, "target": "/"}),
        ("wss://host", "wss", {"host": "host", "port": 443, "target": "/"}),
        ("http+unix:///run/x.sock", "http+unix", {"path": "/run/x.sock", "target": "/"}),
    ],
)
def test_what_is_accepted(text: str, kind: str, members: dict[str, Any]) -> None:
    address = parse_address(text)
    assert address == parse_address(str(address)) == parse_address(address)
    assert address == Address(kind=kind, **members)  # type: ignore[arg-type]
    if kind == "unix":
        assert str(address) == text


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("http://host", "host"),
        ("http://host:443", "host:443"),
        ("https://host:443", "host"),
        ("ws://[fe80::1%eth0]:8545/x", "[fe80::1]:8545"),
        ("http://b\u00e4r.example", "xn--br-via.example"),
        ("http+unix:///run/x.sock", "localhost"),
    ],
)
def test_the_host_header(text: str, header: str) -> None:
    assert parse_address(text).host_header == header


def test_several_servers() -> None:
    for text, hosts, whole in (
        ("hub-1:8600,hub-2,[::1]:8601", ["hub-1", "hub-2", "::1"], "hub-1:8600,hub-2:8545,[::1]:8601"),
        ("tls://hub-1,hub-2:9", ["hub-1", "hub-2"], "tls://hub-1:8545,hub-2:9"),
    ):
        address = parse_address(text)
        assert [each.host for each in address.in_turn] == hosts
        assert {each.kind for each in address.in_turn} == {address.kind}
        assert str(address) == whole
        assert parse_address(whole) == address


PORT, PATH, BRACKETS = "from 1 to 65535", "unix:///absolute/path", r"\[ipv6\]:port"


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ("unknown scheme 'ftp'.*known: tcp://, tls://, unix://, http://", ["ftp://example.org"]),
        ("no valid host", ["", "tcp://", "a b:1", "http://", "http:///path", "http://ho\x00st/", "host/path"]),
        ("no user and no password", ["user@host:1", "http://user:secret@host/"]),
        ("fragment", ["http://host#part"]),
        ("a blank or a control", ["http://host/a b", "http://host/a\r\nb"]),
        (PORT, ["http://host:0/", "host:", "host:0", "host:65536", "host:-1", "host:\u00b2", "hub-1:8545,hub-2:port"]),
        (PATH, ["unix://relative", "unix://"]),
        (r"http\+unix:///absolute/path", ["http+unix://relative"]),
        ("a port alone is written :8545", ["8545"]),
        ("in brackets", ["::1", "::1:8545"]),
        (BRACKETS, ["[::1", "[]:1", "[::1]8545"]),
        ("no valid host", ["hub-1,hub-2 x"]),
        ("number instead of a host", ["tls://hub-1,8545"]),
        ("more than 8 servers", [",".join(["hub"] * 9)]),
    ],
)
def test_what_is_wrong_is_said(said: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=said) as caught:
            parse_address(text)
        assert "secret" not in str(caught.value)
