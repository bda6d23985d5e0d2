"""What is written on an HTTP connection, and how the connection ends.

Owns the transport: writing, reading or not reading, the bytes of a response with its date, and that the last response
arrives before the connection ends. Knows neither how requests are read nor what is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, Protocol

from ..limits import Limits
from ..peer.credentials import Credentials
from ..wire.buffers import AttachedMessage, parts_of
from ..wire.http_messages import Request, Response
from .connection import JOIN_MAX, SocketConnection

#: Seconds for which received bytes are still read and dropped, so that the last response arrives before the end.
LINGER = 2.0


class ResponseSink(Protocol):
    """Where the response to a call is written: the connection that the call came on.

    Attributes:
        address: of the client, for people.
        is_draining: the connection is closed after this response.
    """

    address: str
    is_draining: bool

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the client."""
        ...

    def write(self, parts: Sequence[bytes]) -> None:
        """Write a part of the response."""

    def write_frame(self, parts: list[Any], message: AttachedMessage) -> None:
        """Write a response that is a binary frame: its head with the beginning of this message, and what follows."""

    def finish(self, keeps: bool, *, is_reusable: bool) -> None:
        """The response is complete.

        Args:
            keeps: the connection may carry another request.
            is_reusable: the exchange may take it, too.
        """

    def fail(self, response: Response) -> None:
        """Write this in place of a response that was not begun, and close."""

    def abort(self, reason: str) -> None:
        """Close at once, in the middle of a response."""


class HttpOutput(SocketConnection):
    """The half of an HTTP connection that writes."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._lingering: asyncio.TimerHandle | None = None
        self._own_credentials: Credentials | None = None

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer; needed for each request, and looked up once."""
        if self._own_credentials is None:
            self._own_credentials = super().credentials
        return self._own_credentials

    def write(self, parts: Sequence[bytes]) -> None:
        """Write these bytes in order: long ones without a copy, short ones joined."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._timeouts.heard = True
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            self._write_parts(parts)
        if self._is_full:
            self._check_unread(transport)

    def write_frame(self, parts: list[Any], message: AttachedMessage) -> None:
        """As `ResponseSink.write_frame`."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._timeouts.heard = True
        self._widen()
        self._write_attached(parts, message)
        if self._is_full:
            self._check_unread(transport)

    def end(self, lingers: bool) -> None:
        """Close, once what was written has arrived.

        Args:
            lingers: the client may still be sending. Closing a socket with unread bytes in it makes the system drop
                what was not yet delivered, so what comes is read for a while, and dropped.
        """
        transport = self._transport
        if transport is None or self._closing:
            return
        self._read_more(True)
        self._closing = True
        self._give_up()
        if lingers:
            if transport.can_write_eof():
                transport.write_eof()
            self._lingering = self._loop.call_later(LINGER, transport.close)
        else:
            transport.close()

    def _give_up(self) -> None:
        """Cancel what is being worked on: its response cannot be written any more."""
        raise NotImplementedError

    def _read_more(self, reads: bool) -> None:
        """Read on, or stop reading."""
        transport = self._transport
        if self._paused is not reads or transport is None or transport.is_closing():
            return
        if reads:
            self.resume()
        else:
            self.pause()


# -- responses ------------------------------------------------------------------------------------------------------

_date = (0, b"")


def date_line() -> bytes:
    """The line of the header Date, with its line end; the same object within a second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode()
    return _date[1]


def dated(head: bytes) -> bytes:
    """The head of a response with the header Date added."""
    return b"%b%b\r\n" % (head[:-2], date_line())


def response_parts(
    response: Response, request: Request, keeps: bool, more: list[tuple[str, str]] | None = None
) -> list[bytes]:
    """The bytes of a response in order: its head, and its body unless the request was HEAD.

    Args:
        response: what is answered.
        request: the method and version of this one matter.
        keeps: the connection stays open.
        more: headers besides those of the response.
    """
    if keeps and not more and len(response.body) <= JOIN_MAX and request.method != "HEAD" and not request.is_http10:
        return [response.whole(date_line())]
    head = dated(response.head(len(response.body), keeps, is_http10=request.is_http10, more=more))
    if request.method == "HEAD" or not response.body:
        return [head]
    return [head, *parts_of(response.body)]
