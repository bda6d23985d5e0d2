"""How WebSockets end, on our own port and behind ASGI servers."""

from __future__ import annotations

import asyncio
from typing import Unpack

import orjson

from ..errors import ParseError, RpcError
from ..peer.session import Session
from ..wire.envelope import error_reply
from ..wire.frames import BAD_DATA, GOING_AWAY, NO_CODE, NORMAL, TRY_LATER, Close
from .message_connection import ConnectionOptions, MessageConnection

#: Seconds for which messages that came before a close frame are processed, and between two checks whether they were.
DRAIN_TIME = 1.0
DRAIN_CHECK = 0.01


class WebSocketConnection(MessageConnection):
    """The channel of one session; see `MessageConnection`."""

    def __init__(self, session: Session, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, **options)
        #: What the peer sends is ignored. (While `_closing`, only what ends the connection is sent.)
        self._ignores_input = False
        self._timer: asyncio.TimerHandle | None = None

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
