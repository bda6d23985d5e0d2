"""A WebSocket after its handshake: one asyncio connection that carries a JSON message in each frame.

Owns the bytes of one connection, in both directions, and its closing handshake. Hands whole messages to its session and
writes what that gives it; knows neither methods nor what a message means, nor how the connection became a WebSocket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..errors import RpcError
from ..limits import Limits
from ..peer.memory import Reception
from ..peer.session import Session
from ..wire.buffers import Encoded, parts_of
from ..wire.frames import (
    CLOSE,
    GOING_AWAY,
    NO_CODE,
    NORMAL,
    PONG,
    TEXT,
    TRY_LATER,
    Close,
    FrameReader,
    frame,
    head,
    masked_parts,
)
from .connection import JOIN_MAX, JOINED_MAX
from .message_connection import SECOND_BLANK, MessageConnection, Trace, trace_all
from .paced_transport import undelivered

#: Seconds that the peer has to answer a close frame that it has received, and to close the connection after that.
CLOSE_TIME = 2.0

#: Seconds that a peer that says goodbye is heard out, and between two looks whether it was.
HEAR_TIME = 1.0
GLANCE = 0.01

_TEXT_HEADS = [head(TEXT, size) for size in range(126)]


class WebSocketStream(MessageConnection):
    """An asyncio protocol and the channel of one session.

    Args:
        session: gets the messages.
        client: this end is the client, and masks what it sends.
        on_open, on_close: called with this object when the connection is made and after it is lost.
        address: how errors name the other end; the peer's address where it is not given.
        trace: sees every message.
    """

    def __init__(
        self,
        session: Session,
        *,
        limits: Limits,
        client: bool,
        address: str | None = None,
        trace: Trace | None = None,
        on_open: Callable[[WebSocketStream], None] | None = None,
        on_close: Callable[[WebSocketStream], None] | None = None,
    ) -> None:
        super().__init__(session, limits=limits, address=address, trace=trace, on_open=on_open, on_close=on_close)
        self._client = client
        self._reception = Reception(session.memory)
        self._reader = FrameReader(masked=not client, max_size=limits.max_message_size, reception=self._reception)
        #: Nothing of the peer is understood any more; the session was told that it is over. (While `_closing` nothing
        #: is sent any more but what ends the connection.)
        self._is_deaf = self._is_lost = False
        #: Of a peer that does not read only the last ping is answered, when it reads again (RFC 6455, 5.5.3).
        self._last_ping: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages up to this size (bytes) from now on; None: up to the limit of everybody."""
        self._reader.limit(max_message_size or self._limits.max_message_size)

    # -- what asyncio says ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        reader = self._reader
        messages: list[Any] = reader.feed(data)
        if reader.pings:  # before the messages: they may have come between the fragments of one
            self._answer(reader.pings)
        if messages and not self._closing:
            self._timeouts.completed = True
            if self._trace is not None:
                trace_all(self._trace, "receive", messages)
            self.session.receive(messages)
        else:
            self._timeouts.heard = self._timeouts.received = True
        if reader.fault is not None:
            self._fail(reader.fault)
        elif reader.closed is not None:
            self._peer_closed(reader.closed)

    def eof_received(self) -> bool:
        """Without a closing handshake, or at the end of it: nobody reads any more."""
        self._closing = True
        self._lose_session()
        return False

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if not is_full and self._last_ping is not None:
            ping, self._last_ping = self._last_ping, None
            self._answer([ping])

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._reception.over()
        super().connection_lost(exc)

    def _lose_session(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            super()._lose_session()

    # -- what the session says (Channel) ----------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:  # noqa: PLR0912 (one path of a write)
        transport = self._transport
        if transport is None or self._closing:
            return
        self._timeouts.heard = True
        if self._trace is not None:
            trace_all(self._trace, "send", messages)
        parts: list[Any] = []
        if self._client:
            for message in messages:
                parts += masked_parts(TEXT, len(message), parts_of(message))
        else:
            for message in messages:
                size = len(message)
                parts.append(_TEXT_HEADS[size] if size < 126 else head(TEXT, size))
                parts.append(message)
        if len(messages) == 1 and len(messages[0]) > JOIN_MAX:
            self._write_parts(part for each in parts for part in parts_of(each))
        else:
            try:
                joined = b"".join(parts)
            except TypeError:  # one of them is in pieces
                self._write_parts(part for each in parts for part in parts_of(each))
            else:
                if len(joined) > JOINED_MAX:
                    self._write_parts(part for each in parts for part in parts_of(each))
                else:
                    transport.write(joined)
        if self._is_full:
            self._check_unread(transport)

    def close(self) -> None:
        """All is answered. The other end says goodbye, too, when it has read what was written."""
        if self._reader.closed is not None:
            self._answer_close(self._reader.closed)
        else:
            self._say_close(Close(NORMAL if self._client else GOING_AWAY))

    # -- what a listener or a client says ---------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """Say why this connection is not served, and close it."""
        self._say_close(Close(TRY_LATER, error.message))

    @property
    def _is_partial(self) -> bool:
        return self._reader.partial

    def probe(self) -> None:
        """See whether a peer still listens that is not read: if not, nobody wants what runs.

        That shows only when something is written: a pong that nobody asked for, which needs no answer.
        """
        if self._paused and not self._is_full and not self._closing and self.session.running:
            pong = frame(PONG, b"", masked=self._client)
            self._write(pong)
            # The first is taken even where nobody listens any more; what comes back then is seen with the second.
            self._probing = self._loop.call_later(SECOND_BLANK, self._write_open, pong)

    def _write_open(self, data: bytes) -> None:
        if not self._closing:
            self._write(data)

    # -- control frames ---------------------------------------------------------------------------------------

    def _answer(self, pings: list[bytes]) -> None:
        if self._closing:
            return
        if self._is_full:
            self._last_ping = pings[-1]
        else:
            self._write(b"".join([frame(PONG, ping, masked=self._client) for ping in pings]))

    def _say_close(self, close: Close) -> None:
        """Begin the closing handshake, and go on reading.

        The peer's close frame ends the handshake; and a socket that is closed with unread bytes makes the system drop
        sent bytes that were not delivered yet.
        """
        if self._closing:
            return
        self._closing = True
        if self._paused:
            self.resume()
        self._write(frame(CLOSE, close.payload, masked=self._client))
        self._timer = self._loop.call_later(CLOSE_TIME, self._give_up)

    def _give_up(self) -> None:
        """The peer has not closed the connection in time; unless it still has to read, which `check` limits."""
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing() or not undelivered(transport):
            transport.abort()
        else:
            self._timer = self._loop.call_later(CLOSE_TIME, self._give_up)

    def _fail(self, fault: Close) -> None:
        """The peer broke the rules: nothing that it says is understood from here on."""
        self._is_deaf = True
        self.reason = fault.reason
        self._say_close(fault)
        self._lose_session()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # It need not answer, but it will see the end. TLS has an end of its own, which `close` says and waits for.
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _peer_closed(self, close: Close) -> None:
        """The peer says goodbye: it reads nothing more, so nobody wants what runs for it."""
        self._is_deaf = True
        if self._closing:
            self._end()
            return
        if close.code not in (NORMAL, GOING_AWAY, NO_CODE):
            self.reason = f"the peer closed the connection ({close})"
        self.session.end(self._lost)
        self._hear_out(close, self._loop.time() + HEAR_TIME)

    def _hear_out(self, close: Close, until: float) -> None:
        """What the peer has said before goodbye is taken up; notifications among it are carried out."""
        if self._transport is None or self._closing:
            return
        if self.session.queue and self._loop.time() < until:
            self._timer = self._loop.call_later(GLANCE, self._hear_out, close, until)
        else:
            self._answer_close(close)

    def _answer_close(self, close: Close) -> None:
        self._say_close(close)
        self._end()

    def _end(self) -> None:
        """Both sides have said goodbye: the server closes the connection, the client waits for that."""
        self._lose_session()
        if not self._client and self._transport is not None:
            self._transport.close()
