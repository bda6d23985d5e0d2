"""HTTP requests and responses as values, and the bytes of a response's head.

Owns how a response's head is written, and that nothing put into it can end a line. Knows neither sockets nor how a
request is parsed (`wire.http_parser`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

from ..text import visible
from .buffers import Encoded, parts_of

#: Reason phrases of RFC 9110 that `http` has only from Python 3.13 on.
_NEW_PHRASES = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}

#: Status code and reason phrase of each status line.
_REASONS = {int(each): f"{int(each)} {_NEW_PHRASES.get(each, each.phrase)}" for each in HTTPStatus}

#: Statuses of responses without a body, whose heads give no length either (RFC 9110, 6.4.1).
_BODILESS = frozenset((204, 304))

#: Header that keeps browsers from guessing another content type, such as HTML.
NOSNIFF = ("X-Content-Type-Options", "nosniff")

#: Control characters that are kept in the text of an error response: it may hold a traceback, in debug mode.
_LINES = "\n\t"

#: Characters of the text of an error response that are shown.
_READABLE_MAX = 300

_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Request:
    """An HTTP request.

    Attributes:
        method: such as "GET".
        target: path and query as in the request line.
        path: the target's path, percent-decoded.
        query: the part of the target behind the `?`, not decoded.
        headers: by lower-case name; the values of a repeated header are joined with ", ".
        body: the bytes of the body; empty in requests for pages, whose bodies are not read.
        keep_alive: the client allows another request on the same connection.
        is_http10: the client speaks HTTP/1.0.
        identity: the caller, as authentication found; None without authentication.
        root: the path that the server is mounted at in another application; `path` is what follows it, `target` has it.
    """

    __slots__ = ("body", "headers", "identity", "is_http10", "keep_alive", "method", "path", "query", "root", "target")

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        path: str | None = None,
        query: str = "",
        keep_alive: bool = True,
        is_http10: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.path = target if path is None else path
        self.query = query
        self.headers = {} if headers is None else headers
        self.body = body
        self.keep_alive = keep_alive
        self.is_http10 = is_http10
        self.identity: Any = None
        self.root = ""

    def __repr__(self) -> str:
        return f"<{self.method} {self.target}>"


class Response:
    """An HTTP response. Not to be changed once it was sent: the bytes of its head are kept for the next time.

    Attributes:
        status: the status code, such as 200.
        body: the bytes of the body.
        type: content type of the body, such as "text/html; charset=utf-8"; None for none.
        headers: pairs of name and value, without Content-Type and Content-Length.
    """

    __slots__ = ("_date", "_kept_head", "_kept_whole", "body", "headers", "status", "type")

    def __init__(
        self,
        status: int,
        body: Encoded = b"",
        type: str | None = None,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.type = type
        self.headers = [] if headers is None else headers
        self._kept_head: bytes | None = None
        #: The whole response as it was sent last, and the line of the header Date in it.
        self._kept_whole = self._date = b""

    def head(
        self,
        length: int | None,
        keep_alive: bool,
        *,
        is_http10: bool = False,
        more: list[tuple[str, str]] | None = None,
    ) -> bytes:
        """The bytes of the status line and the headers, up to and with the empty line.

        Args:
            length: bytes of the body (which a response to HEAD does not have); None for a body in chunks, or, with
                HTTP/1.0, one that ends with the connection.
            keep_alive: the connection stays open.
            is_http10: the client speaks HTTP/1.0.
            more: headers besides its own.

        Raises:
            ValueError: a name is not the name of a header, or a value has a line end in it.
        """
        is_usual = keep_alive and not is_http10 and not more and length is not None and length == len(self.body)
        if is_usual and self._kept_head is not None:
            return self._kept_head
        lines = [f"HTTP/1.1 {_REASONS.get(self.status, self.status)}\r\n"]
        if self.type is not None:
            lines.append(_line("Content-Type", self.type))
        connection = []
        for name, value in (*self.headers, *(more or ())):
            if name.lower() == "connection":
                connection.append(value)
            else:
                lines.append(_line(name, value))
        if self.status >= 200:
            if self.status not in _BODILESS and length is not None:
                lines.append(f"Content-Length: {length}\r\n")
            elif self.status not in _BODILESS and not is_http10:
                lines.append("Transfer-Encoding: chunked\r\n")
            if not keep_alive:
                connection.append("close")
            elif is_http10:
                connection.append("keep-alive")
        if connection:
            lines.append(_line("Connection", ", ".join(connection)))
        lines.append("\r\n")
        head = "".join(lines).encode("latin-1")
        if is_usual:
            self._kept_head = head
        return head

    def pairs(self, length: int | None, more: Iterable[tuple[str, str]] = ()) -> list[tuple[bytes, bytes]]:
        """The headers as pairs of name and value in bytes, names in lower case, for a server that writes them itself.

        Args:
            length: bytes of the body; None: it is not said.
            more: headers besides its own.

        Raises:
            ValueError: as for `head`.
        """
        pairs = [("content-type", self.type)] if self.type is not None else []
        pairs += [pair for pair in (*self.headers, *more) if pair[0].lower() != "connection"]
        if length is not None and self.status not in _BODILESS:
            pairs.append(("content-length", str(length)))
        for name, value in pairs:
            _check_header(name, value)
        return [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in pairs]

    def whole(self, date: bytes) -> bytes:
        """Head and body, for an HTTP/1.1 connection that stays open; kept until `date` is another object.

        Args:
            date: the line of the header Date, with its line end.
        """
        if self._date is not date:
            head = self.head(len(self.body), keep_alive=True)
            self._kept_whole = b"".join((head[:-2], date, b"\r\n", *parts_of(self.body)))
            self._date = date
        return self._kept_whole

    @property
    def text(self) -> str:
        """The body as text, for errors and tests."""
        return b"".join(parts_of(self.body)).decode(errors="replace")

    def __repr__(self) -> str:
        return f"<Response {self.status}, {len(self.body)} bytes>"


#: The content types that a call can be answered with.
JSON, NDJSON, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"

#: The content type of a binary frame, as a body in either direction (wire page, "Binary frames").
FRAME = "application/x-rpcstream"

#: Header of the response to a caller who has said that it reads binary frames: so does the server.
READS_FRAMES = ("Accept-Post", f"{JSON}, {FRAME}")


def preferred_type(accept: str) -> str:
    """The first of JSON, NDJSON and EVENTS in the value of a header Accept; JSON if it names none of them."""
    accept = accept.lower()
    if "ndjson" not in accept and "event-stream" not in accept:
        return JSON
    return next((name for name in _wanted(accept) if name in (JSON, NDJSON, EVENTS)), JSON)


def names_frames(accept: str) -> bool:
    """Whether the value of a header Accept, or Accept-Post, names binary frames."""
    accept = accept.lower()
    return FRAME in accept and FRAME in _wanted(accept)


def _wanted(accept: str) -> Iterator[str]:
    """The media types in the value of a header Accept, in lower case, in their order."""
    for choice in accept.split(","):
        name, *parameters = (part.strip(" \t") for part in choice.split(";"))
        if not any(each in ("q=0", "q=0.0") for each in parameters):
            yield name


class HttpError(Exception):
    """Ends the handling of a request: it is answered with this response, a 4xx or 5xx."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status}: {response.text.strip()}")
        self.response = response


def problem(status: int, text: str, headers: list[tuple[str, str]] | None = None) -> Response:
    """An error response with one line of plain text. Control characters in the text, perhaps quoted, are replaced."""
    return Response(
        status, f"{visible(text, keep=_LINES)}\n".encode(), "text/plain; charset=utf-8", [NOSNIFF, *(headers or ())]
    )


def readable_text(body: bytes) -> str:
    """The text of an error response's body for people: short, on one line, without control characters."""
    text = body[: 8 * _READABLE_MAX].decode(errors="replace")
    text = "".join(character for character in text if character.isprintable() or character.isspace())
    text = " ".join(text.split())
    return text if len(text) <= _READABLE_MAX else text[: _READABLE_MAX - 3] + "..."


def too_long(max_size: int) -> Response:
    """The response to a body over the limit of `max_size` bytes."""
    return problem(413, f"the body is too long: the limit is {max_size} bytes (max_message_size)")


def tokens(value: str) -> set[str]:
    """The comma-separated words of a header such as Connection, in lower case."""
    return {word.strip(" \t").lower() for word in value.split(",")}


def _line(name: str, value: str) -> str:
    """The line of one header."""
    _check_header(name, value)
    return f"{name}: {value}\r\n"


def _check_header(name: str, value: str) -> None:
    """Raise ValueError unless a header can be written."""
    if not name or not _TOKEN.issuperset(name):
        raise ValueError(f"not the name of a header: {name!r}")
    if not value.isprintable() and not value.replace("\t", " ").isprintable():
        raise ValueError(f"the header {name} has a line end or another control character in it: {value!r}")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the header {name} has a character that is not in Latin-1: {value!r}") from None
