"""The opening handshake of WebSocket (RFC 6455 section 4), for client and server.

Owns the headers of the request and of the response. Who may connect (`Host`, `Origin`, credentials) is decided
elsewhere. Pure: heads in, heads out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping

from .http_messages import Request, Response, problem

#: Hashed together with the client's key (section 1.3).
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

VERSION = "13"

#: Subprotocols that a server accepts where a client offers them.
SUBPROTOCOLS = ("jsonrpc-2.0", "jsonrpc")

_UPGRADE = [("Upgrade", "websocket"), ("Connection", "Upgrade")]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Text without control characters, which could end the line.
_TEXT = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


class UpgradeRefusedError(Exception):
    """The server did not open a WebSocket.

    Attributes:
        status: of its response; None if that was not HTTP.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def accept_upgrade(request: Request) -> Response:
    """The response to a request for a WebSocket: 101, or 4xx with a text that says what is wrong."""
    headers = request.headers
    if request.method != "GET":
        return problem(405, f"a WebSocket is asked for with GET, not {request.method}", [("Allow", "GET")])
    wrong = _what_is_wrong(request)
    if wrong is not None:
        return problem(400, wrong)
    if headers.get("sec-websocket-version") != VERSION:
        text = f"only version {VERSION} of WebSocket is spoken here"
        return problem(426, text, [*_UPGRADE, ("Sec-WebSocket-Version", VERSION)])
    headers_out = [*_UPGRADE, ("Sec-WebSocket-Accept", _accepted(headers["sec-websocket-key"]))]
    offered = [word for word in _words(headers.get("sec-websocket-protocol", "")) if word in SUBPROTOCOLS]
    return Response(101, headers=headers_out + [("Sec-WebSocket-Protocol", word) for word in offered[:1]])


def _what_is_wrong(request: Request) -> str | None:
    """Why a request cannot open a WebSocket; None if it can."""
    headers = request.headers
    if request.is_http10:
        return "a WebSocket needs HTTP/1.1"
    # Frames follow the head; a proxy could take a body there for another request.
    if request.body or "transfer-encoding" in headers or headers.get("content-length", "0").strip("0"):
        return "a request for a WebSocket has no body"
    if not _has_word(headers, "upgrade", "websocket") or not _has_word(headers, "connection", "upgrade"):
        return "a request for a WebSocket has the headers Upgrade: websocket and Connection: Upgrade"
    try:
        key = base64.b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 16:
        return "Sec-WebSocket-Key must be 16 bytes in base64, once"
    return None


def request_upgrade(host: str, path: str, headers: Mapping[str, str]) -> tuple[bytes, str]:
    """The head of a request for a WebSocket, and its key, for `check_response`.

    Args:
        host: value of the header Host: with the port, unless that is the scheme's default.
        path: with the query, if there is one.
        headers: beside those of the handshake.

    Raises:
        ValueError: an argument has a character that would end its line.
    """
    key = base64.b64encode(os.urandom(16)).decode()
    if not path.startswith("/") or " " in path or not path.isascii():
        raise ValueError(f"a path begins with a slash and is percent-encoded, got {path!r}")
    lines = [f"GET {path} HTTP/1.1"]
    own = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": VERSION,
    }
    taken = {name.lower() for name in own}
    for name in headers:
        if not _TOKEN.fullmatch(name) or name.lower() in taken:
            raise ValueError(f"{name!r} cannot be a header of a request for a WebSocket")
    lines += [f"{name}: {value}" for name, value in {**own, **headers}.items()]
    for line in lines:
        if not _TEXT.fullmatch(line):
            raise ValueError(f"a header has a control character: {line!r}")
    return "\r\n".join([*lines, "", ""]).encode(), key


def check_response(head: bytes, key: str) -> None:
    """Check that a response opens a WebSocket for the request with this key.

    Parsed here and not by httptools, which would take folded lines, bare line feeds and other versions of HTTP.

    Args:
        head: of the response, up to and with the empty line.
        key: as `request_upgrade` returned it.

    Raises:
        UpgradeRefused: it does not; the text says why.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    found = re.fullmatch(r"HTTP/1\.[01] (\d{3})(?: (.*))?", first)
    if found is None:
        raise UpgradeRefusedError(f"the response is not HTTP: {first[:80]!r}")
    status = int(found[1])
    if status != 101:
        raise UpgradeRefusedError(f"the server answers {status} {found[2] or ''}".rstrip(), status)
    headers: dict[str, str] = {}
    for line in lines:
        if not line:
            break
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise UpgradeRefusedError(f"the response has a malformed header: {line[:80]!r}", status)
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("upgrade", "").lower() != "websocket" or not _has_word(headers, "connection", "upgrade"):
        raise UpgradeRefusedError("the server switches to a protocol other than WebSocket", status)
    if not hmac.compare_digest(headers.get("sec-websocket-accept", "").encode(), _accepted(key).encode()):
        raise UpgradeRefusedError("the response does not belong to the request (Sec-WebSocket-Accept)", status)
    for name in ("sec-websocket-extensions", "sec-websocket-protocol"):
        if name == "sec-websocket-protocol" and headers.get(name) in SUBPROTOCOLS:
            continue
        if headers.get(name):
            raise UpgradeRefusedError(
                f"the server chose what was not offered ({name}: {headers[name][:80]})",
                status,
            )


def _accepted(key: str) -> str:
    """The value of Sec-WebSocket-Accept for a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _has_word(headers: Mapping[str, str], name: str, word: str) -> bool:
    return word in (each.lower() for each in _words(headers.get(name, "")))


def _words(value: str) -> list[str]:
    return [word.strip(" \t") for word in value.split(",")]
