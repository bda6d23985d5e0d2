"""One end of a conversation, on a connection it does not see.

Owns the order of things: which message is handled when, what runs at the moment, when the connection may close. A
message with a method goes to the dispatcher, a reply to the calls that wait. Knows neither sockets (a channel sends
for it) nor methods (a dispatcher answers for it).
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Protocol

import orjson

from ..errors import ParseError
from ..limits import Limits
from ..wire import envelope
from ..wire.framing import LONG, Message, Oversize
from ..wire.pieces import Written
from .pending import PendingCalls

log = logging.getLogger("rpcstream.server")

#: Seconds that one connection may keep the loop before the others have their turn.
TURN = 0.02

_loads: Callable[[Any], Any] = orjson.loads

ParseLong = Callable[[bytes], tuple[Any, bytes]]

#: What a handler that waits gives: the reply, later.
Later = Coroutine[Any, Any, Written | None]


class Channel(Protocol):
    """What a transport does for a session."""

    def send(self, messages: list[Written]) -> None:
        """Write these messages, in order, with one write. May call `blocked` before it returns."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read again."""

    def close(self) -> None:
        """Write what is left, then close; what is still received is dropped."""

    def abort(self, reason: str) -> None:
        """Close at once."""


class Dispatch(Protocol):
    """What answers requests: one parsed message in, one reply out, now or later."""

    def answer(self, message: Any, line: bytes | bytearray) -> Written | Later | None: ...

    def oversize(self, message: Oversize) -> Written | None: ...

    def unreadable(self, error: ParseError) -> Written | None: ...

    def cancelled(self, message: Any) -> Written | None: ...

    def took_long(self, message: Any, seconds: float) -> None: ...


class Session:
    """The symmetric peer. A transport calls `connected` once, then `receive`, `end`, `blocked`; at last `lost`.

    Messages are handled as they come, and kept in a backlog while there is no room for more; then the transport is
    asked to read no more. `_settle` decides all of that in one place, after every change.

    Args:
        dispatch: answers the peer's requests.
        parse_long: parses a message of `LONG` bytes or more; gives it, and the line to look at further.
        limits: `max_calls` and `write_buffer` are enforced here.
        slow: seconds; a message that kept the loop for longer is reported to the dispatcher.
        on_gone: called once, when the connection is lost and nothing runs for it any more.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        parse_long: ParseLong,
        limits: Limits,
        slow: float = 0.1,
        on_gone: Callable[[Session], None] | None = None,
    ) -> None:
        self.pending = PendingCalls()
        self._dispatch = dispatch
        self._parse_long = parse_long
        self._answer: Callable[[Any, Any], Written | Later | None] = dispatch.answer
        self._max_calls = limits.max_calls
        self._write_buffer = limits.write_buffer
        self._slow = slow
        # Not longer than `slow`, so that one look at the clock is enough for both.
        self._turn_time = min(TURN, slow)
        self._on_gone = on_gone
        self._channel: Channel | None = None
        self._loop = asyncio.get_running_loop()
        #: The handlers at work, and the messages they work for; how many calls that are.
        self._running: dict[asyncio.Task[Written | None], Any] = {}
        self._load = 0
        self._backlog: list[Message] = []
        self._outbox: list[Written] = []
        #: The peer does not read; it sends no more (or is not listened to); it is not read; a turn is due.
        self._blocked = False
        self._ending = False
        self._paused = False
        self._scheduled = False
        #: Connected, none of these, no backlog, and room for calls: `_regulate` would find nothing to do.
        self._is_calm = False

    # -- what the transport says ------------------------------------------------------------------------------------

    def connected(self, channel: Channel) -> None:
        self._channel = channel
        self._is_calm = True

    def receive(self, messages: list[Message]) -> None:
        """Whole messages in the order they came, all that came with one read. After `end` they are dropped."""
        if self._is_calm:
            self._work(messages)
        elif self._ending:
            return
        elif self._backlog or not self._has_room():
            self._backlog += messages
        else:
            self._work(messages)
        self._settle()

    def end(self) -> None:
        """The peer sends no more requests, or is not listened to any more: answer what is in flight, then close."""
        self._ending = True
        self._is_calm = False
        self._settle()

    def blocked(self, blocked: bool) -> None:
        """The peer does not read its replies (or reads again): take nothing new from it meanwhile."""
        self._blocked = blocked
        self._is_calm = False
        self._schedule()

    def lost(self, make_error: Callable[[str], Exception]) -> None:
        """The connection is gone: calls that wait fail, handlers that work for it are cancelled.

        A notification's handler goes on: nobody waits for it, so nothing was lost for it.
        """
        self._channel = None
        self._is_calm = False
        self._backlog.clear()
        self._outbox.clear()
        self.pending.fail_all(make_error)
        for task, message in list(self._running.items()):
            if _is_awaited(message) and not task.cancelling():
                task.cancel()
        self._report_gone()

    # -- what the server or client says -----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something is being worked on, or waits to be."""
        return bool(self._running or self._backlog or self._outbox)

    def send(self, message: Written) -> None:
        """Send a message that is no answer to one just received; written with all others of this turn."""
        self._outbox.append(message)
        self._schedule()

    def cancel_all(self) -> None:
        """Stop every handler that runs for this connection."""
        for task in list(self._running):
            task.cancel()

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
                    # A message with a method is for the dispatcher, a reply for the calls that wait.
                    if (type(message) is dict and "method" in message) or not self._settled(message, line):
                        reply = self._answer(message, line)
                    else:
                        reply = None
                if type(reply) is bytes:
                    replies.append(reply)
                    size += len(reply)
                elif reply is not None:
                    size += self._take(reply, message)
                    if self._load >= self._max_calls:
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
            self._backlog += messages[position:]

    def _long(self, line: Message) -> tuple[Any, bytes]:
        if isinstance(line, Oversize):
            raise orjson.JSONDecodeError("too long", "", 0)
        return self._parse_long(line)

    def _settled(self, message: Any, line: Any) -> bool:
        """Is it a reply, or a batch of nothing else? Then the calls that wait for it have it now."""
        if envelope.is_reply(message):
            self.pending.settle(message, line)
        elif type(message) is list and message and all(map(envelope.is_reply, message)):
            for member in message:
                self.pending.settle(member, line)
        else:
            return False
        return True

    def _unparsed(self, line: Message, messages: list[Message], position: int) -> Written | None:
        """Not JSON: too long, several values without a delimiter, or an error."""
        if isinstance(line, Oversize):
            return self._dispatch.oversize(line)
        values = envelope.unreadable(line)
        if isinstance(values, list):
            messages[position:position] = values
            return None
        return self._dispatch.unreadable(values)

    def _take(self, reply: Written | Later, message: Any) -> int:
        """A reply to send, or a handler that will give one; how many bytes that is now."""
        ready = reply if isinstance(reply, Written) else self._start(reply, message)
        if ready is None:
            return 0
        self._outbox.append(ready)
        return len(ready)

    def _start(self, later: Later, message: Any) -> Written | None:
        """Run a handler that waits; its reply now, if it did not wait after all."""
        if sys.version_info >= (3, 12):
            task = asyncio.Task(later, loop=self._loop, eager_start=True)
            if task.done():
                return self._reply_of(task, message)
        else:
            task = self._loop.create_task(later)
        self._running[task] = message
        self._load += _calls_in(message)
        task.add_done_callback(self._finished)
        return None

    def _finished(self, task: asyncio.Task[Written | None]) -> None:
        message = self._running.pop(task)
        self._load -= _calls_in(message)
        reply = self._reply_of(task, message)
        if self._channel is None:
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
        return not self._blocked and self._load < self._max_calls

    def _schedule(self) -> None:
        """Have a turn, soon, and once however many ask for it."""
        if not self._scheduled and self._channel is not None:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take up what was kept for later, as far as there is room; write what has come together."""
        self._scheduled = False
        if self._channel is not None and self._backlog and self._has_room():
            messages, self._backlog = self._backlog, []
            self._work(messages)
        self._settle()

    def _settle(self) -> None:
        """Write the outbox with one write; then see what comes next, as things stand now."""
        if self._outbox and self._channel is not None:
            messages, self._outbox = self._outbox, []
            self._channel.send(messages)
        if not self._is_calm:
            self._regulate()

    def _regulate(self) -> None:
        """Something is not as usual: go on later, read or not read, or close."""
        channel = self._channel
        if channel is None:
            return
        has_room = self._has_room()
        if self._backlog and has_room:
            self._schedule()
        if self._ending:
            if not self.busy:
                channel.close()
        elif self._paused is (has_room and not self._backlog):
            self._paused = not self._paused
            if self._paused:
                channel.pause()
            else:
                channel.resume()
        self._is_calm = has_room and not (self._backlog or self._ending or self._paused)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _broken(self, error: BaseException) -> None:
        """Something failed that must not fail: nobody knows what was answered, so the conversation cannot go on."""
        log.error("a message could not be handled", exc_info=error)
        if self._channel is not None:
            self._channel.abort("an internal error")

    def _report_gone(self) -> None:
        if not self._running and self._on_gone is not None:
            on_gone, self._on_gone = self._on_gone, None
            on_gone(self)


def _calls_in(message: Any) -> int:
    """A batch counts with each of its members."""
    return len(message) if type(message) is list else 1


def _is_awaited(message: Any) -> bool:
    """Does somebody wait for the reply?"""
    return type(message) is list or "id" in message
