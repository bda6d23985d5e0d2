"""Split a byte stream into messages behind headers with their length, as the Language Server Protocol has them.

Owns where one message ends and the next begins (wire page, "Content-Length"). Knows no socket and no clock.
"""

from __future__ import annotations

import re

from .buffers import ReceiveBuffer
from .messages import HEAD_SIZE, Message, Oversize, Reception

#: How a connection with this framing begins.
STARTS = (b"Content-Length:", b"Content-Type:")

#: Bytes of a header. Those that libraries send have some 80.
HEADER_MAX = 4 * 1024

_END = b"\r\n\r\n"

#: What shows that a header will not end as it should, so that its sender need not wait for the time limit to learn it.
_BROKEN = re.compile(rb"\A[^A-Za-z]|(?<!\r)\n|\r\n[^A-Za-z\r]")
_FIELD = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)[ \t]*")
_CHARSET = re.compile(rb"charset\s*=\s*\"?([^\s\";]*)", re.IGNORECASE)
#: More digits than this are no number of bytes that anybody sends.
_NUMBER = re.compile(rb"\d{1,15}")


class HeaderError(Exception):
    """A header cannot be read, so what follows it cannot be either; its text says why."""


class ContentLengthFramer:
    """Splits a byte stream into messages; has the interface of `LineFramer`, whose attributes these are.

    Args:
        max_size: bytes of a message without its header. A longer one is reported once, as `Oversize`, and dropped.
        reception: counts the bytes that have come of a message in several pieces; one that it refuses is dropped.
    """

    #: There are no binary frames in this framing.
    is_partial_frame = is_waiting = False

    __slots__ = ("_head", "_held", "_length", "_max_size", "_reception", "_skip", "ended", "fault")

    def __init__(self, *, max_size: int, reception: Reception | None = None) -> None:
        self._max_size = max_size
        self._reception = reception
        self._head = b""
        self._held = ReceiveBuffer()
        #: Bytes of the message whose header was read; None while a header is awaited.
        self._length: int | None = None
        #: Bytes still to come of a message that is dropped.
        self._skip = 0
        self.ended = False
        self.fault: str | None = None

    @property
    def partial(self) -> bool:
        """Whether a message has begun and its end has not been received."""
        return bool(self._head or self._skip) or self._length is not None

    def limit(self, max_size: int) -> None:
        """Set another limit, also for a message that has begun."""
        self._max_size = max_size

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete, in order; none after a header that cannot be read."""
        messages: list[Message] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._skip:
                dropped = min(self._skip, len(data) - at)
                self._skip -= dropped
                at += dropped
                continue
            if self._length is None:
                try:
                    at = self._feed_head(data, at)
                except HeaderError as error:
                    self.fault, self.ended, self._head = str(error), True, b""
                    break
            if self._length is not None:
                at = self._feed_body(data, at, self._length, messages)
        return messages

    def finish(self) -> list[Message]:
        """End the stream. A message that is not complete is no message."""
        if self.partial and not self.ended:
            self.fault = "the stream ended within a message, or its header: Content-Length counts bytes"
        self._head, self._length, self._skip = b"", None, 0
        self._held.take()
        self._received()
        return []

    def target(self) -> memoryview | None:
        """As `LineFramer.target`."""
        return None

    def received(self, count: int) -> list[Message]:
        """As `LineFramer.received`; there is no target."""
        raise NotImplementedError

    def go_on(self) -> list[Message]:
        """As `LineFramer.go_on`; nothing waits."""
        return []

    def _feed_head(self, data: bytes, at: int) -> int:
        """Take bytes of a header; gives where the rest begins."""
        begun = len(self._head)
        head = self._head + data[at : at + HEADER_MAX - begun]
        end = head.find(_END, max(begun - len(_END), 0))
        if _BROKEN.search(head, 0, len(head) if end < 0 else end):
            raise HeaderError("expected header fields, each ended by CR LF, and a blank line behind them")
        if end < 0:
            if len(head) == HEADER_MAX:
                raise HeaderError(f"a header has at most {HEADER_MAX} bytes, its blank line included")
            self._head = head
            return len(data)
        self._length = read_length(head[:end])
        self._head = b""
        return at + end + len(_END) - begun

    def _feed_body(self, data: bytes, at: int, length: int, messages: list[Message]) -> int:
        """Take bytes of a message; gives where the rest begins."""
        held = self._held
        is_over = length > self._max_size
        # Of a message over the limit its beginning is kept, since the id of its call may stand there.
        wanted = min(length, HEAD_SIZE) if is_over else length
        piece = data[at : at + max(wanted - held.size, 0)]
        at += len(piece)
        if not held.size and len(piece) == wanted and not is_over:
            self._length = None
            messages.append(piece)
            return at
        held.append(piece)
        if held.size >= wanted:
            size = held.size
            whole = held.take()
            messages.append(Oversize(length, whole[:HEAD_SIZE], self._max_size) if is_over else whole)
            self._drop(length - size)
        elif self._reception is not None and not self._reception.grow(held.size):
            size = held.size
            messages.append(Oversize(size, held.take()[:HEAD_SIZE], self._reception.limit, is_refused=True))
            self._drop(length - size)
        return at

    def _drop(self, rest: int) -> None:
        """The message is done with, except for these bytes of it that are still to come."""
        self._length, self._skip = None, rest
        self._received()

    def _received(self) -> None:
        if self._reception is not None:
            self._reception.over()


def read_length(head: bytes) -> int:
    """The number of bytes that a header announces, given without its blank line.

    Raises:
        HeaderError: it cannot be read.
    """
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        found = _FIELD.fullmatch(line)
        if found is None:
            raise HeaderError("a header field is a name, a colon and a value, ended by CR LF")
        name = found[1].lower()
        if name in fields:
            raise HeaderError(f"the header has {found[1].decode()} twice")
        fields[name] = found[2]
    length = fields.get(b"content-length")
    if length is None:
        raise HeaderError("the header has no Content-Length")
    if _NUMBER.fullmatch(length) is None:
        raise HeaderError("Content-Length is not a number of bytes")
    charset = _CHARSET.search(fields.get(b"content-type", b""))
    if charset is not None and charset[1].lower() not in (b"utf-8", b"utf8"):
        raise HeaderError("messages are UTF-8; Content-Type names another charset")
    return int(length)
