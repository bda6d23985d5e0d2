"""Protocol detection: what is spoken on a connection, by its first bytes."""

from __future__ import annotations

from typing import cast

import orjson

from ..errors import InvalidRequest, RpcError
from ..wire.content_length import STARTS
from ..wire.envelope import error_reply
from .connection import SocketConnection
from .http import HttpConnection
from .http_router import ConnectionContext, HttpRouter
from .open_connections import Arrival
from .proxies import ProxyHeaderError, read_proxy_header
from .stream import ContentLengthStream

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


class ProtocolDetector(Arrival):
    """A connection whose protocol is not known yet.

    Args:
        context: makes the protocols that may take over.
        router: for HTTP.
    """

    def __init__(self, context: ConnectionContext, router: HttpRouter) -> None:
        # This object is made when the connection is accepted, before the TLS handshake.
        super().__init__(context.limits, context.ledger, context.connections)
        self._context = context
        self._router = router
        #: First letters that may begin a method of HTTP, or a header.
        self._begun = b""
        #: A header of the PROXY protocol may come first.
        self._is_proxied = False
        self._refusal: RpcError | None = None
        self._drains = False

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._is_proxied = self._context.proxies.trusts(self.address)
        super()._opened()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        data = self._begun + data
        if self._is_proxied:
            size = self._read_proxy_header(data)
            if size is None:
                return
            data = data[size:]
        if data.startswith(TLS_HANDSHAKE):
            # A client reports what is no TLS as a wrong version; the text is for those who look at the bytes.
            self._context.connections.handshake_refused(self, "the client speaks TLS, this server does not")
            self._refuse_now(InvalidRequest(data=NO_TLS))
            return
        if data.startswith(METHODS):
            known: SocketConnection = HttpConnection(self._context, self._router)
        elif data.startswith(STARTS):
            known = self._context.make(ContentLengthStream)
        elif len(data) < KNOWN_FROM and any(start.startswith(data) for start in (*METHODS, *STARTS)):
            self._begun = data
            self._timeouts.heard = True
            return
        else:
            known = self._context.make_line()
        self._become(known)
        if self._refusal is not None:
            known.refuse(self._refusal)
        else:
            known.data_received(data)
            if self._drains:
                # With these bytes an HTTP connection may have gone on as a WebSocket.
                cast(SocketConnection, transport.get_protocol()).drain()

    def _read_proxy_header(self, data: bytes) -> int | None:
        """Take the address of the client from the proxy; gives the bytes of the header, None while more are needed."""
        try:
            found = read_proxy_header(data)
        except ProxyHeaderError as error:
            self._context.connections.handshake_refused(self, f"PROXY protocol: {error}")
            self.abort(str(error))
            return None
        if found is None:
            self._begun = data
            self._timeouts.heard = True
            return None
        self._is_proxied, self._begun = False, b""
        self.address = found[0] or self.address
        return found[1]

    def eof_received(self) -> bool:
        """The client sends nothing more: close. A few letters go to the line stream, which answers with an error."""
        if not self._begun or self._transport is None:
            return False
        known = self._context.make_line()
        self._become(known)
        known.data_received(self._begun)
        return bool(known.eof_received())

    # -- for the listener (Connection) ------------------------------------------------------------------------

    def check(self, now: float) -> str | None:
        """As `Connection.check`, also whether the client takes too long to show what it speaks."""
        patience = self._context.patience
        if patience is None or not self.is_open or now < self.opened + patience:
            return super().check(now)
        reason = f"not authenticated after {patience:g} s (auth_timeout)"
        self._close_for_limit(reason)
        return reason

    def refuse(self, error: RpcError) -> None:
        self._refusal = error
        self._loop.call_later(REFUSAL, self._refuse_now, error)

    def _refuse_now(self, error: RpcError) -> None:
        if self._transport is not None:
            self._transport.write(orjson.dumps(error_reply(None, error)) + b"\n")
            self._transport.close()

    def drain(self) -> None:
        """As `Connection.drain`: nothing was asked, so close, unless the first request comes now."""
        if self._transport is None:
            super().drain()
        elif not self._drains:
            self._drains = True
            self._loop.call_later(REFUSAL, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def is_partial(self) -> bool:
        """Whether the first letters have come."""
        return bool(self._begun)
