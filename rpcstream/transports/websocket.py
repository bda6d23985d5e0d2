"""A WebSocket after its opening handshake. Each of its messages is a JSON message or a binary frame."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import Reception
from ..peer.session import Session
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, MessageParts, parts_of
from ..wire.frames import (
    BINARY,
    CLOSE,
    GOING_AWAY,
    NORMAL,
    PONG,
    TEXT,
    Close,
    FrameReader,
    frame,
    head,
    masked_parts,
)
from .connection import SocketConnection
from .message_connection import SECOND_BLANK, ConnectionOptions, WebSocketConnection, trace_all, trace_sent
from .paced_transport import undelivered

#: Seconds that the peer has to answer a close frame, and to close the connection after that.
CLOSE_TIME = 2.0

_TEXT_HEADS = [head(TEXT, size) for size in range(126)]


class WebSocketStream(WebSocketConnection, SocketConnection):
    """An asyncio protocol and the channel of one session.

    Args:
        session: gets the messages.
        client: this end is the client, which masks what it sends.
        options: see `ConnectionOptions`.
    """

    def __init__(self, session: Session, *, client: bool, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, **options)
        self._client = client
        self._reception = Reception(session.server_ledger)
        self._frames = FrameAdmission(session)
        self._reader = FrameReader(
            masked=not client, max_size=session.limits.max_message_size, reception=self._reception, intake=self._frames
        )
        #: The last ping of a peer that does not read: only this one is answered when it reads again (RFC 6455, 5.5.3).
        self._last_ping: bytes | None = None

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages up to this size (bytes) and no frames from now on; None: those that the limits permit."""
        self._frames.reason = None if max_message_size is None else "a binary frame before authentication"
        self._reader.max_size = max_message_size or self._limits.max_message_size

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        reader = self._reader
        messages: list[Any] = reader.feed(data)
        if reader.pings:  # before the messages: they may have come between the fragments of one
            self._answer_pings(reader.pings)
        if messages and not self._closing:
            self._timeouts.completed = True
            if self._trace is not None:
                trace_all(self._trace, "receive", messages)
            self.session.intake.receive(messages)
        else:
            self._timeouts.heard = self._timeouts.received = True
        if reader.is_over:
            self._read_last()
        elif reader.is_partial_frame:
            self._widen()

    def _read_last(self) -> None:
        """Nothing more is read: see why."""
        reader = self._reader
        if reader.fault is not None:
            self._fail(reader.fault)
        elif reader.closed is not None:
            self._peer_closed(reader.closed)

    def eof_received(self) -> bool:
        """The peer reads nothing more: with or without a closing handshake, the connection ends."""
        self._closing = True
        self._lose_session()
        return False

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if not is_full and self._last_ping is not None:
            ping, self._last_ping = self._last_ping, None
            self._answer_pings([ping])

    def connection_lost(self, exc: Exception | None) -> None:
        self._reception.over()
        self._frames.give_up()
        super().connection_lost(exc)

    # -- for the session (Channel) ----------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        transport = self._transport
        if transport is None or self._closing:
            return
        self._timeouts.heard = True
        last = messages[-1]
        if type(last) is AttachedMessage:
            if self.session.sends_binary:
                self._send_frame(messages, last, transport)
                return
            messages = [*messages[:-1], MessageParts(last.parts)]
        if self._trace is not None:
            trace_all(self._trace, "send", messages)
        self._write_joined(self._text_frames(messages))
        if self.is_full:
            self._check_unread()

    def _text_frames(self, messages: list[Encoded]) -> list[Any]:
        parts: list[Any] = []
        for message in messages:
            size = len(message)
            if self._client:
                parts += masked_parts(TEXT, size, parts_of(message))
            else:
                parts += _TEXT_HEADS[size] if size < 126 else head(TEXT, size), message
        return parts

    def _send_frame(self, messages: list[Encoded], message: AttachedMessage, transport: asyncio.Transport) -> None:
        """Write messages of which the last, this one, goes as a binary frame."""
        self._widen()
        if self._trace is not None:
            trace_sent(self._trace, messages, as_frames=True)
        texts = self._text_frames(messages[:-1])
        if self.session.counters is not None:
            self.session.counters.frames_sent += 1
        frame = parts_of_frame(message)
        size = sum(map(len, frame))
        if self._client:
            self._write_parts([*texts, *masked_parts(BINARY, size, map(memoryview, frame))])
        else:
            first, *rest = frame
            before = [*map(bytes, texts), head(BINARY, size), first]
            self._write_attached([b"".join(before), *rest], message)
        if self.is_full:
            self._check_unread()

    def close(self) -> None:
        """As `Channel.close`, with the closing handshake: the peer answers it when it has read what was written."""
        if self._reader.closed is not None:
            self._answer_close(self._reader.closed)
        else:
            self._send_close(Close(NORMAL if self._client else GOING_AWAY))

    # -- for the listener or the client -----------------------------------------------------------------------

    @property
    def _is_partial(self) -> bool:
        return self._reader.partial

    def probe(self) -> None:
        """As `Connection.probe`, for a peer that is not read.

        Whether it still listens shows only when something is written: an unsolicited pong, which needs no answer.
        """
        if self.is_paused and not self.is_full and not self._closing and self.session.running:
            pong = frame(PONG, b"", masked=self._client)
            self._write(pong)
            # A system takes the first one even for a socket that is closed; its answer shows with the second.
            self._probing = self._loop.call_later(SECOND_BLANK, self._write_open, pong)

    def _write_open(self, data: bytes) -> None:
        if not self._closing:
            self._write(data)

    # -- control frames ---------------------------------------------------------------------------------------

    def _answer_pings(self, pings: list[bytes]) -> None:
        if self._closing:
            return
        if self.is_full:
            self._last_ping = pings[-1]
        else:
            self._write(b"".join([frame(PONG, ping, masked=self._client) for ping in pings]))

    def _send_close(self, close: Close) -> None:
        """Begin the closing handshake, and go on reading.

        The peer's close frame ends the handshake; and a socket that is closed with unread bytes makes the system drop
        sent bytes that were not delivered yet.
        """
        if self._closing:
            return
        self._closing = True
        self._frames.give_up()
        if self.is_paused:
            self.resume()
        self._write(frame(CLOSE, close.payload, masked=self._client))
        self._timer = self._loop.call_later(CLOSE_TIME, self._give_up)

    def _give_up(self) -> None:
        """The peer has not closed the connection in time: close, unless it still has to read, which `check` limits."""
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing() or not undelivered(transport):
            transport.abort()
        else:
            self._timer = self._loop.call_later(CLOSE_TIME, self._give_up)

    def _fail(self, fault: Close) -> None:
        super()._fail(fault)
        self._end_output()

    def _end_output(self) -> None:
        """End the sending half, behind a close frame to a peer of which nothing more is read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # The peer need not answer, but sees the end of the connection. TLS has an end of its own, for `close` to send.
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _peer_closed(self, close: Close) -> None:
        self._ignores_input = True
        if self._closing:
            self._end()
        else:
            super()._peer_closed(close)

    def _answer_close(self, close: Close) -> None:
        if not self._closing:
            self._send_close(close)
            self._end()

    def _end(self) -> None:
        """Both sides have sent a close frame: the server closes the connection, the client waits for that."""
        self._lose_session()
        if not self._client and self._transport is not None:
            self._transport.close()
