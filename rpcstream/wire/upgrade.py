"""The opening handshake of WebSocket (RFC 6455 section 4), for client and server: heads in, heads out.

Who may connect (`Host`, `Origin`, credentials) is decided elsewhere.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from websockets.utils import accept_key, generate_key

from .http_messages import HttpError, Request, Response, problem, tokens
from .http_parser import read_headers

VERSION = "13"

#: Subprotocols that a server accepts where a client offers them.
SUBPROTOCOLS = ("jsonrpc-2.0", "jsonrpc")

_UPGRADE = [("Upgrade", "websocket"), ("Connection", "Upgrade")]

#: 16 bytes in base64.
_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ?(.*)")


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
    # Frames follow the head; a proxy could take a body there for another request.
    has_body = request.body or "transfer-encoding" in headers or headers.get("content-length", "0").strip("0")
    is_upgrade = "websocket" in tokens(headers.get("upgrade", "")) and "upgrade" in tokens(
        headers.get("connection", "")
    )
    key = headers.get("sec-websocket-key", "")
    if request.is_http10 or has_body or not is_upgrade or not _KEY.fullmatch(key):
        text = "a WebSocket is asked for by HTTP/1.1, without a body, with the headers Upgrade: websocket, "
        return problem(400, text + "Connection: Upgrade and Sec-WebSocket-Key: 16 bytes in base64")
    if request.method != "GET":
        return problem(405, f"a WebSocket is asked for with GET, not {request.method}", [("Allow", "GET")])
    if headers.get("sec-websocket-version") != VERSION:
        text = f"only version {VERSION} of WebSocket is spoken here"
        return problem(426, text, [*_UPGRADE, ("Sec-WebSocket-Version", VERSION)])
    offered = [word.strip(" \t") for word in headers.get("sec-websocket-protocol", "").split(",")]
    chosen = [("Sec-WebSocket-Protocol", word) for word in offered if word in SUBPROTOCOLS]
    return Response(101, headers=[*_UPGRADE, ("Sec-WebSocket-Accept", accept_key(key)), *chosen[:1]])


def request_upgrade(host: str, path: str, headers: Mapping[str, str]) -> tuple[bytes, str]:
    """The head of a request for a WebSocket, and its key, for `check_response`.

    Args:
        host: value of the header Host: with the port, unless that is the scheme's default.
        path: with the query, if there is one.
        headers: further headers of the request.

    Raises:
        ValueError: an argument has a character that would end its line.
    """
    key = generate_key()
    if not path.startswith("/") or " " in path or not path.isascii():
        raise ValueError(f"a path begins with a slash and is percent-encoded, got {path!r}")
    own = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": VERSION,
    }
    lines = [f"{name}: {value}".encode() for name, value in (*own.items(), *headers.items())]
    try:
        found = read_headers(lines)
    except HttpError:
        found = {}
    if len(found) < len(lines):
        raise ValueError("a header is malformed, or one of the handshake itself")
    return b"\r\n".join([f"GET {path} HTTP/1.1".encode(), *lines, b"", b""]), key


def check_response(head: bytes, key: str) -> None:
    """Check that a response opens a WebSocket for the request with this key.

    Parsed here and not by httptools, which would take folded lines, bare line feeds and other versions of HTTP.

    Args:
        head: of the response, up to and with the empty line.
        key: as `request_upgrade` returned it.

    Raises:
        UpgradeRefusedError: it does not; the text says why.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None:
        raise UpgradeRefusedError(f"the response is not HTTP: {first[:80]!r}")
    status = int(found[1])
    if status != 101:
        raise UpgradeRefusedError(f"the server answers {status} {found[2].decode('latin-1')}".rstrip(), status)
    try:
        headers = read_headers(lines)
    except HttpError as error:
        raise UpgradeRefusedError(f"in the response, {error.response.text}", status) from None
    if headers.get("upgrade", "").lower() != "websocket" or "upgrade" not in tokens(headers.get("connection", "")):
        raise UpgradeRefusedError("the server switches to a protocol other than WebSocket", status)
    if not hmac.compare_digest(headers.get("sec-websocket-accept", "").encode(), accept_key(key).encode()):
        raise UpgradeRefusedError("the response does not belong to the request (Sec-WebSocket-Accept)", status)
    if headers.get("sec-websocket-extensions") or headers.get("sec-websocket-protocol", "") not in ("", *SUBPROTOCOLS):
        raise UpgradeRefusedError("the server chose an extension or a subprotocol that was not offered", status)
