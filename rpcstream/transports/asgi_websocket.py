"""A WebSocket that an ASGI server has opened: each of its messages is a JSON message, or a binary frame.

Pings, fragments and the closing handshake are the ASGI server's.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Unpack

from ..peer.frame_admission import FrameAdmission
from ..peer.session import Session
from ..peer.slices import TURN
from ..wire.binary_frame import MARK, FrameError, parts_of_frame, whole_frame
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.frames import BAD_DATA, GOING_AWAY, NO_CODE, Close
from ..wire.messages import HEAD_SIZE, Message, Oversize
from .asgi_http import Event, EventConnection, Receive, Send
from .message_connection import ConnectionOptions, WebSocketConnection, trace_all, trace_sent

log = logging.getLogger("rpcstream.server")

#: How a message begins that is a binary frame.
_MARK = bytes((MARK,))


class AsgiWebSocket(WebSocketConnection, EventConnection):
    """A `Connection` of the listener, and the channel of one session.

    Args:
        session: gets the messages.
        options: see `ConnectionOptions`.
    """

    def __init__(self, session: Session, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, **options)
        self._frames = FrameAdmission(session)
        self._max_size = session.limits.max_message_size

    async def serve(self, receive: Receive, send: Send, subprotocol: str | None) -> None:
        """Accept the WebSocket, and serve it to its end; to be awaited by the ASGI application.

        Args:
            subprotocol: of those that the client offers; None: none of them.
        """
        self._is_open = True
        self._put({"type": "websocket.accept", "subprotocol": subprotocol})
        self._opened()
        reader = self._loop.create_task(self._read(receive))
        try:
            await self._run(self._send_all(send))
        finally:
            reader.cancel()
            self._is_open, self._closing = False, True
            self._frames.give_up()
            self.connection_lost(None)

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages up to this size (bytes) and no frames from now on; None: those that the limits permit."""
        self._frames.reason = None if max_message_size is None else "a binary frame before authentication"
        self._max_size = max_message_size or self._limits.max_message_size

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self, receive: Receive) -> None:
        """Take the messages as they come, until the client leaves.

        While reading is paused, one more message is taken, and kept: a client that is gone is noticed so.
        """
        end = perf_counter() + TURN
        try:
            while (event := await receive())["type"] != "websocket.disconnect":
                await self._reads.wait()
                if not self._ignores_input and not self._closing:
                    self._take(event)
                if perf_counter() > end:  # other connections want their turn, too
                    await asyncio.sleep(0)
                    end = perf_counter() + TURN
            self._closing = True  # nothing can be sent
            self._peer_closed(Close(event.get("code") or NO_CODE, event.get("reason") or ""))
        except Exception:
            log.exception("closing a WebSocket: a message could not be handled")
            self.abort("an internal error")

    def _take(self, event: Event) -> None:
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
                self._take_frame(bytes(data))
                return
        is_too_long = len(data) > self._max_size
        self._deliver(Oversize(len(data), data[:HEAD_SIZE], self._max_size) if is_too_long else data)

    def _deliver(self, message: Message) -> None:
        self._timeouts.completed = True
        if self._trace is not None:
            trace_all(self._trace, "receive", (message,))
        self.session.receive([message])

    def _take_frame(self, data: bytes) -> None:
        """Handle a binary frame."""
        try:
            message = whole_frame(data, self._frames, self._max_size)
        except FrameError as error:
            self._fail(Close(BAD_DATA, str(error)))
        else:
            self._deliver(message)

    def _answer_close(self, close: Close) -> None:
        self._lose_session()
        self.abort(self.reason or "the client closed the connection")

    # -- for the session (Channel) ----------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; each message is an event."""
        if not self._is_open or self._closing:
            return
        reads_frames = self.session.sends_binary
        if self._trace is not None:
            trace_sent(self._trace, messages, as_frames=reads_frames)
        for message in messages:
            if reads_frames and type(message) is AttachedMessage:
                if self.session.counters is not None:
                    self.session.counters.frames_sent += 1
                frame = b"".join(parts_of_frame(message))
                self._put({"type": "websocket.send", "bytes": frame}, len(frame))
            else:
                text = bytes(message).decode()
                self._put({"type": "websocket.send", "text": text}, len(message))

    def close(self) -> None:
        """As `Channel.close`."""
        self._send_close(Close(GOING_AWAY))

    def _send_close(self, close: Close) -> None:
        if self._closing:
            return
        self._frames.give_up()
        self._put({"type": "websocket.close", "code": close.code, "reason": close.reason})
        self._close_behind()

    @property
    def _is_partial(self) -> bool:
        return False  # messages come whole
