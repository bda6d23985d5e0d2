"""A session: one end of a conversation, on a connection that it does not see.

Owns the order of things: which message is handled when, which handlers run, when the connection is read, written and
closed. Calls go to a dispatcher, replies to the calls that wait for them, control messages (`$/…`) to
`control_messages`. Knows neither sockets (a channel sends for it) nor methods.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import orjson

from ..codec import Codec
from ..codec.payloads import CutLine, FrameLine
from ..errors import CallCancelled, RpcError
from ..limits import Limits
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.messages import LONG, BinaryFrame, Message, Oversize
from . import control_messages, incoming
from .incoming import OverloadSorter, ParseLong
from .inflight import ForwardedCall
from .interfaces import Channel, Dispatch, Later, Waiting
from .memory import COUNTED, MessageMemory, memory_of
from .request_queue import busy
from .state import NOT_BEGUN, ConversationState

log = get_logger("rpcstream.server")

#: The share of a turn in which messages that wait are sorted, so that replies and control messages among them are found
#: also while requests of the connection are handled.
SORTING = 0.25

_loads: Callable[[Any], Any] = orjson.loads

MakeError = Callable[[str], Exception]

#: As `Dispatch.answer`.
Answer = Callable[[Any, "bytes | bytearray", "Session"], Encoded | Later | None]


class Session(ConversationState):
    """One end of a conversation; both ends are equal.

    A transport calls `connected` once, then `receive`, `blocked` and `end` as things happen, and at last `lost`.
    Messages are handled as they come, and kept in a queue while there is no room for more; when that is full, the
    transport is asked to read no more. `_regulate` decides all of that in one place, after every change.

    Args:
        dispatch: answers the peer's requests.
        codec: encodes and decodes values.
        limits: `max_calls`, `max_held_size`, `max_values` and `write_buffer` are enforced here.
        slow: seconds; a message that keeps the loop for longer is reported.
        on_slow: called with such a message and the seconds that it took.
        side: what this end is called in errors about its limits, "server" or "client".
        on_gone: called once, when the connection is lost and no handler runs for it any more.
        memory: shared by all sessions of a server; None: one of its own.
        parse_long: parses messages of `LONG` bytes or more; by default the codec does.
    """

    __slots__ = (
        "_answer",
        "_dispatch",
        "_drops",
        "_ending",
        "_last_id",
        "_long_read",
        "_on_slow",
        "_parse_long",
        "_paused",
        "_rests",
        "_sorter",
        "_spent",
        "_write_buffer",
    )

    def __init__(
        self,
        dispatch: Dispatch[Session],
        *,
        codec: Codec,
        limits: Limits,
        slow: float = 0.1,
        on_slow: Callable[[Any, float], object] | None = None,
        side: str = "server",
        on_gone: Callable[[Session], object] | None = None,
        memory: MessageMemory | None = None,
        parse_long: ParseLong = incoming.parse_long,
    ) -> None:
        super().__init__(codec=codec, limits=limits, side=side, memory=memory, slow=slow, on_gone=on_gone)
        self._dispatch = dispatch
        self._answer: Answer = dispatch.answer
        self._on_slow = on_slow
        self._parse_long = parse_long
        self._sorter = OverloadSorter(self, parse_long=parse_long, refuse=self._refuse)
        self._write_buffer = limits.write_buffer
        #: Seconds: a read that takes longer counts; and what those of this turn of the loop took.
        self._long_read, self._spent = self.turn_time / 20, 0.0
        #: It closes when nothing is in flight; no more requests are taken; the transport is not read; the turn is over
        #: that has taken the time of one.
        self._ending = self._drops = self._paused = self._rests = False
        #: The id of the last request that was handled, or put off: see `envelope.go_away`.
        self._last_id: Any = None

    # -- from the transport -------------------------------------------------------------------------------------------

    def connected(
        self, channel: Channel, *, is_lasting: bool = True, splits_values: bool = False, is_lines: bool = False
    ) -> None:
        """The connection stands.

        Args:
            channel: the transport.
            is_lasting: False: the peer sends one message, and cannot be asked anything.
            splits_values: JSON values that follow each other in one message are messages of their own.
            is_lines: a message is one line.
        """
        self.channel = channel
        self.is_lasting = is_lasting
        self.splits_values = splits_values
        self.is_lines = is_lines
        self.is_open = is_lasting
        self._is_calm = True
        if not is_lasting:
            self.streams.end()

    def receive(self, messages: list[Message]) -> None:
        """Handle the messages that came with one read, in their order."""
        if self._is_calm:
            self._work(messages)
        elif self.queue or self._drops or not self.has_room():
            self._keep(messages)
        else:
            self._work(messages)
        self._settle()

    def end(self, make_error: MakeError) -> None:
        """The peer sends nothing more: calls that wait for it fail; what is in flight is answered, then it closes."""
        self.pending.fail_all(make_error)
        self.streams.end()
        self.drain()

    def blocked(self, blocked: bool) -> None:
        """The peer does not read what is sent (or reads again): take up no requests from it meanwhile.

        Replies are handled all the same: perhaps it does not read because it waits until what it sends is read.
        """
        self.write_gate.set_stalled(blocked)
        self._is_calm = False
        self._schedule()

    def lost(self, make_error: MakeError) -> None:
        """The connection is lost: calls that wait fail, handlers are cancelled unless they go on (see `goes_on`)."""
        self.channel = None
        self._take_no_calls()
        self.queue.clear()
        self._outbox.clear()
        self.pending.fail_all(make_error)
        self.streams.end()
        self.write_gate.set_stalled(False)
        self.write_gate.written()
        if self._calls is not None:
            self._calls.stop()
        self.running.abandon(self._dispatch.goes_on)
        callbacks, self._on_lost = self._on_lost, []
        for function in callbacks:
            function()
        self._report_gone()

    # -- from the server or client ------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something runs, waits to run, or waits to be written."""
        return bool(self.running or self._outbox or (not self._is_calm and self.queue))

    @property
    def was_asked(self) -> bool:
        """Whether the peer has sent a request, which was handled."""
        return self._last_id is not None

    @property
    def is_draining(self) -> bool:
        """Whether the connection is closed once the requests that were taken are answered."""
        return self._ending

    @property
    def is_paused(self) -> bool:
        """Whether the session has told its channel to read nothing for now."""
        return self._paused

    def parsed(self, message: Message) -> BinaryFrame | Oversize:
        """A message with its content parsed, for code that looks at it before `receive` gets it."""
        return incoming.parsed_text(message, self, self._parse_long) if isinstance(message, bytes) else message

    def refusal_of(self, message: dict[str, Any]) -> RpcError | None:
        return self._dispatch.refusal_of(message, self)

    def goes_on(self, message: Any) -> bool:
        """Whether the handlers of a message (of all members of a batch) go on when the connection is lost."""
        if type(message) is list:
            return all(type(member) is not dict or self._dispatch.goes_on(member) for member in message)
        return self._dispatch.goes_on(message)

    def drain(self) -> None:
        """Take no more requests; replies are still taken. When nothing is in flight any more, close."""
        self._drops = True
        self.close_when_idle()

    def close_when_idle(self) -> None:
        """Close when nothing is in flight any more. What comes until then is handled, requests among it."""
        self._ending = True
        self._take_no_calls()
        self._settle()

    def go_away(self, reason: str) -> None:
        """Say which request was read last, for this reason; then as `drain`."""
        if self.is_lasting and not self._drops and self.channel is not None:
            self.is_leaving = True
            waits = self.queue.last_request()
            last = self._last_id if waits is None else envelope.sayable_id(waits)
            self._outbox.append(envelope.go_away(last, reason))
        self.drain()

    def refuse_waiting(self, until: float) -> bool:
        """Answer the requests that wait: they are not begun. Returns whether there were any.

        Args:
            until: the end of it (`perf_counter`, s).
        """
        if self.channel is None or not self.queue:
            return False
        has_refused = self._sorter.refuse_rest(CallCancelled(data={"executed": False, "reason": NOT_BEGUN}), until)
        self._settle()
        return has_refused

    def admit(self, identity: Any, dispatch: Dispatch[Session]) -> None:
        """The peer is authenticated: from now on this dispatcher answers its requests."""
        self.identity = identity
        self._dispatch = dispatch
        self._choose_answer()

    @property
    def is_unused(self) -> bool:
        """Nothing runs or waits, and nothing was left behind: another request may be received as the first was."""
        # A handler with a context, or streams, has the calls of its session; without those no call is pending.
        is_unseen = self._calls is None and not self._on_lost and not self.streams
        return is_unseen and self._is_calm and not self.busy

    # -- messages -----------------------------------------------------------------------------------------------------

    def _work(self, messages: list[Message]) -> int:  # noqa: C901, PLR0912, PLR0915 (the path of each message)
        """Handle messages in order; replies that are ready go to the outbox. Gives how many bytes these have.

        Stops early, and keeps the rest for later, when too many calls run, when too many replies wait to be written,
        or when the turn is over.
        """
        replies = self._outbox
        size = position = 0
        began = before = self.began = now = perf_counter()
        end = began + self.turn_time
        reply: Encoded | Later | None
        line: Any
        last: Any = None
        try:
            for line in messages:
                position += 1
                try:
                    if len(line) < LONG:
                        message = _loads(line)
                    else:
                        message, line = self._long(line)  # noqa: PLW2901 (the cut line replaces the received one)
                except orjson.JSONDecodeError as error:
                    message = None
                    messages[position:position], reply = incoming.unparsed(line, error, self, self._refuse)
                    if self.spread is not None:
                        self._choose_answer()
                else:
                    reply = None
                    # A message with a method is for the dispatcher, a reply for the calls that wait.
                    if type(message) is dict and "method" in message:
                        if "id" in message:
                            last = message
                            reply = self._answer(message, line, self)
                        elif not control_messages.handle(self, message, line):
                            reply = self._answer(message, line, self)
                    elif not self.pending.settled(message, line):
                        if envelope.asks_for_reply(message):
                            last = message
                        reply = self._answer_batch(message, line)
                if type(reply) is bytes:
                    replies.append(reply)
                    size += len(reply)
                elif reply is not None:
                    size += self._take(reply, message, line)
                    if self.running.load >= self._max_calls or self.running.held >= self._max_held:
                        self._is_calm = False
                        end = 0
                now = perf_counter()
                if now > end or size > self._write_buffer:
                    if now - before > self.slow and self._on_slow is not None:
                        self._on_slow(message, now - before)
                    break
                self.began = before = now
        except Exception as error:
            self._broken(error)
        if last is not None:
            is_plain = type(last) is dict and type(last["id"]) is int
            self._last_id = last["id"] if is_plain else envelope.sayable_id(last)
        if now - began > self._long_read:
            self._count_turn(now - began)
        if position < len(messages):
            self._is_calm = False
            self.queue.put_back(messages[position:], self.loop.time() - self.waited)
            if not self.has_room():
                self._sort()
        return size

    def _count_turn(self, seconds: float) -> None:
        """Count the time that a read took; rest when several reads have taken a turn together.

        Needed since an event loop may read one connection many times in a row.
        """
        self._spent += seconds
        if self._spent > self.turn_time:
            self._is_calm, self._rests = False, True
        self._schedule()

    def _answer_batch(self, message: Any, line: bytes) -> Encoded | Later | None:
        """Answer a batch that is not all replies, or a message that is neither an object nor an array."""
        is_refused = self.memory.is_full and len(line) >= COUNTED and type(message) is list
        if is_refused and not any(map(envelope.is_reply, message)):
            return self._dispatch.refuse(message, busy(self.limits.max_held_total, "max_held_total"))
        return self._answer(message, line, self)

    def _choose_answer(self) -> None:
        """Choose how requests are answered from now on: by the dispatcher itself, unless something is unusual."""
        if self.spread is not None:
            self._answer = self._answer_unless_spread
        else:
            self._answer = self._answer_unless_cancelled if self.queue.cancels else self._dispatch.answer

    def _answer_unless_spread(self, message: Any, line: bytes | bytearray, session: Session) -> Encoded | Later | None:
        """As `Dispatch.answer`, behind a message that was the beginning of a value on several lines."""
        if incoming.belongs_to_spread(message, line, self):
            return None
        self.spread = None
        self._choose_answer()
        return self._answer(message, line, self)

    def _answer_unless_cancelled(
        self, message: Any, line: bytes | bytearray, session: Session
    ) -> Encoded | Later | None:
        """As `Dispatch.answer`, while some of the requests that waited were cancelled before they were read."""
        if type(message) is dict and self.queue.was_cancelled(message):
            return self._dispatch.refuse(message, CallCancelled())
        return self._dispatch.answer(message, line, session)

    def _refuse(self, message: Any, error: RpcError) -> Encoded | None:
        return self._dispatch.refuse(message, error)

    def _long(self, line: Message) -> tuple[Any, bytes]:
        if isinstance(line, Oversize):
            raise orjson.JSONDecodeError("too long", "", 0)
        message, line = incoming.content_of(line) if isinstance(line, BinaryFrame) else self._parse_long(line, self)
        if self.offers_binary and isinstance(line, CutLine) and line.payloads:
            self.offer_binary()
        return message, line

    def _take(self, reply: Encoded | Later, message: Any, line: bytes) -> int:
        """Take a reply, or what gives one later; gives how many bytes are to be sent now."""
        if isinstance(reply, ForwardedCall):
            self.running.enter(reply)
            return 0
        ready = reply if isinstance(reply, Encoded) else self._start(reply, message, line)
        if ready is None:
            return 0
        if type(ready) is AttachedMessage:
            # Before another handler changes an array that this one has returned.
            self._write_attached(ready, line.lent if type(line) is FrameLine else ())
        else:
            self._outbox.append(ready)
        return len(ready)

    def _start(self, later: Waiting, message: Any, line: bytes) -> Encoded | None:
        """Run a handler that waits, in a task; gives its reply if it did not wait after all."""
        held = memory_of(line) if len(line) >= COUNTED or type(line) is FrameLine else 0
        if held and self.memory.is_full and type(message) is dict:
            later.close()
            return self._dispatch.refuse(message, busy(self.limits.max_held_total, "max_held_total"))
        if sys.version_info >= (3, 12):
            task = asyncio.Task(later, loop=self.loop, eager_start=True, context=self._context.copy())
            if task.done():
                return self._reply_of(task, message)
        else:
            task = self.loop.create_task(later, context=self._context.copy())
        self.running.start(task, message, held)
        task.add_done_callback(self._finished)
        if self.channel is None:  # the handler ended the connection before it waited for anything
            self.running.abandon(self._dispatch.goes_on)
        return None

    def _finished(self, task: asyncio.Task[Encoded | None]) -> None:
        reply = self._reply_of(task, self.running.finish(task))
        if self.channel is None:
            self._report_gone()
            return
        if type(reply) is AttachedMessage:
            self._write_attached(reply)
        elif reply is not None:
            self._outbox.append(reply)
        self._schedule()

    def _reply_of(self, task: asyncio.Task[Encoded | None], message: Any) -> Encoded | None:
        """The reply that a handler's task gave; of one that was cancelled, for whatever reason, an error."""
        try:
            return task.result()
        except asyncio.CancelledError:
            return self._dispatch.refuse(message, CallCancelled())
        except BaseException as error:
            self._broken(error)
            return None

    # -- flow ---------------------------------------------------------------------------------------------------------

    def _keep(self, messages: list[Message]) -> None:
        """Keep requests until there is room for them; handle the other messages, which handlers may be waiting for."""
        self.queue.put(messages, self.loop.time(), drops=self._drops)
        self._sort()

    def _sort(self) -> None:
        """Sort messages that wait, for a share of a turn; the rest of them soon."""
        began, share = perf_counter(), SORTING * self.turn_time
        try:
            self._sorter.sort(began + share)
        except Exception as error:
            self._broken(error)
        self._choose_answer()
        if self.queue.is_behind or perf_counter() - began > share / 2:
            self._rests = True  # a loop may read a connection many times in a row, and this is for each read
            self._schedule()

    def _turn(self) -> None:
        """Take up requests that wait, as far as there is room; then write the outbox."""
        self._scheduled = self._rests = False
        self._spent = 0.0
        if not self._is_calm and self.queue and self.channel is not None:
            self._take_up()
            if self.queue.is_behind:
                self._sort()
            if self.queue.early and not self.has_room():
                self._handle_early()
        self._settle()
        write_gate = self.write_gate
        if write_gate.unsent or write_gate.waiting:
            write_gate.written()

    def _take_up(self) -> None:
        """Handle requests that waited, for a turn at most."""
        # As long as half a turn is left, since handling what is taken may take a whole one.
        end = perf_counter() + self.turn_time / 2
        size = 0
        while self.queue and self.channel is not None and self.has_room():
            messages, since = self.queue.take()
            self.waited = self.loop.time() - since
            size += self._work(messages)
            self.waited = 0.0
            if size > self._write_buffer or perf_counter() > end:
                break

    def _handle_early(self) -> None:
        """Handle control messages that waited for streams, of which requests that have begun may have opened some."""
        try:
            self._sorter.handle_early()
        except Exception as error:
            self._broken(error)

    def _settle(self) -> None:
        """Write the outbox with one write; then decide what comes next."""
        if self._outbox:
            messages, self._outbox = self._outbox, []
            if self.channel is not None:
                self.channel.send(messages)
        if not self._is_calm:
            self._regulate()

    def _regulate(self) -> None:
        """Decide what comes next when something is not as usual: another turn, reading or pausing, or closing."""
        channel = self.channel
        if channel is None:  # what came with the message whose handler ended the connection
            self.queue.clear()
            return
        has_room = self.has_room()
        if not self.queue:
            self.queue.forget_cancelled()
            self._choose_answer()
        elif has_room or self.queue.is_behind:
            self._schedule()
        if self._ending and not (self.busy or self.pending):
            channel.close()
            return
        # What must be read is looked through before more is read.
        has_room_for_more = not self.queue.is_full or (self.must_read() and not self.queue.is_behind)
        reads = has_room_for_more and not self._rests
        if self._paused is reads:
            self._paused = not reads
            if self._paused:
                channel.pause()
            else:
                channel.resume()
        self._is_calm = has_room and not (self.queue or self._ending or self._paused)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _broken(self, error: BaseException) -> None:
        """Abort after an error of our own: what was answered is not known, so the conversation cannot go on."""
        log.error("closing a connection: a message could not be handled", exc_info=error)
        self.abort("an internal error")
