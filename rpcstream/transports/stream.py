"""The line stream: a connection that carries JSON messages with a delimiter (wire page, "Line stream").

Binary frames arrive between the lines. A buffered protocol receives their payloads directly into the memory in which
they stay.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Unpack

import orjson

from ..errors import ParseError, RpcError
from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import Reception
from ..peer.session import Session
from ..peer.shared_memory import SharedMemory
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.content_length import ContentLengthFramer
from ..wire.envelope import Message, error_reply
from ..wire.framing import LineFramer, is_cut
from .awake import Watch
from .connection import JOIN_MAX, SocketConnection
from .message_connection import SECOND_BLANK, ConnectionOptions, MessageConnection, trace_all, trace_sent
from .paced_transport import undelivered

#: How often, and how many bytes at a time, a connection is read that broke.
REST_READS, REST_SIZE = 16, 64 * 1024

#: Bytes of a payload from which on the rest of it is received into its memory, by itself.
TARGET_MIN = 16 * 1024

#: Bytes of a payload that are still to come from which on a connection begins to receive in this way.
BUFFERED_MIN = 64 * 1024

#: Bytes that are received at a time while frames come, and are not the rest of a payload: a whole frame of 64 KiB, and
#: not much more, since what there is of a payload in it is copied.
SCRATCH_SIZE = 80 * 1024


class LineStream(MessageConnection, SocketConnection):
    """An asyncio protocol and the channel of one session.

    Args:
        session: gets the messages.
        delimiter: ends each message.
        options: see `ConnectionOptions`.
    """

    #: What a peer is told to do whose message does not end in time.
    _COMPLETION = "end each message with a line end"

    def __init__(self, session: Session, *, delimiter: bytes = b"\n", **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, **options)
        self._reception = Reception(session.server_ledger)
        #: None where a line may not be followed by a frame, since it does not end as a frame begins behind it.
        self._frames = FrameAdmission(session) if delimiter == b"\n" else None
        self._delimiter = delimiter
        self._receive = session.intake.receive if self._trace is None else self._receive_traced
        self._framer = self._make_framer()
        self._peer_ended = False
        self._buffered: _BufferedStream | None = None
        #: Of a connection that shares memory.
        self._watch: Watch

    def _make_framer(self) -> LineFramer:
        return LineFramer(
            max_size=self._limits.max_message_size,
            delimiter=self._delimiter,
            reception=self._reception,
            intake=self._frames,
        )

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def _connect_session(self) -> None:
        if self._frames is None:
            self.session.takes_binary = self.session.offers_binary = False
        elif self.session.takes_binary and self.carrier == "unix":
            self.session.shared = SharedMemory(self.socket, self.session.server_ledger.shared)
            self._watch = Watch()
        self.session.connected(self, splits_values=bool(self._delimiter))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        messages = self._framer.feed(data)
        if messages:
            self._timeouts.completed = True
            receive = self._receive
            receive(messages)
        else:
            self._timeouts.heard = self._timeouts.received = True
        if not self._framer.at_start:
            self._continue()

    def _receive_traced(self, messages: list[Message]) -> None:
        assert self._trace is not None
        trace_all(self._trace, "receive", messages)
        self.session.intake.receive(messages)

    def _continue(self) -> None:
        """Go on after a read that has not ended with a line: there may be a frame, or the end."""
        framer = self._framer
        if framer.ended:
            self._report_fault()
            self.session.end(self._lost)
        elif framer.frame is not None:
            self._receive_frame()

    # -- binary frames ----------------------------------------------------------------------------------------

    def _receive_frame(self) -> None:
        """Receive the rest of a frame: have the transport write into its payloads."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._widen()
        target = self._framer.target()
        if self._buffered is None and not self.is_paused and target is not None and len(target) >= BUFFERED_MIN:
            # uvloop chooses how it reads when it begins to.
            transport.pause_reading()
            self._buffered = _BufferedStream(self)
            transport.set_protocol(self._buffered)
            transport.resume_reading()

    def target(self) -> memoryview | None:
        """Memory for the next bytes of a payload; None where they are to be given to `data_received`."""
        target = None if self._closing else self._framer.target()
        return target if target is not None and len(target) >= TARGET_MIN else None

    def received_into_target(self, count: int) -> None:
        """Take note of bytes that were received into `target`."""
        if not self._closing:
            messages = self._framer.received(count)
            if messages:
                self._timeouts.completed = True
                self._receive(messages)
            else:  # a message that is never complete must not keep its connection alive
                self._timeouts.heard = self._timeouts.received = True
            self._continue()

    def _report_fault(self) -> None:
        """Say why what follows cannot be read, if so."""
        fault = self._framer.fault
        if fault is not None:
            self.reason = self.reason or fault
            self.session.send(orjson.dumps(error_reply(None, ParseError(data={"reason": fault}))))

    # -- the end of the connection ------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        """The peer sends no more, but may still read: what is in flight is answered first."""
        self._peer_ended = True
        last, is_server = self._framer.finish(), self.session.side == "server"
        if is_server or not is_cut(last):
            self._receive(last)
        else:
            self.reason = self.reason or "the peer closed the connection within a message"
        if is_server and not self._framer.ended:
            self._report_fault()
        self.session.end(self._lost)
        # TLS has no half-close: the connection ends now.
        if self._paced is not None:
            self._paced.at_eof()
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._closing:
            self._receive_rest()
        self._reception.over()
        if self._frames is not None:
            self._frames.give_up()
        shared, self.session.shared = self.session.shared, None
        if shared is not None:
            shared.close()
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
        last = messages[-1]
        if type(last) is AttachedMessage and self.session.sends_binary:
            self._send_frame(messages[:-1], last)
        else:
            if self._trace is not None:
                trace_sent(self._trace, messages, as_frames=False)
            try:  # nearly all messages: this takes a twentieth of a call less than the general way
                joined = self._delimiter.join(messages) if self._delimiter else b""  # type: ignore[arg-type]
            except TypeError:  # one of them is in parts
                joined = b""
            if 0 < len(joined) <= JOIN_MAX:
                transport.write(joined + self._delimiter)
            else:
                self._write_joined(self._framed(messages))
        if self.is_full:
            self._check_unread()

    def _framed(self, messages: list[Encoded]) -> list[Encoded]:
        """What is written for these messages."""
        framed: list[Encoded] = []
        for message in messages:
            framed += message, self._delimiter
        return framed

    def _send_frame(self, before: list[Encoded], message: AttachedMessage) -> None:
        """Write messages, and behind them one as a binary frame, whose large payloads go by shared memory."""
        self._widen()
        session = self.session
        first, *parts = parts_of_frame(message, session.shared)
        if self._trace is not None:
            trace_sent(self._trace, before, as_frames=False)
            self._trace("send", message.shown())
        if session.counters is not None:
            session.counters.frames_sent += 1
            session.counters.shared_sent += 0 if session.shared is None else session.shared.placed
        if before:
            first = b"".join((*map(bytes, self._framed(before)), first))
        parts.insert(0, first)
        self._write_attached(parts, message, () if self._buffered is None else self._buffered.lent)
        if session.shared is not None and session.shared.placed:
            was_on = self._watch.is_on
            if self._watch.begin() and not was_on:
                self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Keep the event loop from sleeping for a moment: it polls in every turn."""
        if self._transport is not None and self._watch.goes_on():
            self._loop.call_soon(self._poll)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        # Closing a socket with unread bytes in it makes the system drop what was not yet delivered.
        if self.is_paused and not self._peer_ended:
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
        """Take messages up to this size (bytes) and no frames from now on; None: those that the limits permit."""
        if self._frames is not None:
            self._frames.reason = None if max_message_size is None else "a binary frame before authentication"
        self._framer.max_size = max_message_size or self._limits.max_message_size

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
        error = ParseError(data={"reason": f"{reason}: {self._COMPLETION}"})
        self.send([orjson.dumps(error_reply(None, error))])
        self.close()

    def probe(self) -> None:
        """As `Connection.probe`, for a peer that has ended its half of the connection, or is not read.

        Whether it still listens shows only when something is written: a blank, which may stand before any message.
        """
        unheard = self._peer_ended or (self.is_paused and not self.is_full)
        if unheard and self.session.running:
            self._write(b" ")
            # A system takes the first one even for a socket that is closed; its answer shows with the second.
            self._probing = self._loop.call_later(SECOND_BLANK, self._write, b" ")


class ContentLengthStream(LineStream):
    """A line stream with the other framing: each message comes behind a header with its length; no binary frames."""

    _COMPLETION = "send as many bytes as Content-Length says"

    def __init__(self, session: Session, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, delimiter=b"", **options)

    def _make_framer(self) -> ContentLengthFramer:
        return ContentLengthFramer(max_size=self._limits.max_message_size, reception=self._reception)

    def _framed(self, messages: list[Encoded]) -> list[Encoded]:
        framed: list[Encoded] = []
        for message in messages:
            framed += b"Content-Length: %d\r\n\r\n" % sum(map(len, parts_of(message))), message
        return framed

    def probe(self) -> None:
        """As `Connection.probe`: nothing may stand between two messages, so that nothing can be found out."""


class _BufferedStream(asyncio.BufferedProtocol):
    """The protocol of a line stream while binary frames come: payloads are received into their own memory."""

    def __init__(self, stream: LineStream) -> None:
        self._stream = stream
        #: What the transport writes into, and holds on to until the read is over.
        self._target: memoryview | None = None
        self.pause_writing = stream.pause_writing  # type: ignore[method-assign]
        self.resume_writing = stream.resume_writing  # type: ignore[method-assign]
        self.eof_received = stream.eof_received  # type: ignore[method-assign]
        self.connection_lost = stream.connection_lost  # type: ignore[method-assign]

    @property
    def lent(self) -> list[int]:
        """As `AttachedMessage.lent`: the memory that was received into last."""
        return [] if self._target is None else [id(self._target.obj)]

    def get_buffer(self, sizehint: int) -> memoryview:
        # Never a bytearray: into one, asyncio's TLS writes NULs (cpython#156275).
        self._target = self._stream.target()
        return _scratch() if self._target is None else self._target

    def buffer_updated(self, nbytes: int) -> None:
        if self._target is not None:
            self._stream.received_into_target(nbytes)
            self._target = None  # or an idle connection would keep the memory
            return
        self._stream.data_received(bytes(_scratch()[:nbytes]))


class _Scratch(threading.local):
    """Memory for one read, of all connections of a thread: what was read is taken out before the next read."""

    view: memoryview | None = None


_thread = _Scratch()


def _scratch() -> memoryview:
    if _thread.view is None:
        _thread.view = memoryview(bytearray(SCRATCH_SIZE))
    return _thread.view
