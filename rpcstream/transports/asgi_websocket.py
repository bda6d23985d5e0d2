"""A WebSocket that an ASGI server has opened: each of its messages is a JSON message, or a binary frame.

Owns one connection, its messages as events in both directions, and how it is closed. Pings, fragments and the closing
handshake are the ASGI server's. Knows neither methods nor what a message means.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Unpack

import orjson

from ..errors import ParseError, RpcError
from ..limits import Limits
from ..peer.incoming import FrameAdmission
from ..peer.session import Session
from ..wire.binary_frame import MARK, FrameError, parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import error_reply
from ..wire.frame_messages import FrameMessage
from ..wire.frames import BAD_DATA, GOING_AWAY, NO_CODE, NORMAL, TRY_LATER, Close
from ..wire.messages import HEAD_SIZE, Message, Oversize
from .asgi_transport import Event, EventTransport, FrameWait, Receive, Send
from .message_connection import ConnectionOptions, MessageConnection, trace_all, trace_sent
from .websocket import DRAIN_CHECK, DRAIN_TIME

log = logging.getLogger("rpcstream.server")

#: How a message begins that is a binary frame.
_MARK = bytes((MARK,))

#: Bytes and number of messages that are handled together at most.
READ_MAX, MESSAGES_MAX = 64 * 1024, 1000


class AsgiWebSocket(MessageConnection):
    """A `Connection` of the listener, and the channel of one session.

    Args:
        session: gets the messages.
        receive, send: of the ASGI application.
        address: of the client, for people.
        options: see `ConnectionOptions`.
    """

    def __init__(
        self,
        session: Session,
        receive: Receive,
        send: Send,
        *,
        limits: Limits,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(session, limits=limits, **options)
        self._receive = receive
        self._events = EventTransport(send, self, self.address)
        self._frame_wait = FrameWait()
        self._frames = FrameAdmission(session, self._frame_wait.go_on)
        self._max_size = limits.max_message_size
        #: Messages that have come in this turn of the loop, and their bytes; when they are handled.
        self._received: list[Message] = []
        self._received_size = 0
        self._delivery: asyncio.Handle | None = None
        self._last_word: Close | None = None
        #: Messages are not looked at any more; the session was told that it is lost.
        self._ignores_input = self._is_lost = False

    async def serve(self, subprotocol: str | None) -> None:
        """Accept the WebSocket, and serve it to its end; to be awaited by the ASGI application.

        Args:
            subprotocol: of those that the client offers; None: none of them.
        """
        events = self._events
        events.put({"type": "websocket.accept", "subprotocol": subprotocol}, 0)
        self.connection_made(events)
        reader = self._loop.create_task(self._read())
        reader.add_done_callback(self._read_over)
        try:
            await events.interruptible(events.run())
        finally:
            reader.cancel()
            if self._delivery is not None:
                self._delivery.cancel()
            self._closing = True
            self._frames.give_up()
            self.connection_lost(None)

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages up to this size (bytes) and no frames from now on; None: those that the limits permit."""
        self._frames.reason = None if max_message_size is None else "a binary frame before authentication"
        self._max_size = max_message_size or self._limits.max_message_size

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Take the messages as they come, until the client leaves. Those of one turn of the loop are handled together.

        While reading is paused, one more message is taken, and kept: a client that is gone is noticed so.
        """
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                self._deliver()
                await self._peer_closed(event)
                return
            await self._events.reading()
            if not self._ignores_input and not self._closing:
                await self._take(event)
            if self._received_size > READ_MAX or len(self._received) > MESSAGES_MAX:
                await asyncio.sleep(0)  # they are handled now

    def _read_over(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None:
            log.error("closing a WebSocket: a message could not be handled", exc_info=error)
            self.abort("an internal error")

    async def _take(self, event: Event) -> None:
        """Handle one message."""
        text = event.get("text")
        data: bytes
        if text is not None:
            try:
                data = text.encode()
            except UnicodeEncodeError:  # half of a surrogate pair, from a server that does not look at UTF-8
                self._fail(Close(BAD_DATA, "a text message is not UTF-8"))
                return
        else:
            data = event.get("bytes") or b""
            if data[:1] == _MARK:
                self._deliver()  # what came before may permit it
                await self._take_frame(bytes(data))
                return
        message: Message = data
        if len(data) > self._max_size:
            self._deliver()  # the token may be in what came before: then more is permitted
        if len(data) > self._max_size:
            message = Oversize(len(data), data[:HEAD_SIZE], self._max_size)
        self._keep(message, len(data))

    def _keep(self, message: Message, size: int) -> None:
        """Have a message of this many bytes handled with all others of this turn."""
        self._received.append(message)
        self._received_size += size
        if self._delivery is None:
            self._delivery = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        messages, self._received, self._received_size = self._received, [], 0
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        if not messages or self._closing:
            return
        self._timeouts.completed = True
        if self._trace is not None:
            trace_all(self._trace, "receive", messages)
        self.session.receive(messages)

    async def _take_frame(self, data: bytes) -> None:
        """Handle a binary frame; while there is no memory for its payloads, nothing more is read."""
        frame = FrameMessage(self._frames, self._max_size, None)
        try:
            taken = frame.feed(data)
            while frame.is_waiting:
                await self._frame_wait.memory_for(frame)
                if self._closing:
                    return
                taken = frame.feed(data, taken)
            message = frame.end()
        except FrameError as error:
            self._deliver()
            self._refuse_frame(error)
        else:
            self._keep(message, len(data))

    async def _peer_closed(self, event: Event) -> None:
        """The client reads nothing more: what runs for it is cancelled, once what it has sent before is begun."""
        close = Close(event.get("code") or NO_CODE, event.get("reason") or "")
        if close.code not in (NORMAL, GOING_AWAY, NO_CODE) and self.reason is None:
            self.reason = f"the peer closed the connection ({close})"
        self._closing = True  # nothing can be sent
        self.session.end(self._lost)
        until = self._loop.time() + DRAIN_TIME
        while self.session.queue and self._loop.time() < until:
            await asyncio.sleep(DRAIN_CHECK)
        self._lose_session()
        self._events.abort()

    def _lose_session(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            super()._lose_session()

    # -- for the session (Channel) ----------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; each message is an event."""
        if self._transport is None or self._closing:
            return
        self._timeouts.heard = True
        reads_frames = self.session.sends_binary
        if self._trace is not None:
            trace_sent(self._trace, messages, as_frames=reads_frames)
        for message in messages:
            if reads_frames and type(message) is AttachedMessage:
                if self.session.counters is not None:
                    self.session.counters.frames_sent += 1
                frame = b"".join(parts_of_frame(message))
                self._events.put({"type": "websocket.send", "bytes": frame}, len(frame))
            else:
                text = bytes(message).decode()
                self._events.put({"type": "websocket.send", "text": text}, len(message))
        if self._is_full:
            self._check_unread(self._events)

    def close(self) -> None:
        """As `Channel.close`."""
        self._end(self._last_word or Close(GOING_AWAY))

    def _end(self, close: Close) -> None:
        """Close the WebSocket behind what was sent."""
        if self._closing:
            return
        self._closing = True
        self._frames.give_up()
        self._events.put({"type": "websocket.close", "code": close.code, "reason": close.reason}, 0)
        self._events.close()

    def _fail(self, fault: Close) -> None:
        """The client broke the protocol."""
        self._ignores_input = True
        self.reason = fault.reason
        self._end(fault)
        self._lose_session()

    def _refuse_frame(self, error: FrameError) -> None:
        """Say that a binary frame cannot be read, and close when what was read before is answered."""
        self._ignores_input = True
        self._last_word = Close(BAD_DATA, str(error))
        self.reason = str(error)
        self.session.send(orjson.dumps(error_reply(None, ParseError(data={"reason": self.reason}))))
        self.session.end(self._lost)

    # -- for the listener (Connection) ------------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self._end(Close(TRY_LATER, error.message))

    @property
    def _is_partial(self) -> bool:
        return False  # messages come whole

    def probe(self) -> None:
        """As `Connection.probe`. Not needed: the ASGI server says when the client has gone."""
