"""HTTP for a client: each call of its session is a POST of its own, over connections that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..errors import ConnectFailed, ConnectionLost, EncodeError
from ..peer.calls import Call
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import PendingCall
from ..peer.session import Session
from ..text import get_logger
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.http_messages import FRAME, JSON, NDJSON
from .attempts import Unsent
from .faults import connect_failed
from .http_exchange import BrokenError, Exchange, HttpConnection, MakeError
from .options import Settings

log = get_logger("rpcstream.client")

#: Content types, and the end of a head, which is the same for no two requests.
_JSON, _FRAME, _LINES = JSON.encode(), FRAME.encode(), NDJSON.encode()
_HEAD = b"%b\r\nContent-Type: %b\r\nAccept: %b\r\nContent-Length: %d\r\n%b\r\n"

#: The most connections where `pool` does not say, each for one call at a time: about as many as browsers use.
HTTP_CONNECTIONS = 8

#: Makes a connection with the protocol that the given function makes.
Dial = Callable[[Callable[[], HttpConnection]], Awaitable[HttpConnection]]


class HttpChannel(OutgoingCalls):
    """The calls of a client over HTTP, and the channel of its session (`peer.inflight.Channel`).

    Each POST has a task, which makes a connection if none is free. The session lasts until the client is closed: a call
    whose connection cannot be made fails, and no other call does.

    Args:
        dial: makes one more connection.
    """

    def __init__(self, session: Session, marshaller: Marshaller, settings: Settings, dial: Dial) -> None:
        super().__init__(session, marshaller)
        self.address = str(settings.address)
        self.reason: str | None = None
        self._settings = settings
        self._dial = dial
        self._head = _common_head(settings)
        self._accepted = b"%b, %b" % (_JSON, _FRAME) if settings.binary else _JSON
        #: All connections; and those that carry nothing, the one used last at the end.
        self._connections: set[HttpConnection] = set()
        self._free: list[HttpConnection] = []
        #: Exchanges wait at this one for a connection, in order; and the bytes of those that wait.
        self._places = asyncio.Semaphore(settings.pool or HTTP_CONNECTIONS)
        self._unsent = 0
        #: Exchanges that are not over: by the ids of their calls, a notification by itself.
        self._exchanges: dict[Any, Exchange] = {}
        self._is_full = self._is_closing = self._is_lost = False
        self.pending.holds_notices = True

    # -- calls --------------------------------------------------------------------------------------------------

    def _send_call(self, outgoing: Call, call: PendingCall, left: float) -> None:
        # To hear of its progress the response must be lines; then the server must be told that items are not wanted.
        says_whole = outgoing.window is None and call.on_progress is not None
        message = outgoing.encode(left, says_whole=says_whole)
        is_lines = says_whole or outgoing.window is not None
        ids, window = outgoing.call_ids, outgoing.window
        exchange = Exchange(self._session, self._settings, outgoing.method, ids, window, is_notice=outgoing.is_notice)
        self._post(exchange, message, is_lines=is_lines, headers=_trace_headers(outgoing))

    def _begin_with_streams(self, outgoing: Call, call: PendingCall, left: float) -> None:
        """Refuse a call: over HTTP the server could not give credit for the items of an iterator."""
        raise EncodeError(
            f"an iterator as an argument of {outgoing.method!r} cannot be sent over HTTP ({self.address}): use the "
            "WebSocket (ws://, wss://) or the line stream (host:port, tls://, unix://) of the server"
        )

    def permit(self, outgoing: Call, n: int) -> None:
        if (exchange := self._exchanges.get(outgoing.call_id)) is not None:
            exchange.permit(n)

    def cancel(self, call_ids: list[int | str]) -> None:
        """As `OutgoingCalls.cancel`. The server learns it by the end of the connection that carries the calls."""
        for exchange in {self._exchanges[call_id] for call_id in call_ids if call_id in self._exchanges}:
            exchange.cancelled.update(call_ids)
            if exchange.is_settled() and exchange.task is not None:
                exchange.task.cancel()
                self._over(exchange)

    def fail_all(self, reason: str) -> None:
        for exchange in set(self._exchanges.values()):
            if exchange.unsent and exchange.call_ids and not exchange.is_settled():
                self._drop(exchange, reason, Unsent)
        super().fail_all(reason)

    def missing(self, call_id: int | str) -> str:
        exchange = self._exchanges.get(call_id)
        return "connection" if exchange is not None and exchange.unsent else super().missing(call_id)

    def _post(self, exchange: Exchange, message: Encoded, *, is_lines: bool = False, headers: bytes = b"") -> None:
        """Send a message as a POST, as soon as there is a connection for it.

        Args:
            message: the body of the POST.
            is_lines: the response may be many messages, a line each.
            headers: further ones, each with its line end.
        """
        if self._is_lost:
            return
        kind, shown = _JSON, message.__bytes__
        if type(message) is AttachedMessage and self._session.sends_binary:
            message.secure()  # it may have to wait
            kind, body, shown = _FRAME, parts_of_frame(message), message.shown
        else:
            body = parts_of(message)
        exchange.size = exchange.unsent = size = sum(map(len, body))
        accepted = _LINES if is_lines else self._accepted
        exchange.parts = [_HEAD % (self._head, kind, accepted, size, headers), *body]
        for key in exchange.call_ids or (exchange,):
            self._exchanges[key] = exchange
        if self._settings.trace is not None:
            self._settings.trace("send", shown())
        self._count(size)
        exchange.task = self._loop.create_task(self._carry(exchange), context=self._session.context)

    async def _carry(self, exchange: Exchange) -> None:
        """Send an exchange on the next connection that is free, and handle its response."""
        if self._connections and self._places.locked():
            exchange.release()
        await self._places.acquire()
        exchange.has_place, connection = True, None
        try:
            connection = self._take_free() or await self._connect()
            exchange.release()
            self._sent(exchange)
            await exchange.carry(connection)
        except BrokenError as error:
            exchange.fail(str(error))
        except ConnectFailed as error:
            make_error = partial(ConnectFailed, is_permanent=error.is_permanent)
            exchange.fail(error.reason, make_error)
            if not self._connections:
                self._drop_waiting(error.reason, make_error)
        except Exception as error:
            log.exception("the response to a call of %s could not be handled", self.address)
            exchange.fail(f"an internal error: {error!r}", ConnectFailed if connection is None else ConnectionLost)
        finally:
            if connection is not None and connection.release():
                self._free.append(connection)
            self._places.release()
            self._over(exchange)

    def _over(self, exchange: Exchange) -> None:
        """Forget an exchange, perhaps one that has not begun."""
        for key in exchange.call_ids or (exchange,):
            if self._exchanges.get(key) is exchange:
                del self._exchanges[key]
        self._sent(exchange)
        self._end_if_done()

    def _sent(self, exchange: Exchange) -> None:
        """The bytes of an exchange wait no longer for a connection."""
        if exchange.unsent:
            self._count(-exchange.unsent)
            exchange.unsent = 0

    def _count(self, size: int) -> None:
        """Count bytes that wait for a connection, or wait no longer."""
        self._unsent += size
        is_full = self._unsent > self._settings.limits.write_buffer
        if is_full is not self._is_full and not self._is_lost:
            self._is_full = is_full
            self._session.blocked(is_full)

    # -- for the session (Channel) ------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; each is a notification."""
        for message in messages:
            self._post(Exchange(self._session, self._settings, "", is_notice=True), message)

    def pause(self) -> None:
        """As `Channel.pause`. Never needed: only responses are received, and they are always taken."""

    def resume(self) -> None:
        """As `Channel.resume`."""

    def probe(self) -> None:
        """As `Channel.probe`. A connection that carries a call is read, so its end is noticed anyway."""

    def close(self) -> None:
        """Take no more calls; close once those that were sent are answered."""
        self._is_closing = True
        self._end_if_done()

    def abort(self, reason: str) -> None:
        """As `Channel.abort`."""
        self.reason, self._is_closing = reason, True
        for connection in list(self._connections):
            connection.abort(reason)
        for exchange in set(self._exchanges.values()):
            self._drop(exchange, reason, Unsent if exchange.unsent else ConnectionLost)
        self._end_if_done()

    def _drop(self, exchange: Exchange, reason: str, make_error: MakeError) -> None:
        """End an exchange; its calls that have no reply fail."""
        exchange.fail(reason, make_error)
        if exchange.task is not None and exchange.task is not asyncio.current_task():
            exchange.task.cancel()
        self._over(exchange)

    # -- connections --------------------------------------------------------------------------------------------

    def _take_free(self) -> HttpConnection | None:
        """The free connection that was used last and is still open; those found closed by the server are closed."""
        while self._free:
            connection = self._free.pop()
            if connection.is_free:
                return connection
            connection.close()
        return None

    async def _connect(self) -> HttpConnection:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_timeout):
                connection = await self._dial(lambda: HttpConnection(settings.address, self._forget))
        except OSError as error:
            raise connect_failed(error, settings.connect_timeout, settings.address) from error
        self._connections.add(connection)
        return connection

    def _drop_waiting(self, reason: str, make_error: MakeError) -> None:
        """Fail the exchanges that waited while no connection could be made."""
        for exchange in set(self._exchanges.values()):
            if not exchange.has_place:
                self._drop(exchange, reason, make_error)

    def _forget(self, connection: HttpConnection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        self._end_if_done()

    # -- the end ------------------------------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        """Once the channel is closing and every exchange is over: close the connections, then end the session."""
        if self._is_lost or not self._is_closing or self._exchanges:
            return
        for connection in list(self._connections):
            connection.close()
        if not self._connections:
            self._is_lost = True
            self.reason = reason = self.reason or "the client was closed"
            make_error = partial(ConnectionLost, reason, address=self.address)
            self._loop.call_soon(self._session.lost, lambda method: make_error(method=method))


def _trace_headers(outgoing: Call) -> bytes:
    """The members of a call that carry its trace, as headers, for what stands between; each with its line end."""
    if outgoing.trace is None:
        return b""  # a batch: each of its calls has a span of its own
    members = {name: text for name, text in outgoing.trace.members.items() if text.isascii() and text.isprintable()}
    return b"".join([f"{name}: {text}\r\n".encode() for name, text in members.items()])


def _common_head(settings: Settings) -> bytes:
    """What the heads of all requests begin with."""
    from .. import __version__

    address = settings.address
    lines = [
        f"POST {address.target} HTTP/1.1",
        f"Host: {address.host_header}",
        f"User-Agent: rpcstream/{__version__}",
    ]
    if settings.token is not None:
        lines.append(f"Authorization: Bearer {settings.token}")
    return "\r\n".join(lines).encode("ascii")
