"""One end of a conversation, on a connection it does not see.

Owns the order of things: which message is handled when, what runs at the moment, when the connection may close. A
message with a method goes to the dispatcher, a reply to the calls that wait, what belongs to the conversation itself
(`$/…`) to `peer.control`. Knows neither sockets (a channel sends for it) nor methods (a dispatcher answers for it).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import Any

import orjson

from ..codec import Codec
from ..limits import Limits
from ..wire import envelope
from ..wire.framing import LONG, Message, Oversize
from ..wire.pieces import Written
from . import control
from .backlog import Backlog
from .call import Marshaller
from .calls import Calls
from .deadline import free_context
from .elsewhere import Elsewhere
from .flows import Flows
from .intake import Intake
from .interfaces import Channel, Dispatch, Later, Waiting
from .pending import PendingCalls
from .work import Work

log = logging.getLogger("rpcstream.server")

#: Seconds that one connection may keep the loop before the others have their turn.
TURN = 0.02

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
        limits: `max_calls` and `write_buffer` are enforced here.
        slow: seconds; a message that kept the loop for longer is reported to the dispatcher.
        side: what this end is called in errors about its limits, "server" or "client".
        on_gone: called once, when the connection is lost and nothing runs for it any more.

    Attributes:
        is_open: connected, and requests may be sent.
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
        is_lasting: there will be a connection after the answer, for events and calls back.
        reader: parses long messages in the place of the codec, given the message and this session.
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
        "_max_calls",
        "_on_gone",
        "_outbox",
        "_paused",
        "_scheduled",
        "_slow",
        "_turn_time",
        "_write_buffer",
        "backlog",
        "channel",
        "codec",
        "flows",
        "headers",
        "identity",
        "is_lasting",
        "is_open",
        "last_in_order",
        "limits",
        "loop",
        "on_end",
        "on_event",
        "on_lost",
        "pending",
        "reader",
        "side",
        "streams",
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
        side: str = "server",
        on_gone: Callable[[Session], None] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.pending = PendingCalls()
        self.work = Work()
        self.flows = Flows(limits.write_buffer)
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
        self.is_lasting = True
        self.last_in_order: asyncio.Future[None] | None = None
        self.reader: Reader | None = None
        self._dispatch = dispatch
        self._answer: Callable[[Any, Any, Session], Written | Later | None] = dispatch.answer
        self._max_calls = limits.max_calls
        self._write_buffer = limits.write_buffer
        self._slow = slow
        # Not longer than `slow`, so that one look at the clock is enough for both.
        self._turn_time = min(TURN, slow)
        self._on_gone = on_gone
        # Handlers begin in whatever callback has read their request, or made room for it: that may be another call's.
        self._context = free_context()
        self._calls: Calls | None = None
        self.backlog = Backlog(limits)
        self._intake = Intake(self, dispatch, self.backlog)
        self._outbox: list[Written] = []
        #: No more requests are taken; the transport is not read; a turn is due.
        self._ending = self._paused = self._scheduled = False
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
        if blocked:
            self._intake.sift_backlog()
        self._schedule()

    def lost(self, make_error: MakeError) -> None:
        """The connection is gone: calls that wait fail, handlers that work for it are cancelled.

        A notification's handler goes on: nobody waits for it, so nothing was lost for it.
        """
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
        self.work.abandon(lambda message: "id" not in message or self._dispatch.goes_on(message))
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
    def calls(self) -> Calls:
        """The way to call the peer."""
        if self._calls is None:
            address = self.channel.address if self.channel is not None else ""
            return self.use(Marshaller(self.codec, self.limits, address, side=self.side))
        return self._calls

    def use(self, marshaller: Marshaller) -> Calls:
        """Call the peer with this marshaller, which other connections share."""
        self._calls = Calls(self, marshaller)
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

    def finish(self, call: Elsewhere, reply: Written | None) -> None:
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

    def cancel(self, call_id: Any) -> None:
        """The peer does not wait for this call any more. Unknown and finished ones are ignored."""
        if not self.work.cancel(call_id) and self._intake.is_sifting:
            # It overtakes its request, which waits unread.
            self.backlog.cancel(call_id)
            self._answer = self.backlog.unless_cancelled(self._dispatch)

    # -- the way of a message ---------------------------------------------------------------------------------------

    def _work(self, messages: list[Message]) -> None:
        """Handle messages in order; the replies that are ready go to the outbox.

        Stops early, and keeps the rest for later, when too many calls run, when too many replies wait to be written,
        or when the turn is over.
        """
        replies = self._outbox
        size = position = 0
        before = perf_counter()
        end = before + self._turn_time
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
                except orjson.JSONDecodeError:
                    message, reply = None, self._unparsed(line, messages, position)
                else:
                    reply = None
                    # A message with a method is for the dispatcher, a reply for the calls that wait.
                    if type(message) is dict and "method" in message:
                        if "id" in message or not control.handle(self, message, line):
                            reply = self._answer(message, line, self)
                    elif not self.pending.settled(message, line):
                        reply = self._answer(message, line, self)
                if type(reply) is bytes:
                    replies.append(reply)
                    size += len(reply)
                elif reply is not None:
                    size += self._take(reply, message)
                    if self.work.load >= self._max_calls:
                        self._is_calm = False
                        end = 0
                now = perf_counter()
                if now > end or size > self._write_buffer:
                    if now - before > self._slow:
                        self._dispatch.took_long(message, now - before)
                    break
                before = now
        except Exception as error:
            self._broken(error)
        if position < len(messages):
            self._is_calm = False
            rest = messages[position:] if self._has_room() else self._intake.sift(messages[position:])
            if rest:
                self.backlog.put_back(rest, self.loop.time() - self.waited)

    def _long(self, line: Message) -> tuple[Any, bytes]:
        if isinstance(line, Oversize):
            raise orjson.JSONDecodeError("too long", "", 0)
        return self.parse(line)

    def parse(self, line: bytes) -> tuple[Any, bytes]:
        """A long message, and the line to look at further: as `Codec.parse`."""
        return self.codec.parse(line) if self.reader is None else self.reader(line, self)

    def _unparsed(self, line: Message, messages: list[Message], position: int) -> Written | None:
        """Not JSON: too long, several values without a delimiter, or an error."""
        if isinstance(line, Oversize):
            settled = self.pending.settled_too_long(line, self.limits.max_message_size, self.side)
            return None if settled else self._dispatch.oversize(line)
        values = envelope.unreadable(line)
        if isinstance(values, list):
            messages[position:position] = values
            return None
        if self.side == "server":  # a client ends the connection, and with it all calls
            self.pending.settle_unreadable(line, values)
        return self._dispatch.unreadable(values)

    def _take(self, reply: Written | Later, message: Any) -> int:
        """A reply to send, or what will give one; how many bytes that is now."""
        if isinstance(reply, Elsewhere):
            self.work.enter(reply)
            return 0
        ready = reply if isinstance(reply, Written) else self._start(reply, message)
        if ready is None:
            return 0
        self._outbox.append(ready)
        return len(ready)

    def _start(self, later: Waiting, message: Any) -> Written | None:
        """Run a handler that waits; its reply now, if it did not wait after all."""
        if sys.version_info >= (3, 12):
            task = asyncio.Task(later, loop=self.loop, eager_start=True, context=self._context.copy())
            if task.done():
                return self._reply_of(task, message)
        else:
            task = self.loop.create_task(later, context=self._context.copy())
        self.work.start(task, message)
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
            return self._dispatch.cancelled(message)
        except BaseException as error:
            self._broken(error)
            return None

    # -- flow -------------------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return not self.flows.stalled and self.work.load < self._max_calls

    def _must_read(self) -> bool:
        """Does something that runs wait for the peer's words, so that the connection must be read, come what may?

        Also while the peer does not read: it may be waiting for the very same. (Not for credit, then, since no item
        could be sent.)
        """
        flows = self.flows
        if self._has_room():  # then what waits is taken up without that
            return False
        return bool(self.pending or flows.coming or (flows.out and not flows.stalled))

    def _keep(self, messages: list[Message]) -> None:
        """Keep requests until there is room for them. Only those: what runs may wait for the others."""
        noted = self.backlog.noted
        messages = self._intake.sift(messages)
        if self._ending or not messages:
            return
        if self._must_read() and self.backlog.is_over(stalled=self.flows.stalled):
            self._outbox += self._intake.turn_away(messages, noted)
        else:
            self._intake.keep(messages, noted)

    def _schedule(self) -> None:
        """Have a turn, soon, and once however many ask for it."""
        if not self._scheduled and self.channel is not None:
            self._scheduled = True
            self.loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        """Take up what was kept for later, as far as there is room; write what has come together."""
        self._scheduled = False
        if not self._is_calm and self.backlog and self.channel is not None and self._has_room():
            messages, since = self.backlog.take()
            self.waited = self.loop.time() - since
            self._work(messages)
            self.waited = 0.0
            if self.backlog and not self._has_room():
                self._intake.sift_begun()
        self._settle()
        flows = self.flows
        if flows.unsent or flows.waiting:
            flows.written()

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
        elif has_room:
            self._schedule()
        if self._ending and not (self.busy or self.pending):
            channel.close()
            return
        reads = not self.backlog.is_full or self._must_read()
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
