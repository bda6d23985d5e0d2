"""One connection of a client to an HTTP server, kept from one exchange to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from ..local_peer import widen_buffers
from ..transports.connection import why_lost
from .address import Address
from .faults import silence
from .http_exchange import HEAD_MAX, Exchange
from .sockets import Wait, waiter

OnFree = Callable[["KeptConnection"], None]
OnLost = Callable[["KeptConnection", bool], None]


class KeptConnection(asyncio.Protocol):
    """One connection to the server. Carries one exchange at a time, and is free again once the response is received.

    Args:
        server: the address, for errors.
        on_free: called when it can carry the next exchange.
        on_lost: called when it is gone, with whether that was in the middle of an exchange.

    Attributes:
        exchange: what it carries now; None while it is free, or about to be closed.
    """

    exchange: Exchange | None = None
    _transport: asyncio.Transport | None = None
    _wait_readable: Wait | None = None
    _was_used = _has_answered = _is_held = _is_wide = _broke = False

    def __init__(self, server: Address, on_free: OnFree, on_lost: OnLost) -> None:
        self._server = server
        self._on_free = on_free
        self._on_lost = on_lost

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
        self.exchange, exchange.carrier = exchange, self
        if exchange.size < HEAD_MAX:
            self._transport.write(b"".join(exchange.parts))
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._is_wide:
            self._is_wide = True
            widen_buffers(sock)
        for part in exchange.parts:
            self._transport.write(part)

    def hold(self, held: bool) -> None:
        """Stop reading, or read on."""
        transport = self._transport
        if transport is None or transport.is_closing() or held is self._is_held:
            return
        self._is_held = held
        (transport.pause_reading if held else transport.resume_reading)()

    def close(self) -> None:
        """Close the connection; an exchange that it carries is lost."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """Close the connection at once, for this reason."""
        if self.exchange is not None:
            self.exchange.fault = self.exchange.fault or reason
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Drop the exchange and close: nothing else could be sent before its response is read, which is not wanted."""
        self._release()
        self.abort()

    def _release(self) -> None:
        if self.exchange is not None:
            self.exchange.carrier = None
            self.exchange = None

    # -- callbacks of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._wait_readable = waiter(sock, read=True) if sock is not None else None

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # without a request: the next response could not be told from it
            self.abort()
            return
        exchange.feed(data)
        if self.exchange is None:  # it was dropped while its response was handled
            return
        if exchange.is_complete:
            self._finish(exchange)
        elif exchange.fault is not None:
            self._broke = True
            self.leave()
            exchange.lose(exchange.fault)
        elif exchange.is_over:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange = self.exchange
        self._release()
        if exchange is not None:
            if exchange.ends_with_connection and exc is None and exchange.fault is None:
                exchange.complete()
            else:
                self._broke = True
                exchange.lose(exchange.fault or self._how_lost(exchange, exc))
        self._on_lost(self, self._broke)

    def _how_lost(self, exchange: Exchange, exc: Exception | None) -> str:
        hint = "" if exchange.has_received or self._has_answered else silence(self._server)
        if exc is not None and str(exc):
            return why_lost(exc) + hint
        return "the server closed the connection" + (" in the middle of its answer" if exchange.has_received else hint)

    def _finish(self, exchange: Exchange) -> None:
        """Complete the exchange; keep the connection if the server allows it and has read the whole request."""
        transport = self._transport
        assert transport is not None
        self._release()
        self._has_answered = True
        self.hold(False)
        if transport.get_write_buffer_size():
            transport.abort()
        elif exchange.fault is not None or not exchange.keeps:
            transport.close()
        is_free = not transport.is_closing()
        exchange.complete()
        if is_free:
            self._on_free(self)
