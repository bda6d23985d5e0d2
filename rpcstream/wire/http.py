"""One HTTP request and one response, as values: what was asked, what is answered, and the bytes of its head.

Owns what a response's head looks like and that nothing put into it can end a line. Knows neither sockets nor how a
request was read (`wire.http_head` reads its head, `wire.http_body` its body) nor what is answered. Pure.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from ..text import visible
from .pieces import Written, parts_of

#: The line that each status begins with, without the version.
_REASONS = {int(status): f"{int(status)} {status.phrase}" for status in HTTPStatus}

#: Responses that have no body, and say nothing about one (RFC 9110, 6.4.1).
_BODILESS = frozenset((204, 304))

#: A browser takes the type as it is said, and makes no page of what is none.
NOSNIFF = ("X-Content-Type-Options", "nosniff")

#: Control characters that may stand in a text that says what is wrong: a traceback, in a server that shows it.
_LINES = "\n\t"

_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Request:
    """What was asked.

    Attributes:
        method: "POST"
        target: as it stood in the request line.
        path: the target's path, percent-decoded.
        query: what stands behind the `?`, as it came.
        headers: by lower-case name; the values of a repeated one are joined with ", ".
        body: empty until it has been read, and always for what is no call.
        keep_alive: the client would send another request on the same connection.
        is_http10: it speaks HTTP/1.0.
        identity: who asks, as authentication found; None without.
    """

    __slots__ = ("body", "headers", "identity", "is_http10", "keep_alive", "method", "path", "query", "target")

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

    def __repr__(self) -> str:
        return f"<{self.method} {self.target}>"


class Response:
    """What is answered. Not to be changed once it was sent: its head is kept, so that a page costs that once.

    Attributes:
        status: 200
        body: as it is sent.
        type: of the body: "text/html; charset=utf-8".
        headers: further ones, name and value; `Content-Length` is not among them.
    """

    __slots__ = ("_kept", "_line", "_whole", "body", "headers", "status", "type")

    def __init__(
        self,
        status: int,
        body: Written = b"",
        type: str | None = None,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.type = type
        self.headers = [] if headers is None else headers
        self._kept: bytes | None = None
        #: The whole of it as it was sent last, and the line that this holds besides.
        self._whole = self._line = b""

    def head(
        self,
        length: int | None,
        keep_alive: bool,
        *,
        is_http10: bool = False,
        more: list[tuple[str, str]] | None = None,
    ) -> bytes:
        """The status line and the headers, up to and with the empty line.

        Args:
            length: of the body, which a response to HEAD has not; None: in chunks, or, for HTTP/1.0, until the
                connection ends.
            keep_alive: the connection stays open.
            more: headers besides its own.

        Raises:
            ValueError: a name that is none, or a value with a line end in it.
        """
        is_usual = keep_alive and not is_http10 and not more and length is not None and length == len(self.body)
        if is_usual and self._kept is not None:
            return self._kept
        lines = [f"HTTP/1.1 {_REASONS.get(self.status, self.status)}\r\n"]
        if self.type is not None:
            lines.append(_line("Content-Type", self.type))
        said = []
        for name, value in (*self.headers, *(more or ())):
            if name.lower() == "connection":
                said.append(value)
            else:
                lines.append(_line(name, value))
        if self.status >= 200:
            if self.status not in _BODILESS and length is not None:
                lines.append(f"Content-Length: {length}\r\n")
            elif self.status not in _BODILESS and not is_http10:
                lines.append("Transfer-Encoding: chunked\r\n")
            if not keep_alive:
                said.append("close")
            elif is_http10:
                said.append("keep-alive")
        if said:
            lines.append(_line("Connection", ", ".join(said)))
        lines.append("\r\n")
        head = "".join(lines).encode("latin-1")
        if is_usual:
            self._kept = head
        return head

    def whole(self, line: bytes) -> bytes:
        """All of it, for an HTTP/1.1 connection that stays open, with one more line in its head; kept as well."""
        if self._line is not line:
            head = self.head(len(self.body), keep_alive=True)
            self._whole = b"".join((head[:-2], line, b"\r\n", *parts_of(self.body)))
            self._line = line
        return self._whole

    @property
    def text(self) -> str:
        """The body as text, for errors and tests."""
        return b"".join(parts_of(self.body)).decode(errors="replace")

    def __repr__(self) -> str:
        return f"<Response {self.status}, {len(self.body)} bytes>"


JSON, NDJSON, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"


def wanted(accept: str) -> str:
    """Which of JSON, NDJSON and EVENTS a caller takes first, by its header Accept; JSON if it names none."""
    accept = accept.lower()
    if "ndjson" not in accept and "event-stream" not in accept:
        return JSON
    for choice in accept.split(","):
        name, *parameters = (part.strip(" \t") for part in choice.split(";"))
        if name in (JSON, NDJSON, EVENTS) and not any(each in ("q=0", "q=0.0") for each in parameters):
            return name
    return JSON


class HttpError(Exception):
    """The request is answered with this response, a 4xx or 5xx whose text says what is wrong."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status}: {response.text.strip()}")
        self.response = response


def problem(status: int, text: str, headers: list[tuple[str, str]] | None = None) -> Response:
    """A response that says in one line of text what is wrong; some of them quote what they were sent."""
    return Response(
        status, f"{visible(text, keep=_LINES)}\n".encode(), "text/plain; charset=utf-8", [NOSNIFF, *(headers or ())]
    )


def _line(name: str, value: str) -> str:
    if not name or not _TOKEN.issuperset(name):
        raise ValueError(f"not the name of a header: {name!r}")
    if not value.isprintable() and not value.replace("\t", " ").isprintable():
        raise ValueError(f"the header {name} has a line end or another control character in it: {value!r}")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the header {name} has a character in it that is not of Latin-1: {value!r}") from None
    return f"{name}: {value}\r\n"
