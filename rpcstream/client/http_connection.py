"""One connection to an HTTP server, kept from one exchange to the next.

Owns the bytes of HTTP/1.1 in both directions: one request goes out, its answer comes back whole, and only then the
connection is free again. What an answer means is the exchange's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

from ..transports.connection import why_lost
from ..wire.buffers import parts_of
from .http_exchange import Exchange
from .readiness import Wait, waiter

#: Bytes of the head of an answer, its trailers included.
HEAD_MAX = 64 * 1024

#: What stands around the pieces of a body may be so many times as much as those, and a head.
AROUND = 8


class KeptConnection(asyncio.Protocol):
    """Carries one exchange at a time.

    Args:
        on_free: called when it may have the next exchange; not for one that cannot be used again.
        on_lost: called when the connection is gone, with whether it broke off.
    """

    def __init__(
        self, *, on_free: Callable[[KeptConnection], None], on_lost: Callable[[KeptConnection, bool], None]
    ) -> None:
        self.exchange: Exchange | None = None
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._glance: Wait | None = None
        self._was_used = self._is_held = False
        self._broke = False
        # What follows is about one answer.
        self._parser: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._reason = ""
        self._fault: str | None = None
        #: Bytes that came, and those of the body among them.
        self._fed = self._size = 0
        self._has_head = self._is_complete = self._keeps = self._ends_with_connection = False
        self._is_wanted = True

    @property
    def is_free(self) -> bool:
        """A request may be sent: nothing has come meanwhile, such as the end of the connection."""
        transport = self._transport
        if self.exchange is not None or transport is None or transport.is_closing():
            return False
        # What may be there to read on a new one are the tickets of TLS.
        is_new = not self._was_used and transport.get_extra_info("ssl_object") is not None
        return is_new or self._glance is None or not self._glance(0)

    def begin(self, head: bytes, exchange: Exchange) -> None:
        """Send a request; `head` is all of it but the message."""
        assert self._transport is not None
        self._was_used = True
        self._reset(exchange)
        exchange.hold = self._hold
        parts = parts_of(exchange.message)
        if len(exchange.message) < HEAD_MAX:
            self._transport.write(b"".join((head, *parts)))
            return
        for part in (head, *parts):
            self._transport.write(part)

    def close(self) -> None:
        """Close it; an exchange that it carries is lost."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """Close it at once."""
        self._fault = self._fault or reason
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Nobody waits for the answer any more: without reading it nothing else can be sent, so this is the end."""
        self.exchange = None
        self.abort()

    # -- what asyncio says --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._glance = waiter(sock, read=True) if sock is not None else None

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:  # nothing was asked: whatever it is, an answer to the next request must not follow it
            self.abort()
            return
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = "the server changed to another protocol, unasked"
        except httptools.HttpParserError as error:
            self._fault = self._fault or f"the server's answer is not HTTP: {error}"
        if self._fed > HEAD_MAX + AROUND * self._size and not self._is_complete:
            self._fault = self._fault or f"the server's answer has more than {HEAD_MAX} bytes besides its body"
        if self._is_complete:
            self._finish()
        elif self._fault is not None:
            self._break(self._fault)
        elif not self._is_wanted:
            self.leave()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.hold = _nothing
            if self._ends_with_connection and exc is None and self._fault is None:
                exchange.complete()
            else:
                self._broke = True
                exchange.lose(self._fault or self._how_lost(exc))
        self._on_lost(self, self._broke)

    def _how_lost(self, exc: Exception | None) -> str:
        if exc is not None and str(exc):
            return why_lost(exc)
        return "the server closed the connection" + (" in the middle of its answer" if self._fed else "")

    # -- what the parser says -----------------------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        self._reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # and no trailer
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            return
        self._has_head = True
        headers, exchange = self._headers, self.exchange
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            self._fault = f"the server's answer is in a transfer coding that was not asked for: {_text(coding)}"
        elif headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            self._fault = f"the server's answer is compressed, unasked: {_text(headers[b'content-encoding'])}"
        elif exchange is not None:
            kind = _text(headers.get(b"content-type", b"")).partition(";")[0].strip().lower()
            exchange.begin(status, self._reason, kind)
            length = headers.get(b"content-length")
            self._ends_with_connection = coding is None and length is None
            if length is not None and length.strip().isdigit():
                self._is_wanted = exchange.expect(int(length))

    def on_body(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and self._is_wanted and self._fault is None and not self._is_complete:
            self._size += len(data)
            self._is_wanted = exchange.feed(data)

    def on_message_complete(self) -> None:
        if not self._has_head:  # 1xx: the answer is still to come
            self._headers, self._reason = {}, ""
        elif not self._is_complete and self._is_wanted and self._fault is None:
            self._is_complete = True
            self._keeps = self._parser.should_keep_alive()

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._fault = "the server answered twice"

    # -- the end of an exchange ---------------------------------------------------------------------------------

    def _reset(self, exchange: Exchange | None) -> None:
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._headers = {}
        self._reason, self._fault = "", None
        self._fed = self._size = 0
        self._has_head = self._is_complete = self._keeps = self._ends_with_connection = False
        self._is_wanted = True

    def _finish(self) -> None:
        """The answer is whole. The connection can be used again if the server says so, and has read the request."""
        exchange, transport = self.exchange, self._transport
        assert exchange is not None
        assert transport is not None
        self.exchange = None
        exchange.hold = _nothing
        self._hold(False)
        is_free = False
        if transport.get_write_buffer_size():
            transport.abort()
        elif self._fault is not None or not self._keeps:
            transport.close()
        else:
            is_free = not transport.is_closing()
        exchange.complete()
        if is_free:
            self._on_free(self)

    def _break(self, reason: str) -> None:
        exchange, self.exchange = self.exchange, None
        self._broke = True
        if exchange is not None:
            exchange.hold = _nothing
            exchange.lose(reason)
        self.abort()

    def _hold(self, held: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or held is self._is_held:
            return
        self._is_held = held
        if held:
            transport.pause_reading()
        else:
            transport.resume_reading()


def _nothing(held: bool) -> None:
    """There is nothing to hold any more."""


def _text(value: bytes) -> str:
    return value.decode("latin-1")[:80]
