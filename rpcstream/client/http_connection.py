"""One connection of a client to an HTTP server: sends one request at a time, and gives its response piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import httptools

from ..local_peer import Wait, waiter, widen_buffers
from ..transports.connection import why_lost
from .address import Address
from .faults import TLS_ALERT, silence

#: Bytes of the head of a response, trailers included.
HEAD_MAX = 64 * 1024

#: Bytes of a response, besides `HEAD_MAX`, for each byte of its body: chunks of one byte take six.
OVERHEAD = 8

#: Bytes of a body that are kept for its reader; with more, the connection is not read.
HELD_MAX = 64 * 1024


class BrokenError(Exception):
    """The response cannot be read to its end; the text says why."""


class HttpConnection(asyncio.Protocol):
    """One connection to the server. Its methods `on_...` are called by httptools.

    Args:
        server: the address, for errors.
        on_lost: called when the connection is gone.

    Attributes:
        status, reason, headers: of the response, once `send` has returned. Names of headers are in lower case.
        requests: how many were sent on this connection.
    """

    def __init__(self, server: Address, on_lost: Callable[[HttpConnection], object]) -> None:
        self._server = server
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._wait_readable: Wait | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_wide = self._is_paused = False
        self._is_complete = True
        self.requests = 0
        self._fault: str | None = None
        self._begin()

    def _begin(self) -> None:
        """Expect a response."""
        self.status, self.reason, self.headers = 0, "", dict[bytes, bytes]()
        self._pieces: list[bytes] = []
        self._held = self._size = self._received = 0
        self._has_head = self._keeps = self._ends_with_connection = False

    @property
    def is_free(self) -> bool:
        """Whether a request can be sent: nothing has come since the last one, not even the end of the connection."""
        transport = self._transport
        if not self._is_complete or transport is None or transport.is_closing():
            return False
        # On a new connection with TLS session tickets may be there to read.
        is_new = not self.requests and transport.get_extra_info("ssl_object") is not None
        return is_new or self._wait_readable is None or not self._wait_readable(0)

    async def send(self, parts: Sequence[Any], size: int) -> None:
        """Send a request, with a body of `size` bytes, and wait for the head of the response. Raises BrokenError."""
        self._begin()
        self.requests += 1
        self._is_complete = False
        transport, is_long = self._transport, size >= HEAD_MAX
        if transport is not None:
            sock = transport.get_extra_info("socket") if is_long and not self._is_wide else None
            if sock is not None:
                self._is_wide = True
                widen_buffers(sock)
            for part in parts if is_long else [b"".join(parts)]:
                transport.write(part)
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """The next bytes of the body; none at its end. Raises BrokenError where the response breaks off."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._more()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._held = [], 0
        return data

    async def _more(self) -> None:
        """Wait until more has come."""
        if self._fault is not None:
            raise BrokenError(self._fault)
        if self._is_paused:
            self._read_or_not(paused=False)
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def release(self) -> bool:
        """Whether another request can be sent after this one; if not, the connection is closed."""
        transport = self._transport
        if transport is None:
            return False
        if not self._is_complete or self._fault is not None or transport.get_write_buffer_size():
            transport.abort()
        elif not self._keeps:
            transport.close()
        elif self._is_paused:
            self._read_or_not(paused=False)
        return not transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection at once; a response that is being received breaks off, for this reason."""
        self._fault = self._fault or reason
        if self._transport is not None:
            self._transport.abort()

    def _read_or_not(self, *, paused: bool) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and paused is not self._is_paused:
            self._is_paused = paused
            (transport.pause_reading if paused else transport.resume_reading)()

    def _break(self, fault: str) -> None:
        self._fault = self._fault or fault

    # -- callbacks of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._wait_readable = waiter(sock, read=True) if sock is not None else None

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # without a request: the next response could not be told from it
            self.abort("the server answered without being asked")
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("the server changed to another protocol without being asked")
        except httptools.HttpParserError as error:
            hint = silence(self._server) if data.startswith(TLS_ALERT) else ""
            self._break(f"the server's answer is not HTTP: {error}{hint}")
        if self._received > HEAD_MAX + OVERHEAD * self._size and not self._is_complete:
            self._break(f"the server's answer has more than {HEAD_MAX} bytes besides its body")
        if self._held > HELD_MAX:
            self._read_or_not(paused=True)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._has_head and self._ends_with_connection and exc is None and self._fault is None:
            self._is_complete = True
        elif not self._is_complete:
            hint = "" if self._received or self.requests > 1 else silence(self._server)
            closed = "the server closed the connection" + (" in the middle of its answer" if self._received else "")
            self._break((why_lost(exc) if exc is not None and str(exc) else closed) + hint)
        self._wake()
        self._on_lost(self)

    # -- callbacks of httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._break("the server answered twice")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 or self._is_complete:
            return
        self._has_head, self.status = True, status
        is_coded, is_packed = b"transfer-encoding" in self.headers, b"content-encoding" in self.headers
        if is_coded and (coding := self.header(b"transfer-encoding")) != "chunked":
            self._break(f"the server's answer is in a transfer coding that was not asked for: {coding}")
        elif is_packed and (coding := self.header(b"content-encoding")) != "identity":
            self._break(f"the server's answer is compressed without being asked: {coding}")
        self._ends_with_connection = not is_coded and b"content-length" not in self.headers

    def on_body(self, data: bytes) -> None:
        if not self._is_complete and self._fault is None:
            self._size += len(data)
            self._held += len(data)
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if not self._has_head:  # 1xx: the response is still to come
            self.headers, self.reason = {}, ""
        elif self._fault is None:
            self._is_complete, self._keeps = True, self._parser.should_keep_alive()

    def header(self, name: bytes) -> str:
        """The value of a header of the response, in lower case; "" if there is none."""
        return self.headers.get(name, b"").decode("latin-1").strip().lower()[:80]
