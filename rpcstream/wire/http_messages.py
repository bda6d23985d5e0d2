"""HTTP requests and responses as values, and the bytes of a response's head, in which nothing can end a line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from ..text import visible
from .buffers import Encoded, parts_of

#: Status code and reason phrase of each status line; one was another before Python 3.13.
_REASONS = {int(each): f"{int(each)} {each.phrase}" for each in HTTPStatus} | {413: "413 Content Too Large"}

#: Statuses of responses without a body, whose heads give no length either (RFC 9110, 6.4.1).
_BODILESS = frozenset((204, 304))

#: Header that keeps browsers from guessing another content type, such as HTML.
NOSNIFF = ("X-Content-Type-Options", "nosniff")

#: Control characters that are kept in the text of an error response: it may hold a traceback, in debug mode.
_LINES = "\n\t"

#: Characters of the text of an error response that are shown.
_READABLE_MAX = 300

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Latin-1 without control characters, which could end the line.
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xac\xae-\xff]*")


@dataclass(slots=True, eq=False, repr=False)
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

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    path: str = field(default="", kw_only=True)
    query: str = field(default="", kw_only=True)
    keep_alive: bool = field(default=True, kw_only=True)
    is_http10: bool = field(default=False, kw_only=True)
    identity: Any = field(default=None, init=False)
    root: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.path = self.path or self.target

    def __repr__(self) -> str:
        return f"<{self.method} {self.target}>"


@dataclass(slots=True, eq=False, repr=False)
class Response:
    """An HTTP response. Not to be changed once it was sent: its bytes are kept for the next time.

    Attributes:
        status: the status code, such as 200.
        body: the bytes of the body.
        type: content type of the body, such as "text/html; charset=utf-8"; None for none.
        headers: pairs of name and value, without Content-Type and Content-Length.
    """

    status: int
    body: Encoded = b""
    type: str | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    #: The whole response as it was sent last, and the line of the header Date in it.
    _kept_whole: bytes = field(default=b"", init=False)
    _date: bytes = field(default=b"", init=False)

    def head(
        self,
        length: int | None,
        keep_alive: bool,
        *,
        is_http10: bool = False,
        more: Iterable[tuple[str, str]] = (),
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
        pairs = self._pairs(more)
        if self.status >= 200:
            if self.status not in _BODILESS and length is not None:
                pairs.append(("Content-Length", str(length)))
            elif self.status not in _BODILESS and not is_http10:
                pairs.append(("Transfer-Encoding", "chunked"))
            if not keep_alive:
                pairs.append(("Connection", "close"))
            elif is_http10:
                pairs.append(("Connection", "keep-alive"))
        lines = "".join([f"{name}: {value}\r\n" for name, value in pairs])
        return f"HTTP/1.1 {_REASONS.get(self.status, self.status)}\r\n{lines}\r\n".encode("latin-1")

    def _pairs(self, more: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Its headers, with that of its content type, and these."""
        pairs = [*self.headers, *more] if self.type is None else [("Content-Type", self.type), *self.headers, *more]
        for name, value in pairs:
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ValueError(f"a header has a character that it must not have: {name!r}: {value!r}")
        return pairs

    def pairs(self, length: int | None, more: Iterable[tuple[str, str]] = ()) -> list[tuple[bytes, bytes]]:
        """The headers as pairs of name and value in bytes, names in lower case, for a server that writes them itself.

        Args:
            length: bytes of the body; None: it is not said.
            more: headers besides its own.

        Raises:
            ValueError: as for `head`.
        """
        pairs = [pair for pair in self._pairs(more) if pair[0].lower() != "connection"]
        if length is not None and self.status not in _BODILESS:
            pairs.append(("content-length", str(length)))
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
    return next((name for name in _wanted(accept) if name in (JSON, NDJSON, EVENTS)), JSON)


def names_frames(accept: str) -> bool:
    """Whether the value of a header Accept, or Accept-Post, names binary frames."""
    return FRAME in _wanted(accept)


@functools.lru_cache(128)
def _wanted(accept: str) -> list[str]:
    """The media types in the value of a header Accept, in lower case, in their order."""
    return [choice.partition(";")[0].strip(" \t") for choice in accept.lower().split(",")]


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
    text = " ".join("".join(filter(lambda each: each.isprintable() or each.isspace(), text)).split())
    return text if len(text) <= _READABLE_MAX else text[: _READABLE_MAX - 3] + "..."


def too_long(max_size: int) -> Response:
    """The response to a body over the limit of `max_size` bytes."""
    return problem(413, f"the body is too long: the limit is {max_size} bytes (max_message_size)")


def tokens(value: str) -> set[str]:
    """The comma-separated words of a header such as Connection, in lower case."""
    return {word.strip(" \t").lower() for word in value.split(",")}
