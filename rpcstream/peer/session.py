"""One end of a conversation, on a connection it does not see.

Owns the order of things: which message is handled when, what runs at the moment, when the connection may close. A
message with a method goes to the dispatcher, a reply to the calls that wait, what belongs to the conversation itself
(`$/…`) to `peer.control_messages`. Knows neither sockets (a channel sends for it) nor methods (a dispatcher answers
for it).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Any

import orjson

from ..codec import Codec
from ..codec.payloads import TooManyValues
from ..errors import CallCancelled, RpcError
from ..limits import Limits
from ..text import get_logger
from ..wire import envelope
from ..wire.framing import LONG, Message, Oversize
from ..wire.pieces import Written
from . import control_messages
from .admission import Intake
from .deadline import free_context
from .forwarded import ForwardedCall
from .inflight import RunningCalls
from .interfaces import Channel, Dispatch, Later, Waiting
from .marshal import Marshaller
from .memory import COUNTED, MessageMemory, memory_of
from .outgoing import OutgoingCalls
from .pending import PendingCalls
from .request_queue import RequestQueue, busy
from .slices import TURN
from .stream_table import StreamTable

log = get_logger("rpcstream.server")

#: The share of it for looking through messages that wait, so that what overtakes them is found also while others of the
#: connection are handled.
SIFTING = 0.25

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_loads: Callable[[Any], Any] = orjson.loads

MakeError = Callable[[str], Exception]

#: Parses a long message that came on a session, as `Codec.parse`.
Reader = Callable[[bytes, "Session"], tuple[Any, bytes]]


class Session:
    """The symmetric peer. A transport calls `connected` once, then `receive`, `end`, `blocked`; at last `lost`.

    Messages are handled as they come, and kept in a backlog while there is no room for more; when that is full, the
    transport is asked to read no more. `_settle` decides all of that in one place, after every change.

    Args:
        dispatch: answers the peer's requests.
        codec: parses messages of `LONG` bytes or more; and the rich values of what this end asks and is told.
        limits: `max_calls`, `max_held_size`, `max_values` and `write_buffer` are enforced here.
        slow: seconds; a message that kept the loop for longer is reported.
        on_slow: called with such a message and the seconds it took.
        side: what this end is called in errors about its limits, "server" or "client".
        on_gone: called once, when the connection is lost and nothing runs for it any more.
        memory: what all sessions of a server share; one of its own where it is not given.

    Attributes:
        is_open: connected, and requests may be sent.
        turn_time: seconds that this connection may keep the loop before others have their turn.
        waited: seconds that the message that is handled now was kept waiting.
        channel: the transport; None before `connected` and after `lost`.
        backlog: the requests that wait until there is room for them.
        on_event: told of events (`$/event`): the params, and the message.
        on_end: called once when calls can be made no more: the peer says nothing more, or the connection is lost.
        on_lost: called once when the connection is lost, in order of entry.
        identity: who the peer is, as authentication found; None without.
        headers: what HTTP or a WebSocket handshake said beside the message, by lower-case names.
        streams: None: methods stream where the request permits items; True: always, as fast as the connection takes
            them; False: never.
        takes_apart: values that stand behind each other in one message are messages; else such a message is not JSON.
        is_lasting: there will be a connection after the answer, for events and calls back.
        reader: parses long messages in the place of the codec, given the message and this session.
        holds: what keeps requests from being taken up, whatever room there is for calls; each is done when it is over.
        last_in_order: the last of the calls that keep their order, for the next one to wait for.
    """

    # Slots: of so many attributes each is found faster so, and an idle connection takes half the memory.
    __slots__ = (
        "__weakref__",
        "_answer",
        "_calls",
        "_context",
        "_dispatch",
        "_ending",
        "_intake",
        "_is_calm",
        "_long_read",
        "_max_calls",
        "_max_held",
        "_on_gone",
        "_on_slow",
        "_outbox",
        "_paused",
        "_rests",
        "_scheduled",
        "_spent",
        "_write_buffer",
        "backlog",
        "channel",
        "codec",
        "flows",
        "headers",
        "holds",
        "identity",
        "is_lasting",
        "is_open",
        "last_in_order",
        "limits",
        "loop",
        "memory",
        "on_end",
        "on_event",
        "on_lost",
        "pending",
        "reader",
        "side",
        "slow",
        "streams",
        "takes_apart",
        "turn_time",
        "waited",
        "work",
    )

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        codec: Codec,
        limits: Limits,
        slow: float = 0.1,
        on_slow: Callable[[Any, float], object] | None = None,
        side: str = "server",
        on_gone: Callable[[Session], None] | None = None,
        memory: MessageMemory | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.memory = MessageMemory(limits.max_held_total, limits.max_unread_total) if memory is None else memory
        self.pending = PendingCalls()
        self.work = RunningCalls(self.memory)
        self.flows = StreamTable(limits.write_buffer, self.memory)
        self.is_open = False
        self.waited = 0.0
        self.channel: Channel | None = None
        self.codec = codec
        self.limits = limits
        self.side = side
        self.on_event: Callable[[dict[str, Any], bytes | bytearray], None] | None = None
        self.on_end: Callable[[], object] | None = None
        self.on_lost: list[Callable[[], object]] = []
        self.identity: Any = None
        self.headers: Mapping[str, str] = NO_HEADERS
        self.streams: bool | None = None
        self.takes_apart = False
        self.is_lasting = True
        self.last_in_order: asyncio.Future[None] | None = None
        self.holds: list[asyncio.Future[None]] = []
        self.reader: Reader | None = None
        self._dispatch = dispatch
        self._answer: Callable[[Any, Any, Session], Written | Later | None] = dispatch.answer
        self._max_calls = limits.max_calls
        self._max_held = limits.max_held_size
        self._write_buffer = limits.write_buffer
        self.slow = slow
        self._on_slow = on_slow
        # Not longer than `slow`, so that one look at the clock is enough for both.
        self.turn_time = min(TURN, slow)
        #: Seconds: a read that takes longer counts; and what those of this turn of the loop took.
        self._long_read, self._spent = self.turn_time / 20, 0.0
        self._on_gone = on_gone
        # Handlers begin in whatever callback has read their request, or made room for it: that may be another call's.
        self._context = free_context()
        self._calls: OutgoingCalls | None = None
        self.backlog = RequestQueue(limits, self.memory)
        self._intake = Intake(self, dispatch, self.backlog)
        self._outbox: list[Written] = []
        #: No more requests are taken; the transport is not read; a turn is due.
        self._ending = self._paused = self._scheduled = False
        #: The turn is over that has taken the time of one.
        self._rests = False
        #: Connected, none of these, no backlog, and room for calls: `_regulate` would find nothing to do.
        self._is_calm = False

    # -- what the transport says ------------------------------------------------------------------------------------

    def connected(self, channel: Channel) -> None:
        self.channel = channel
        self.is_open = self._is_calm = True

    def receive(self, messages: list[Message]) -> None:
        """Whole messages in the order they came, all that came with one read."""
        if self._is_calm:
            self._work(messages)
        elif self.backlog or self._ending or not self._has_room():
            self._keep(messages)
        else:
            self._work(messages)
        self._settle()

    def end(self, make_error: MakeError) -> None:
        """The peer says nothing more: answer what is in flight, then close. What waits for its words fails."""
        self.pending.fail_all(make_error)
        self.flows.end()
        self.drain()

    def blocked(self, blocked: bool) -> None:
        """The peer does not read what is sent (or reads again): take no new requests from it meanwhile.

        Replies are taken all the same: perhaps it does not read because it waits until its own words are read.
        """
        self.flows.set_stalled(blocked)
        self._is_calm = False
        self._schedule()

    def lost(self, make_error: MakeError) -> None:
        """The connection is gone: calls that wait fail, handlers that work for it are cancelled (see `goes_on`)."""
        self.channel = None
        self._take_no_calls()
        self.backlog.clear()
        self._outbox.clear()
        self.pending.fail_all(make_error)
        self.flows.end()
        self.flows.set_stalled(False)
        self.flows.written()
        if self._calls is not None:
            self._calls.stop()
        self.work.abandon(self._dispatch.goes_on)
        told, self.on_lost = self.on_lost, []
        for function in told:
            function()
        self._report_gone()

    # -- what the server or client says -----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something is being worked on, or waits to be."""
        return bool(self.work or self.backlog or self._outbox)

    @property
    def calls(self) -> OutgoingCalls:
        """The way to call the peer."""
        if self._calls is None:
            address = self.channel.address if self.channel is not None else ""
            return self.use(Marshaller(self.codec, self.limits, address, side=self.side))
        return self._calls

    def use(self, marshaller: Marshaller) -> OutgoingCalls:
        """Call the peer with this marshaller, which other connections share."""
        self._calls = OutgoingCalls(self, marshaller)
        return self._calls

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._take_no_calls()
        if self.channel is not None:
            self.channel.abort(reason)

    def send(self, message: Written) -> None:
        """Send a message that is no answer to one just received; written with all others of this turn."""
        if self.channel is None:  # what a handler says that goes on without its caller would pile up
            return
        self._outbox.append(message)
        self.flows.unsent += len(message)
        self._schedule()

    def pass_on(self, message: Written) -> None:
        """The same for one that has just come on another connection: a long one is written while caches have it."""
        if len(message) < LONG or self.flows.stalled or self.channel is None:
            self.send(message)
            return
        # Emptied, not replaced: whoever handles messages at the moment has it in hand.
        messages = [*self._outbox, message]
        self._outbox.clear()
        self.channel.send(messages)

    def finish(self, call: ForwardedCall, reply: Written | None) -> None:
        """Somebody else has carried a call out. Only the first reply counts."""
        if not self.work.leave(call):
            return
        if self.channel is None:
            self._report_gone()
            return
        if reply is not None and self._is_calm and not (self._outbox or self.work):
            self.channel.send([reply])  # there is nothing that it could be written with
            return
        if reply is not None:
            self.pass_on(reply)
        if not self._is_calm:  # there is room now, or nothing left to wait for
            self._schedule()

    def goes_on(self, message: Any) -> bool:
        """Are the handlers of a message (of all members of a batch) to go on when the connection is lost?"""
        if type(message) is list:
            return all(type(member) is not dict or self._dispatch.goes_on(member) for member in message)
        return self._dispatch.goes_on(message)

    def drain(self) -> None:
        """Take no more requests; replies are still taken. When nothing is in flight any more, close."""
        self._ending = True
        self._take_no_calls()
        self._settle()

    def admit(self, identity: Any, dispatch: Dispatch) -> None:
        """The peer has shown who it is: from now on this answers its requests."""
        self.identity = identity
        self._dispatch = dispatch
        self._answer = self.backlog.unless_cancelled(dispatch) if self.backlog.noted else dispatch.answer
        self._intake.dispatch = dispatch

    def hold(self) -> asyncio.Future[None]:
        """Take up no requests, until `release`."""
        hold = self.loop.create_future()
        self.holds.append(hold)
        self.work.load += self._max_calls
        self._is_calm = False
        return hold

    def release(self, hold: asyncio.Future[None]) -> None:
        """Go on, with what waits first, behind the answer that was waited for."""
        self.loop.call_soon(self._released, hold, context=self._context)

    def _released(self, hold: asyncio.Future[None]) -> None:
        self.holds.remove(hold)
        self.work.load -= self._max_calls
        hold.set_result(None)
        self._schedule()

    def cancel(self, call_id: Any) -> None:
        """The peer does not wait for this call any more. Unknown and finished ones are ignored."""
        if not self.work.cancel(call_id) and self._intake.is_sifting:
            # It overtakes its request, which waits unread.
            self.backlog.cancel(call_id)
            self._answer = self.backlog.unless_cancelled(self._dispatch)

    # -- the way of a message ---------------------------------------------------------------------------------------

    def _work(self, messages: list[Message]) -> int:
        """Handle messages in order; the replies that are ready go to the outbox. Returns their bytes.

        Stops early, and keeps the rest for later, when too many calls run, when too many replies wait to be written,
        or when the turn is over.
        """
        replies = self._outbox
        size = position = 0
        began = before = now = perf_counter()
        end = began + self.turn_time
        reply: Written | Later | None
        line: Any
        try:
            for line in messages:
                position += 1
                try:
                    if len(line) < LONG:
                        message = _loads(line)
                    else:
                        message, line = self._long(line)
                except orjson.JSONDecodeError as error:
                    message, reply = None, self._unparsed(line, error, messages, position)
                else:
                    reply = None
                    # A message with a method is for the dispatcher, a reply for the calls that wait.
                    if type(message) is dict and "method" in message:
                        if "id" in message or not control_messages.handle(self, message, line):
                            reply = self._answer(message, line, self)
                    elif not self.pending.settled(message, line):
                        reply = self._answer_batch(message, line)
                if type(reply) is bytes:
                    replies.append(reply)
                    size += len(reply)
                elif reply is not None:
                    size += self._take(reply, message, line)
                    if self.work.load >= self._max_calls or self.work.held >= self._max_held:
                        self._is_calm = False
                        end = 0
                now = perf_counter()
                if now > end or size > self._write_buffer:
                    if now - before > self.slow and self._on_slow is not None:
                        self._on_slow(message, now - before)
                    break
                before = now
        except Exception as error:
            self._broken(error)
        if now - began > self._long_read:
            self._count_turn(now - began)
        if position < len(messages):
            self._is_calm = False
            self.backlog.put_back(messages[position:], self.loop.time() - self.waited)
            if not self._has_room():
                self._sift()
        return size

    def _count_turn(self, seconds: float) -> None:
        """A read took so long. A loop may read a connection many times in a row: when these take a turn together, it is
        read no more before others had theirs."""
        self._spent += seconds
        if self._spent > self.turn_time:
            self._is_calm, self._rests = False, True
        self._schedule()

    def _answer_batch(self, message: Any, line: bytes) -> Written | Later | None:
        """The reply to what is neither a request nor all replies."""
        is_refused = self.memory.is_full and len(line) >= COUNTED and type(message) is list
        if is_refused and not any(map(envelope.is_reply, message)):
            return self._dispatch.refuse(message, busy(self.limits.max_held_total, "max_held_total"))
        return self._answer(message, line, self)

    def _long(self, line: Message) -> tuple[Any, bytes]:
        if isinstance(line, Oversize):
            raise orjson.JSONDecodeError("too long", "", 0)
        return self.parse(line)

    def parse(self, line: bytes) -> tuple[Any, bytes]:
        """A long message, and the line to look at further: as `Codec.parse`."""
        return self.codec.parse(line, self.limits.max_values) if self.reader is None else self.reader(line, self)

    def settled_too_long(self, message: Oversize) -> bool:
        """Is a message that is not taken a reply? Then its call fails."""
        return self.pending.settled_too_long(message, self.limits.max_message_size, self.side)

    def unparsed(self, line: bytes, error: orjson.JSONDecodeError) -> tuple[list[bytes], Written | None]:
        """What a message that is not JSON comes to: the values in it, each a message; or none, and what is answered."""
        values = envelope.values_in(line)
        if values and self.takes_apart:
            return values, None
        reason = envelope.unreadable(line, error)
        # A client ends the connection, and with it all calls.
        if self.side == "server" and self.pending.settled_unreadable(line, reason):
            return [], None
        call_id = None if values else envelope.id_of_request(line)
        return [], self._dispatch.refuse({"id": call_id}, reason)

    def refuse_oversize(self, message: Oversize) -> Written | None:
        """The answer to a request that is over the size limit."""
        return self._dispatch.refuse(
            message, envelope.refusal_of(message, self.limits.max_message_size, side=self.side)
        )

    def _unparsed(
        self, line: Message, error: orjson.JSONDecodeError, messages: list[Message], position: int
    ) -> Written | None:
        """Not JSON: too long, several values without a delimiter, or an error."""
        if isinstance(error, TooManyValues):
            line = error.stand_in(line)  # type: ignore[arg-type]  # it was read
        if isinstance(line, Oversize):
            return None if self.settled_too_long(line) else self.refuse_oversize(line)
        messages[position:position], reply = self.unparsed(line, error)
        return reply

    def _take(self, reply: Written | Later, message: Any, line: bytes) -> int:
        """A reply to send, or what will give one; how many bytes that is now."""
        if isinstance(reply, ForwardedCall):
            self.work.enter(reply)
            return 0
        ready = reply if isinstance(reply, Written) else self._start(reply, message, line)
        if ready is None:
            return 0
        self._outbox.append(ready)
        return len(ready)

    def _start(self, later: Waiting, message: Any, line: bytes) -> Written | None:
        """Run a handler that waits; its reply now, if it did not wait after all."""
        held = memory_of(line) if len(line) >= COUNTED else 0
        if held and self.memory.is_full and type(message) is dict:
            later.close()
            return self._dispatch.refuse(message, busy(self.limits.max_held_total, "max_held_total"))
        if sys.version_info >= (3, 12):
            task = asyncio.Task(later, loop=self.loop, eager_start=True, context=self._context.copy())
            if task.done():
                return self._reply_of(task, message)
        else:
            task = self.loop.create_task(later, context=self._context.copy())
        self.work.start(task, message, held)
        task.add_done_callback(self._finished)
        return None

    def _finished(self, task: asyncio.Task[Written | None]) -> None:
        reply = self._reply_of(task, self.work.finish(task))
        if self.channel is None:
            self._report_gone()
            return
        if reply is not None:
            self._outbox.append(reply)
        self._schedule()

    def _reply_of(self, task: asyncio.Task[Written | None], message: Any) -> Written | None:
        """What a handler's task gave. Whoever cancelled it, the caller is told, if there still is one."""
        try:
            return task.result()
        except asyncio.CancelledError:
            return self._dispatch.refuse(message, CallCancelled())
        except BaseException as error:
            self._broken(error)
            return None

    # -- flow -------------------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return not self.flows.stalled and self.work.load < self._max_calls and self.work.held < self._max_held

    def must_read(self) -> bool:
        """Does something that runs wait for the peer's words, so that the connection must be read, come what may?

        Also while the peer does not read: it may be waiting for the very same. (Not for credit, then, since no item
        could be sent.)
        """
        flows = self.flows
        if self._has_room():  # then what waits is taken up without that
            return False
        return bool(self.pending or flows.receivers or (flows.senders and not flows.stalled))

    def _keep(self, messages: list[Message]) -> None:
        """Keep requests until there is room for them. Only those: what runs may wait for the others."""
        self.backlog.put(messages, self.loop.time(), drops=self._ending)
        self._sift()

    def _sift(self) -> None:
        """Look through messages that wait, for a time, and handle those that need not; the rest of them soon."""
        began, share = perf_counter(), SIFTING * self.turn_time
        try:
            self._intake.sift(began + share)
        except Exception as error:
            self._broken(error)
        if self.backlog.is_behind or perf_counter() - began > share / 2:
            self._rests = True  # a loop may read a connection many times in a row, and this is for each read
            self._schedule()

    def limit_reached(self) -> RpcError:
        """The error for a request for which there is no room now."""
        if self.work.load < self._max_calls and self.work.held >= self._max_held:
            return busy(self._max_held, "max_held_size")
        return busy(self._max_calls, "max_calls")

    def answer_with(self, reply: Written | None) -> None:
        """The answer to a message that is looked through; written with the others of this turn."""
        if reply is not None:
            self._outbox.append(reply)

    def _schedule(self) -> None:
        """Have a turn, soon, and once however many ask for it."""
        if not self._scheduled and self.channel is not None:
            self._scheduled = True
            self.loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        """Take up what was kept for later, as far as there is room; write what has come together."""
        self._scheduled = self._rests = False
        self._spent = 0.0
        if not self._is_calm and self.backlog and self.channel is not None:
            self._take_up()
            if self.backlog.is_behind:
                self._sift()
            if self.backlog.words and not self._has_room():
                self._heed_begun()
        self._settle()
        flows = self.flows
        if flows.unsent or flows.waiting:
            flows.written()

    def _take_up(self) -> None:
        """Requests that waited, for a turn at most."""
        # As long as half a turn is left, since handling what is taken may take a whole one.
        end = perf_counter() + self.turn_time / 2
        size = 0
        while self.backlog and self.channel is not None and self._has_room():
            messages, since = self.backlog.take()
            self.waited = self.loop.time() - since
            size += self._work(messages)
            self.waited = 0.0
            if size > self._write_buffer or perf_counter() > end:
                break

    def _heed_begun(self) -> None:
        """Requests that waited have begun, and more do not for now: handle what waited behind them about them."""
        try:
            self._intake.heed_begun()
        except Exception as error:
            self._broken(error)

    def _settle(self) -> None:
        """Write the outbox with one write; then see what comes next, as things stand now."""
        if self._outbox and self.channel is not None:
            messages, self._outbox = self._outbox, []
            self.channel.send(messages)
        if not self._is_calm:
            self._regulate()

    def _regulate(self) -> None:
        """Something is not as usual: go on later, read or not read, or close."""
        channel = self.channel
        if channel is None:
            return
        has_room = self._has_room()
        if not self.backlog:
            self.backlog.forget_cancelled()
            self._answer = self._dispatch.answer
        elif has_room or self.backlog.is_behind:
            self._schedule()
        if self._ending and not (self.busy or self.pending):
            channel.close()
            return
        # What must be read is looked through before more is read.
        has_room_for_more = not self.backlog.is_full or (self.must_read() and not self.backlog.is_behind)
        reads = has_room_for_more and not self._rests
        if self._paused is reads:
            self._paused = not reads
            if self._paused:
                channel.pause()
            else:
                channel.resume()
        self._is_calm = has_room and not (self.backlog or self._ending or self._paused)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _take_no_calls(self) -> None:
        self.is_open = self._is_calm = False
        told, self.on_end = self.on_end, None
        if told is not None:
            told()

    def _broken(self, error: BaseException) -> None:
        """Something failed that must not fail: nobody knows what was answered, so the conversation cannot go on."""
        log.error("a message could not be handled", exc_info=error)
        self.abort("an internal error")

    def _report_gone(self) -> None:
        if not self.work and self._on_gone is not None:
            on_gone, self._on_gone = self._on_gone, None
            on_gone(self)


class Hold:
    """Keeps a session from taking up requests, until it is released or dropped."""

    __slots__ = ("_hold", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hold: asyncio.Future[None] | None = session.hold()

    def release(self) -> None:
        """Harmless at any time."""
        hold, self._hold = self._hold, None
        if hold is not None and not self._session.loop.is_closed():
            self._session.release(hold)

    def __del__(self) -> None:
        # Of a call that was cancelled before its first step, of which nothing ever runs. In any thread.
        if self._hold is not None and not self._session.loop.is_closed():
            self._session.loop.call_soon_threadsafe(self._session.release, self._hold)
