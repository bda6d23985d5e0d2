"""HTTP for a client: each message of its session is a POST of its own, over connections that are kept.

Owns the connections of one link, which of them carries what, and what waits for one. What an answer means for its calls
is the exchange's matter, how a connection is made, the caller's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import ConnectFailed, ConnectionLost, EncodeError
from ..peer.deadline import free_context
from ..peer.marshal import Outgoing
from ..peer.session import Session
from ..peer.uploads import holds_streams
from ..wire import envelope
from ..wire.buffers import Encoded
from .dial import failure
from .http_connection import KeptConnection
from .http_exchange import Exchange
from .http_text import LINES, outline
from .options import Settings

#: Makes a connection with the protocol that the given function makes.
Dial = Callable[[Callable[[], KeptConnection]], Awaitable[KeptConnection]]


class HttpChannel:
    """The channel of a client's session (`peer.interfaces.Channel`) to an HTTP server.

    The session lasts as long as the client wants: that the server closes a connection between two calls is nothing
    special. It is lost when no connection can be made, or the last one broke off.

    Args:
        dial: makes one more connection.
    """

    def __init__(self, session: Session, settings: Settings, dial: Dial) -> None:
        self.address = str(settings.address)
        self.reason: str | None = None
        self._session = session
        self._dial = dial
        self._limit = settings.connect_timeout
        self._most = settings.http_connections
        self._trace = settings.trace
        self._answer_time = settings.limits.message_timeout
        self._write_buffer = settings.limits.write_buffer
        self._loop = asyncio.get_running_loop()
        self._heads = _heads(settings)
        #: All connections, and those that carried something and are free, the one used last at the end.
        self._connections: set[KeptConnection] = set()
        self._free: list[KeptConnection] = []
        self._dialling: set[asyncio.Task[None]] = set()
        self._waiting: deque[Exchange] = deque()
        self._unsent = 0
        #: By the ids of their calls, those that are not over; and the others, with what ends the wait for each.
        self._by_id: dict[Any, Exchange] = {}
        self._silent: dict[Exchange, asyncio.TimerHandle | None] = {}
        self._is_full = self._is_closing = self._is_lost = False

    # -- what the client says -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, so that a call finds a connection.

        Raises:
            OSError, ConnectFailed: nobody is there.
        """
        self._join(await self._dial(self._make))
        self._session.connected(self)

    def has_none(self, milliseconds: int = 0) -> bool:
        """Is there no connection that a call could be sent on, now or when another one is over?"""
        if any(connection.exchange is not None for connection in self._connections) or self._dialling:
            return False
        return self._take_free(keep=True) is None

    async def renew(self) -> None:
        """See that there is a connection again. If none can be made, the session is lost."""
        if self.has_none() and not self._is_lost:
            self._begin_dialling()
        if self._dialling:
            await asyncio.wait(set(self._dialling), return_when=asyncio.FIRST_COMPLETED)

    # -- what the session says (Channel) ------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        for message in messages:
            said = outline(message)
            method = said.get("method") if type(said) is dict and "id" not in said else None
            if type(method) is str and method.startswith(envelope.CONTROL):
                self._show(message)
                self._heed(method, said.get("params"))
            elif not self._is_lost:
                self._take(message, said)
        self._next()

    def pause(self) -> None:
        """Never needed: what comes is answers, which are always taken."""

    def resume(self) -> None:
        pass

    def probe(self) -> None:
        pass

    def close(self) -> None:
        """No more calls: wait for the answers to what was sent without waiting for it, then close."""
        self._is_closing = True
        self._see_end()

    def abort(self, reason: str) -> None:
        self.reason = reason
        self._is_closing = True
        self._fail_waiting(lambda method: ConnectionLost(reason, method=method, address=self.address))
        for task in self._dialling:
            task.cancel()
        for connection in list(self._connections):
            connection.abort(reason)
        self._see_end()

    # -- messages -----------------------------------------------------------------------------------------------

    def _take(self, message: Encoded, said: Any) -> None:
        exchange = Exchange(
            self._session, message, said, address=self.address, trace=self._trace, on_over=self._exchange_over
        )
        for call_id in exchange.ids:
            self._by_id[call_id] = exchange
        if not exchange.ids:
            self._silent[exchange] = None
        self._show(exchange.message)
        self._waiting.append(exchange)
        self._unsent += len(exchange.message)

    def _show(self, message: Encoded) -> None:
        if self._trace is not None:
            self._trace("send", bytes(message))

    def _heed(self, word: str, params: Any) -> None:
        """A word of the conversation: what HTTP has for it. There is nobody to hear the others."""
        call_id = params.get("id") if type(params) is dict else None
        exchange = self._by_id.get(call_id) if type(call_id) in (int, str) else None
        if exchange is None:
            return
        if word == envelope.CREDIT:
            exchange.permit(params["n"])
        elif word == envelope.CANCEL and exchange.given_up():
            if exchange in self._waiting:
                self._waiting.remove(exchange)
                self._unsent -= len(exchange.message)
            for connection in self._connections:
                if connection.exchange is exchange:
                    connection.leave()
            exchange.drop()

    def _exchange_over(self, exchange: Exchange) -> None:
        for call_id in exchange.ids:
            if self._by_id.get(call_id) is exchange:
                del self._by_id[call_id]
        timer = self._silent.pop(exchange, None)
        if timer is not None:
            timer.cancel()
        self._see_end()

    # -- which connection carries what --------------------------------------------------------------------------

    def _next(self) -> None:
        """Send what waits, in order, as far as there are connections; make more as far as that is allowed."""
        while self._waiting and not self._is_lost:
            connection = self._take_free()
            if connection is None:
                break
            self._carry(connection, self._waiting.popleft())
        room = self._most - len(self._connections) - len(self._dialling)
        if self._waiting and not room:
            # Whoever was answered, and has been waiting for the end of the answer, leaves its place.
            for connection in self._connections:
                if connection.exchange is not None and connection.exchange.given_up():
                    connection.leave()
        for _ in range(min(len(self._waiting) - len(self._dialling), room)):
            self._begin_dialling()
        is_full = self._unsent > self._write_buffer
        if is_full is not self._is_full and not self._is_lost:
            self._is_full = is_full
            self._session.blocked(is_full)

    def _carry(self, connection: KeptConnection, exchange: Exchange) -> None:
        size = len(exchange.message)
        self._unsent -= size
        if exchange in self._silent and self._answer_time is not None:
            # Nobody else would mind that there is no answer, and the connection would be taken for ever.
            self._silent[exchange] = self._loop.call_later(
                self._answer_time, connection.abort, "the server did not answer a notification (message_timeout)"
            )
        connection.begin(b"%s%d\r\n\r\n" % (self._heads[exchange.wants_lines], size), exchange)

    def _take_free(self, *, keep: bool = False) -> KeptConnection | None:
        """The free connection that was used last, unless the server has closed it; those are closed here, too."""
        while self._free:
            connection = self._free[-1]
            if connection.is_free:
                return connection if keep else self._free.pop()
            self._free.pop()
            connection.close()
        return None

    def _make(self) -> KeptConnection:
        return KeptConnection(on_free=self._freed, on_lost=self._lost)

    def _join(self, connection: KeptConnection) -> None:
        self._connections.add(connection)
        self._free.append(connection)

    def _freed(self, connection: KeptConnection) -> None:
        self._free.append(connection)
        self._next()
        self._see_end()

    def _lost(self, connection: KeptConnection, broke: bool) -> None:
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if broke and not (self._connections or self._dialling or self._waiting):
            self._is_closing = True
            self._end(self.reason or "the server closed the connection")
        self._next()
        self._see_end()

    # -- making connections -------------------------------------------------------------------------------------

    def _begin_dialling(self) -> None:
        # It is not only for the call that wants it first, which may have a deadline.
        task = self._loop.create_task(self._connect(), context=free_context())
        self._dialling.add(task)
        task.add_done_callback(self._dialled)

    async def _connect(self) -> None:
        async with asyncio.timeout(self._limit):
            self._join(await self._dial(self._make))

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        error = None if task.cancelled() else task.exception()
        # While there are other connections, what waits has its turn on those.
        if error is not None and not (self._connections or self._dialling):
            reason = failure(error, self._limit) if isinstance(error, OSError) else f"could not connect: {error!r}"
            self._is_closing = True
            self._fail_waiting(lambda method: ConnectFailed(reason, method=method, address=self.address))
            self._end(reason)
        self._next()
        self._see_end()

    def _fail_waiting(self, make_error: Callable[[str], Exception]) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._unsent = 0
        for exchange in waiting:
            exchange.fail(make_error)

    # -- the end ------------------------------------------------------------------------------------------------

    def _see_end(self) -> None:
        """If the client wants no more, and nothing is expected any more: close the connections, then be lost."""
        if not self._is_closing or self._is_lost or self._by_id or self._silent:
            return
        self._close_free()
        if not (self._connections or self._dialling):
            self._loop.call_soon(self._end, self.reason or "the client was closed")

    def _close_free(self) -> None:
        for task in self._dialling:
            task.cancel()
        for connection in list(self._connections):
            if connection.exchange is None:
                connection.close()

    def _end(self, reason: str) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.reason = reason
        for exchange in {*self._by_id.values(), *self._silent}:
            exchange.lose(reason)
        self._session.lost(lambda method: ConnectionLost(reason, method=method, address=self.address))


def check_params(outgoing: Outgoing, address: str) -> None:
    """Raises EncodeError for an iterator: over HTTP the server could not say when the next item may come."""
    if holds_streams(outgoing.params):
        raise EncodeError(
            f"an iterator as an argument of {outgoing.method!r} cannot be sent over HTTP ({address}): use the "
            "WebSocket (ws://, wss://) or the line stream (host:port, tls://, unix://) of the server"
        )


def _heads(settings: Settings) -> dict[bool, bytes]:
    """The head of each request, up to the number of its Content-Length: for one answer, and for lines of them."""
    from .. import __version__

    address = settings.address
    lines = [
        f"POST {address.target} HTTP/1.1",
        f"Host: {address.host_header}",
        f"User-Agent: rpcstream/{__version__}",
        "Content-Type: application/json",
    ]
    if settings.token is not None:
        lines.append(f"Authorization: Bearer {settings.token}")

    def head(accept: str) -> bytes:
        return "\r\n".join([*lines, f"Accept: {accept}", "Content-Length: "]).encode("ascii")

    return {False: head("application/json"), True: head(LINES)}
