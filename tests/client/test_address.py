"""Addresses: every form that is accepted, and the errors for others."""

from __future__ import annotations

import pytest

from rpcstream.client.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:2102", "127.0.0.1", 2102),
        ("localhost", "localhost", 8545),
        ("example.org:1", "example.org", 1),
        ("[::1]:8545", "::1", 8545),
        ("[::1]", "::1", 8545),
        ("[fe80::1%eth0]:7", "fe80::1%eth0", 7),
        ("tcp://example.org:99", "example.org", 99),
        ("tcp://example.org:99/", "example.org", 99),
        ("TCP://[::1]", "::1", 8545),
        (":4000", "127.0.0.1", 4000),
    ],
)
def test_tcp(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(kind="tcp", host=host, port=port)


@pytest.mark.parametrize(
    ("text", "path"), [("unix:///run/rpc.sock", "/run/rpc.sock"), ("unix://@abstract", "\0abstract")]
)
def test_unix(text: str, path: str) -> None:
    address = parse_address(text)
    assert (address.kind, address.path) == ("unix", path)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tls://host", Address(kind="tls", host="host", port=8545)),
        ("http://host", Address(kind="http", host="host", port=80, target="/")),
        ("HTTPS://host:8545/rpc?x=1", Address(kind="https", host="host", port=8545, target="/rpc?x=1")),
        ("http://host?x=/", Address(kind="http", host="host", port=80, target="/?x=/")),
        (
            "http://host/b\N{LATIN SMALL LETTER A WITH DIAERESIS}r",
            Address(kind="http", host="host", port=80, target="/b%C3%A4r"),
        ),
        ("ws://[::1]:1/", Address(kind="ws", host="::1", port=1, target="/")),
        ("wss://host", Address(kind="wss", host="host", port=443, target="/")),
        ("http+unix:///run/x.sock", Address(kind="http+unix", path="/run/x.sock", target="/")),
    ],
)
def test_urls(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("http://host", "host"),
        ("http://host:443", "host:443"),
        ("https://host:443", "host"),
        ("ws://[fe80::1%eth0]:8545/x", "[fe80::1]:8545"),
        ("http://b\N{LATIN SMALL LETTER A WITH DIAERESIS}r.example", "xn--br-via.example"),
        ("http+unix:///run/x.sock", "localhost"),
    ],
)
def test_the_host_header(text: str, header: str) -> None:
    assert parse_address(text).host_header == header


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="no password") as caught:
        parse_address("http://user:secret@host/")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["127.0.0.1:8545", "[::1]:8545", "unix:///a/b c", "unix://@x", "host:65535"])
def test_the_text_of_an_address_is_an_address(text: str) -> None:
    assert str(parse_address(text)) == text
    assert parse_address(parse_address(text)) == parse_address(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://example.org", "unknown scheme 'ftp'.*known: tcp://, tls://, unix://, http://"),
        ("", "no valid host"),
        ("tcp://", "no valid host"),
        ("a b:1", "no valid host"),
        ("user@host:1", "no user and no password"),
        ("http://user:secret@host/", "no user and no password"),
        ("http://", "no valid host"),
        ("http:///path", "no valid host"),
        ("http://host#part", "fragment"),
        ("http://host/a b", "a blank or a control"),
        ("http://host/a\r\nb", "a blank or a control"),
        ("http://ho\x00st/", "no valid host"),
        ("http://host:0/", "from 1 to 65535"),
        ("http+unix://relative", r"http\+unix:///absolute/path"),
        ("host/path", "no valid host"),
        ("8545", "a port alone is written :8545"),
        ("::1", "in brackets"),
        ("::1:8545", "in brackets"),
        ("[::1", r"\[ipv6\]:port"),
        ("[]:1", r"\[ipv6\]:port"),
        ("[::1]8545", r"\[ipv6\]:port"),
        ("host:", "from 1 to 65535"),
        ("host:0", "from 1 to 65535"),
        ("host:65536", "from 1 to 65535"),
        ("host:-1", "from 1 to 65535"),
        ("host:\N{SUPERSCRIPT TWO}", "from 1 to 65535"),
        ("unix://relative", "unix:///absolute/path"),
        ("unix://", "unix:///absolute/path"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_address(text)


def test_only_text_is_taken() -> None:
    with pytest.raises(TypeError, match="got int"):
        parse_address(8545)  # type: ignore[arg-type]


def test_several_servers() -> None:
    address = parse_address("hub-1:8600,hub-2,[::1]:8601")
    assert [(each.host, each.port) for each in address.in_turn] == [("hub-1", 8600), ("hub-2", 8545), ("::1", 8601)]
    assert str(address) == "hub-1:8600,hub-2:8545,[::1]:8601"
    assert parse_address(str(address)) == address
    secure = parse_address("tls://hub-1,hub-2:9")
    assert {each.kind for each in secure.in_turn} == {"tls"}
    assert str(secure) == "tls://hub-1:8545,hub-2:9"
    assert parse_address(str(secure)) == secure
    for text, reason in (
        ("hub-1,hub-2 x", "no valid host"),
        ("hub-1:8545,hub-2:port", "number from 1 to 65535"),
        ("tls://hub-1,8545", "number instead of a host"),
        (",".join(["hub"] * 9), "more than 8 servers"),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_address(text)
