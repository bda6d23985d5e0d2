"""Versions, `_meta`, headers and codes of MCP."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream.errors import BY_CODE, InvalidParams
from rpcstream.mcp import protocol
from rpcstream.mcp.protocol import HeaderMismatch, UnsupportedVersion, check_request, decoded_header, is_stateless

from .conftest import META, STATELESS, request

HEADERS = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "add"}
CALL = request("tools/call", name="add")


def test_a_request_with_its_headers_is_accepted() -> None:
    assert is_stateless(CALL, HEADERS)
    check_request(CALL, HEADERS)
    check_request(CALL, None)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"mcp-protocol-version": ""}, "MCP-Protocol-Version is missing"),
        ({"mcp-protocol-version": "2025-11-25"}, "MCP-Protocol-Version is not the version in _meta"),
        ({"mcp-method": ""}, "Mcp-Method is missing"),
        ({"mcp-method": "tools/list"}, "Mcp-Method is not the method"),
        ({"mcp-method": "Tools/call"}, "Mcp-Method is not the method"),
        ({"mcp-name": ""}, "Mcp-Name is missing"),
        ({"mcp-name": "sub"}, "Mcp-Name is not the name"),
        ({"mcp-name": "add, add"}, "Mcp-Name is not the name"),
        ({"mcp-name": "=?base64?YWRk=?="}, "Mcp-Name is not the name"),
    ],
)
def test_a_header_that_is_missing_or_says_something_else_is_refused(headers: dict[str, str], reason: str) -> None:
    changed = {name: value for name, value in {**HEADERS, **headers}.items() if value}
    with pytest.raises(HeaderMismatch, match=reason) as caught:
        check_request(CALL, changed)
    assert caught.value.code == -32020
    assert protocol.status_of(caught.value, is_stateless=True) == 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("us-west1", "us-west1"),
        ("=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, 世界"),
        ("=?base64?IHBhZGRlZCA=?=", " padded "),
        ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
        ("=?base64?/w==?=", None),
        ("=?base64?YWRk=?=", None),
        ("=?BASE64?YWRk?=", "=?BASE64?YWRk?="),
    ],
)
def test_a_header_may_be_encoded(text: str, value: str | None) -> None:
    assert decoded_header(text) == value


@pytest.mark.parametrize("key", META)
@pytest.mark.parametrize("value", [None, 7, []])
def test_a_request_without_its_meta_is_refused(key: str, value: Any) -> None:
    meta = {name: other for name, other in {**META, key: value}.items() if other is not None}
    message = {**CALL, "params": {"name": "add", "_meta": meta}}
    assert is_stateless(message, HEADERS)
    with pytest.raises((InvalidParams, HeaderMismatch)):
        check_request(message, HEADERS)


def test_a_version_that_is_not_spoken_is_told_which_are() -> None:
    message = request("tools/list", meta={protocol.VERSION_KEY: "1900-01-01"})
    with pytest.raises(UnsupportedVersion) as caught:
        check_request(message, {**HEADERS, "mcp-protocol-version": "1900-01-01"})
    assert caught.value.code == -32022
    assert caught.value.data == {"supported": [STATELESS, "2025-11-25", "2025-06-18"], "requested": "1900-01-01"}
    with pytest.raises(UnsupportedVersion):
        is_stateless({"method": "ping"}, {"mcp-protocol-version": "1900-01-01"})


def test_the_versions_with_a_handshake_are_told_by_what_is_missing() -> None:
    plain = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert not is_stateless(plain, {"mcp-protocol-version": "2025-11-25"})
    assert not is_stateless(plain, {})
    assert not is_stateless(plain, None)
    assert not is_stateless({**plain, "method": "initialize"}, {"mcp-protocol-version": "9999-01-01"})
    # One that has the headers of the newest version, but for this one, is told so.
    assert is_stateless(plain, {"mcp-method": "tools/list"})


def test_no_code_of_ours_is_one_that_means_something_in_mcp() -> None:
    sent = {protocol.wire_code(code) for code in BY_CODE}
    assert not [code for code in sent if -32099 <= code <= -32000]
    assert -31002 in sent
    assert protocol.wire_code(HeaderMismatch.CODE) == -32020
    assert protocol.wire_code(42) == 42
