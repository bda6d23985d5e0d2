"""One connection to an HTTP server, kept from one exchange to the next.

A request is sent, its answer received, and only then the connection is free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

from ..local_peer import widen_buffers
from ..transports.connection import why_lost
from ..wire.http_messages import names_frames
from .faults import TLS_ALERT
from .http_exchange import Exchange
from .sockets import Wait, waiter

#: Bytes of the head of an answer, its trailers included.
HEAD_MAX = 64 * 1024

#: Bytes of an answer, besides `HEAD_MAX`, for each byte of its body: chunks of one byte take six.
OVERHEAD = 8


class KeptConnection(asyncio.Protocol):
    """Carries one exchange at a time.

    Args:
        on_free: called when an exchange is over and the connection can be used for the next one.
        on_lost: called when the connection is gone, with whether it was lost in the middle of an exchange.
        when_silent: gives what is added to the reason of a connection that ended before any answer.

    Attributes:
        exchange: what it carries now; None while it is free, or about to be closed.
    """

    def __init__(
        self,
        *,
        on_free: Callable[[KeptConnection], None],
        on_lost: Callable[[KeptConnection, bool], None],
        when_silent: Callable[[], str],
    ) -> None:
        self.exchange: Exchange | None = None
        self._on_free = on_free
        self._on_lost = on_lost
        self._when_silent = when_silent
        self._has_answered = False
        self._transport: asyncio.Transport | None = None
        self._wait_readable: Wait | None = None
        self._was_used = self._is_held = self._is_wide = False
        self._broke = False
        # The state of one answer.
        self._parser: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._reason = ""
        self._fault: str | None = None
        #: Bytes received, and those of the body among them.
        self._received = self._size = 0
        self._has_head = self._is_complete = self._keeps = self._ends_with_connection = False
        self._is_wanted = True

    @property
    def is_free(self) -> bool:
        """Whether a request can be sent: nothing has come since the last one, not even the end of the connection."""
        transport = self._transport
        if self.exchange is not None or transport is None or transport.is_closing():
            return False
        # On a new connection with TLS session tickets may be there to read.
        is_new = not self._was_used and transport.get_extra_info("ssl_object") is not None
        return is_new or self._wait_readable is None or not self._wait_readable(0)

    def begin(self, exchange: Exchange) -> None:
        """Send the request of an exchange."""
        assert self._transport is not None
        exchange.is_on_used, self._was_used = self._was_used, True
        self._reset(exchange)
        exchange.hold = self._hold
        if exchange.size < HEAD_MAX:
            self._transport.write(b"".join(exchange.parts))
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._is_wide:
            self._is_wide = True
            widen_buffers(sock)
        for part in exchange.parts:
            self._transport.write(part)

    def close(self) -> None:
        """Close the connection; an exchange that it carries is lost."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """Close the connection at once, for this reason."""
        self._fault = self._fault or reason
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Drop the exchange and close: nothing else could be sent before its answer is read, which is not wanted."""
        self.exchange = None
        self.abort()

    # -- callbacks of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._wait_readable = waiter(sock, read=True) if sock is not None else None

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:  # without a request: the next answer could not be told from it
            self.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = "the server changed to another protocol without being asked"
        except httptools.HttpParserError as error:
            hint = self._when_silent() if data.startswith(TLS_ALERT) else ""
            self._fault = self._fault or f"the server's answer is not HTTP: {error}{hint}"
        if self._received > HEAD_MAX + OVERHEAD * self._size and not self._is_complete:
            self._fault = self._fault or f"the server's answer has more than {HEAD_MAX} bytes besides its body"
        if self.exchange is None:  # it was dropped while its answer was handled
            return
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
            exchange.hold = _hold_nothing
            if self._ends_with_connection and exc is None and self._fault is None:
                exchange.complete()
            else:
                self._broke = True
                exchange.lose(self._fault or self._how_lost(exc))
        self._on_lost(self, self._broke)

    def _how_lost(self, exc: Exception | None) -> str:
        hint = "" if self._received or self._has_answered else self._when_silent()
        if exc is not None and str(exc):
            return why_lost(exc) + hint
        return "the server closed the connection" + (" in the middle of its answer" if self._received else hint)

    # -- callbacks of httptools ---------------------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        self._reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 or self._is_complete:
            return
        self._has_head = True
        headers, exchange = self._headers, self.exchange
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            self._fault = f"the server's answer is in a transfer coding that was not asked for: {_text(coding)}"
        elif headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            self._fault = (
                f"the server's answer is compressed without being asked: {_text(headers[b'content-encoding'])}"
            )
        elif exchange is not None:
            kind = _text(headers.get(b"content-type", b"")).partition(";")[0].strip().lower()
            exchange.begin(status, self._reason, kind, names_frames(_text(headers.get(b"accept-post", b""))))
            self._ends_with_connection = coding is None and b"content-length" not in headers

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
        self._received = self._size = 0
        self._has_head = self._is_complete = self._keeps = self._ends_with_connection = False
        self._is_wanted = True

    def _finish(self) -> None:
        """Complete the exchange; keep the connection if the server allows it and has read the whole request."""
        exchange, transport = self.exchange, self._transport
        assert exchange is not None
        assert transport is not None
        self.exchange, self._has_answered = None, True
        exchange.hold = _hold_nothing
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
        """Close the connection because of what the server sent."""
        exchange, self.exchange = self.exchange, None
        self._broke = True
        if exchange is not None:
            exchange.hold = _hold_nothing
            exchange.lose(reason)
        self.abort()

    def _hold(self, held: bool) -> None:
        """Stop reading, or read on."""
        transport = self._transport
        if transport is None or transport.is_closing() or held is self._is_held:
            return
        self._is_held = held
        if held:
            transport.pause_reading()
        else:
            transport.resume_reading()


def _hold_nothing(held: bool) -> None:
    """The `hold` of an exchange that no connection carries."""


def _text(value: bytes) -> str:
    return value.decode("latin-1")[:80]
