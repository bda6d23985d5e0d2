"""A connection of an ASGI server: its events on their way out, and how many bytes they have."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..limits import Limits
from ..peer.ledger import ServerLedger
from .connection import LimitedConnection

#: As in the specification of ASGI 3.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class EventConnection(LimitedConnection):
    """A connection whose bytes an ASGI server reads and writes.

    `_send_all` runs in the task of the ASGI application, by `_run`; the rest is called from callbacks and other tasks.
    """

    def __init__(self, limits: Limits, ledger: ServerLedger, address: str | None = None) -> None:
        super().__init__(limits, ledger, address)
        self._events: deque[tuple[Event, int]] = deque()
        #: Bytes of the events that wait, the one that is being sent among them.
        self._size = 0
        self._is_open = False
        self._interruptible: asyncio.Timeout | None = None
        #: Done when there is something to send; when reading goes on.
        self._news: asyncio.Future[None] | None = None
        self._reads: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def unread_size(self) -> int:
        return self._size

    def _put(self, event: Event, size: int = 0) -> None:
        """Have an event with this many bytes sent behind those that wait."""
        if self._closing:
            return
        self._timeouts.heard = True
        self._events.append((event, size))
        self._size += size
        if self._size > self._limits.write_buffer and not self.is_full:
            self.set_full(True)
        if self.is_full:
            self._check_unread()
        self._wake()

    def _close_behind(self) -> None:
        """Take no more events; those that wait are sent."""
        self._closing = True
        self._wake()

    def abort(self, reason: str) -> None:
        """Send nothing more."""
        self.reason = reason
        self._closing = True
        self._events.clear()
        self._size = 0
        self._interrupt()

    async def _run(self, work: Awaitable[None]) -> None:
        """Await this in the task of the application, until `_interrupt` is called."""
        try:
            async with asyncio.timeout(None) as self._interruptible:
                await work
        except TimeoutError:
            pass
        finally:
            self._interruptible = None

    def _interrupt(self) -> None:
        """End what the task of the application awaits."""
        if self._interruptible is not None and self._interruptible.when() is None:
            self._interruptible.reschedule(self._loop.time())

    async def _send_all(self, send: Send) -> None:
        """Send what is put until the connection is closed. Raises what `send` raises, but for a client that is gone."""
        events = self._events
        while True:
            while events:
                event, size = events.popleft()
                try:
                    await send(event)
                except OSError:  # the client is gone (ASGI specification, "Send callable")
                    return
                del event
                self._size = max(self._size - size, 0)
                if self.is_full and self._size <= self._limits.write_buffer // 4:
                    self.set_full(False)
            if self._closing:
                return
            self._news = self._loop.create_future()
            await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _read_or_not(self) -> None:
        if not self.is_paused:
            reads, self._reads = self._reads, None
            if reads is not None and not reads.done():
                reads.set_result(None)
        elif self._reads is None:
            self._reads = self._loop.create_future()

    async def _reading(self) -> None:
        """Wait while nothing is to be read."""
        while self._reads is not None:
            await asyncio.shield(self._reads)
