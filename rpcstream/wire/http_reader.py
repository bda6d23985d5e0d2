"""What comes on an HTTP connection, cut into heads and bodies, one request after the other.

Owns the bytes that were received and not yet taken, and where each request ends. Knows no socket, no clock, and not
what is asked. Pure.
"""

from __future__ import annotations

from .http import HttpError, problem
from .http_body import Body, ChunkedBody, SizedBody, TooLong
from .http_head import HEAD_MAX, too_long

_END = b"\r\n\r\n"


class RequestReader:
    """Bytes go in by `feed`; `head` and `body` take out what is complete. Whoever uses it knows which comes next.

    Args:
        max_size: bytes of a body.

    Attributes:
        in_body: a body was begun, and is not complete.
    """

    __slots__ = ("_at", "_body", "_buffer", "_max_size", "in_body")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._buffer = b""
        self._at = 0
        self._body: Body | None = None
        self.in_body = False

    def __len__(self) -> int:
        """Bytes that wait to be looked at."""
        return len(self._buffer) - self._at

    @property
    def is_partial(self) -> bool:
        """A request has begun and its end has not come."""
        return self.in_body or self._at < len(self._buffer)

    def feed(self, data: bytes) -> None:
        """More has come."""
        if self._at < len(self._buffer):
            data = self._buffer[self._at :] + data
        self._buffer, self._at = data, 0

    def head(self) -> bytes | None:
        """The head of the next request, up to and with the empty line; None if it is not complete.

        Raises:
            HttpError: it will not be one.
        """
        buffer, at = self._buffer, self._at
        if buffer[at : at + 1] == b"\r":
            # As some clients send behind a body (RFC 9112, 2.2).
            if buffer.startswith(b"\r\n", at):
                self._at = at = at + 2
            elif len(buffer) - at > 1:
                raise HttpError(problem(400, "not the first line of an HTTP request"))
        end = buffer.find(_END, at)
        if (len(buffer) if end < 0 else end + 4) - at > HEAD_MAX:
            raise HttpError(problem(431, f"the head of the request is over {HEAD_MAX} bytes long"))
        if end < 0:
            if buffer.count(b"\n", at) != buffer.count(b"\r\n", at):
                raise HttpError(problem(400, "lines end with CR LF, and have neither in them"))
            return None
        self._at = end + 4
        return buffer[at : end + 4]

    def begin_body(self, length: int | None) -> None:
        """The next request's body is so long; None: it comes in chunks."""
        self._body = ChunkedBody(self._max_size) if length is None else SizedBody(length)
        self.in_body = True

    def whole(self, length: int) -> bytes | None:
        """A body of this length, if it has come as a whole: nearly every one of a call has, with its head."""
        at = self._at
        end = at + length
        if end > len(self._buffer):
            return None
        self._at = end
        return self._buffer[at:end]

    def body(self) -> bytes | None:
        """The body that was begun; None if it is not complete.

        Raises:
            HttpError: it is malformed, or too long.
        """
        body = self._body
        assert body is not None
        try:
            rest = body.feed(self.rest())
        except TooLong:
            raise HttpError(too_long(self._max_size)) from None
        except ValueError as error:
            raise HttpError(problem(400, str(error))) from None
        if rest is None:
            return None
        self._buffer, self._body, self.in_body = rest, None, False
        return body.take()

    @property
    def body_size(self) -> int:
        """Bytes that are held of a body that was begun."""
        return self._body.size if self._body is not None else 0

    def rest(self) -> bytes:
        """All that waits, taken."""
        rest = self._buffer[self._at :] if self._at else self._buffer
        self._buffer, self._at = b"", 0
        return rest

    def clear(self) -> None:
        """Nobody wants what waits, nor what was begun."""
        self._buffer, self._at = b"", 0
        self._body, self.in_body = None, False
