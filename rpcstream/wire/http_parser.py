"""HTTP/1.1 requests from bytes (RFC 9112): heads, bodies of a known length or in chunks, reading a connection.

What another server might read differently is refused, because a request could be hidden in another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from .http_messages import HttpError, Request, problem, tokens, too_long

# -- heads ------------------------------------------------------------------------------------------------------------

#: Bytes of the request line and the headers together.
HEAD_MAX = 32 * 1024

#: Headers of one request.
HEADERS_MAX = 100

_ONCE = frozenset(("host", "content-length", "transfer-encoding", "content-type", "authorization", "origin"))
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
#: Method, target and version; the target has no characters that must be percent-encoded.
_REQUEST_LINE = re.compile(rb"(%b) ([\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7e]+) HTTP/(\d\.\d)" % _TOKEN)
#: A header or a trailer field (RFC 9110, 5.1 and 5.5): no blank before its name or colon, no control character.
_FIELD = re.compile(rb"(%b):([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
_CR_LF, _END = b"\r\n", b"\r\n\r\n"
#: What stands before the bytes of a chunk: the end of the chunk before and the size; and what may become that.
_SIZE = re.compile(rb"\r\n([0-9a-fA-F]{1,15})\r\n")
_SIZE_BEGUN = re.compile(rb"(?:\r(?:\n(?:[0-9a-fA-F]{1,15}\r?)?)?)?")


def read_headers(lines: list[bytes]) -> dict[str, str]:
    """The headers, or trailer fields, on these lines. Raises HttpError."""
    headers: dict[str, str] = {}
    for line in lines:
        if (found := _FIELD.fullmatch(line)) is None:
            raise _malformed(f"a line is not a header, or does not end with CR LF: {line[:40]!r}")
        add_header(headers, found[1], found[2])
    return headers


def add_header(headers: dict[str, str], name: bytes, value: bytes) -> None:
    """Add a header. Raises HttpError for one that must not be there twice."""
    key = name.decode("latin-1").lower()
    text = value.decode("latin-1").strip(" \t")
    if key not in headers:
        headers[key] = text
    elif key in _ONCE:
        raise _malformed(f"the header {key} is given twice")
    else:
        headers[key] += ("; " if key == "cookie" else ", ") + text


def parse_head(data: bytes) -> Request:
    """Parse the head of a request, up to and with the empty line.

    Raises:
        HttpError: the head is not acceptable, so what follows it cannot be trusted either: close the connection.
    """
    first, *lines = data.removesuffix(_END).split(_CR_LF)
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise _malformed("not the first line of an HTTP request: method, target and version")
    if found[3] not in (b"1.0", b"1.1"):
        raise HttpError(problem(505, "this server speaks HTTP/1.1 and HTTP/1.0"))
    if len(lines) > HEADERS_MAX:
        raise HttpError(problem(431, f"more than {HEADERS_MAX} headers"))
    headers = read_headers(lines)
    request = Request(found[1].decode("ascii"), found[2].decode("ascii"), headers, is_http10=found[3] == b"1.0")
    request.path, _, request.query = request.target.partition("?")
    if request.path[:1] != "/":
        raise _malformed("the target must be a path that begins with /")
    if "%" in request.path:
        request.path = _decoded(request.path)
    if not request.is_http10 and "host" not in headers:
        raise _malformed("the header Host is missing")
    wishes = tokens(headers.get("connection", ""))
    request.keep_alive = "close" not in wishes and (not request.is_http10 or "keep-alive" in wishes)
    return request


def _decoded(path: str) -> str:
    try:
        decoded = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise _malformed("the path is not UTF-8") from None
    if "\0" in decoded:
        raise _malformed("the path has a zero byte in it")
    return decoded


def body_length(request: Request, max_size: int, header_size: int = 0) -> int | None:
    """Length in bytes of the body that follows a head; None for a body in chunks, -1 where the head announces none.

    Args:
        max_size: bytes of a message.
        header_size: bytes that may stand before it in the body.

    Raises:
        HttpError: 400, the headers contradict each other; 413, the body is longer than these two.
    """
    headers = request.headers
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise _malformed("the request has both Content-Length and Transfer-Encoding")
        if request.is_http10 or coding.lower() != "chunked":
            raise _malformed("the only Transfer-Encoding is chunked, and HTTP/1.0 has none")
        return None
    if length is None:
        return -1
    if not length.isdecimal() or not length.isascii() or len(length) > 18:
        raise _malformed("Content-Length is not a number")
    if int(length) > max_size + header_size:
        raise HttpError(too_long(max_size))
    return int(length)


def _malformed(text: str) -> HttpError:
    return HttpError(problem(400, text))


# -- the requests of a connection ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class RequestReader:
    """Cuts the bytes of a connection into heads and bodies, one request after the other.

    Bytes go in with `feed`. `head` takes out the next head; after `begin_body`, `part` takes out what has come of the
    body. A body that has come with its head is taken out by `whole` at once.

    Attributes:
        in_body: a body was begun and is not complete.
        left: bytes that are still to come of the body, or of the present chunk of it.
    """

    in_body: bool = field(default=False, init=False)
    left: int = field(default=0, init=False)
    _is_chunked: bool = field(default=False, init=False)
    #: The last chunk of a body has come.
    _is_last: bool = field(default=False, init=False)
    _buffer: bytes = field(default=b"", init=False)
    _position: int = field(default=0, init=False)

    def __len__(self) -> int:
        """Bytes received and not yet taken out."""
        return len(self._buffer) - self._position

    @property
    def is_partial(self) -> bool:
        """Part of a request has been received."""
        return self.in_body or self._position < len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._position < len(self._buffer):
            data = self._buffer[self._position :] + data
        self._buffer, self._position = data, 0

    def head(self) -> bytes | None:
        """Take out the head of the next request, up to and with the empty line; None if it is not complete.

        Raises:
            HttpError: the bytes cannot become an acceptable head.
        """
        buffer, start = self._buffer, self._position
        if buffer[start : start + 1] == b"\r":
            # An empty line, which some clients send behind a body (RFC 9112, 2.2).
            if buffer.startswith(b"\r\n", start):
                self._position = start = start + 2
            elif len(buffer) - start > 1:
                raise _malformed("not the first line of an HTTP request")
        end = buffer.find(_END, start)
        if (len(buffer) if end < 0 else end + 4) - start > HEAD_MAX:
            raise HttpError(problem(431, f"the head of the request is over {HEAD_MAX} bytes long"))
        if end < 0:
            if buffer.count(b"\n", start) != buffer.count(b"\r\n", start):
                raise _malformed("lines end with CR LF, and have no CR or LF inside")
            return None
        self._position = end + 4
        return buffer[start : end + 4]

    def begin_body(self, length: int | None) -> None:
        """Expect a body of this length (bytes); None: one in chunks."""
        self.left, self.in_body, self._is_chunked = length or 0, True, length is None
        if self._is_chunked:
            self._is_last = False
            self._buffer = _CR_LF + self.rest()  # as behind a chunk

    def whole(self, length: int) -> bytes | None:
        """Take out a body of this length (bytes) if all of it has come, as nearly always with its head; else None."""
        start = self._position
        end = start + length
        if end > len(self._buffer):
            return None
        self._position = end
        return self._buffer[start:end]

    def part(self) -> bytes:
        """Take out what has come of the body that was begun. With the last part `in_body` becomes false.

        Raises:
            HttpError: the body is malformed.
        """
        if self._is_chunked:
            part = self._chunks()
        else:
            part = self._buffer[self._position : self._position + self.left]
            self._position += len(part)
            self.left -= len(part)
            self.in_body = self.left > 0
        if not self.in_body:
            self.feed(b"")  # drops what was taken
        return part

    def _chunks(self) -> bytes:
        """Take out what the chunks hold that have come (RFC 9112, 7.1), without extensions."""
        buffer, at, parts = self._buffer, self._position, list[bytes]()
        while not self._is_last:
            parts.append(buffer[at : at + self.left])
            at += len(parts[-1])
            self.left -= len(parts[-1])
            if self.left or (found := _SIZE.match(buffer, at)) is None:
                break
            at, self.left = found.end(), int(found[1], 16)
            self._is_last = not self.left
        is_over = self._is_last and buffer.startswith(_CR_LF, at)
        self._position = at + len(_CR_LF) * is_over
        may_go_on = _CR_LF.startswith(buffer[at : at + 2]) if self._is_last else _SIZE_BEGUN.fullmatch(buffer, at)
        if not (self.left or may_go_on):
            raise _malformed(f"not the end of a chunk and the size of the next: {buffer[at : at + 40]!r}")
        self.in_body = not is_over
        return b"".join(parts)

    def rest(self) -> bytes:
        """Take out all bytes that are left."""
        rest = self._buffer[self._position :] if self._position else self._buffer
        self._buffer, self._position = b"", 0
        return rest

    def clear(self) -> None:
        """Drop what was received and the body that was begun."""
        self._buffer, self._position = b"", 0
        self.in_body = False
