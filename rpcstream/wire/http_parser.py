"""HTTP/1.1 requests from bytes: heads, bodies of a known length or in chunks, and the reader that cuts a connection.

Owns what a request must look like and where it ends (RFC 9112). The names, values and the request line are checked by
httptools; what it lets through and another server might read differently is refused here, whatever its version, because
a request could be hidden in another. Knows neither sockets nor clocks, nor what is asked. Pure.
"""

from __future__ import annotations

import re
from typing import Protocol
from urllib.parse import unquote_to_bytes

import httptools

from .binary_frame import HEADER_MAX, FrameError
from .buffers import ReceiveBuffer
from .frame_messages import FrameBody
from .http_messages import HttpError, Request, problem, tokens, too_long

# -- heads ------------------------------------------------------------------------------------------------------------

#: Bytes of the request line and the headers together.
HEAD_MAX = 32 * 1024

#: Headers of one request.
HEADERS_MAX = 100

_ONCE = frozenset(("host", "content-length", "transfer-encoding", "content-type", "authorization", "origin"))
_BAD_TARGET = frozenset('#"<>\\^`{|}')


class HeadFields:
    """Collects the target and the headers of one head, as httptools or another parser finds them."""

    __slots__ = ("headers", "target")

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.target = b""

    def on_url(self, url: bytes) -> None:
        """Add bytes of the target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Raises HttpError for one that must not be there twice."""
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        headers = self.headers
        if key not in headers:
            headers[key] = text
        elif key in _ONCE:
            raise HttpError(problem(400, f"the header {key} is given twice"))
        else:
            headers[key] += ("; " if key == "cookie" else ", ") + text


def parse_head(data: bytes) -> Request:
    """Parse the head of a request, up to and with the empty line.

    Raises:
        HttpError: the head is not acceptable, so what follows it cannot be trusted either: close the connection.
    """
    is_http10 = _check_lines(data)
    fields = HeadFields()
    method = _feed_head(fields, data)
    request = Request(method, fields.target.decode("ascii", "replace"), fields.headers, is_http10=is_http10)
    _read_target(request)
    headers = fields.headers
    if not is_http10 and "host" not in headers:
        raise HttpError(problem(400, "the header Host is missing"))
    connection = headers.get("connection")
    if connection is None:
        request.keep_alive = not is_http10
    elif connection != "keep-alive":
        wishes = tokens(connection)
        request.keep_alive = "close" not in wishes and (not is_http10 or "keep-alive" in wishes)
    return request


def _check_lines(data: bytes) -> bool:
    """Check the request line, the version and how the lines of a head end; returns whether it is HTTP/1.0."""
    first = data[: data.find(b"\r\n")]
    is_http10 = first.endswith(b" HTTP/1.0")
    if not is_http10 and not first.endswith(b" HTTP/1.1"):
        version = first.rpartition(b" ")[2]
        if version.startswith(b"HTTP/") and len(version) == len(b"HTTP/1.1"):
            raise HttpError(problem(505, "this server speaks HTTP/1.1 and HTTP/1.0"))
        raise HttpError(problem(400, "not the first line of an HTTP request"))
    if first.count(b" ") != 2:
        raise HttpError(problem(400, "the request line has one space each between method, target and version"))
    lines = data.count(b"\r\n")
    if lines != data.count(b"\n") or lines != data.count(b"\r"):
        raise HttpError(problem(400, "lines end with CR LF, and have no CR or LF inside"))
    if lines - 2 > HEADERS_MAX:
        raise HttpError(problem(431, f"more than {HEADERS_MAX} headers"))
    if b"\n " in data or b"\n\t" in data:
        raise HttpError(problem(400, "a header is continued in the next line (obsolete folding)"))
    return is_http10


def _feed_head(fields: HeadFields, data: bytes) -> str:
    """Parse the head into these fields; returns the method."""
    parser = httptools.HttpRequestParser(fields)
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
    # The parser may have read another method than stands there, in part ("M-SEARCH" for instance).
    if not data.startswith(method + b" "):
        raise HttpError(problem(400, "not a method of HTTP"))
    return method.decode("ascii")


def _read_target(request: Request) -> None:
    """Set the path and query of a request; the host of an absolute target replaces the header (RFC 9112, 3.2.2)."""
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
            raise HttpError(problem(400, "the request has both Content-Length and Transfer-Encoding"))
        if request.is_http10 or coding.lower() != "chunked":
            raise HttpError(problem(400, "the only Transfer-Encoding is chunked, and HTTP/1.0 has none"))
        return None
    if length is None:
        return -1
    if not length.isdecimal() or not length.isascii() or len(length) > 18:
        raise HttpError(problem(400, "Content-Length is not a number"))
    if int(length) > max_size + header_size:
        raise HttpError(too_long(max_size))
    return int(length)


# -- bodies -----------------------------------------------------------------------------------------------------------

#: Bytes of the line before a chunk: its size, and extensions, which are ignored.
_SIZE_LINE_MAX = 256

#: Bytes and number of the trailer fields, behind the last chunk. They are checked and dropped.
_TRAILERS_MAX = 8 * 1024
_TRAILER_FIELDS_MAX = 100

_HEX = frozenset(b"0123456789abcdefABCDEF")

#: The line before a chunk of 1 byte to 64 KiB.
_SHORT_CHUNK = re.compile(rb"(0{0,11}[1-9a-fA-F][0-9a-fA-F]{0,3})(?:;[\t\x20-\x7e\xa1-\xac\xae-\xff]{0,200})?\r\n")

#: A trailer field (RFC 9110, 5.1 and 5.5): no blank before its name or colon, no control character.
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t\x20-\x7e\x80-\xff]*")

#: Fields that say where a request ends or whom it is for: not allowed as trailers (RFC 9110, 6.5.1).
_NOT_IN_TRAILERS = frozenset(
    (b"content-length", b"transfer-encoding", b"host", b"connection", b"upgrade", b"te", b"trailer", b"expect")
)


class Body(Protocol):
    """A body that is being received.

    Attributes:
        size: bytes of the body received so far.
    """

    size: int

    def feed(self, data: bytes) -> bytes | None:
        """Take these bytes; returns those behind the body once the body is complete, None before that.

        Raises:
            ValueError: the body is malformed; the text says how.
        """

    def take(self) -> bytes:
        """Return the whole body, once it is complete."""


class SizedBody(ReceiveBuffer):
    """A body with a Content-Length."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def feed(self, data: bytes) -> bytes | None:
        missing = self._length - self.size
        if len(data) < missing:
            self.append(data)
            return None
        self.append(data[:missing])
        return data[missing:]


class BodyTooLongError(ValueError):
    """A body in chunks is over the limit."""


class ChunkedBody(ReceiveBuffer):
    """A body in chunks (RFC 9112, 7.1), which does not say in advance how long it is.

    Args:
        max_size: bytes of the whole body.
    """

    __slots__ = ("_fields", "_left", "_line", "_max_size", "_state", "_trailers")

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self._max_size = max_size
        self._state = "size"
        self._left = 0
        self._line = b""
        self._trailers = self._fields = 0

    def feed(self, data: bytes) -> bytes | None:
        """As `Body.feed`.

        Raises:
            TooLong: a chunk would bring the body over the limit; raised before the chunk is read.
            ValueError: the body is malformed.
        """
        position = 0
        while position < len(data):
            if self._state == "data":
                end = min(position + self._left, len(data))
                self.append(data[position:end])
                self._left -= end - position
                position = end
                if not self._left:
                    self._state = "end"
                continue
            if self._state == "size" and not self._line:
                position = self._whole_chunks(data, position)
            line, position = self._next_line(data, position)
            if line is None:
                return None
            if self._state == "end":
                if line:
                    raise ValueError("a chunk is longer than it says")
                self._state = "size"
            elif self._state == "size":
                self._begin(line)
            elif not line:
                return data[position:]
            else:
                self._check_trailer(line)
        return None

    def _whole_chunks(self, data: bytes, position: int) -> int:
        """Take all complete short chunks from `position` on; returns the position behind them.

        Only a faster way (several times) to do what `feed` does: a read may hold 40,000 chunks of a byte each.
        """
        chunks: list[bytes] = []
        size = self.size
        while (found := _SHORT_CHUNK.match(data, position)) is not None:
            begin = found.end()
            end = begin + int(found[1], 16)
            if not data.startswith(b"\r\n", end) or size + end - begin > self._max_size:
                break
            chunks.append(data[begin:end])
            size += end - begin
            position = end + 2
        if chunks:
            self.append(b"".join(chunks))
        return position

    def _check_trailer(self, line: bytes) -> None:
        """Check that a line behind the last chunk is a field that may stand there (RFC 9112, 7.1.2)."""
        self._trailers += len(line)
        self._fields += 1
        if self._trailers > _TRAILERS_MAX or self._fields > _TRAILER_FIELDS_MAX:
            raise ValueError(
                f"more than {_TRAILER_FIELDS_MAX} trailer fields, or more than {_TRAILERS_MAX} bytes of them"
            )
        found = _FIELD.fullmatch(line)
        if found is None:
            raise ValueError(f"not a trailer field: {line[:40]!r}")
        if found[1].lower() in _NOT_IN_TRAILERS:
            raise ValueError(f"the field {found[1].decode('ascii')} is not allowed as a trailer")

    def _next_line(self, data: bytes, position: int) -> tuple[bytes | None, int]:
        """The next line without its CR LF, or None if it is not complete; and the position behind it."""
        limit = {"size": _SIZE_LINE_MAX, "end": 0}.get(self._state, _TRAILERS_MAX)
        end = data.find(b"\n", position)
        line = self._line + data[position : end + 1 if end >= 0 else position + limit + 3]
        if len(line) > limit + 2:
            raise ValueError("a chunk is longer than it says" if self._state == "end" else "a chunk's line is too long")
        # A line feed alone, or a carriage return alone, ends no line, and has no other position in one.
        if b"\r" in line[:-2] or (end >= 0 and line[-2:] != b"\r\n") or (end < 0 and b"\r" in line[:-1]):
            raise ValueError("the lines of chunks end with CR LF, and have no CR or LF inside")
        if end < 0:
            if self._state == "end" and line != b"\r":
                raise ValueError("a chunk is longer than it says")
            self._line = line
            return None, len(data)
        self._line = b""
        return line[:-2], end + 1

    def _begin(self, line: bytes) -> None:
        """Read the line before a chunk: its size, in hexadecimal digits."""
        digits, _, extension = line.partition(b";")
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise ValueError(f"not the size of a chunk: {line[:40]!r}")
        if extension and not extension.decode("latin-1").replace("\t", " ").isprintable():
            raise ValueError("a control character in the extension of a chunk")
        self._left = int(digits, 16)
        if self.size + self._left > self._max_size:
            raise BodyTooLongError("the chunks together are over the limit")
        self._state = "data" if self._left else "trailers"


class _SizedFrame(SizedBody):
    """A body with a Content-Length whose bytes go into a binary frame as they come."""

    __slots__ = ("_frame",)

    def __init__(self, length: int, frame: FrameBody) -> None:
        super().__init__(length)
        self._frame = frame

    def append(self, data: bytes) -> None:
        self.size += len(data)
        self._frame.append(data)


class _ChunkedFrame(ChunkedBody):
    """A body in chunks whose bytes go into a binary frame as they come."""

    __slots__ = ("_frame",)

    def __init__(self, max_size: int, frame: FrameBody) -> None:
        super().__init__(max_size)
        self._frame = frame

    def append(self, data: bytes) -> None:
        self.size += len(data)
        self._frame.append(data)


# -- the requests of a connection ------------------------------------------------------------------------------------

_END = b"\r\n\r\n"


class RequestReader:
    """Cuts the bytes of a connection into heads and bodies, one request after the other.

    Bytes go in with `feed`. `head` takes out the next head; after `begin_body`, `body` takes out the body. A body that
    has come with its head is taken out by `whole` at once.

    Args:
        max_size: bytes of a body.

    Attributes:
        in_body: a body was begun and is not complete.
    """

    __slots__ = ("_body", "_buffer", "_max_size", "_position", "in_body")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._buffer = b""
        self._position = 0
        self._body: Body | None = None
        self.in_body = False

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
                raise HttpError(problem(400, "not the first line of an HTTP request"))
        end = buffer.find(_END, start)
        if (len(buffer) if end < 0 else end + 4) - start > HEAD_MAX:
            raise HttpError(problem(431, f"the head of the request is over {HEAD_MAX} bytes long"))
        if end < 0:
            if buffer.count(b"\n", start) != buffer.count(b"\r\n", start):
                raise HttpError(problem(400, "lines end with CR LF, and have no CR or LF inside"))
            return None
        self._position = end + 4
        return buffer[start : end + 4]

    def begin_body(self, length: int | None, frame: FrameBody | None = None) -> None:
        """Expect a body of this length (bytes), or a body in chunks (None); with a frame the bytes go into that."""
        if frame is None:
            self._body = ChunkedBody(self._max_size) if length is None else SizedBody(length)
        else:
            max_size = self._max_size + HEADER_MAX
            self._body = _ChunkedFrame(max_size, frame) if length is None else _SizedFrame(length, frame)
        self.in_body = True

    def whole(self, length: int) -> bytes | None:
        """Take out a body of this length (bytes) if all of it has come, as nearly always with its head; else None."""
        start = self._position
        end = start + length
        if end > len(self._buffer):
            return None
        self._position = end
        return self._buffer[start:end]

    def body(self) -> bytes | None:
        """Take out the body that was begun, empty if its bytes went into a frame; None if it is not complete.

        Raises:
            HttpError: the body is malformed, or too long.
            FrameError: it is to be a binary frame, and is none.
        """
        body = self._body
        assert body is not None
        try:
            rest = body.feed(self.rest())
        except BodyTooLongError:
            raise HttpError(too_long(self._max_size)) from None
        except FrameError:
            raise
        except ValueError as error:
            raise HttpError(problem(400, str(error))) from None
        if rest is None:
            return None
        self._buffer, self._body, self.in_body = rest, None, False
        return body.take()

    @property
    def body_size(self) -> int:
        """Bytes held of a body that was begun."""
        return self._body.size if self._body is not None else 0

    def rest(self) -> bytes:
        """Take out all bytes that are left."""
        rest = self._buffer[self._position :] if self._position else self._buffer
        self._buffer, self._position = b"", 0
        return rest

    def clear(self) -> None:
        """Drop what was received and the body that was begun."""
        self._buffer, self._position = b"", 0
        self._body, self.in_body = None, False
