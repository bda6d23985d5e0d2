"""A session: one end of a conversation over a connection that it does not see."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any

from ..codec import Codec
from ..codec.options import Binary
from ..codec.payloads import may_have_payload
from ..errors import CallCancelled, Unread
from ..limits import Limits
from ..observe.counters import Counters
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from . import incoming
from .control_messages import StreamTable
from .deadline import free_context
from .incoming import offer_binary
from .inflight import Channel, Dispatch, ForwardedCall, RunningCalls, Waiting
from .intake import Intake, Phase
from .ledger import ConnectionLedger, ServerLedger, WriteGate, counted_size
from .marshal import Marshaller
from .outgoing import OutgoingCalls
from .pending import PendingCalls
from .shared_memory import SharedMemory
from .slices import TURN

log = get_logger("rpcstream.server")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

#: Why a request that had come is answered with an error when the server stops.
NOT_BEGUN = "the server stopped before it began the call"

MakeError = Callable[[str], Exception]


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Session:
    """One end of a conversation; both ends are equal.

    A transport calls `connected` once, then `intake.receive`, `blocked` and `end` as things happen, and at last `lost`.
    """

    #: Answers the requests of the peer.
    dispatch: Dispatch
    _: KW_ONLY
    codec: Codec
    limits: Limits
    #: Of the server: shared by all of its sessions.
    server_ledger: ServerLedger
    #: What this end is called in errors about its limits, "server" or "client".
    side: str = "server"
    #: Seconds; a message that keeps the loop for longer is reported to `on_slow`.
    slow: float = 0.1
    on_slow: Callable[[Any, float], object] | None = None
    #: A handler runs in the turn that has read its message: `on_slow` is told of the whole.
    is_measured: bool = False
    #: Called once, when the connection is lost and no handler runs for it any more.
    on_gone: Callable[[Session], object] | None = None
    #: Parses messages of `LONG` bytes or more.
    parse_long: incoming.ParseLong = incoming.parse_long

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    #: The transport; None before it is connected and after it is lost.
    channel: Channel | None = None
    phase: Phase = Phase.NEW
    #: Requests may be sent.
    is_open: bool = False
    #: False over HTTP, where the peer sends one message: there are neither events nor calls back.
    is_lasting: bool = True
    #: JSON values that follow each other in one message are messages of their own.
    splits_values: bool = False
    #: A method streams where the request permits items (None), always (True), or never (False).
    streaming: bool | None = None
    #: Who the peer is, as authentication found; None without.
    identity: Any = None
    #: Of the HTTP request or the WebSocket handshake, by lower-case names.
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    #: Seconds that the message had waited which is handled now.
    waited: float = 0.0
    #: Called with the params of each event (`$/event`) and the message they stood in.
    on_event: Callable[[dict[str, Any], bytes | bytearray], None] | None = None
    #: Called once when no more calls can be made: the peer sends nothing more, or the connection is lost.
    on_end: Callable[[], object] | None = None
    #: Called in order when the connection is lost.
    on_lost: list[Callable[[], object]] = field(default_factory=list)
    #: The peer has said that it reads no more requests (`$/goAway`), or this end has.
    peer_is_leaving: bool = False
    is_leaving: bool = False
    #: Binary frames are read here; the peer reads some; it is to be asked once a large payload is sent or has come.
    takes_binary: Binary = True
    sends_binary: bool = False
    offers_binary: bool = False
    #: Memory that payloads may go by, where the transport has some.
    shared: SharedMemory | None = None
    #: Of the server; None at a client.
    counters: Counters | None = None
    #: Makes what calls to the peer are made with.
    make_calls: Callable[[Any, Marshaller], OutgoingCalls] = OutgoingCalls
    #: The last of the calls that keep their order.
    last_in_order: asyncio.Future[None] | None = None

    #: Seconds that this connection may keep the loop before others have their turn.
    turn_time: float = field(init=False)
    #: Calls made here that wait for their reply.
    pending: PendingCalls = field(default_factory=PendingCalls)
    ledger: ConnectionLedger = field(init=False)
    running: RunningCalls = field(init=False)
    intake: Intake = field(init=False)
    streams: StreamTable = field(default_factory=StreamTable)
    #: Whether more may be sent now; producers wait at it.
    write_gate: WriteGate = field(init=False)

    #: Messages to send, written together at the end of the turn.
    outbox: list[Encoded] = field(default_factory=list)
    _calls: OutgoingCalls | None = None
    # Handlers begin in whatever callback has read their request, or made room for it: that may be another call's.
    context: Context = field(default_factory=free_context)

    def __post_init__(self) -> None:
        limits = self.limits
        # Not longer than `slow`, so that one look at the clock is enough for both.
        self.turn_time = min(TURN, self.slow)
        self.ledger = ConnectionLedger(limits, self.server_ledger)
        self.running = RunningCalls(self.ledger)
        self.intake = Intake(self)
        self.write_gate = WriteGate(limits.write_buffer)

    # -- from the transport -------------------------------------------------------------------------------------------

    def connected(self, channel: Channel, *, is_lasting: bool = True, splits_values: bool = False) -> None:
        """The connection stands.

        Args:
            channel: the transport.
            is_lasting: False: the peer sends one message, and cannot be asked anything.
            splits_values: JSON values that follow each other in one message are messages of their own.
        """
        self.channel = channel
        self.is_lasting = self.is_open = is_lasting
        self.splits_values = splits_values
        self.phase = Phase.OPEN
        self.intake.is_calm = True
        if not is_lasting:
            self.streams.end()

    def end(self, make_error: MakeError) -> None:
        """The peer sends nothing more: calls that wait for it fail; what is in flight is answered, then it closes."""
        self.pending.fail_all(make_error)
        self.streams.end()
        self.drain(Phase.CLOSING)  # what has come is handled

    def blocked(self, blocked: bool) -> None:
        """The peer does not read what is sent (or reads again): take up no requests from it meanwhile.

        Replies are handled all the same: perhaps it does not read because it waits until what it sends is read.
        """
        self.write_gate.set_stalled(blocked)
        self.intake.is_calm = False
        self.intake.wake()

    def lost(self, make_error: MakeError) -> None:
        """The connection is lost: calls that wait fail, and handlers are cancelled unless `Dispatch.goes_on`."""
        self.channel = None
        self.phase = Phase.LOST
        self._take_no_calls()
        self.intake.clear()
        self.outbox.clear()
        self.pending.fail_all(make_error)
        self.streams.end()
        self.write_gate.set_stalled(False)
        self.write_gate.written()
        if self._calls is not None:
            self._calls.stop()
        self.running.abandon(self.dispatch.goes_on)
        callbacks, self.on_lost = self.on_lost, []
        for function in callbacks:
            function()
        self._report_gone()

    # -- messages -----------------------------------------------------------------------------------------------------

    def begin(self, later: Waiting, message: Any, line: bytes) -> Encoded | None:
        """Run a handler that waits, in a task; gives its reply if it did not wait after all."""
        size = counted_size(line)
        if size and self.server_ledger.is_full and type(message) is dict:
            later.close()
            return self.dispatch.refuse(message, self.server_ledger.refusal())
        if sys.version_info >= (3, 12):
            self.is_measured = True
            try:
                task = asyncio.Task(later, loop=self.loop, eager_start=True, context=self.context.copy())
            finally:
                self.is_measured = False
            if task.done():
                return self._reply_of(task, message)
        else:
            task = self.loop.create_task(later, context=self.context.copy())
        self.running.start(task, message, size)
        task.add_done_callback(self._finished)
        if self.channel is None:  # the handler ended the connection before it waited for anything
            self.running.abandon(self.dispatch.goes_on)
        return None

    def _reply_of(self, task: asyncio.Task[Encoded | None], message: Any) -> Encoded | None:
        """The reply that a handler's task gave; of one that was cancelled, for whatever reason, an error."""
        try:
            return task.result()
        except asyncio.CancelledError:
            return self.dispatch.refuse(message, CallCancelled())
        except BaseException as error:
            self.break_off(error)
            return None

    def _finished(self, task: asyncio.Task[Encoded | None]) -> None:
        reply = self._reply_of(task, self.running.end(task))
        if self.channel is None:
            self._report_gone()
            return
        if type(reply) is AttachedMessage:
            self.write_attached(reply)
        elif reply is not None:
            self.outbox.append(reply)
        self.intake.wake()

    def finish(self, call: ForwardedCall, reply: Encoded | None) -> None:
        """End a forwarded call, with its reply. Only the first reply counts."""
        if not self.running.leave(call):
            return
        if self.channel is None:
            self._report_gone()
            return
        if reply is not None and self.intake.is_calm and not (self.outbox or self.running):
            self.channel.send([reply])  # there is nothing that it could be written with
            return
        if reply is not None:
            self.send(reply)
        self.intake.wake()  # there is room now, or nothing left to wait for

    # -- what may start, pause or close -------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something runs, waits to run, or waits to be written."""
        return bool(self.running or self.outbox or self.intake.queue or self.intake.rest)

    @property
    def is_unused(self) -> bool:
        """Nothing runs or waits, and nothing was left behind: another request may be received as the first was."""
        # A handler with a context, or streams, has the calls of its session; without those no call is pending.
        return self.intake.is_calm and self._calls is None and not (self.on_lost or self.streams or self.busy)

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> OutgoingCalls:
        """The calls made to the peer. May be set before the first of them."""
        if self._calls is None:
            address = self.channel.address if self.channel is not None else ""
            self._calls = self.make_calls(self, Marshaller(self.codec, self.limits, address, side=self.side))
            if self.sends_binary:
                self._calls.marshaller.attach_payloads()
        return self._calls

    @calls.setter
    def calls(self, calls: OutgoingCalls) -> None:
        self._calls = calls

    def reply(self, message: Encoded | None) -> None:
        """Have a reply, if there is one, or another short message written at the end of this turn."""
        if message is not None:
            self.outbox.append(message)
            self.intake.wake()

    def send(self, message: Encoded) -> None:
        """Send a message that is no reply to one just received; it is written with all others of this turn."""
        if self.channel is None:  # what is sent by a handler that goes on without its caller would pile up
            return
        if self.offers_binary and may_have_payload(message):
            offer_binary(self)
        if type(message) is AttachedMessage:
            self.write_attached(message)
            return
        self.outbox.append(message)
        self.write_gate.unsent += len(message)
        self.intake.wake()

    def write_attached(self, message: AttachedMessage, lent: Sequence[int] = ()) -> None:
        """Hand a message over at once: its payloads may be in use by others."""
        message.lent = lent
        if self.channel is not None:
            # Emptied, not replaced: what handles messages at the moment has the list in hand.
            messages = [*self.outbox, message]
            self.outbox.clear()
            self.channel.send(messages)

    # -- the end ------------------------------------------------------------------------------------------------------

    def drain(self, phase: Phase = Phase.DRAINING) -> None:
        """Take no more requests; replies are still taken. When nothing is in flight any more, close.

        Args:
            phase: `CLOSING` if requests that come until then are still handled.
        """
        self.phase = max(self.phase, phase)
        self._take_no_calls()
        self.intake.settle()

    def admit(self, identity: Any, dispatch: Dispatch) -> None:
        """The peer is authenticated: from now on this dispatcher answers its requests."""
        self.identity, self.dispatch = identity, dispatch
        self.intake.choose_answer()

    def go_away(self, reason: str) -> None:
        """Tell the peer which request was read last, and why no more are; then as `drain`."""
        if self.is_lasting and self.phase < Phase.DRAINING and self.channel is not None:
            self.is_leaving = True
            self.reply(envelope.go_away(self.intake.last_id, reason))
        self.drain()

    def refuse_waiting(self, until: float) -> bool:
        """Answer the requests that wait: they are not begun. Returns whether there were any.

        Args:
            until: the end of it (`perf_counter`, s).
        """
        error = CallCancelled(data={"executed": False, "reason": NOT_BEGUN})
        has_refused = False
        while self.channel is not None and self.intake.queue and perf_counter() < until:
            request, has_refused = self.intake.take(), True
            if request.message is not None:
                self.reply(self.dispatch.refuse(request.message, error))
        return has_refused

    def peer_leaves(self, last: Any, reason: str) -> None:
        """The peer reads no more requests: calls that it has not read fail, no more are made. Only the first counts.

        Args:
            last: the id of the last request that it read; as for `PendingCalls.take_unread`.
            reason: of the peer; one sentence.
        """
        if self.peer_is_leaving or self.channel is None:
            return
        self.peer_is_leaving = True
        unread, address = self.pending.take_unread(last), self.channel.address
        self._take_no_calls()
        for call in unread:
            call.fail(Unread(reason, method=call.method, address=address))
        self.intake.wake()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._take_no_calls()
        if self.channel is not None:
            self.channel.abort(reason)

    def break_off(self, error: BaseException) -> None:
        """Abort after an error of our own: what was answered is not known, so the conversation cannot go on."""
        log.error("closing a connection: a message could not be handled", exc_info=error)
        self.abort("an internal error")

    def _take_no_calls(self) -> None:
        self.is_open = self.intake.is_calm = False
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def _report_gone(self) -> None:
        if not self.running and self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone(self)
