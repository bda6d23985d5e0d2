"""One end of a conversation, on a connection it does not see.

Owns the order of things: which message is handled when, what runs at the moment, when the connection may close. A
message with a method goes to the dispatcher, a reply to the calls that wait. Knows neither sockets (a channel sends
for it) nor methods (a dispatcher answers for it).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import orjson

from ..errors import MethodNotFound, ParseError
from ..limits import Limits
from ..wire import envelope
from ..wire.framing import Message, Oversize
from .pending import PendingCalls

#: Seconds that one connection may keep the loop before the others have their turn.
TURN = 0.02

_loads: Callable[[Any], Any] = orjson.loads

#: What a handler that waits gives: the reply, later.
Later = Coroutine[Any, Any, bytes | None]


class Channel(Protocol):
    """What a transport does for a session."""

    def send(self, messages: list[bytes]) -> None:
        """Write these messages, in order, with one write."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""

    def close(self) -> None:
        """Write what is left, then close."""

    def abort(self, reason: str) -> None:
        """Close at once."""


class Dispatch(Protocol):
    """What answers requests: one parsed message in, one reply out, now or later."""

    def __call__(self, message: Any, line: bytes | bytearray) -> bytes | Later | None: ...

    def oversize(self, message: Oversize) -> bytes | None: ...

    def unreadable(self, error: ParseError) -> bytes | None: ...

    def took_long(self, message: Any, seconds: float) -> None: ...


class _Run(NamedTuple):
    """What a running handler counts for, and whether somebody waits for its reply."""

    calls: int
    awaited: bool


class Session:
    """The symmetric peer. A transport calls `connected` once, then `receive`, `end`, `blocked`; at last `lost`.

    Args:
        dispatch: answers the peer's requests; None for an end that offers no methods.
        limits: `max_calls` and `write_buffer` are enforced here.
        slow: seconds; a message that kept the loop for longer is reported to the dispatcher.
        on_gone: called once, when the connection is lost and nothing runs for it any more.
    """

    def __init__(
        self,
        dispatch: Dispatch | None,
        *,
        limits: Limits,
        slow: float = 0.1,
        on_gone: Callable[[Session], None] | None = None,
    ) -> None:
        self.pending = PendingCalls()
        self._dispatch = dispatch
        self._max_calls = limits.max_calls
        self._write_buffer = limits.write_buffer
        self._slow = slow
        self._on_gone = on_gone
        self._channel: Channel | None = None
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[bytes | None], _Run] = {}
        self._load = 0
        self._backlog: list[Message] = []
        self._outbox: list[bytes] = []
        self._blocked = False
        self._ending = False
        self._paused = False

    # -- what the transport says ------------------------------------------------------------------------------

    def connected(self, channel: Channel) -> None:
        self._channel = channel

    def receive(self, messages: list[Message]) -> None:
        """Whole messages in the order they came, all that came with one read."""
        if self._backlog or self._blocked:
            self._backlog.extend(messages)
            self._hold()
        else:
            self._work(messages)

    def end(self) -> None:
        """The peer sends no more requests: answer what is in flight, then close."""
        self._ending = True
        self._close_if_done()

    def blocked(self, blocked: bool) -> None:
        """The peer does not read its replies (or reads again): take nothing new from it meanwhile."""
        self._blocked = blocked
        if blocked:
            self._hold()
        else:
            self._go_on()

    def lost(self, make_error: Callable[[str], Exception]) -> None:
        """The connection is gone: calls that wait fail, handlers that work for it are cancelled.

        A notification's handler goes on: nobody waits for it, so nothing was lost for it.
        """
        self._channel = None
        self._backlog.clear()
        self._outbox.clear()
        self.pending.fail_all(make_error)
        for task, run in list(self._running.items()):
            if run.awaited:
                task.cancel()
        self._report_gone()

    # -- what the server or client says -----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something is being worked on, or waits to be."""
        return bool(self._running or self._backlog or self._outbox)

    def send(self, message: bytes) -> None:
        """Send a message that is no answer to one just received; written with all others of this turn."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def drain(self) -> None:
        """Take no new requests; answer those that were read, then close."""
        self._hold()
        self.end()

    def cancel_all(self) -> None:
        """Stop every handler that runs for this connection."""
        for task in list(self._running):
            task.cancel()

    # -- the way of a message ---------------------------------------------------------------------------------

    def _work(self, messages: list[Message]) -> None:
        """Handle messages in order; write the replies that are ready with one write.

        Stops early, and keeps the rest for later, when too many calls run, when too many replies wait to be written,
        or when the turn is over.
        """
        replies: list[bytes] = []
        size = 0
        began = before = perf_counter()
        reply: bytes | Later | None
        for position, line in enumerate(messages, 1):
            try:
                message = _loads(line)
            except orjson.JSONDecodeError:
                message, reply = None, self._unparsed(line, messages, position)
            else:
                reply = self._answer(message, line)
            if reply is not None and not isinstance(reply, bytes):
                reply = self._start(reply, message)
            if reply is not None:
                replies.append(reply)
                size += len(reply)
            now = perf_counter()
            if now - before > self._slow and self._dispatch is not None:
                self._dispatch.took_long(message, now - before)
            before = now
            if now - began > TURN or size > self._write_buffer or self._load >= self._max_calls:
                self._backlog.extend(messages[position:])
                break
        self._end_turn(replies)

    def _end_turn(self, replies: list[bytes]) -> None:
        """Write the replies; see whether more may be taken now, in a later turn, or when there is room."""
        if self._channel is None:
            self._backlog.clear()
            return
        if replies:
            if self._outbox:
                replies, self._outbox = self._outbox + replies, []
            self._channel.send(replies)
        if self._backlog or self._load >= self._max_calls:
            self._hold()
            if self._backlog and not self._blocked and self._load < self._max_calls:
                self._loop.call_soon(self._go_on)
        elif self._ending:
            self._close_if_done()

    def _answer(self, message: Any, line: Any) -> bytes | Later | None:
        """A message with a method is for the dispatcher, a reply for the calls that wait."""
        if type(message) is dict:
            if "method" not in message and ("result" in message or "error" in message):
                self.pending.settle(message, line)
                return None
        elif type(message) is list and message and self._are_replies(message):
            for member in message:
                self.pending.settle(member, line)
            return None
        if self._dispatch is not None:
            return self._dispatch(message, line)
        if type(message) is dict and "method" in message and message.get("id") is not None:
            return orjson.dumps(envelope.error_reply(message["id"], MethodNotFound()))
        return None

    @staticmethod
    def _are_replies(members: list[Any]) -> bool:
        return all(
            type(member) is dict and "method" not in member and ("result" in member or "error" in member)
            for member in members
        )

    def _unparsed(self, line: Message, messages: list[Message], position: int) -> bytes | None:
        """Not JSON: too long, several values without a delimiter, or an error."""
        if isinstance(line, Oversize):
            if self._dispatch is not None:
                return self._dispatch.oversize(line)
            self._give_up(f"the peer sent a message of {line.size} bytes or more, over max_message_size here")
            return None
        values = envelope.unreadable(line)
        if isinstance(values, list):
            messages[position:position] = values
            return None
        if self._dispatch is not None:
            return self._dispatch.unreadable(values)
        self._give_up(f"the peer sent something that is not JSON-RPC: {values}")
        return None

    def _give_up(self, reason: str) -> None:
        """An answer that cannot be read may have been any call's: none can be told to be safe."""
        if self._channel is not None:
            self._channel.abort(reason)

    def _start(self, later: Later, message: Any) -> bytes | None:
        """Run a handler that waits; its reply now, if it did not wait after all."""
        if sys.version_info >= (3, 12):
            task = asyncio.Task(later, loop=self._loop, eager_start=True)
            if task.done():
                return task.result()
        else:
            task = self._loop.create_task(later)
        # A batch counts with each of its members.
        run = _Run(len(message) if type(message) is list else 1, type(message) is list or "id" in message)
        self._running[task] = run
        self._load += run.calls
        task.add_done_callback(self._finished)
        return None

    def _finished(self, task: asyncio.Task[bytes | None]) -> None:
        self._load -= self._running.pop(task).calls
        if self._channel is None:
            self._report_gone()
        else:
            if not task.cancelled() and (reply := task.result()) is not None:
                self.send(reply)
            if self._backlog or self._paused:
                self._go_on()
            elif self._ending:
                self._close_if_done()

    # -- flow -------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Take up what was kept for later, as far as there is room."""
        if self._blocked or self._channel is None or self._load >= self._max_calls:
            return
        if self._backlog:
            messages, self._backlog = self._backlog, []
            self._work(messages)
        if self._ending:
            self._close_if_done()
        elif self._paused and not (self._backlog or self._blocked or self._load >= self._max_calls):
            self._paused = False
            self._channel.resume()

    def _hold(self) -> None:
        if not self._paused and self._channel is not None:
            self._paused = True
            self._channel.pause()

    def _flush(self) -> None:
        """Write the messages of this turn."""
        messages, self._outbox = self._outbox, []
        if messages and self._channel is not None:
            self._channel.send(messages)
        if self._ending:
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._channel is not None and not self.busy:
            self._channel.close()

    def _report_gone(self) -> None:
        if not self._running and self._on_gone is not None:
            on_gone, self._on_gone = self._on_gone, None
            on_gone(self)
