"""One end of the direct way of a session on NATS: the connection that carries what NATS does not.

Owns what waits for that connection, and that a message keeps its order among those that come by NATS. Knows neither how
the connection is made (`direct`) nor what a message means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ..errors import ConnectionLost, RpcError, ServerBusy
from ..limits import Limits
from ..peer.session import Session
from ..transports.stream import LineStream
from ..transports.timeouts import interval
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.messages import Message
from .direct import hand_over
from .direct_session import DirectSession
from .tickets import About, about, no_way, ticket

#: The lines that stand before a message on a direct connection: its number, or the place that it has.
_NUMBER, _PLACE, _FREE = b"#", b"!", b"="

#: Instead of a place: the leases that were taken back are not used any more.
RETURNED = b"!0"
_LINE_MAX = 24

#: Bytes of messages that have come by a direct connection before their tickets have by NATS; above these the
#: connection is not read. As much as a socket's buffers hold.
EARLY_MAX = 4 * 1024 * 1024

#: Seconds that a message is waited for where `message_timeout` is switched off.
WAIT_MAX = 60.0


class TicketChannel(Protocol):
    """What tickets need of the channel of their session."""

    session: Session
    address: str

    @property
    def max_payload(self) -> int: ...

    def publish(self, payload: bytes) -> None:
        """Send a payload to the other end."""

    def send_instead(self, message: Encoded, error: RpcError) -> None:
        """Tell the other end, if it waits for this message, that it cannot be sent."""

    def may_overtake(self, message: Encoded) -> bool:
        """Whether a message may come before others that were sent by NATS."""

    def deliver(self, message: Message) -> None:
        """Handle a message that has come."""

    def go_on(self) -> None:
        """Handle what has come behind a message that was waited for."""


@dataclass(slots=True)
class Waiting:
    """A message that waits until it can be written to a direct connection.

    Attributes:
        header: the line that goes before it.
        refuse: called with why it was not sent.
    """

    header: bytes
    message: Encoded
    size: int
    refuse: Callable[[RpcError], object]


@dataclass(slots=True)
class Expected:
    """A message whose ticket has come, and that others wait for."""

    number: int
    connection: int
    size: int
    about: About | None
    timer: asyncio.TimerHandle = field(repr=False)


class DirectWay:
    """One end of the direct way of a session: at most one connection at a time, which is kept.

    Attributes:
        is_waiting: a message is expected, behind which others wait.
        connection: the number of the present connection, or of the next one; the instance counts them.
        used: when something was sent or received by it (loop time, s).
    """

    def __init__(self, channel: TicketChannel, limits: Limits) -> None:
        self.channel = channel
        self.is_waiting = False
        self.connection = 0
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._stream: LineStream | None = None
        self._last_number = 0
        self._waiting: deque[Waiting] = deque()
        self._waiting_size = 0
        self._expected: Expected | None = None
        #: Messages that have come before their tickets, by their numbers.
        self._early: dict[int, Message] = {}
        self._early_size = 0
        self._header = b""
        self._tick: asyncio.TimerHandle | None = None
        self.used = 0.0
        self._is_paused = self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether the connection stands."""
        return self._stream is not None

    @property
    def is_busy(self) -> bool:
        """Whether something waits to be sent, or is expected."""
        return bool(self._waiting or self._early or self._expected)

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: Encoded, size: int) -> None:
        """Send a message over `max_payload`, behind those that were sent before."""
        channel = self.channel
        reason = self._why_not()
        if reason is not None:
            channel.send_instead(message, no_way(size, channel.max_payload, reason))
            return
        waiting = Waiting(b"", message, size, lambda error: channel.send_instead(message, error))
        if self._stream is not None and channel.may_overtake(message):
            waiting.header = _FREE
            self._write(waiting)
            return
        must_wait = self._stream is None or bool(self._waiting)
        if must_wait and not self._hold(waiting):
            return
        self._last_number += 1
        waiting.header = b"%b%d" % (_NUMBER, self._last_number)
        found = about(message)
        members: dict[str, Any] = {"number": self._last_number, "size": size}
        if found is not None:
            members[found[0]] = found[1]
        channel.publish(ticket(**members, **self._named()))
        if not must_wait:
            self._write(waiting)

    def _hold(self, waiting: Waiting) -> bool:
        """Keep a message until the connection stands; refuse it where too much waits. False if it was refused."""
        memory, most = self.channel.session.memory, self._room()
        if self._waiting_size + waiting.size > most or not memory.reserve(waiting.size, self._waiting_size):
            reason = "too many bytes wait for a direct connection (max_message_size, max_held_total)"
            waiting.refuse(ServerBusy(data={"limit": most, "reason": reason}))
            return False
        if type(waiting.message) is AttachedMessage:
            waiting.message.secure()
        self._waiting.append(waiting)
        self._waiting_size += waiting.size
        return True

    def _room(self) -> int:
        """Bytes that may wait for the connection: as many as a peer on a socket may leave unread."""
        return self._limits.max_message_size + 4 * self._limits.write_buffer

    def _take_waiting(self) -> Waiting:
        waiting = self._waiting.popleft()
        self._waiting_size -= waiting.size
        self.channel.session.memory.release(waiting.size)
        return waiting

    def _write(self, waiting: Waiting) -> None:
        assert self._stream is not None
        self.used = self._loop.time()
        self._stream.send([waiting.header, waiting.message])

    def flush(self) -> None:
        """Write what waits, as long as the other end reads it."""
        while self._waiting and self._stream is not None and not self._stream.is_full:
            self._write(self._take_waiting())

    def refuse_waiting(self, why: str) -> None:
        """The connection could not be made: what waits for it is not sent."""
        for _ in range(len(self._waiting)):
            waiting = self._take_waiting()
            waiting.refuse(no_way(waiting.size, self.channel.max_payload, why))

    def _why_not(self) -> str | None:
        """Why nothing can be sent; None where it can."""
        return "the session is over" if self._is_over else None

    def _named(self) -> dict[str, Any]:
        """The members of a ticket that say by which connection its message comes."""
        raise NotImplementedError

    # -- tickets ------------------------------------------------------------------------------------------------------

    def take(self, params: dict[str, Any]) -> None:
        """Take a ticket that stands for a message, in its place; `is_waiting` is set where that has not come."""
        number, connection = params.get("number"), params.get("connection")
        if type(number) is not int or type(connection) is not int:
            return
        connection = self._expect(connection, params)
        message = self._early.pop(number, None)
        if message is not None:
            self._early_size -= len(message)
            self._read_on()
            self.deliver(message)
            return
        belongs: About | None = next(((name, params[name]) for name in ("stream", "id") if name in params), None)
        size = params.get("size")
        size = size if type(size) is int else 0
        if (why := self._why_failed(connection)) is not None:
            # Not left to the other end: what follows in the same stream would come before it says so.
            self._lose(belongs, no_way(size, self.channel.max_payload, why))
            return
        if connection < self.connection:
            self._lose(belongs)
            return
        seconds = self._limits.message_timeout or WAIT_MAX
        timer = self._loop.call_later(seconds, self._overdue, seconds)
        self._expected, self.is_waiting = Expected(number, connection, size, belongs, timer), True
        self._read_on()

    def _expect(self, connection: int, params: dict[str, Any]) -> int:
        """Prepare for a message that comes by this connection; gives its number."""
        raise NotImplementedError

    def _why_failed(self, connection: int) -> str | None:
        """Why a connection could not be made; None where it was, or may be."""
        raise NotImplementedError

    def _overdue(self, seconds: float) -> None:
        reason = f"a message did not come within {seconds:g} s (message_timeout)"
        if self._stream is not None:
            self._stream.abort(reason)
        else:
            self._give_up()

    def _give_up(self, why: str | None = None) -> None:
        """The message that is waited for does not come: its connection was lost, or (why) could not be made."""
        expected, self._expected, self.is_waiting = self._expected, None, False
        if expected is None:
            return
        expected.timer.cancel()
        error = None if why is None else no_way(expected.size, self.channel.max_payload, why)
        self._lose(expected.about, error)
        self.channel.go_on()

    def _lose(self, belongs: About | None, error: RpcError | None = None) -> None:
        """A message does not come: what waits for it fails, as with a lost connection where there is no other error."""
        session = self.channel.session
        reason = "the direct connection to the other end was lost while a message came"
        if belongs is None:
            return
        kind, key = belongs
        if kind == "stream":
            receiver = session.streams.receivers.get(key) if type(key) is str else None
            if receiver is not None:
                receiver.end(error or ConnectionLost(reason, address=self.channel.address))
            return
        call = session.pending.find(key)
        if call is None:
            return
        session.send(envelope.cancel(key))
        if error is not None:
            session.pending.settle(envelope.error_reply(key, error), b"")
        elif session.pending.discard(key):
            call.fail(ConnectionLost(reason, method=call.method, address=self.channel.address))

    # -- the connection -----------------------------------------------------------------------------------------------

    def use(self, transport: asyncio.Transport, rest: bytes) -> None:
        """The connection stands."""
        self._header = b""
        session = cast(Session, DirectSession(self, self.channel.session))
        stream = LineStream(session, limits=self._limits, address=self.channel.address, on_close=self._lost)
        self._stream, self.used = stream, self._loop.time()
        hand_over(transport, stream, rest)
        if self._is_paused:
            stream.pause()
        self._schedule()
        self.flush()

    def _schedule(self) -> None:
        seconds = interval(self._limits)
        if seconds is not None:
            self._tick = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Close the connection if it is over a time limit, or is not used."""
        self._tick = None
        stream = self._stream
        if stream is not None and stream.check(self._loop.time()) is None:
            self.look(stream)
            self._schedule()

    def look(self, stream: LineStream) -> None:
        """Called now and then."""

    def _lost(self, stream: LineStream) -> None:
        if self._stream is stream:
            self._stream = None
            if self._tick is not None:
                self._tick.cancel()
            self.connection += 1
            self.lost(stream.reason)
            if self._expected is not None and self._expected.connection < self.connection:
                self._give_up()

    def lost(self, reason: str | None) -> None:
        """The connection was lost; the next one has another number already."""

    def close(self) -> None:
        """The other end sends nothing more by the connection: it is of no use."""
        if self._stream is not None:
            self._stream.close()

    def blocked(self, is_full: bool) -> None:
        """The other end reads nothing, or reads again."""
        if not is_full:
            self.flush()

    # -- what comes by it ---------------------------------------------------------------------------------------------

    def receive(self, messages: list[Message]) -> None:
        """Take what has come with one read."""
        self.used = self._loop.time()
        for message in messages:
            if self._stream is None:
                return
            if not self._header:
                if type(message) is not bytes or len(message) > _LINE_MAX:
                    self._stream.abort("a message came by the direct connection without its number")
                    return
                if message == RETURNED:
                    self.returned()
                else:
                    self._header = message
                continue
            header, self._header = self._header, b""
            if header == _FREE:
                self.deliver(message)
                continue
            try:
                number = int(header[1:])
            except ValueError:
                number = -1
            if header[:1] == _NUMBER and number > 0:
                self._numbered(number, message)
            elif header[:1] != _PLACE or not self.placed(number, message):
                self._stream.abort("a message came by the direct connection that has no place")
                return

    def _numbered(self, number: int, message: Message) -> None:
        expected = self._expected
        if expected is not None and expected.number == number:
            expected.timer.cancel()
            self._expected, self.is_waiting = None, False
            self.deliver(message)
            self.channel.go_on()
            return
        self._early[number] = message
        self._early_size += len(message)
        if self._is_early_full and self._stream is not None:
            self._stream.pause()

    def deliver(self, message: Message) -> None:
        """Give the session a message that stands in no place."""
        self.channel.deliver(message)

    def placed(self, place: int, message: Message) -> bool:
        """Handle a message for which a place was given; False if none was."""
        return False

    def returned(self) -> None:
        """The other end does not use places any more that were taken back."""

    def pause(self) -> None:
        """Read nothing."""
        self._is_paused = True
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        """Read again after `pause`."""
        self._is_paused = False
        self._read_on()

    def _read_on(self) -> None:
        if self._stream is not None and not (self._is_paused or self._is_early_full):
            self._stream.resume()

    @property
    def _is_early_full(self) -> bool:
        """Whether no more is read before more tickets have come; what one waits for is always read."""
        return self._early_size > EARLY_MAX and self._expected is None

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """The session is over, and what waits is not wanted."""
        self._is_over = True
        while self._waiting:
            self._take_waiting()
        self._drop_expected()
        if self._stream is not None:
            self._stream.abort(reason)

    def finish(self) -> None:
        """The session is over; what waits is still sent, where this end has something that is worth it."""

    def _drop_expected(self) -> None:
        if self._expected is not None:
            self._expected.timer.cancel()
        self._expected, self.is_waiting = None, False
        self._early.clear()
        self._early_size = 0
