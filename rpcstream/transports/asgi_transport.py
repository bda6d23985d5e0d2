"""The events of one ASGI connection as an asyncio transport, so that connections write to it as to a socket.

Owns the events that wait to be sent, how many bytes they have, how the task that serves the connection is woken or
interrupted, and how the task that reads waits for memory. Knows neither what the events mean nor who makes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

from ..wire.binary_frame import FrameError
from ..wire.frame_messages import FrameMessage

#: As in the specification of ASGI 3.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

T = TypeVar("T")


class Writer(Protocol):
    """The connection that writes."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class FrameWait:
    """Where the task that reads a binary frame waits until there is memory for its payloads.

    `go_on` is called by the `FrameAdmission` of the connection.
    """

    def __init__(self) -> None:
        self._frame: FrameMessage | None = None
        self._news: asyncio.Future[None] | None = None

    async def memory_for(self, frame: FrameMessage) -> None:
        """Wait until a frame waits no more; nothing is fed to it meanwhile.

        Raises:
            FrameError: it cannot be read.
        """
        self._frame, self._news = frame, asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._frame = self._news = None

    def go_on(self) -> None:
        """There may be memory for the frame that waits."""
        frame, news = self._frame, self._news
        if frame is None or news is None or news.done():
            return
        try:
            if frame.go_on() and not frame.is_waiting:
                news.set_result(None)
        except FrameError as error:
            news.set_exception(error)


class EventTransport(asyncio.Transport):
    """Events of one connection on their way to an ASGI server.

    `run` sends them, in the task of the ASGI application; everything else is called from callbacks.

    Args:
        send: that of the application.
        writer: told when more waits than should, and when that is over.
        address: of the client, for people.
    """

    def __init__(self, send: Send, writer: Writer, address: str) -> None:
        super().__init__({"peername": address})
        self._send = send
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[Event, int]] = deque()
        #: Bytes of the events that wait, the one that is being sent among them.
        self._size = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_full = self._is_closing = self._is_aborted = False
        #: The task that can be interrupted now; it was.
        self._task: asyncio.Task[Any] | None = None
        self._is_interrupted = False
        #: Set when there is something to send; when reading goes on.
        self._news: asyncio.Future[None] | None = None
        self._reads: asyncio.Future[None] | None = None

    # -- writing ----------------------------------------------------------------------------------------------------

    def put(self, event: Event, size: int) -> None:
        """Have an event sent behind those that wait.

        Args:
            event: it.
            size: bytes in it.
        """
        if self._is_closing:
            return
        self._events.append((event, size))
        self._size += size
        if self._size > self._high and not self._is_full:
            self._is_full = True
            self._writer.pause_writing()
        self._wake()

    def get_write_buffer_size(self) -> int:
        """Bytes that were put and that the ASGI server has not taken."""
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the writer is paused, and when it is resumed, in bytes."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    async def run(self) -> None:
        """Send what is put, until the transport is closed. Raises what `send` raises, but for a client that is gone."""
        events = self._events
        while not self._is_aborted:
            while events and not self._is_aborted:
                event, size = events.popleft()
                try:
                    await self._send(event)
                except OSError:  # the client is gone (ASGI specification, "Send callable")
                    self.abort()
                    return
                del event
                self._size = max(self._size - size, 0)
                if self._is_full and self._size <= self._low:
                    self._is_full = False
                    self._writer.resume_writing()
            if self._is_closing:
                return
            self._news = self._loop.create_future()
            await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- reading ----------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Let `reading` wait."""
        if self._reads is None:
            self._reads = self._loop.create_future()

    def resume_reading(self) -> None:
        """Let `reading` go on."""
        reads, self._reads = self._reads, None
        if reads is not None and not reads.done():
            reads.set_result(None)

    def is_reading(self) -> bool:
        """Whether events are taken."""
        return self._reads is None and not self._is_closing

    async def reading(self) -> None:
        """Wait while reading is paused."""
        while self._reads is not None:
            await asyncio.shield(self._reads)

    # -- the end ----------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether nothing more is taken."""
        return self._is_closing

    def close(self) -> None:
        """Take nothing more; what waits is sent."""
        self._is_closing = True
        self._wake()

    def abort(self) -> None:
        """Send nothing more, and end the work of the connection's task."""
        self._is_closing = self._is_aborted = True
        self._events.clear()
        self._size = 0
        self._wake()
        self.interrupt()

    def can_write_eof(self) -> bool:
        """False: there are no half connections."""
        return False

    # -- the task ---------------------------------------------------------------------------------------------------

    async def interruptible(self, work: Awaitable[T]) -> T | None:
        """Await this in the task of the connection; None if it was interrupted."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._task = task
        try:
            return await work
        except asyncio.CancelledError:
            if not self._is_interrupted:
                raise
            return None
        finally:
            self._task = None
            if self._is_interrupted:
                self._is_interrupted = False
                if task.uncancel() > before:  # others have cancelled it as well
                    raise asyncio.CancelledError

    def interrupt(self) -> None:
        """End what the task awaits in `interruptible`, unless this is called by the task itself."""
        task = self._task
        if task is not None and not self._is_interrupted and task is not asyncio.current_task():
            self._is_interrupted = True
            task.cancel()
