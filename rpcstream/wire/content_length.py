"""Split a byte stream into messages behind headers with their length, as the Language Server Protocol has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .binary_frame import FrameError
from .envelope import Message, PartialMessage
from .framing import LineFramer
from .http_messages import HttpError
from .http_parser import read_headers

#: How a connection with this framing begins.
STARTS = (b"Content-Length:", b"Content-Type:")

#: Bytes of a header. Those that libraries send have about 80.
HEADER_MAX = 4 * 1024

_END = b"\r\n\r\n"
#: More digits than this are no number of bytes that anybody sends.
_NUMBER = re.compile(r"[0-9]{1,15}")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ContentLengthFramer(LineFramer):
    """Splits a byte stream into messages behind headers; used as a `LineFramer`, without binary frames."""

    _head: bytes = field(default=b"", init=False)
    #: The message that is being received, and its bytes that are still to come; None while a header is awaited.
    _body: PartialMessage | None = field(default=None, init=False)
    _left: int = field(default=0, init=False)

    @property
    def partial(self) -> bool:
        """Whether a message has begun and its end has not been received."""
        return bool(self._head) or self._body is not None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete, in order; none after a header that cannot be read."""
        messages: list[Message] = []
        at = 0
        try:
            while at < len(data) and not self.ended:
                if self._body is None:
                    at = self._take_head(data, at)
                if self._body is not None:
                    at = self._take_body(self._body, data, at, messages)
        except FrameError as error:
            self.fault, self.ended, self.at_start, self._head = str(error), True, False, b""
        return messages

    def finish(self) -> list[Message]:
        """End the stream. A message that is not complete is no message."""
        if self.partial and not self.ended:
            self.fault = "the stream ended within a message, or its header: Content-Length counts bytes"
        if self._body is not None:
            self._body.end()
        self._head, self._body = b"", None
        return []

    def _take_head(self, data: bytes, at: int) -> int:
        """Take bytes of a header; gives where the rest begins."""
        begun = len(self._head)
        self._head += data[at : at + HEADER_MAX - begun]
        head, is_whole, _ = self._head.partition(_END)
        if is_whole:
            self._left = read_length(head)
            self._head, self._body = b"", PartialMessage(reception=self.reception)
            return at + len(head) + len(_END) - begun
        if len(head) == HEADER_MAX:
            raise FrameError(f"a header is fields, each ended by CR LF, and a blank line: {HEADER_MAX} bytes at most")
        return len(data)

    def _take_body(self, message: PartialMessage, data: bytes, at: int, messages: list[Message]) -> int:
        """Take bytes of a message; gives where the rest begins."""
        piece = data[at : at + self._left]
        self._left -= len(piece)
        if (refused := message.keep(piece, self._left, self.max_size)) is not None:
            messages.append(refused)
        if not self._left:
            whole, self._body = message.end(), None
            if not message.is_dropped:
                messages.append(whole)
        return at + len(piece)


def read_length(head: bytes) -> int:
    """The number of bytes that a header announces, given without its blank line.

    Raises:
        FrameError: it cannot be read.
    """
    try:
        length = read_headers(head.split(b"\r\n")).get("content-length", "")
    except HttpError:
        length = ""
    if not _NUMBER.fullmatch(length):
        raise FrameError("a header has Content-Length, a number of bytes, and other fields if any, each of them once")
    return int(length)
