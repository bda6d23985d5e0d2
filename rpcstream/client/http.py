"""HTTP for a client: each call of its session is a POST of its own, over connections that are kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ..errors import ConnectFailed, ConnectionLost, EncodeError
from ..peer import binary_offer
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
from .faults import failure, is_permanent_failure, silence
from .http_connection import KeptConnection
from .http_exchange import Exchange
from .options import Settings

#: Makes a connection with the protocol that the given function makes.
Dial = Callable[[Callable[[], KeptConnection]], Awaitable[KeptConnection]]


class HttpCalls(OutgoingCalls):
    """The calls that a client makes over HTTP: each is handed to the channel as it is, as one POST.

    Args:
        channel: carries the calls.
    """

    __slots__ = ("_channel",)

    def __init__(self, session: Session, marshaller: Marshaller, channel: HttpChannel) -> None:
        super().__init__(session, marshaller)
        self._channel = channel

    def _send_call(self, outgoing: Call, call: PendingCall, left: float) -> None:
        # To hear of its progress the answer must be lines; then the server must be told that items are not wanted.
        says_whole = outgoing.window is None and call.on_progress is not None
        message = outgoing.encode(left, says_whole=says_whole)
        headers = _trace_headers(outgoing)
        self._channel.post(
            message, outgoing.method, outgoing.call_ids, outgoing.window, as_lines=says_whole, headers=headers
        )

    def notify(self, message: Encoded, method: str) -> None:
        self._channel.post(message, method)

    def permit(self, outgoing: Call, n: int) -> None:
        self._channel.permit(outgoing.call_id, n)

    def cancel(self, call_ids: list[int | str]) -> None:
        """As `OutgoingCalls.cancel`. The server learns it by the end of the connection that carries the calls."""
        for call_id in call_ids:
            self._channel.cancel(call_id)


def _trace_headers(outgoing: Call) -> bytes:
    """The members of a call that carry its trace, as headers, for what stands between; each with its line end."""
    if outgoing.trace is None:
        return b""  # a batch: each of its calls has a span of its own
    members = {name: text for name, text in outgoing.trace.members.items() if text.isascii() and text.isprintable()}
    return b"".join([f"{name}: {text}\r\n".encode() for name, text in members.items()])


class HttpChannel:
    """The channel of a client's session (`peer.interfaces.Channel`) to an HTTP server.

    The session lasts as long as the client wants: a connection that the server closes between two calls does not end
    it. It is lost when no connection can be made, or the last one broke off.

    Args:
        dial: makes one more connection.
    """

    def __init__(self, session: Session, settings: Settings, dial: Dial) -> None:
        self.address = str(settings.address)
        self.reason: str | None = None
        self.session = session
        self._dial = dial
        self._connect_timeout = settings.connect_timeout
        self._max_connections = settings.http_connections
        self.trace = settings.trace
        self._answer_timeout = settings.limits.message_timeout
        self._write_buffer = settings.limits.write_buffer
        self._loop = asyncio.get_running_loop()
        self._server = settings.address
        self._common_head = _common_head(settings)
        self._accepted = f"{JSON}, {FRAME}" if settings.binary else JSON
        #: All connections; and those that carry nothing, the one used last at the end.
        self._connections: set[KeptConnection] = set()
        self._free: list[KeptConnection] = []
        self._dialling: set[asyncio.Task[None]] = set()
        #: Exchanges that wait for a connection, and the bytes of their messages.
        self._waiting: deque[Exchange] = deque()
        self._unsent = 0
        #: Exchanges that are not over: by the ids of their calls; and notifications.
        self._by_id: dict[int | str, Exchange] = {}
        self._notifications: set[Exchange] = set()
        self._is_full = self._is_closing = self._is_lost = False

    # -- for the connection of the client -----------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, so that a call finds a connection.

        Raises:
            OSError, ConnectFailed: no connection could be made.
        """
        self._join(await self._dial(self._make))
        self.session.connected(self)

    def has_none(self, milliseconds: int = 0) -> bool:
        """Whether there is no connection that could carry a call, now or once its present call is over."""
        if any(connection.exchange is not None for connection in self._connections) or self._dialling:
            return False
        return self._take_free(keep=True) is None

    async def renew(self) -> None:
        """Make a connection if there is none. If that fails, the session is lost."""
        if self.has_none() and not self._is_lost:
            self._begin_dialling()
        if self._dialling:
            await asyncio.wait(set(self._dialling), return_when=asyncio.FIRST_COMPLETED)

    # -- calls --------------------------------------------------------------------------------------------------

    def post(
        self,
        message: Encoded,
        method: str,
        call_ids: Sequence[int | str] = (),
        window: int | None = None,
        *,
        as_lines: bool = False,
        headers: bytes = b"",
    ) -> None:
        """Send a message as a POST, as soon as there is a connection for it.

        Args:
            message: the body of the POST.
            method: for errors.
            call_ids: of its calls; none for a notification.
            window: items of a stream that its reader has room for; None where none is asked for.
            as_lines: progress is wanted, so the answer may be many messages, a line each.
            headers: further ones, each with its line end.
        """
        if self._is_lost:
            return
        is_frame = type(message) is AttachedMessage and self.session.sends_binary
        if type(message) is AttachedMessage and is_frame:
            message.secure()  # it may have to wait
            body, shown = parts_of_frame(message), message.shown
        else:
            body, shown = parts_of(message), message.__bytes__
        size = sum(map(len, body))
        is_stream = as_lines or window is not None
        kind, accepted = FRAME if is_frame else JSON, NDJSON if is_stream else self._accepted
        own = f"\r\nContent-Type: {kind}\r\nAccept: {accepted}\r\nContent-Length: {size}\r\n".encode()
        parts = [b"%b%b%b\r\n" % (self._common_head, own, headers), *body]
        exchange = Exchange(self, parts, size, method, call_ids, window)
        for call_id in exchange.call_ids:
            self._by_id[call_id] = exchange
        if not exchange.call_ids:
            self._notifications.add(exchange)
        if self.trace is not None:
            self.trace("send", shown())
        self._waiting.append(exchange)
        self._unsent += size
        self._carry_waiting()

    def permit(self, call_id: int | str, n: int) -> None:
        """The reader of a call's stream has room for `n` more items."""
        exchange = self._by_id.get(call_id)
        if exchange is not None:
            exchange.permit(n)

    def cancel(self, call_id: int | str) -> None:
        """The answer to this call is not wanted. When that is so for all calls of a POST, its connection is closed."""
        exchange = self._by_id.get(call_id)
        if exchange is None or not exchange.cancel(call_id):
            return
        if exchange in self._waiting:
            self._waiting.remove(exchange)
            self._unsent -= exchange.size
        for connection in self._connections:
            if connection.exchange is exchange:
                connection.leave()
        exchange.drop()

    # -- for the session (Channel) ------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; each is a notification."""
        for message in messages:
            self.post(message, "")

    def pause(self) -> None:
        """As `Channel.pause`. Never needed: only answers are received, and they are always taken."""

    def resume(self) -> None:
        """As `Channel.resume`."""

    def probe(self) -> None:
        """As `Channel.probe`. A connection that carries a call is read, so its end is noticed anyway."""

    def close(self) -> None:
        """Take no more calls; close once the notifications that were sent are answered."""
        self._is_closing = True
        self._end_if_done()

    def abort(self, reason: str) -> None:
        """As `Channel.abort`."""
        self.reason = reason
        self._is_closing = True
        self._fail_waiting(lambda method: ConnectionLost(reason, method=method, address=self.address))
        for task in self._dialling:
            task.cancel()
        for connection in list(self._connections):
            connection.abort(reason)
        self._end_if_done()

    # -- binary frames ------------------------------------------------------------------------------------------

    def server_reads_frames(self) -> None:
        """A response says that the server reads binary frames."""
        binary_offer.accept(self.session)

    # -- which connection carries what --------------------------------------------------------------------------

    def _carry_waiting(self) -> None:
        """Send what waits, in order, as far as there are connections; make more as far as that is allowed."""
        while self._waiting and not self._is_lost:
            connection = self._take_free()
            if connection is None:
                break
            self._carry(connection, self._waiting.popleft())
        room = self._max_connections - len(self._connections) - len(self._dialling)
        if self._waiting and not room:
            # An exchange whose calls are answered, but whose answer has not ended, gives up its connection.
            for connection in list(self._connections):
                exchange = connection.exchange
                if exchange is not None and exchange.is_settled():
                    connection.leave()
                    exchange.drop()
        for _ in range(min(len(self._waiting) - len(self._dialling), room)):
            self._begin_dialling()
        is_full = self._unsent > self._write_buffer
        if is_full is not self._is_full and not self._is_lost:
            self._is_full = is_full
            self.session.blocked(is_full)

    def _carry(self, connection: KeptConnection, exchange: Exchange) -> None:
        self._unsent -= exchange.size
        if exchange in self._notifications and self._answer_timeout is not None:
            # A notification has no deadline: without an answer the connection would be taken for ever.
            exchange.timer = self._loop.call_later(
                self._answer_timeout, connection.abort, "the server did not answer a notification (message_timeout)"
            )
        connection.begin(exchange)

    def exchange_over(self, exchange: Exchange) -> None:
        """Nothing more is expected of an exchange, and nothing is kept for its reader."""
        for call_id in exchange.call_ids:
            if self._by_id.get(call_id) is exchange:
                del self._by_id[call_id]
        if exchange.timer is not None:
            exchange.timer.cancel()
        self._notifications.discard(exchange)
        self._end_if_done()

    def _take_free(self, *, keep: bool = False) -> KeptConnection | None:
        """The free connection that was used last and is still open; those found closed by the server are closed."""
        while self._free:
            connection = self._free[-1]
            if connection.is_free:
                return connection if keep else self._free.pop()
            self._free.pop()
            connection.close()
        return None

    def _make(self) -> KeptConnection:
        when_silent = partial(silence, self._server)
        return KeptConnection(on_free=self._freed, on_lost=self._lost, when_silent=when_silent)

    def _join(self, connection: KeptConnection) -> None:
        self._connections.add(connection)
        self._free.append(connection)

    def _freed(self, connection: KeptConnection) -> None:
        self._free.append(connection)
        self._carry_waiting()
        self._end_if_done()

    def _lost(self, connection: KeptConnection, broke: bool) -> None:
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
        async with asyncio.timeout(self._connect_timeout):
            self._join(await self._dial(self._make))

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        error = None if task.cancelled() else task.exception()
        # While there are other connections, calls can wait for those.
        if error is not None and not (self._connections or self._dialling):
            if isinstance(error, OSError):
                reason = failure(error, self._connect_timeout, self._server)
            else:
                reason = f"could not connect: {error!r}"
            self._is_closing, lasts = True, is_permanent_failure(error)
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
        if not self._is_closing or self._is_lost or self._by_id or self._notifications:
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
        for exchange in {*self._by_id.values(), *self._notifications}:
            exchange.lose(reason)
        self.session.lost(lambda method: ConnectionLost(reason, method=method, address=self.address))


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
