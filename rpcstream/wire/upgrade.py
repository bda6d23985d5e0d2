"""The opening handshake of WebSocket (RFC 6455 section 4), both sides of it.

Owns what must stand in the request and in its answer. Pure: heads in, heads out; who may connect at all (`Host`,
`Origin`, credentials) is decided elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping

from .http import Request, Response, problem

#: Part of the protocol: what is hashed together with the client's key.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

VERSION = "13"

#: What a client may offer as subprotocol, and is told that it got; a client that offers none gets none.
SUBPROTOCOLS = ("jsonrpc-2.0", "jsonrpc")

_UPGRADE = [("Upgrade", "websocket"), ("Connection", "Upgrade")]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: What stands in a request line or in a header's value without ending it.
_TEXT = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


class UpgradeRefused(Exception):
    """What answered is no WebSocket server, or wants nothing of this client.

    Attributes:
        status: of the answer; None if it was none of HTTP.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


def accept(request: Request) -> Response:
    """The answer to a request for a WebSocket: 101, or 4xx with a text that says what is wrong."""
    headers = request.headers
    if request.method != "GET":
        return problem(405, f"a WebSocket is asked for with GET, not {request.method}", [("Allow", "GET")])
    wrong = _what_is_wrong(request)
    if wrong is not None:
        return problem(400, wrong)
    if headers.get("sec-websocket-version") != VERSION:
        text = f"only version {VERSION} of WebSocket is spoken here"
        return problem(426, text, [*_UPGRADE, ("Sec-WebSocket-Version", VERSION)])
    said = [*_UPGRADE, ("Sec-WebSocket-Accept", _accepted(headers["sec-websocket-key"]))]
    offered = [word for word in _words(headers.get("sec-websocket-protocol", "")) if word in SUBPROTOCOLS]
    return Response(101, headers=said + [("Sec-WebSocket-Protocol", word) for word in offered[:1]])


def _what_is_wrong(request: Request) -> str | None:
    headers = request.headers
    if request.is_http10:
        return "a WebSocket needs HTTP/1.1"
    # What follows the head is frames; a body there could be taken for another request by somebody in between.
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


def ask(host: str, path: str, headers: Mapping[str, str]) -> tuple[bytes, str]:
    """The head of a request for a WebSocket, and its key, which `check_answer` wants.

    Args:
        host: as it stands in the header: with the port, unless that is the usual one.
        path: with the query, if there is one.
        headers: beside those of the handshake.

    Raises:
        ValueError: something has a character that would end its line.
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


def check_answer(head: bytes, key: str) -> None:
    """Is this head of an answer, up to its empty line, that of a WebSocket for the request with this key?

    Raises:
        UpgradeRefused: it is not; the text says why.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    found = re.fullmatch(r"HTTP/1\.[01] (\d{3})(?: (.*))?", first)
    if found is None:
        raise UpgradeRefused(f"the answer is not HTTP: {first[:80]!r}")
    status = int(found[1])
    if status != 101:
        raise UpgradeRefused(f"the server answers {status} {found[2] or ''}".rstrip(), status)
    headers: dict[str, str] = {}
    for line in lines:
        if not line:
            break
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise UpgradeRefused(f"the answer has a broken header: {line[:80]!r}", status)
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("upgrade", "").lower() != "websocket" or not _has_word(headers, "connection", "upgrade"):
        raise UpgradeRefused("the server changes to something that is no WebSocket", status)
    if not hmac.compare_digest(headers.get("sec-websocket-accept", "").encode(), _accepted(key).encode()):
        raise UpgradeRefused("the answer does not belong to the request (Sec-WebSocket-Accept)", status)
    for name in ("sec-websocket-extensions", "sec-websocket-protocol"):
        if name == "sec-websocket-protocol" and headers.get(name) in SUBPROTOCOLS:
            continue
        if headers.get(name):
            raise UpgradeRefused(f"the server chose what was not offered ({name}: {headers[name][:80]})", status)


def _accepted(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def _has_word(headers: Mapping[str, str], name: str, word: str) -> bool:
    return word in (each.lower() for each in _words(headers.get(name, "")))


def _words(value: str) -> list[str]:
    return [word.strip(" \t") for word in value.split(",")]
