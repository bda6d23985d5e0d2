"""The base of connections that carry one conversation, and of those among them that are WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypedDict, Unpack

import orjson

from ..errors import ConnectionLost, ParseError, RpcError
from ..peer.session import Session
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import Oversize, error_reply
from ..wire.frames import BAD_DATA, GOING_AWAY, NO_CODE, NORMAL, TRY_LATER, Close
from .connection import Connection

#: Seconds between the two writes that find out whether a peer is gone: its system answers the first one within these.
SECOND_BLANK = 0.1

#: Why a server reads no more requests on a connection.
STOPPING = "the server is stopping"

#: Seconds for which messages that came before a close frame are processed, and between two checks whether they were.
DRAIN_TIME = 1.0
DRAIN_CHECK = 0.01

#: Called with "receive" or "send" and the bytes of each message (a message that was too long: with its head).
Trace = Callable[[str, bytes], None]


def trace_all(trace: Trace, direction: str, messages: Iterable[Any]) -> None:
    """Call the trace function with each of these messages. Of binary frames it is given the JSON and the sizes."""
    for message in messages:
        trace(direction, message.head if isinstance(message, Oversize) else bytes(message))


def trace_sent(trace: Trace, messages: Iterable[Encoded], *, as_frames: bool) -> None:
    """Call the trace function with each of these messages; those with attachments go `as_frames` or as text."""
    for message in messages:
        trace("send", message.shown() if as_frames and type(message) is AttachedMessage else bytes(message))


class ConnectionOptions(TypedDict, total=False):
    """Options of a `MessageConnection` of any kind; each is None where it is not given.

    Attributes:
        address: of the other end, for errors; None: that of the socket.
        trace: sees every message.
        on_open: called with the connection when it is made.
        on_close: called with the connection after it is lost.
    """

    address: str | None
    trace: Trace | None
    on_open: Callable[[Any], None] | None
    on_close: Callable[[Any], None] | None


class MessageConnection(Connection):
    """The channel of one session, over a socket or the events of an ASGI server.

    Args:
        session: gets the messages.

    The other arguments are those of `ConnectionOptions`.
    """

    def __init__(
        self,
        session: Session,
        *,
        address: str | None = None,
        trace: Trace | None = None,
        on_open: Callable[[Any], None] | None = None,
        on_close: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(session.limits, session.server_ledger, address)
        self.session = session
        self._trace = trace
        self._on_open = on_open
        self._on_close = on_close
        self._probing: asyncio.TimerHandle | None = None

    def _opened(self) -> None:
        """The connection is made."""
        self._connect_session()
        if self._on_open is not None:
            self._on_open(self)

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        self.session.blocked(is_full)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._probing is not None:
            self._probing.cancel()
        self._lose_session()
        if self._on_close is not None:
            self._on_close(self)

    def _connect_session(self) -> None:
        self.session.connected(self)

    def _lose_session(self) -> None:
        if self.session.channel is not None:
            self.session.lost(self._lost)

    def _lost(self, method: str) -> ConnectionLost:
        """The error for what waited for the peer."""
        reason = self.session.pending.explained(self.reason or "the peer closed the connection")
        return ConnectionLost(reason, method=method, address=self.address)

    @property
    def is_known(self) -> bool:
        """As `Connection.is_known`."""
        return self.session.identity is not None

    # -- for the listener or the client -----------------------------------------------------------------------

    def drain(self) -> None:
        """Say which request was read last, and take no more; close when those that were read are answered."""
        self.session.go_away(STOPPING)

    @property
    def is_busy(self) -> bool:
        """As `Connection.is_busy`."""
        return self.session.busy or bool(self.session.pending)

    @property
    def is_partial(self) -> bool:
        """As `Connection.is_partial`. While reading is paused, an incomplete message is not the peer's fault."""
        return self._is_partial and not self.is_paused

    @property
    def _is_partial(self) -> bool:
        """Part of a message has been received."""
        raise NotImplementedError

    def send(self, messages: list[Any]) -> None:
        """As `Channel.send`."""
        raise NotImplementedError

    def close(self) -> None:
        """As `Channel.close`."""
        raise NotImplementedError


class WebSocketConnection(MessageConnection):
    """How WebSockets end, on our own port and behind ASGI servers; see `MessageConnection`."""

    def __init__(self, session: Session, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, **options)
        #: What the peer sends is ignored. (While `_closing`, only what ends the connection is sent.)
        self._ignores_input = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def carrier(self) -> str:
        """As `transport_of`."""
        return "websocket"

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self._send_close(Close(TRY_LATER, error.message))

    def _send_close(self, close: Close) -> None:
        """Send a close frame behind all that was sent, and nothing more."""
        raise NotImplementedError

    def _fail(self, fault: Close) -> None:
        """What follows cannot be read: say so, ignore what the peer sends from now on, and close."""
        self._ignores_input = True
        self.reason = fault.reason
        if fault.code == BAD_DATA:
            self.send([orjson.dumps(error_reply(None, ParseError(data={"reason": fault.reason})))])
        self._send_close(fault)
        self._lose_session()

    def _peer_closed(self, close: Close) -> None:
        """The peer has sent a close frame: it reads nothing more, so what runs for it is cancelled."""
        self._ignores_input = True
        if close.code not in (NORMAL, GOING_AWAY, NO_CODE):
            self.reason = self.reason or f"the peer closed the connection ({close})"
        self.session.end(self._lost)
        self._drain_received(close, self._loop.time() + DRAIN_TIME)

    def _drain_received(self, close: Close, until: float) -> None:
        """Process messages received before the close frame, such as notifications; then answer it."""
        if not self.is_open:
            return
        if self.session.intake.queue and self._loop.time() < until:
            self._timer = self._loop.call_later(DRAIN_CHECK, self._drain_received, close, until)
        else:
            self._answer_close(close)

    def _answer_close(self, close: Close) -> None:
        """End the connection, whose peer has sent a close frame."""
        raise NotImplementedError
