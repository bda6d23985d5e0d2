"""HTTP for a client: each call of its session is a POST of its own, over connections that are kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..errors import ConnectFailed, ConnectionLost, EncodeError
from ..peer.calls import Call
from ..peer.deadline import free_context
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import PendingCall
from ..peer.session import Session
from ..peer.uploads import holds_streams
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.http_messages import FRAME, JSON, NDJSON
from .faults import failure, is_permanent_failure
from .http_connection import KeptConnection
from .http_exchange import Exchange
from .options import Settings

#: Makes a connection with the protocol that the given function makes.
Dial = Callable[[Callable[[], KeptConnection]], Awaitable[KeptConnection]]


class HttpChannel(OutgoingCalls):
    """The calls of a client over HTTP, and the channel of its session (`peer.interfaces.Channel`).

    The session lasts as long as the client wants: a connection that the server closes between two calls does not end
    it. It is lost when no connection can be made, or the last one broke off.

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
        #: All connections; and those that carry nothing, the one used last at the end.
        self._connections: set[KeptConnection] = set()
        self._free: list[KeptConnection] = []
        self._dialling: set[asyncio.Task[None]] = set()
        #: Exchanges that wait for a connection, and the bytes of their messages.
        self._waiting: deque[Exchange] = deque()
        self._unsent = 0
        #: Exchanges that are not over: by the ids of their calls, a notification by itself.
        self._exchanges: dict[Any, Exchange] = {}
        self._is_full = self._is_closing = self._is_lost = False

    # -- for the connection of the client -----------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, so that a call finds a connection.

        Raises:
            OSError, ConnectFailed: no connection could be made.
        """
        await self._connect()
        self._session.connected(self)

    def has_none(self, milliseconds: int = 0) -> bool:
        """Whether there is no connection that could carry a call, now or once its present call is over."""
        if any(connection.exchange is not None for connection in self._connections) or self._dialling:
            return False
        return self._find_free() is None

    async def renew(self) -> None:
        """Make a connection if there is none. If that fails, the session is lost."""
        if self.has_none() and not self._is_lost:
            self._begin_dialling()
        if self._dialling:
            await asyncio.wait(set(self._dialling), return_when=asyncio.FIRST_COMPLETED)

    # -- calls --------------------------------------------------------------------------------------------------

    def _send_call(self, outgoing: Call, call: PendingCall, left: float) -> None:
        # To hear of its progress the response must be lines; then the server must be told that items are not wanted.
        says_whole = outgoing.window is None and call.on_progress is not None
        message = outgoing.encode(left, says_whole=says_whole)
        is_lines = says_whole or outgoing.window is not None
        exchange = self._exchange(outgoing.method, outgoing.call_ids, outgoing.window)
        self._post(exchange, message, is_lines=is_lines, headers=_trace_headers(outgoing))

    def notify(self, message: Encoded, method: str) -> None:
        self._post(self._exchange(method), message)

    def permit(self, outgoing: Call, n: int) -> None:
        if (exchange := self._exchanges.get(outgoing.call_id)) is not None:
            exchange.permit(n)

    def cancel(self, call_ids: list[int | str]) -> None:
        """As `OutgoingCalls.cancel`. The server learns it by the end of the connection that carries the calls."""
        for exchange in {self._exchanges[call_id] for call_id in call_ids if call_id in self._exchanges}:
            exchange.cancelled.update(call_ids)
            if exchange.is_settled():
                if exchange in self._waiting:
                    self._waiting.remove(exchange)
                    self._unsent -= exchange.size
                exchange.drop()

    def _exchange(self, method: str, call_ids: Sequence[int | str] = (), window: int | None = None) -> Exchange:
        settings = self._settings
        return Exchange(self._session, settings.address, settings.trace, method, call_ids, window, self._over)

    def _post(self, exchange: Exchange, message: Encoded, *, is_lines: bool = False, headers: bytes = b"") -> None:
        """Send a message as a POST, as soon as there is a connection for it.

        Args:
            message: the body of the POST.
            is_lines: the response may be many messages, a line each.
            headers: further ones, each with its line end.
        """
        if self._is_lost:
            return
        kind, shown = JSON, message.__bytes__
        if type(message) is AttachedMessage and self._session.sends_binary:
            message.secure()  # it may have to wait
            kind, body, shown = FRAME, parts_of_frame(message), message.shown
        else:
            body = parts_of(message)
        exchange.size = size = sum(map(len, body))
        accepted = f"{JSON}, {FRAME}" if self._settings.binary else JSON
        accepted = NDJSON if is_lines else accepted
        own = f"\r\nContent-Type: {kind}\r\nAccept: {accepted}\r\nContent-Length: {size}\r\n".encode()
        exchange.parts = [b"%b%b%b\r\n" % (self._head, own, headers), *body]
        for key in exchange.call_ids or (exchange,):
            self._exchanges[key] = exchange
        if self._settings.trace is not None:
            self._settings.trace("send", shown())
        self._waiting.append(exchange)
        self._unsent += size
        self._carry_waiting()

    # -- for the session (Channel) ------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; each is a notification."""
        for message in messages:
            self.notify(message, "")

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
        self.reason = reason
        self._is_closing = True
        self._fail_waiting(lambda method: ConnectionLost(reason, method=method, address=self.address))
        for connection in list(self._connections):
            connection.abort(reason)
        self._end_if_done()

    # -- which connection carries what --------------------------------------------------------------------------

    def _carry_waiting(self) -> None:
        """Send what waits, in order, as far as there are connections; make more as far as that is allowed."""
        while self._waiting and not self._is_lost and (connection := self._find_free()) is not None:
            self._free.remove(connection)
            self._carry(connection, self._waiting.popleft())
        room = self._settings.http_connections - len(self._connections) - len(self._dialling)
        if self._waiting and not room:
            # An exchange whose calls are answered, but whose response has not ended, gives up its connection.
            for exchange in set(self._exchanges.values()):
                if exchange.carrier is not None and exchange.is_settled():
                    exchange.drop()
        for _ in range(min(len(self._waiting) - len(self._dialling), room)):
            self._begin_dialling()
        is_full = self._unsent > self._settings.limits.write_buffer
        if is_full is not self._is_full and not self._is_lost:
            self._is_full = is_full
            self._session.blocked(is_full)

    def _carry(self, connection: KeptConnection, exchange: Exchange) -> None:
        self._unsent -= exchange.size
        seconds = self._settings.limits.message_timeout
        if not exchange.call_ids and seconds is not None:
            # A notification has no deadline: without a response the connection would be taken for ever.
            reason = "the server did not answer a notification (message_timeout)"
            exchange.timer = self._loop.call_later(seconds, connection.abort, reason)
        connection.begin(exchange)

    def _over(self, exchange: Exchange) -> None:
        for key in exchange.call_ids or (exchange,):
            if self._exchanges.get(key) is exchange:
                del self._exchanges[key]
        if exchange.timer is not None:
            exchange.timer.cancel()
        self._end_if_done()

    def _find_free(self) -> KeptConnection | None:
        """The free connection that was used last and is still open; those found closed by the server are closed."""
        while self._free:
            if self._free[-1].is_free:
                return self._free[-1]
            self._free.pop().close()
        return None

    def _freed(self, connection: KeptConnection) -> None:
        """A connection can carry the next exchange."""
        self._free.append(connection)
        self._carry_waiting()
        self._end_if_done()

    def _lost(self, connection: KeptConnection, broke: bool) -> None:
        """A connection is gone; `broke`: in the middle of an exchange."""
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if broke and not (self._connections or self._dialling or self._waiting):
            self._is_closing = True
            self._end(self.reason or "the server closed the connection")
        self._carry_waiting()
        self._end_if_done()

    # -- making connections -------------------------------------------------------------------------------------

    def _begin_dialling(self) -> None:
        # Without the context of the call that wants it first, which may have a deadline: others may use it, too.
        task = self._loop.create_task(self._connect(), context=free_context())
        self._dialling.add(task)
        task.add_done_callback(self._dialled)

    async def _connect(self) -> None:
        async with asyncio.timeout(self._settings.connect_timeout):
            connection = await self._dial(lambda: KeptConnection(self._settings.address, self._freed, self._lost))
        self._connections.add(connection)
        self._free.append(connection)

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        error = None if task.cancelled() else task.exception()
        # While there are other connections, calls can wait for those.
        if error is not None and not (self._connections or self._dialling):
            reason, lasts = f"could not connect: {error!r}", is_permanent_failure(error)
            if isinstance(error, OSError):
                reason = failure(error, self._settings.connect_timeout, self._settings.address)
            self._is_closing = True
            self._fail_waiting(
                lambda method: ConnectFailed(reason, method=method, address=self.address, is_permanent=lasts)
            )
            self._end(reason)
        self._carry_waiting()
        self._end_if_done()

    def _fail_waiting(self, make_error: Callable[[str], Exception]) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._unsent = 0
        for exchange in waiting:
            exchange.fail(make_error)

    # -- the end ------------------------------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        """Once the channel is closing and every exchange is over: close the connections, then end the session."""
        if not self._is_closing or self._is_lost or self._exchanges:
            return
        for task in self._dialling:
            task.cancel()
        for connection in list(self._connections):
            if connection.exchange is None:
                connection.close()
        if not (self._connections or self._dialling):
            self._loop.call_soon(self._end, self.reason or "the client was closed")

    def _end(self, reason: str) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.reason = reason
        for exchange in set(self._exchanges.values()):
            exchange.lose(reason)
        self._session.lost(lambda method: ConnectionLost(reason, method=method, address=self.address))


def _trace_headers(outgoing: Call) -> bytes:
    """The members of a call that carry its trace, as headers, for what stands between; each with its line end."""
    if outgoing.trace is None:
        return b""  # a batch: each of its calls has a span of its own
    members = {name: text for name, text in outgoing.trace.members.items() if text.isascii() and text.isprintable()}
    return b"".join([f"{name}: {text}\r\n".encode() for name, text in members.items()])


def check_params(outgoing: Call, address: str) -> None:
    """Raise EncodeError for an iterator among the params: over HTTP the server could not give credit for its items."""
    if holds_streams(outgoing.params):
        raise EncodeError(
            f"an iterator as an argument of {outgoing.method!r} cannot be sent over HTTP ({address}): use the "
            "WebSocket (ws://, wss://) or the line stream (host:port, tls://, unix://) of the server"
        )


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
