"""Protocol detection: what is spoken on a connection, by its first bytes.

Owns a connection until these have come; then the protocol takes over. Knows the protocols by how they begin only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import orjson

from ..errors import InvalidRequest, RpcError
from ..limits import Limits
from ..wire.content_length import STARTS
from ..wire.envelope import error_reply
from .connection import Connection, ProtocolConnection, format_address
from .timeouts import Timeouts

log = logging.getLogger("rpcstream.server")

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


class ProtocolDetector(asyncio.Protocol):
    """A connection whose protocol is not known yet.

    Args:
        make_line, make_headed, make_http: make the protocols that may take over.
        on_open, on_close: called with this object when the connection is made, and when it ends undetected.
        on_known: called with this object and the protocol that takes over.
        on_refused: called with this object and the reason, where the client begins with TLS.
        patience: seconds from the connection, including the TLS handshake, until the first bytes must have come, beside
            the idle time; None for no limit of its own.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        make_line: Callable[[], ProtocolConnection],
        make_headed: Callable[[], ProtocolConnection],
        make_http: Callable[[], ProtocolConnection],
        on_open: Callable[[Connection], None],
        on_close: Callable[[Connection], None],
        on_known: Callable[[Connection, Connection], None],
        on_refused: Callable[[Connection, str], None],
        patience: float | None = None,
    ) -> None:
        self.address = ""
        self.reason: str | None = None
        self.over_limit = False
        self._make_line = make_line
        self._make_headed = make_headed
        self._make_http = make_http
        self._on_open = on_open
        self._on_close = on_close
        self._on_known = on_known
        self._on_refused = on_refused
        self._transport: asyncio.Transport | None = None
        #: First letters that may begin a method of HTTP, or a header.
        self._begun = b""
        self._refusal: RpcError | None = None
        self._drains = False
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        # This object is made when the connection is accepted, before the TLS handshake.
        self.opened = asyncio.get_running_loop().time()
        self._timeouts = Timeouts(limits, self.opened)

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.address = format_address(transport.get_extra_info("peername"))
        if self._patience is not None:
            self._timer = asyncio.get_running_loop().call_at(self.opened + self._patience, self._too_late)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._begun:
            data = self._begun + data
        if data.startswith(TLS_HANDSHAKE):
            # A client reports what is no TLS as a wrong version; the text is for those who look at the bytes.
            self._on_refused(self, "the client speaks TLS, this server does not")
            transport.write(orjson.dumps(error_reply(None, InvalidRequest(data=NO_TLS))) + b"\n")
            transport.close()
            return
        if data.startswith(METHODS):
            make = self._make_http
        elif data.startswith(STARTS):
            make = self._make_headed
        elif len(data) < KNOWN_FROM and any(start.startswith(data) for start in (*METHODS, *STARTS)):
            self._begun = data
            self._timeouts.heard = True
            return
        else:
            make = self._make_line
        known = self._become(transport, make())
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
        known = self._become(transport, self._make_line())
        known.data_received(self._begun)
        return bool(known.eof_received())

    def _become(self, transport: asyncio.Transport, known: ProtocolConnection) -> ProtocolConnection:
        self._transport = None
        self._stop_timer()
        known.opened = self.opened
        transport.set_protocol(cast(asyncio.Protocol, known))
        self._on_known(self, known)
        known.connection_made(transport)
        return known

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        self._on_close(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _too_late(self) -> None:
        self.over_limit = True
        self.abort(f"not authenticated after {self._patience:g} s (auth_timeout)")

    # -- for the listener (Connection) ------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        return False

    def refuse(self, error: RpcError) -> None:
        self._refusal = error
        asyncio.get_running_loop().call_later(REFUSAL, self._say_refusal)

    def drain(self) -> None:
        """As `Connection.drain`: nothing was asked, so close, unless the first request comes now."""
        if self._transport is not None and not self._drains:
            self._drains = True
            asyncio.get_running_loop().call_later(REFUSAL, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def probe(self) -> None:
        pass

    def abort(self, reason: str) -> None:
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> str | None:
        if self._transport is None:
            return None
        reason = self._timeouts.overdue(now, partial=bool(self._begun), unread=0, busy=False)
        if reason is not None:
            self.over_limit = True
            self.abort(reason)
        return reason

    def _say_refusal(self) -> None:
        if self._transport is not None and self._refusal is not None:
            self._transport.write(orjson.dumps(error_reply(None, self._refusal)) + b"\n")
            self._transport.close()
