"""Calls made on one connection, in an event loop: sending, waiting, deadlines, giving up.

Does not know how a call is written (`marshal`), nor how its reply is found (`pending`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Any, Protocol

from ..errors import CallTimeout, EncodeError
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import Encoded
from .deadline import INFINITE
from .flow_control import StreamReceiver
from .marshal import Marshaller, Outgoing
from .pending import OnProgress, PendingCall, PendingCalls
from .stream_table import StreamTable
from .uploads import Uploads, holds_streams

log = get_logger("rpcstream.client")

#: Deadlines that are kept before those of calls that were answered are removed.
DEADLINES = 64

#: Seconds for which overdue calls are failed at a stretch, before the loop does other work.
SLICE = 0.01


class Conversation(Protocol):
    """What calls need of the conversation that they are made on."""

    @property
    def channel(self) -> object | None:
        """The transport; None once it is lost."""

    @property
    def pending(self) -> PendingCalls: ...

    @property
    def streams(self) -> StreamTable: ...

    def send(self, message: Encoded) -> None:
        """Send a message with the others of this turn."""


class ExtensibleCall(Protocol):
    """A call to whose request members can be added (`more`)."""

    more: Mapping[str, str]

    @property
    def call_ids(self) -> Sequence[int | str]: ...


class StreamTrace(Protocol):
    """Records one stream, from its first request to its end."""

    def start(self, call: ExtensibleCall) -> None:
        """The call is about to be sent; for another time if it is repeated. May add members to its request."""

    def end(self, error: Exception | None) -> None:
        """It is over: with an error, or at its end, or since its reader wants no more. Only the first time counts."""


class AwaitedCall(PendingCall):
    """A call that a coroutine awaits: its future gets the reply and the message that it stood in."""

    __slots__ = ("deadline", "future", "method", "on_progress")

    def __init__(
        self, future: asyncio.Future[Any], method: str, deadline: float, on_progress: OnProgress | None = None
    ) -> None:
        self.future = future
        self.method = method
        self.deadline = deadline
        self.on_progress = on_progress

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if not self.future.done():
            self.future.set_result((reply, line))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def when_over(self, function: Callable[[], object]) -> None:
        self.future.add_done_callback(lambda _: function())


class PendingStream(PendingCall):
    """A call that is answered by a stream: items, then the reply that ends it."""

    __slots__ = ("deadline", "line", "method", "on_progress", "receiver", "reply")

    def __init__(self, receiver: StreamReceiver, method: str, deadline: float, on_progress: OnProgress | None) -> None:
        self.receiver = receiver
        self.method = method
        self.deadline = deadline
        self.on_progress = on_progress
        self.reply: dict[str, Any] | None = None
        self.line: bytes | bytearray = b""

    def item(self, params: dict[str, Any], line: bytes | bytearray) -> bool:
        self.receiver.put((params, line))
        return True

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.reply, self.line = reply, line
        self.receiver.end()

    def fail(self, error: Exception) -> None:
        self.receiver.end(error)

    def when_over(self, function: Callable[[], object]) -> None:
        self.receiver.on_end = function


class OutgoingCalls:
    """The calls that are made on one conversation.

    Args:
        session: sends them.
        marshaller: writes calls and reads replies.

    Attributes:
        streaming: which methods stream, as far as the other end was asked.
    """

    __slots__ = (
        "_deadlines",
        "_last_number",
        "_loop",
        "_most_deadlines",
        "_session",
        "_timer",
        "_timer_at",
        "marshaller",
        "pending",
        "streaming",
    )

    def __init__(self, session: Conversation, marshaller: Marshaller) -> None:
        self.marshaller = marshaller
        self.pending: PendingCalls = session.pending
        self.streaming: dict[str, bool] = {}
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = INFINITE
        #: The deadlines of calls that wait, earliest first, and some of calls that do not any more; with a number, so
        #: that ids are never compared.
        self._deadlines: list[tuple[float, int, int | str]] = []
        self._last_number = 0
        self._most_deadlines = DEADLINES

    @property
    def streams(self) -> StreamTable:
        """The streams of the connection."""
        return self._session.streams

    def begin(self, outgoing: Outgoing, call: PendingCall) -> None:
        """Send a call; `call` gets its reply, or a CallTimeout when its deadline (loop time, s) has passed.

        Raises:
            CallTimeout: it has passed already. Nothing was sent.
            EncodeError, MessageTooLarge, ValueError: nothing was sent.
        """
        left = call.deadline - self._loop.time()
        if left <= 0:
            raise CallTimeout("no time left", method=outgoing.method, address=self.marshaller.address)
        outgoing.enter(self.pending, call, self._loop.call_soon)
        try:
            try:
                self._send_call(outgoing, call, left)
            except EncodeError:
                # Only now: a look at every argument of every call would cost all those that have no streams.
                if not holds_streams(outgoing.params):
                    raise
                self._begin_with_streams(outgoing, call, left)
        except BaseException:
            outgoing.leave(self.pending)
            raise
        if call.deadline != INFINITE:
            for call_id in outgoing.call_ids:
                self.expect(call_id, call.deadline)

    def expect(self, call_id: int | str, deadline: float) -> None:
        """Watch over the deadline (loop time, s; not infinite) of a call that was entered under this id."""
        self._last_number += 1
        heappush(self._deadlines, (deadline, self._last_number, call_id))
        if len(self._deadlines) > self._most_deadlines:
            self._sweep()
        if deadline < self._timer_at:
            self._watch(deadline)

    def give_up(self, outgoing: Outgoing) -> None:
        """Wait no longer for the reply, and cancel the call at the other end. Harmless at any time."""
        self.cancel(outgoing.leave(self.pending))

    def _send_call(self, outgoing: Outgoing, call: PendingCall, left: float) -> None:
        """Encode and send a call that was entered; `left` as in `Outgoing.encode`."""
        self._session.send(outgoing.encode(left))

    def _begin_with_streams(self, outgoing: Outgoing, call: PendingCall, left: float) -> None:
        """Send a call with streams among its arguments."""

        def fail(error: Exception) -> None:
            self.give_up(outgoing)
            call.fail(error)

        uploads = Uploads(self.streams, partial(self._send_item, outgoing), fail)
        outgoing.params, outgoing.is_repeatable = uploads.replaced(outgoing.params), False
        self._send_call(outgoing, call, left)
        uploads.start()
        call.when_over(uploads.stop)

    def _send_item(self, outgoing: Outgoing, message: dict[str, Any]) -> None:
        """Send an item of an argument of a call, or what ends them."""
        self.send(self.marshaller.encode(message, outgoing.method))

    async def ask(self, outgoing: Outgoing, deadline: float, on_progress: OnProgress | None = None) -> Any:
        """Make a call and wait for its outcome; being cancelled gives it up.

        Raises what `begin` and `Outgoing.outcome` raise, ConnectionLost, and CallTimeout.
        """
        call = AwaitedCall(self._loop.create_future(), outgoing.method, deadline, on_progress)
        self.begin(outgoing, call)
        try:
            reply, line = await call.future
        except BaseException:
            self.give_up(outgoing)
            raise
        return outgoing.outcome(reply, line)

    async def call(self, outgoing: Outgoing, deadline: float, on_progress: OnProgress | None = None) -> Any:
        """As `ask`, for a call that a user makes."""
        return await self.ask(outgoing, deadline, on_progress)

    def notification(self, method: str, params: list[Any] | dict[str, Any] | None) -> Encoded:
        """The bytes of a notification that a user sends. Raises what `Marshaller.encode` raises."""
        return self.marshaller.notification(method, params)

    def stream_trace(self, method: str) -> StreamTrace | None:
        """What records a stream that a user reads; None: nothing does."""
        return None

    def send(self, message: Encoded) -> None:
        """Send a message that has no reply."""
        self._session.send(message)

    def notify(self, message: Encoded, method: str) -> None:
        """Send a notification of this method."""
        self._session.send(message)

    def permit(self, outgoing: Outgoing, n: int) -> None:
        """Tell the other end that it may send `n` more items of this call's result."""
        for call_id in outgoing.call_ids:
            self._session.send(envelope.credit({"id": call_id}, n))

    def cancel(self, call_ids: list[int | str]) -> None:
        """Cancel these calls at the other end."""
        if self._session.channel is not None:
            for call_id in call_ids:
                self._session.send(envelope.cancel(call_id))

    def report(self, call: PendingCall, params: dict[str, Any], line: bytes | bytearray) -> None:
        """Call `on_progress` of a call with what its handler reports. What that raises is logged, and ends nothing."""
        if call.on_progress is None:
            return
        try:
            call.on_progress(self.marshaller.member(call.method, params, line, "value"))
        except Exception:
            log.exception("on_progress of a call of %r failed", call.method)

    def stop(self) -> None:
        """Stop watching over deadlines, since the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail the calls whose deadline has passed."""
        self._timer, self._timer_at = None, INFINITE
        deadlines, now = self._deadlines, self._loop.time()
        end = perf_counter() + SLICE
        while deadlines and deadlines[0][0] <= now:
            deadline, _, call_id = heappop(deadlines)
            call = self.pending.find(call_id)
            if call is None or call.deadline != deadline:
                continue  # it was answered
            self.pending.discard(call_id)
            self.cancel([call_id])
            call.fail(CallTimeout("no answer in time", method=call.method, address=self.marshaller.address))
            if perf_counter() > end:
                break  # many calls with the same deadline: other work first
        if deadlines:
            self._watch(deadlines[0][0])

    def _sweep(self) -> None:
        """Remove the deadlines of calls that were answered; seldom enough that each call pays for a look-up at most."""
        find = self.pending.find
        kept = [entry for entry in self._deadlines if find(entry[2]) is not None]
        heapify(kept)
        self._deadlines, self._most_deadlines = kept, max(DEADLINES, 2 * len(kept))
