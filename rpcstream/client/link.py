"""One connection of the async client: a session that offers no methods, and the deadlines of its calls.

Owns what a client's end does differently from a server's: it reads on while it cannot write, knows when it can take no
more calls, and fails calls that took too long. Knows neither values nor sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..codec import Codec
from ..errors import CallTimeout, ConnectionLost
from ..limits import Limits
from ..peer.session import Channel, Session
from ..wire.pieces import Written
from .call import overdue
from .inbound import NoMethods
from .readiness import Wait
from .role import INFINITE


class AsyncWaiter:
    """A coroutine that waits for one answer: its future gets the reply and the message it stood in."""

    __slots__ = ("deadline", "future", "method")

    def __init__(self, future: asyncio.Future[Any], method: str, deadline: float) -> None:
        self.future = future
        self.method = method
        self.deadline = deadline

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if not self.future.done():
            self.future.set_result((reply, line))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ClientSession(Session):
    """The session of a client.

    Attributes:
        is_open: calls may be sent.
        stalled: the server does not take what was sent.
        unwritten: bytes that were sent in this turn of the loop, and are written at its end.
        glance: waits for the socket to be readable, if it is known.
    """

    def __init__(self, *, codec: Codec, limits: Limits, address: str) -> None:
        refuse = NoMethods(settle=self._reply, lose=self._lose, max_size=limits.max_message_size)
        super().__init__(refuse, parse_long=codec.parse, limits=limits)
        self.loop = asyncio.get_running_loop()
        self.is_open = False
        self.stalled = False
        self.unwritten = 0
        self.glance: Wait | None = None
        self._below: Channel | None = None
        self._address = address
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = INFINITE
        self._flowing = asyncio.Event()
        self._gone = self.loop.create_future()

    # -- what the transport says ------------------------------------------------------------------------------

    def connected(self, channel: Channel) -> None:
        super().connected(channel)
        self._below = channel
        self.is_open = True

    def end(self) -> None:
        self.is_open = False
        super().end()

    def blocked(self, blocked: bool) -> None:
        # Not as a server does it, which then reads no more: what comes here are replies, and until they are read the
        # server may not go on, so that both would wait for ever.
        self.stalled = blocked
        if not blocked:
            self._flowing.set()
        else:
            self._flowing.clear()

    def lost(self, make_error: Callable[[str], Exception]) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._flowing.set()
        super().lost(make_error)
        if not self._gone.done():
            self._gone.set_result(None)

    # -- what the client says ---------------------------------------------------------------------------------

    def send(self, message: Written) -> None:
        super().send(message)
        if not self.unwritten:
            self.loop.call_soon(self._written)
        self.unwritten += len(message)

    def has_unread(self) -> bool:
        """Did something come while nobody waited, that the loop has not read yet: perhaps the end?

        So it is when the loop was held up, or did not run between two calls.
        """
        return self.glance is not None and not self.pending and bool(self.glance(0))

    def watch(self, deadline: float) -> None:
        """A call with this deadline (loop time, s) has been entered."""
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._expire)

    def close(self, reason: str) -> None:
        """Fail what waits, send what was written, then close; `gone` tells when that is done."""
        self.pending.fail_all(lambda method: ConnectionLost(reason, method=method, address=self._address))
        self.end()

    async def flowing(self) -> None:
        """Wait until the server takes what was sent, or the connection is lost."""
        await self._flowing.wait()

    async def gone(self, seconds: float) -> None:
        """Wait until the connection is closed; close it the hard way after so many seconds."""
        await asyncio.wait([self._gone], timeout=seconds)
        if not self._gone.done():
            self._lose("the server did not take what was sent before the client was closed")
            await self._gone

    def _expire(self) -> None:
        """The earliest deadline is over, at least the earliest there was: look at all."""
        self._timer, self._timer_at = None, INFINITE
        late, earliest = overdue(self.pending.items(), self.loop.time())
        for call_id, waiter in late:
            self.pending.discard(call_id)
            waiter.fail(CallTimeout("no answer in time", method=waiter.method, address=self._address))
        if earliest < INFINITE:
            self.watch(earliest)

    def _written(self) -> None:
        self.unwritten = 0

    def _reply(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.pending.settle(reply, line)

    def _lose(self, reason: str) -> None:
        self.is_open = False
        if self._below is not None:
            self._below.abort(reason)
