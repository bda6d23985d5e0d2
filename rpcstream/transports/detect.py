"""Protocol detection: what is spoken on a connection, by its first bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import orjson

from ..errors import InvalidRequest, RpcError
from ..wire.content_length import STARTS
from ..wire.envelope import error_reply
from .connection import Connection, ProtocolConnection, SocketConnection
from .http import HttpConnection
from .http_router import HttpContext

#: Seconds that a connection which has sent nothing has for its first bytes, when it is refused, or the server stops:
#: what it sends first may be on its way, and says how to answer.
REFUSAL = 0.2

#: How HTTP begins. (All that a web page can send unasked begins so, too, so it is never taken for a line.)
METHODS = (b"POST ", b"GET ", b"HEAD ", b"OPTIONS ", b"PUT ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE ", b"PRI ")

#: Bytes from which on it is known how a connection begins.
KNOWN_FROM = max(map(len, (*METHODS, *STARTS)))

#: How TLS begins: a handshake record, and the version.
TLS_HANDSHAKE = b"\x16\x03"


#: The data of the error for a client that begins with TLS where there is none.
NO_TLS = {"reason": "this port is without TLS: connect with tcp://, http:// or ws://"}


class ProtocolDetector(SocketConnection):
    """A connection whose protocol is not known yet.

    Args:
        context: of the connection.
        make_line, make_headed: make the protocols that may take over, beside HTTP.
        on_open: called with this object when the connection is made.
        patience: seconds from the connection, including the TLS handshake, until the first bytes must have come, beside
            the idle time; None for no limit of its own.
    """

    is_known = False

    def __init__(
        self,
        context: HttpContext,
        make_line: Callable[[], ProtocolConnection],
        make_headed: Callable[[], ProtocolConnection],
        on_open: Callable[[Connection], None],
        patience: float | None,
    ) -> None:
        # This object is made when the connection is accepted, before the TLS handshake.
        super().__init__(context.limits, context.ledger)
        self._context = context
        self._make_line = make_line
        self._make_headed = make_headed
        self._on_open = on_open
        #: First letters that may begin a method of HTTP, or a header.
        self._begun = b""
        self._refusal: RpcError | None = None
        self._drains = False
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None

    @property
    def carrier(self) -> str:
        """Not counted as any kind of connection."""
        return "unknown"

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def _opened(self) -> None:
        if self._patience is not None:
            reason = f"not authenticated after {self._patience:g} s (auth_timeout)"
            self._timer = self._loop.call_at(self.opened + self._patience, self._close_for_limit, reason)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        data = self._begun + data
        if data.startswith(TLS_HANDSHAKE):
            # A client reports what is no TLS as a wrong version; the text is for those who look at the bytes.
            self._context.connections.handshake_refused(self, "the client speaks TLS, this server does not")
            self._refuse_now(InvalidRequest(data=NO_TLS))
            return
        if data.startswith(METHODS):
            known: ProtocolConnection = HttpConnection(self._context)
        elif data.startswith(STARTS):
            known = self._make_headed()
        elif len(data) < KNOWN_FROM and any(start.startswith(data) for start in (*METHODS, *STARTS)):
            self._begun = data
            self._timeouts.heard = True
            return
        else:
            known = self._make_line()
        self._become(transport, known)
        if self._refusal is not None:
            known.refuse(self._refusal)
        else:
            known.data_received(data)
            if self._drains:
                # With these bytes an HTTP connection may have gone on as a WebSocket.
                cast(ProtocolConnection, transport.get_protocol()).drain()

    def eof_received(self) -> bool:
        """The client sends nothing more: close. A few letters go to the line stream, which answers with an error."""
        transport = self._transport
        if not self._begun or transport is None:
            return False
        known = self._make_line()
        self._become(transport, known)
        known.data_received(self._begun)
        return bool(known.eof_received())

    def _become(self, transport: asyncio.Transport, known: ProtocolConnection) -> None:
        self._over()
        known.opened = self.opened
        transport.set_protocol(cast(asyncio.Protocol, known))
        self._context.connections.replaced(self, known)
        known.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._over()
        self._context.connections.closed(self)

    def _over(self) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    # -- for the listener (Connection) ------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        self._refusal = error
        self._loop.call_later(REFUSAL, self._refuse_now, error)

    def _refuse_now(self, error: RpcError) -> None:
        if self._transport is not None:
            self._transport.write(orjson.dumps(error_reply(None, error)) + b"\n")
            self._transport.close()

    def drain(self) -> None:
        """As `Connection.drain`: nothing was asked, so close, unless the first request comes now."""
        if self._transport is not None and not self._drains:
            self._drains = True
            self._loop.call_later(REFUSAL, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def probe(self) -> None:
        pass

    def check(self, now: float) -> str | None:
        return self._overdue(now, partial=bool(self._begun), busy=False) if self.is_open else None
