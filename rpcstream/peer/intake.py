"""The intake of a session: which message is handled when, which requests wait, and when the connection is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Any

import orjson

from ..codec.attachments import FrameLine
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import LONG, Message
from . import control_messages, incoming
from .deadline import INFINITE
from .inflight import ForwardedCall, Later, is_call
from .ledger import COUNTED, counted_size

_loads: Callable[[Any], Any] = orjson.loads

#: Messages of a read that are looked at in its turn, even when that is over: a cancel or a reply may be among them.
READ_MAX = 5000

#: Seconds; shorter reads are not counted as part of a turn, since the event loop cannot make many of them at once.
LONG_READ = 0.001

#: Bytes that a short request which waits takes besides its line.
OVERHEAD = 64


class Phase(IntEnum):
    """How far a conversation is. It never goes back."""

    #: There is no transport yet.
    NEW = 0
    OPEN = 1
    #: It closes when nothing is in flight any more. Requests that come until then are handled.
    CLOSING = 2
    #: The same, and requests that come now are dropped.
    DRAINING = 3
    #: The connection is lost.
    LOST = 4


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request, a batch or a notification that waits until there is room for it.

    Attributes:
        message: as parsed; None once the request was cancelled and answered.
        line: the message as it came.
        since: when it came (loop time, s).
        size: bytes of memory that it takes.
    """

    message: Any
    line: bytes
    since: float
    size: int


@dataclass(slots=True, eq=False)
class Intake:
    """Handles the messages that come in a session: replies and control messages at once, requests in turns.

    When a turn is over, too many replies wait to be written, or there is no more room for calls, the requests behind
    wait in the queue; those behind `READ_MAX` of them wait for the next turn as they came.

    `_decide` decides what may start, and when the connection is paused or closed; it is called after every change.

    Attributes:
        queue: requests that wait until there is room for them, in the order in which they came.
        is_calm: nothing needs to be decided: the session is open and read, no request waits, there is room for calls.
        is_paused: the transport is not read.
        last_id: the id of the last request that was read: see `envelope.go_away`.
        rest: messages of a read that had too many for one turn.
    """

    _session: Any
    queue: deque[WaitingRequest] = field(default_factory=deque)
    is_calm: bool = False
    is_paused: bool = False
    last_id: Any = None
    rest: list[Message] = field(default_factory=list)
    #: Answers requests: the dispatcher, or what stands for it while there is no room for calls.
    _answer: Callable[[Any, Any, Any], Encoded | Later | None] = field(init=False)
    #: A turn is due; seconds that the long reads before it have taken.
    _is_scheduled: bool = False
    _spent: float = 0.0

    def __post_init__(self) -> None:
        self._answer = self._session.dispatch.answer

    # -- messages come in ---------------------------------------------------------------------------------------------

    def receive(self, messages: list[Message]) -> None:  # noqa: C901, PLR0912, PLR0915 (the path of each message)
        """Handle the messages that came with one read, in their order."""
        if not self.is_calm:
            messages, self.rest = self.rest + messages, []
            self.choose_answer()
        session = self._session
        replies = session.outbox
        size = position = 0
        began = before = now = perf_counter()
        # An event loop may read one connection many times in a row: the reads of a turn have its time together.
        end = began + session.turn_time - self._spent
        most: float = session.limits.write_buffer
        line: Any
        last: Any = None
        try:
            for line in messages:
                position += 1
                reply: Encoded | Later | None = None
                try:
                    if len(line) < LONG:
                        message = _loads(line)
                    else:
                        message, line = incoming.content_of(session, line)  # noqa: PLW2901 (the cut line replaces the received one)
                except orjson.JSONDecodeError as error:
                    message = None
                    messages[position:position], reply = incoming.unparsed(session, line, error)
                    self._leave(messages, position)
                else:
                    if type(message) is dict and "method" in message:
                        if "id" in message:
                            last, answer = message, self._answer
                            reply = answer(message, line, session)
                        elif not control_messages.handle(session, message, line):
                            reply = self._answer(message, line, session)
                    elif not session.pending.settled(message, line):
                        last = message if envelope.asks_for_reply(message) else last
                        reply = self._answer_batch(message, line)
                if type(reply) is bytes:
                    replies.append(reply)
                    size += len(reply)
                elif reply is not None:
                    size += self._take(reply, message, line)
                    if not self.has_room:
                        self.is_calm = False
                        self.choose_answer()
                now = perf_counter()
                if now > end or size > most:
                    self._end_turn(message, now - before)
                    self._leave(messages, position)
                    end = most = INFINITE
                before = now
        except Exception as error:
            session.break_off(error)
        if last is not None:
            last_id = last["id"] if type(last) is dict else None
            self.last_id = last_id if type(last_id) is int else envelope.sayable_id(last)
        if now - began > LONG_READ:
            self._spent += now - began
            self.wake()
        self.settle()

    def _leave(self, messages: list[Message], position: int) -> None:
        """Leave what stands behind this position, and behind `READ_MAX` messages, to the next turn."""
        position = max(position, READ_MAX)
        self.rest, self.is_calm = messages[position:] + self.rest, False
        del messages[position:]

    def _end_turn(self, message: Any, seconds: float) -> None:
        """Have the requests behind this message wait, which took so long."""
        self.is_calm = False
        self.choose_answer(has_time=False)
        if seconds > self._session.slow and self._session.on_slow is not None:
            self._session.on_slow(message, seconds)

    def _answer_batch(self, message: Any, line: bytes) -> Encoded | Later | None:
        """Answer a batch that is not all replies, or another message; long batches only if there is memory for them."""
        session = self._session
        is_refused = session.server_ledger.is_full and len(line) >= COUNTED and type(message) is list
        if is_refused and not any(map(envelope.is_reply, message)):
            return session.dispatch.refuse(message, session.server_ledger.refusal())  # type: ignore[no-any-return]
        return self._answer(message, line, session)

    def _take(self, reply: Encoded | Later, message: Any, line: bytes) -> int:
        """Take a reply, or what gives one later; gives how many bytes are to be sent now."""
        if isinstance(reply, ForwardedCall):
            self._session.running.enter(reply)
            return 0
        ready = reply if isinstance(reply, Encoded) else self._session.begin(reply, message, line)
        if ready is None:
            return 0
        if type(ready) is AttachedMessage:
            # Before another handler changes an array that this one has returned.
            self._session.write_attached(ready, line.lent if type(line) is FrameLine else ())
        else:
            self._session.outbox.append(ready)
        return len(ready)

    # -- requests wait ------------------------------------------------------------------------------------------------

    def _put_off(self, message: Any, line: bytes, session: Any) -> Encoded | None:
        """As `Dispatch.answer`, while there is no room for calls: the request waits, or is refused."""
        if type(message) is list and message and all(map(control_messages.is_control, message)):
            for each in message:
                control_messages.handle(session, each, b"")
            return None
        self.is_calm = False
        ledger, size = session.ledger, counted_size(line) or len(line) + OVERHEAD
        if ledger.is_over(len(self.queue), must_read=self._must_read(), stalled=session.write_gate.stalled):
            error = ledger.refusal()
        elif ledger.wait(size):
            self.queue.append(WaitingRequest(message, line, session.loop.time(), size))
            return None
        else:
            error = session.server_ledger.refusal()
        return session.dispatch.refuse(message, error)  # type: ignore[no-any-return]

    def _dropped(self, message: Any, line: bytes, session: Any) -> None:
        """As `Dispatch.answer`, where no more requests are taken."""

    def cancel(self, call_id: int | str) -> Any:
        """Cancel the first waiting call with this id; gives its message, to be answered."""
        for request in self.queue:
            message = request.message
            if is_call(message, call_id):
                # It keeps its place, so that a peer that sends and cancels without end has to wait as well.
                ledger = self._session.ledger
                ledger.take_up(request.size)
                ledger.wait(OVERHEAD)
                request.message, request.line, request.size = None, b"", OVERHEAD
                return message
        return None

    def take(self) -> WaitingRequest:
        """Take out the request that came first."""
        request = self.queue.popleft()
        self._session.ledger.take_up(request.size)
        return request

    # -- turns --------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have a turn soon; one, however often this is called."""
        if not self._is_scheduled and self._session.channel is not None:
            self._is_scheduled = True
            self._session.loop.call_soon(self._turn, context=self._session.context)

    def _turn(self) -> None:
        """Take up requests that wait, as far as there is room; then write the outbox."""
        self._is_scheduled = False
        self._spent = 0.0
        if self.rest and self._session.channel is not None:
            self.receive([])
        if self.queue and self._session.channel is not None:
            self._take_up()
        self.settle()
        self._session.write_gate.written()

    def _take_up(self) -> None:
        """Handle requests that waited, for a turn at most."""
        session, size = self._session, 0
        # As long as half a turn is left, since handling what is taken may take a whole one.
        end = perf_counter() + session.turn_time / 2
        self._answer = session.dispatch.answer
        try:
            while self.queue and session.channel is not None and self.has_room:
                request = self.take()
                message, line = request.message, request.line
                if message is None:  # it was cancelled
                    continue
                before = perf_counter()
                session.waited = session.loop.time() - request.since
                reply = self._answer_batch(message, line)
                if reply is not None:
                    size += self._take(reply, message, line)
                now = perf_counter()
                if size > session.limits.write_buffer or now > end:
                    self._end_turn(message, now - before)
                    break
        except Exception as error:
            session.break_off(error)
        session.waited = 0.0

    def clear(self) -> None:
        """Drop all that waits: the connection is lost."""
        self.rest = []
        while self.queue:
            self.take()

    # -- what comes next ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write the outbox with one write; then decide what comes next."""
        session = self._session
        messages = session.outbox
        if messages:
            session.outbox = []
            if session.channel is not None:
                session.channel.send(messages)
        if not self.is_calm:
            self._decide()

    def choose_answer(self, *, has_time: bool = True) -> None:
        """Decide what becomes of the next request: it starts, waits, or is dropped."""
        if self._session.phase >= Phase.DRAINING:
            self._answer = self._dropped
        elif self.queue or not has_time or not self.has_room:
            self._answer = self._put_off
        else:
            self._answer = self._session.dispatch.answer

    def _decide(self) -> None:
        """Decide what comes next when something is not as usual: another turn, reading or pausing, or closing."""
        session = self._session
        channel = session.channel
        if channel is None:  # what came with the message whose handler ended the connection
            self.clear()
            return
        has_room = self.has_room
        if self.rest or (self.queue and has_room):
            self.wake()
        if not session.busy:
            session.streams.early.clear()
            if session.phase >= Phase.CLOSING and not session.pending:
                channel.close()
                return
        # An event loop reads one connection many times in a row, unless that is paused.
        is_full = session.ledger.is_full(len(self.queue)) and not self._must_read()
        is_paused = bool(self.rest) or self._spent > session.turn_time or is_full
        if self.is_paused is not is_paused:
            self.is_paused = is_paused
            if is_paused:
                channel.pause()
            else:
                channel.resume()
        self.is_calm = has_room and session.phase is Phase.OPEN and not (self.queue or is_paused)
        self.choose_answer()

    @property
    def has_room(self) -> bool:
        """Whether requests may be taken up now."""
        session = self._session
        return session.ledger.has_room and not (session.running.holds or session.write_gate.stalled)

    def _must_read(self) -> bool:
        """Whether the connection must be read although there is no room, since something that runs waits for the peer.

        Also while the peer does not read: it may be waiting for the very same. (Not for credit, then, since no item
        could be sent.)
        """
        if self.has_room:  # then what waits is taken up without that
            return False
        streams = self._session.streams
        return bool(
            self._session.pending or streams.receivers or (streams.senders and not self._session.write_gate.stalled)
        )
