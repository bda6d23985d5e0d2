"""The head of an HTTP request: from bytes to a `Request`, and what it says of the body that follows.

Owns what a head must look like. The parser (httptools) checks names, values and the request line; what it lets through
and another server might read differently is refused here, whatever the parser's version. Pure.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import httptools

from .http import HttpError, Request, Response, problem

#: Bytes of the request line and the headers together.
HEAD_MAX = 32 * 1024

#: Headers of one request.
HEADERS_MAX = 100

_ONCE = frozenset(("host", "content-length", "transfer-encoding", "content-type", "authorization", "origin"))
_BAD_TARGET = frozenset('#"<>\\^`{|}')


class _Head:
    """What the parser tells."""

    __slots__ = ("count", "headers", "target")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.target = b""
        self.count = 0

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        headers = self.headers
        self.count += 1
        if key not in headers:
            headers[key] = text
        elif key in _ONCE:
            raise HttpError(problem(400, f"the header {key} stands there twice"))
        else:
            headers[key] += ("; " if key == "cookie" else ", ") + text


def parse_head(data: bytes) -> Request:
    """The request whose head this is, up to and with the empty line.

    Raises:
        HttpError: it is not acceptable; nothing that stands behind it can be trusted.
    """
    first = data[: data.find(b"\r\n")]
    is_http10 = first.endswith(b" HTTP/1.0")
    if not is_http10 and not first.endswith(b" HTTP/1.1"):
        version = first.rpartition(b" ")[2]
        if version.startswith(b"HTTP/") and len(version) == len(b"HTTP/1.1"):
            raise HttpError(problem(505, "this server speaks HTTP/1.1 and HTTP/1.0"))
        raise HttpError(problem(400, "not the first line of an HTTP request"))
    if first.count(b" ") != 2:
        raise HttpError(problem(400, "one space each stands between method, target and version"))
    lines = data.count(b"\r\n")
    if lines != data.count(b"\n") or lines != data.count(b"\r"):
        raise HttpError(problem(400, "lines end with CR LF, and have neither in them"))
    if lines - 2 > HEADERS_MAX:
        raise HttpError(problem(431, f"more than {HEADERS_MAX} headers"))
    if b"\n " in data or b"\n\t" in data:
        raise HttpError(problem(400, "a header goes on in the next line (obsolete folding)"))
    head = _Head()
    method = _parse(head, data)
    request = Request(method, head.target.decode("ascii", "replace"), head.headers, is_http10=is_http10)
    _read_target(request)
    headers = head.headers
    if not is_http10 and "host" not in headers:
        raise HttpError(problem(400, "the header Host is missing"))
    connection = headers.get("connection")
    if connection is None:
        request.keep_alive = not is_http10
    elif connection != "keep-alive":
        wishes = tokens(connection)
        request.keep_alive = "close" not in wishes and (not is_http10 or "keep-alive" in wishes)
    return request


def _parse(head: _Head, data: bytes) -> str:
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, HttpError):
            raise error.__context__ from None
        raise
    except httptools.HttpParserInvalidMethodError:
        raise HttpError(problem(400, "not a method of HTTP")) from None
    except httptools.HttpParserError as error:
        raise HttpError(problem(400, f"malformed: {error}")) from None
    method: bytes = parser.get_method()
    # What follows the parser's own idea of a method ("M-SEARCH" for instance) must be what stands there.
    if not data.startswith(method + b" "):
        raise HttpError(problem(400, "not a method of HTTP"))
    return method.decode("ascii")


def _read_target(request: Request) -> None:
    """Find path and query; of an absolute target the host counts (RFC 9112, 3.2.2)."""
    target = request.target
    if not target.isprintable() or not target.isascii() or not _BAD_TARGET.isdisjoint(target):
        raise HttpError(problem(400, "the target has characters in it that must be percent-encoded"))
    if request.method == "CONNECT":
        raise HttpError(problem(405, "this is no proxy", [("Allow", "GET, HEAD, POST, OPTIONS")]))
    if target == "*" and request.method == "OPTIONS":
        return
    if target[:1] != "/":
        scheme, separator, rest = target.partition("://")
        if separator != "://" or scheme.lower() not in ("http", "https"):
            raise HttpError(problem(400, "the target must be a path that begins with /"))
        host, slash, path = rest.partition("/")
        host, question, query = host.partition("?")
        if not host or "@" in host:
            raise HttpError(problem(400, "the target has no host, or more than a host"))
        request.headers["host"] = host
        target = f"{slash or '/'}{path}" if not question else f"/?{query}{slash}{path}"
    path, _, request.query = target.partition("?")
    if "%" in path:
        try:
            path = unquote_to_bytes(path).decode()
        except UnicodeDecodeError:
            raise HttpError(problem(400, "the path is not UTF-8")) from None
        if "\0" in path:
            raise HttpError(problem(400, "the path has a zero byte in it"))
    request.path = path


def body_length(request: Request, max_size: int) -> int | None:
    """How long the body is that follows, in bytes; None: it comes in chunks; -1: the request says nothing of one.

    Raises:
        HttpError: 400, it cannot be known; 413, it is too long.
    """
    headers = request.headers
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise HttpError(problem(400, "both Content-Length and Transfer-Encoding: where does the body end?"))
        if request.is_http10 or coding.lower() != "chunked":
            raise HttpError(problem(400, "the only Transfer-Encoding is chunked, and HTTP/1.0 has none"))
        return None
    if length is None:
        return -1
    if not length.isdecimal() or not length.isascii() or len(length) > 18:
        raise HttpError(problem(400, "Content-Length is not a number"))
    if int(length) > max_size:
        raise HttpError(too_long(max_size))
    return int(length)


def too_long(max_size: int) -> Response:
    """The response to a body over the limit."""
    return problem(413, f"the body is too long: the limit is {max_size} bytes (max_message_size)")


def tokens(value: str) -> set[str]:
    """The words of a header such as Connection, in lower case."""
    return {word.strip(" \t").lower() for word in value.split(",")}
