"""The line stream: a connection that carries JSON messages with a delimiter (wire page, "Line stream").

Owns the bytes of one connection, in both directions. Passes whole messages to its session and writes those that the
session sends; knows neither methods nor what a message means.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Unpack

import orjson

from ..errors import ParseError, RpcError
from ..limits import Limits
from ..peer.memory import Reception
from ..peer.session import Session
from ..wire.buffers import Encoded, parts_of
from ..wire.envelope import error_reply
from ..wire.framing import LineFramer
from .connection import JOIN_MAX, JOINED_MAX
from .message_connection import SECOND_BLANK, ConnectionOptions, MessageConnection, trace_all
from .paced_transport import undelivered

#: How often, and how many bytes at a time, a connection is read that broke.
REST_READS, REST_SIZE = 16, 64 * 1024


class LineStream(MessageConnection):
    """An asyncio protocol and the channel of one session.

    Args:
        session: gets the messages.
        delimiter: ends each message.
        options: see `ConnectionOptions`.
    """

    def __init__(
        self, session: Session, *, limits: Limits, delimiter: bytes = b"\n", **options: Unpack[ConnectionOptions]
    ) -> None:
        super().__init__(session, limits=limits, **options)
        self._reception = Reception(session.memory)
        self._framer = LineFramer(max_size=limits.max_message_size, delimiter=delimiter, reception=self._reception)
        self._delimiter = delimiter
        self._peer_ended = False

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def _connect_session(self) -> None:
        self.session.connected(self, splits_values=True, is_lines=self._delimiter in (b"\n", b"\r\n"))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        messages = self._framer.feed(data)
        if messages:
            self._timeouts.completed = True
            if self._trace is not None:
                trace_all(self._trace, "receive", messages)
            self.session.receive(messages)
        else:
            self._timeouts.heard = self._timeouts.received = True
        if self._framer.ended:
            self.session.end(self._lost)

    def eof_received(self) -> bool:
        """The peer sends no more, but may still read: what is in flight is answered first."""
        self._peer_ended = True
        messages = self._framer.finish()
        if messages:
            self.session.is_lines = False  # no other line goes on with what this one begins
            if self._trace is not None:
                trace_all(self._trace, "receive", messages)
            self.session.receive(messages)
        self.session.end(self._lost)
        # TLS has no half-close: the connection ends now.
        if self._paced is not None:
            self._paced.at_eof()
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._closing:
            self._receive_rest()
        self._reception.over()
        super().connection_lost(exc)

    def _receive_rest(self) -> None:
        """Receive what came before the connection broke.

        A write that fails ends the connection, although the peer may have said why it closed it.
        """
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return
        try:
            own = transport.get_extra_info("socket")
            with socket.fromfd(own.fileno(), own.family, own.type) as sock:
                for _ in range(REST_READS):
                    data = sock.recv(REST_SIZE)
                    if not data:
                        break
                    self.data_received(data)
        except (OSError, ValueError, AttributeError):  # nothing more is there, or the socket is closed
            pass

    # -- for the session (Channel) ----------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        transport = self._transport
        if transport is None:
            return
        self._timeouts.heard = True
        if self._trace is not None:
            trace_all(self._trace, "send", messages)
        if len(messages) == 1 and len(messages[0]) > JOIN_MAX:
            self._write_parts(self._delimited(messages))
        else:
            try:
                joined = self._delimiter.join((*messages, b""))  # type: ignore[arg-type]
            except TypeError:  # one of them is in pieces
                self._write_parts(self._delimited(messages))
            else:
                if len(joined) > JOINED_MAX:
                    self._write_parts(self._delimited(messages))
                else:
                    transport.write(joined)
        if self._is_full:
            self._check_unread(transport)

    def _delimited(self, messages: list[Encoded]) -> Iterator[bytes]:
        for message in messages:
            yield from parts_of(message)
            yield self._delimiter

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        # Closing a socket with unread bytes in it makes the system drop what was not yet delivered.
        if self._paused and not self._peer_ended:
            self.resume()
        self._close_when_delivered()

    def _close_when_delivered(self) -> None:
        transport = self._transport
        if transport is None:
            return
        in_memory = transport.get_extra_info("socket") is None
        if in_memory or self._peer_ended or not undelivered(transport):
            transport.close()
        else:
            self._loop.call_later(0.02, self._close_when_delivered)

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages up to this size (bytes) from now on; None: up to `max_message_size`."""
        self._framer.limit(max_message_size or self._limits.max_message_size)

    # -- for the listener or the client -----------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self.send([orjson.dumps(error_reply(None, error))])
        self.close()

    @property
    def _is_partial(self) -> bool:
        return self._framer.partial

    def _close_incomplete(self, reason: str) -> None:
        if self.session.side != "server":
            super()._close_incomplete(reason)
            return
        self.over_limit, self.reason = True, reason
        error = ParseError(data={"reason": f"{reason}: end each message with a line end"})
        self.send([orjson.dumps(error_reply(None, error))])
        self.close()

    def probe(self) -> None:
        """As `Connection.probe`, for a peer that has ended its half of the connection, or is not read.

        Whether it still listens shows only when something is written: a blank, which may stand before any message.
        """
        unheard = self._peer_ended or (self._paused and not self._is_full)
        if unheard and self.session.running:
            self._write(b" ")
            # A system takes the first one even for a socket that is closed; its answer shows with the second.
            self._probing = self._loop.call_later(SECOND_BLANK, self._write, b" ")
