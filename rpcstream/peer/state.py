"""The state of one conversation: its calls, its streams, its limits, who the peer is, and what is sent to it.

Owns what everything below and above a session may ask of a conversation, and the messages on their way to the
transport. Does not know in which order messages are handled (`session`), nor what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..codec import Codec
from ..codec.payloads import may_have_payload
from ..errors import RpcError, ServerBusy, Unread
from ..limits import Limits
from ..observe.counters import Counters
from ..shared_memory import SharedMemory
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.json_scan import SpreadValue
from ..wire.messages import LONG
from .deadline import free_context
from .inflight import ForwardedCall, RunningCalls
from .interfaces import Channel
from .marshal import Marshaller
from .memory import MessageMemory
from .naming import MethodFacts
from .outgoing import OutgoingCalls
from .pending import PendingCalls
from .request_queue import RequestQueue, busy
from .slices import TURN
from .stream_table import StreamTable
from .write_gate import WriteGate

#: Why a request that had come is answered with an error when the server stops.
NOT_BEGUN = "the server stopped before it began the call"

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

#: Called with the params of an event (`$/event`) and the message they stood in.
OnEvent = Callable[[dict[str, Any], bytes | bytearray], None]


class ConversationState:
    """The state of one conversation; `Session` adds the order in which messages are handled.

    Args:
        codec: encodes and decodes values.
        limits: `max_calls`, `max_held_size` and `write_buffer` are looked at here.
        side: what this end is called in errors about its limits, "server" or "client".
        memory: shared by all sessions of a server; None: one of its own.
        slow: seconds; a message that keeps the loop for longer is reported.
        on_gone: called with this object once, when the connection is lost and no handler runs for it any more.

    Attributes:
        channel: the transport; None before it is connected and after it is lost.
        is_open: requests may be sent.
        is_lasting: False over HTTP, where the peer sends one message: there are neither events nor calls back.
        is_lines: a message is one line.
        spread: what follows of a value that the peer has written over several lines, and that was answered with an
            error; None while there is none.
        splits_values: JSON values that follow each other in one message are messages of their own.
        pending: calls made here that wait for their reply.
        running: calls of the peer that run.
        queue: calls of the peer that wait until there is room for them.
        streams: in both directions.
        write_gate: whether more may be sent now; producers wait at it.
        streaming: None: methods stream where the request permits items; True: always, as fast as the connection takes
            them; False: never.
        identity: who the peer is, as authentication found; None without.
        headers: of the HTTP request or the WebSocket handshake, by lower-case names.
        began: when the message that is handled now was taken up (`perf_counter`, s); for a batch: its first member.
        waited: seconds that the message that is handled now was kept waiting.
        turn_time: seconds that this connection may keep the loop before others have their turn.
        holds: what keeps requests from being taken up, whatever room there is for calls; each is done when it is over.
        on_event: called with each event.
        is_leaving: this end has said that it reads no more requests (`$/goAway`).
        peer_is_leaving: the peer has said that it reads no more requests (`$/goAway`).
        takes_binary: binary frames of the peer are read.
        sends_binary: the peer has said that it reads binary frames: messages with large payloads are sent as such.
        offers_binary: say the same to the peer once a large payload is sent or received.
        shares_memory: payloads may go by shared memory, where the transport has some.
        shared: that memory; None where there is none.
        known_methods: what `rpc.discover` of the other end said; None: it was not asked.
        counters: of the server; None at a client.
        make_calls: makes what calls to the peer are made with; the conversation and a marshaller are given.
    """

    # Slots: of so many attributes each is found faster so, and an idle connection takes half the memory.
    __slots__ = (
        "__weakref__",
        "_calls",
        "_context",
        "_is_calm",
        "_last_in_order",
        "_max_calls",
        "_max_held",
        "_on_end",
        "_on_gone",
        "_on_lost",
        "_outbox",
        "_scheduled",
        "began",
        "channel",
        "codec",
        "counters",
        "headers",
        "holds",
        "identity",
        "is_lasting",
        "is_leaving",
        "is_lines",
        "is_open",
        "known_methods",
        "limits",
        "loop",
        "make_calls",
        "memory",
        "offers_binary",
        "on_event",
        "peer_is_leaving",
        "pending",
        "queue",
        "running",
        "sends_binary",
        "shared",
        "shares_memory",
        "side",
        "slow",
        "splits_values",
        "spread",
        "streaming",
        "streams",
        "takes_binary",
        "turn_time",
        "waited",
        "write_gate",
    )

    def __init__(
        self,
        *,
        codec: Codec,
        limits: Limits,
        side: str,
        memory: MessageMemory | None,
        slow: float,
        on_gone: Callable[[Any], object] | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.codec = codec
        self.limits = limits
        self.side = side
        self.slow = slow
        # Not longer than `slow`, so that one look at the clock is enough for both.
        self.turn_time = min(TURN, slow)
        self.memory = MessageMemory(limits.max_held_total, limits.max_unread_total) if memory is None else memory
        self.pending = PendingCalls()
        self.running = RunningCalls(self.memory)
        self.write_gate = WriteGate(limits.write_buffer)
        self.streams = StreamTable(self.write_gate, self.memory)
        self.queue = RequestQueue(limits, self.memory)
        self.channel: Channel | None = None
        self.is_open = False
        self.is_lasting = True
        self.splits_values = self.is_lines = False
        self.spread: SpreadValue | None = None
        self.streaming: bool | None = None
        self.identity: Any = None
        self.headers: Mapping[str, str] = NO_HEADERS
        self.began = self.waited = 0.0
        self.holds: list[asyncio.Future[None]] = []
        self.on_event: OnEvent | None = None
        self.is_leaving = self.peer_is_leaving = False
        self.takes_binary, self.sends_binary, self.offers_binary = True, False, False
        self.shares_memory = True
        self.shared: SharedMemory | None = None
        self.known_methods: dict[str, MethodFacts] | None = None
        self.counters: Counters | None = None
        self.make_calls: Callable[[ConversationState, Marshaller], OutgoingCalls] = OutgoingCalls
        self._on_end: Callable[[], object] | None = None
        self._on_lost: list[Callable[[], object]] = []
        self._on_gone = on_gone
        self._calls: OutgoingCalls | None = None
        #: The last of the calls that keep their order.
        self._last_in_order: asyncio.Future[None] | None = None
        self._max_calls = limits.max_calls
        self._max_held = limits.max_held_size
        #: Messages to send, written together at the end of the turn.
        self._outbox: list[Encoded] = []
        # Handlers begin in whatever callback has read their request, or made room for it: that may be another call's.
        self._context = free_context()
        #: A turn is due.
        self._scheduled = False
        #: Connected, reading, not ending, no requests that wait, and room for calls: nothing needs to be decided.
        self._is_calm = False

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> OutgoingCalls:
        """The calls made to the peer."""
        if self._calls is None:
            address = self.channel.address if self.channel is not None else ""
            self._calls = self.make_calls(self, Marshaller(self.codec, self.limits, address, side=self.side))
            if self.sends_binary:
                self._calls.marshaller.attach_payloads()
        return self._calls

    def use(self, calls: OutgoingCalls) -> None:
        """Make the calls to the peer in this way; said before the first of them."""
        self._calls = calls

    def send(self, message: Encoded) -> None:
        """Send a message that is no reply to one just received; it is written with all others of this turn."""
        if self.channel is None:  # what is sent by a handler that goes on without its caller would pile up
            return
        if self.offers_binary and may_have_payload(message):
            self.offer_binary(message)
        if type(message) is AttachedMessage:
            self._write_attached(message)
            return
        self._outbox.append(message)
        self.write_gate.unsent += len(message)
        self._schedule()

    def pass_on(self, message: Encoded) -> None:
        """Send a message that has just come on another connection: a long one at once, while caches have it."""
        if len(message) < LONG or self.write_gate.stalled or self.channel is None:
            self.send(message)
            return
        # Emptied, not replaced: what handles messages at the moment has the list in hand.
        messages = [*self._outbox, message]
        self._outbox.clear()
        self.channel.send(messages)

    def _write_attached(self, message: AttachedMessage, lent: Sequence[int] = ()) -> None:
        """Hand a message over at once, with what was to be sent before it: its payloads may be in use by others."""
        if self.channel is None:
            return
        messages = [*self._outbox, message]
        self._outbox.clear()
        message.lent = lent
        self.channel.send(messages)

    def offer_binary(self, message: Encoded = b"") -> None:
        """Say that binary frames are read here, and ask the peer whether it reads some; its answer is not waited for.

        Not said before there is a large payload on the connection, so that peers without any never see it.

        Args:
            message: is sent next; empty where it is said behind a payload that has come.
        """
        self.offers_binary = False
        if self.channel is not None and self.is_lasting:
            ring = self.shared.offer() if self.shared is not None else None
            self._outbox.append(self.pending.add_offer(self._use_binary, message, ring))
            self._schedule()

    def _use_binary(self, answer: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Send binary frames from now on, by shared memory if the answer of the peer permits."""
        self.sends_binary = True
        if self._calls is not None:
            self._calls.marshaller.attach_payloads()
        if self.shared is not None and self.side == "client":
            self.shared.accept(answer.get("shm"))

    def peer_reads_binary(self, ring: Any = None) -> dict[str, Any] | None:
        """The peer has said that it reads binary frames.

        Args:
            ring: the shared memory that it offers; None: it has none.

        Returns:
            The shared memory of this end; None if there is none, or not for this peer.
        """
        if not self.takes_binary:
            return None
        self._use_binary()
        return self.shared.answer(ring) if self.shared is not None else None

    def add_reply(self, reply: Encoded | None) -> None:
        """Have a reply written at the end of the turn that is going on."""
        if reply is not None:
            self._outbox.append(reply)

    def finish(self, call: ForwardedCall, reply: Encoded | None) -> None:
        """End a forwarded call, with its reply. Only the first reply counts."""
        if not self.running.leave(call):
            return
        if self.channel is None:
            self._report_gone()
            return
        if reply is not None and self._is_calm and not (self._outbox or self.running):
            self.channel.send([reply])  # there is nothing that it could be written with
            return
        if reply is not None:
            self.pass_on(reply)
        if not self._is_calm:  # there is room now, or nothing left to wait for
            self._schedule()

    @property
    def calls_in_flight(self) -> int:
        """How many calls of the peer run here or elsewhere; a batch counts with each member."""
        return self.running.load - len(self.holds) * self._max_calls  # as `hold` adds them

    # -- room for calls -----------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether requests may be taken up now."""
        return (
            not self.write_gate.stalled and self.running.load < self._max_calls and self.running.held < self._max_held
        )

    def must_read(self) -> bool:
        """Whether the connection must be read although there is no room, since something that runs waits for the peer.

        Also while the peer does not read: it may be waiting for the very same. (Not for credit, then, since no item
        could be sent.)
        """
        streams = self.streams
        if self.has_room():  # then what waits is taken up without that
            return False
        return bool(self.pending or streams.receivers or (streams.senders and not self.write_gate.stalled))

    def no_room(self) -> ServerBusy:
        """The error for a request for which there is no room."""
        if self.running.load < self._max_calls and self.running.held >= self._max_held:
            return busy(self._max_held, "max_held_size")
        return busy(self._max_calls, "max_calls")

    def hold(self) -> asyncio.Future[None]:
        """Take up no requests, until `release`."""
        hold = self.loop.create_future()
        self.holds.append(hold)
        self.running.load += self._max_calls
        self._is_calm = False
        return hold

    def release(self, hold: asyncio.Future[None]) -> None:
        """Take up requests again, those that wait first, behind the reply that is being made."""
        self.loop.call_soon(self._released, hold, context=self._context)

    def _released(self, hold: asyncio.Future[None]) -> None:
        self.holds.remove(hold)
        self.running.load -= self._max_calls
        hold.set_result(None)
        self._schedule()

    def next_in_order(self) -> tuple[asyncio.Future[None] | None, asyncio.Future[None]]:
        """Enter one more of the calls that keep their order; gives the future of the call before, and its own."""
        before, self._last_in_order = self._last_in_order, self.loop.create_future()
        return before, self._last_in_order

    def set_waited(self, seconds: float) -> None:
        """Say how long the requests that are taken up next were kept waiting."""
        self.waited = seconds

    # -- who the peer is ----------------------------------------------------------------------------------------------

    def set_identity(self, identity: Any) -> None:
        """The peer is authenticated."""
        self.identity = identity

    def set_request(
        self, identity: Any, headers: Mapping[str, str], *, streaming: bool | None = None, binary: bool = False
    ) -> None:
        """Say what the HTTP request or WebSocket handshake tells of the peer (see the attributes).

        Args:
            binary: the reply may be a binary frame.
        """
        self.sends_binary = binary
        self.identity = identity
        self.headers = headers
        self.streaming = streaming

    # -- the end ------------------------------------------------------------------------------------------------------

    def add_lost_callback(self, function: Callable[[], object]) -> None:
        """Call this once when the connection is lost, after those that were added before."""
        self._on_lost.append(function)

    def set_end_callback(self, function: Callable[[], object]) -> None:
        """Call this once when no more calls can be made: the peer sends nothing more, or the connection is lost."""
        self._on_end = function

    def set_event_callback(self, function: OnEvent) -> None:
        """Call this with each event (`$/event`)."""
        self.on_event = function

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
        self._schedule()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._take_no_calls()
        if self.channel is not None:
            self.channel.abort(reason)

    def _take_no_calls(self) -> None:
        self.is_open = self._is_calm = False
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def _report_gone(self) -> None:
        if not self.running and self._on_gone is not None:
            on_gone, self._on_gone = self._on_gone, None
            on_gone(self)

    # -- what a session knows besides -------------------------------------------------------------------------------

    def refusal_of(self, message: dict[str, Any]) -> RpcError | None:
        """As `Dispatch.refusal_of`."""
        raise NotImplementedError

    # -- turns --------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Have a turn soon; one, however often this is called."""
        if not self._scheduled and self.channel is not None:
            self._scheduled = True
            self.loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        """Take up requests that wait, and write the outbox. Clears `_scheduled`."""
        raise NotImplementedError


class Hold:
    """Keeps a conversation from taking up requests, until it is released or dropped."""

    __slots__ = ("_hold", "_state")

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._hold: asyncio.Future[None] | None = state.hold()

    def release(self) -> None:
        """Let requests be taken up again. Harmless at any time."""
        hold, self._hold = self._hold, None
        if hold is not None and not self._state.loop.is_closed():
            self._state.release(hold)

    def __del__(self) -> None:
        # Of a call that was cancelled before its first step, of which nothing ever runs. In any thread.
        if self._hold is not None and not self._state.loop.is_closed():
            self._state.loop.call_soon_threadsafe(self._state.release, self._hold)
