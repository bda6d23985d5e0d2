"""Calls made on one connection, in an event loop: sending, streams as arguments, waiting, deadlines, giving up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ..codec import TAG_KEY
from ..errors import CallTimeout, ConnectionLost, EncodeError, InternalError, RpcError
from ..wire import envelope
from ..wire.buffers import Encoded
from .calls import Call
from .control_messages import argument_key
from .deadline import INFINITE
from .flow_control import StreamSender
from .marshal import Marshaller
from .pending import OnProgress, PendingCall, PendingCalls

#: The tag of what stands for a stream among the params.
STREAM_TAG = "stream"

#: Encodes a notification and sends it.
Send = Callable[[dict[str, Any]], None]

_END: Any = object()

#: Called with what an iterator raised: then the call cannot be carried out as it was meant.
Fail = Callable[[Exception], None]


def is_stream(value: object) -> bool:
    """Whether an argument is sent item by item: an iterator, sync or async; no container, and no open binary file."""
    kind = type(value)
    if hasattr(kind, "__next__"):  # a file's items are its lines; what can be read into memory is an image
        return not hasattr(kind, "readinto")
    return hasattr(kind, "__anext__") or hasattr(kind, "__aiter__")


def holds_streams(params: Any) -> bool:
    """Whether one of the arguments of a call is a stream."""
    return any(map(is_stream, params.values() if isinstance(params, dict) else params or ()))


def replaced(params: Any, new_token: Callable[[], str]) -> tuple[Any, dict[str, Any]]:
    """The params with a tagged object in the place of each stream, and the streams by their tokens."""
    sources: dict[str, Any] = {}

    def placed(value: Any) -> Any:
        if not is_stream(value):
            return value
        token = new_token()
        sources[token] = value
        return {TAG_KEY: STREAM_TAG, "id": token}

    if isinstance(params, dict):
        return {name: placed(value) for name, value in params.items()}, sources
    return [placed(value) for value in params], sources


def start_uploads(sources: dict[str, Any], session: Any, send: Send, fail: Fail) -> Callable[[], None]:
    """Send the items of the streams of a call that was sent, as soon as there is credit. Gives what stops that."""
    tasks = []
    for token, source in sources.items():
        key, sender = argument_key(token), StreamSender(session.write_gate, 0)
        session.streams.add_sender(key, sender)
        task = session.loop.create_task(_send_items(token, source, sender, send, fail))
        # Not in the task itself, which may be cancelled before its first step.
        task.add_done_callback(lambda _, key=key, sender=sender: session.streams.remove_sender(key, sender))
        tasks.append(task)

    def stop() -> None:
        for task in tasks:
            task.cancel()

    return stop


async def _send_items(token: str, source: Any, sender: StreamSender, send: Send, fail: Fail) -> None:
    is_async = hasattr(type(source), "__aiter__")
    items = aiter(source) if is_async else source
    try:
        while True:
            await sender.wait_for_credit()
            item = await anext(items, _END) if is_async else next(items, _END)
            if item is _END:
                send(envelope.end(token))
                return
            send(envelope.request(envelope.ITEM, {"stream": token, "value": item}))
    except Exception as error:
        told = error if isinstance(error, RpcError) else InternalError("The caller's stream broke off")
        with contextlib.suppress(EncodeError, RpcError):  # the error's data may be what cannot be sent
            send(envelope.end(token, told))
        fail(error)
    finally:
        close = getattr(items, "aclose" if is_async else "close", None)
        closing = close() if close is not None else None
        if is_async and closing is not None:
            await closing


#: Seconds for which overdue calls are failed at a stretch, before the loop does other work.
SLICE = 0.01

#: The table of pending calls is looked through for overdue ones in at most this part of the time.
LOOKING = 0.1


@dataclass(slots=True, eq=False)
class AwaitedCall(PendingCall):
    """A call that a coroutine awaits: its future gets the reply and the message that it stood in."""

    future: asyncio.Future[Any]
    method: str
    deadline: float
    on_progress: OnProgress | None = None

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if not self.future.done():
            self.future.set_result((reply, line))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def when_over(self, function: Callable[[], object]) -> None:
        self.future.add_done_callback(lambda _: function())


class OutgoingCalls:
    """The calls that are made on one conversation.

    Args:
        session: sends them.
        marshaller: writes calls and reads replies.

    Attributes:
        tracing: `tracing.CallTracing`, which makes the spans of calls that users make; None: they have none.
    """

    __slots__ = ("_loop", "_session", "_timer", "_timer_at", "marshaller", "pending", "tracing")

    def __init__(self, session: Any, marshaller: Marshaller) -> None:
        self.marshaller = marshaller
        self.tracing: Any = None
        self.pending: PendingCalls = session.pending
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = INFINITE

    def begin(self, outgoing: Call, call: PendingCall) -> None:
        """Send a call; `call` gets its reply, or a CallTimeout when its deadline (loop time, s) has passed.

        Raises:
            CallTimeout: it has passed already. Nothing was sent.
            EncodeError, MessageTooLarge, ValueError: nothing was sent.
        """
        left = call.deadline - self._loop.time()
        if left <= 0:
            raise CallTimeout("no time left", method=outgoing.method, address=self.marshaller.address)
        outgoing.enter(self.pending, call)
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
        if call.deadline < self._timer_at:
            self.expect(call.deadline)

    def give_up(self, outgoing: Call) -> None:
        """Wait no longer for the reply, and cancel the call at the other end. Harmless at any time."""
        self.cancel(outgoing.leave(self.pending))

    def _send_call(self, outgoing: Call, call: PendingCall, left: float) -> None:
        """Encode and send a call that was entered; `left` as in `Call.encode`."""
        self._session.send(outgoing.encode(left))

    def _begin_with_streams(self, outgoing: Call, call: PendingCall, left: float) -> None:
        """Send a call with streams among its arguments."""

        def fail(error: Exception) -> None:
            self.give_up(outgoing)
            call.fail(error)

        def send(message: dict[str, Any]) -> None:
            self._send_item(outgoing, message)

        outgoing.params, sources = replaced(outgoing.params, self._session.streams.new_token)
        outgoing.is_repeatable = False
        self._send_call(outgoing, call, left)
        call.when_over(start_uploads(sources, self._session, send, fail))

    def _send_item(self, outgoing: Call, message: dict[str, Any]) -> None:
        """Send an item of an argument of a call, or what ends them."""
        self._session.send(self.marshaller.encode(message, outgoing.method))

    async def ask(self, outgoing: Call, deadline: float, on_progress: OnProgress | None = None) -> Any:
        """Make a call and wait for its outcome; being cancelled gives it up.

        Raises what `begin` and `Call.outcome` raise, ConnectionLost, and CallTimeout.
        """
        call = self.start(outgoing, deadline, on_progress)
        try:
            reply, line = await call.future
        except BaseException:
            self.give_up(outgoing)
            raise
        return outgoing.outcome(reply, line)

    def start(self, outgoing: Call, deadline: float, on_progress: OnProgress | None = None) -> AwaitedCall:
        """Send a call whose reply is awaited, as `begin`. Who waits no longer calls `give_up`."""
        call = AwaitedCall(self._loop.create_future(), outgoing.method, deadline, on_progress)
        self.begin(outgoing, call)
        return call

    async def call(self, outgoing: Call, deadline: float, on_progress: OnProgress | None = None) -> Any:
        """As `ask`, for a call that a user makes."""
        if self.tracing is None:
            return await self.ask(outgoing, deadline, on_progress)
        with self.tracing.begin(outgoing):
            return await self.ask(outgoing, deadline, on_progress)

    def notification(self, method: str, params: list[Any] | dict[str, Any] | None) -> Encoded:
        """The bytes of a notification that a user sends. Raises what `Marshaller.encode` raises."""
        if self.tracing is None:
            return self.marshaller.notification(method, params)
        return self.tracing.notification(self.marshaller, method, params)  # type: ignore[no-any-return]

    def notify(self, message: Encoded, method: str) -> None:
        """Send a notification of this method."""
        self._session.send(message)

    def permit(self, outgoing: Call, n: int) -> None:
        """Tell the other end that it may send `n` more items of this call's result."""
        self._session.send(envelope.credit({"id": outgoing.call_id}, n))

    def cancel(self, call_ids: list[int | str]) -> None:
        """Cancel these calls at the other end."""
        if self._session.channel is not None:
            for call_id in call_ids:
                self._session.send(envelope.cancel(call_id))

    def fail_all(self, reason: str) -> None:
        """Fail the calls that wait, since this end closes the connection, and cancel them at the other end."""
        self.cancel([call_id for call_id, _ in self.pending.items()])
        address = self.marshaller.address
        self.pending.fail_all(lambda method: ConnectionLost(reason, method=method, address=address))

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop watching over deadlines, since the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def expect(self, deadline: float) -> None:
        """Look for overdue calls when this deadline of a call (loop time, s) has passed, or earlier."""
        if deadline < self._timer_at:
            self.stop()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._expire)

    def missing(self, call_id: int | str) -> str:
        """What a call waits for, for the error when its time is over."""
        return "answer"

    def _expire(self) -> None:
        """Fail the calls whose deadline has passed."""
        # The timer may fire a tick of the clock early.
        now, earliest = max(self._loop.time(), self._timer_at), INFINITE
        self._timer_at, began = INFINITE, perf_counter()
        overdue = []
        for call_id, call in self.pending.items():
            if call.deadline > now:
                earliest = min(earliest, call.deadline)
            else:
                overdue.append((call_id, call))
        looked = perf_counter()
        for call_id, call in overdue:
            if perf_counter() - looked > SLICE:
                earliest = now  # many calls with the same deadline: other work first
                break
            if self.pending.discard(call_id):
                reason = self.missing(call_id)
                self.cancel([call_id])
                call.fail(CallTimeout(f"no {reason} in time", method=call.method, address=self.marshaller.address))
        if earliest < INFINITE:
            self.expect(max(earliest, now + (looked - began) / LOOKING))
