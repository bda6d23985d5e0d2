"""A stream of items, for its reader: `async for item in client.stream.name(…)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from ..errors import AT_CALLER
from .calls import Call
from .deadline import INFINITE
from .flow_control import StreamReceiver
from .outgoing import OutgoingCalls
from .pending import OnProgress, PendingCall
from .session import Session

#: Gives the connection to call on; called with the deadline (loop time, s).
Open = Callable[[float], Awaitable[Session]]

#: Makes a call again that failed before its first item, and gives that item; called with the error, the deadline (loop
#: time, s), and the function that makes the call.
Repeat = Callable[[Exception, float, Callable[[], Awaitable[Any]]], Awaitable[Any]]


class PendingStream(StreamReceiver, PendingCall):
    """A call that is answered by a stream: items, then the reply that ends it."""

    __slots__ = ("deadline", "line", "method", "on_progress", "reply")

    def __init__(self, calls: OutgoingCalls, call: Call, session: Session) -> None:
        assert call.window is not None
        super().__init__(call.window, partial(calls.permit, call), session.server_ledger.waiting, is_granted=True)
        self.method = call.method
        self.reply: dict[str, Any] | None = None
        self.line: bytes | bytearray = b""

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.reply, self.line = reply, line
        self.end()

    def fail(self, error: Exception) -> None:
        self.end(error)

    def when_over(self, function: Callable[[], object]) -> None:
        self.on_end = function


@dataclass(eq=False, repr=False)
class Stream(AsyncIterator[Any]):
    """The items of a streaming method, as they come. For one reader, in one event loop.

    A method that does not stream has one item: its result, unless that is None. Leaving the loop early, `aclose`, and
    the end of an `async with` block stop the generator at the other end.

    Raises, while it is read:
        RpcError: the handler failed, behind the items that it had given before.
        ConnectFailed, ConnectionLost, CallTimeout: as for a call. The time-out is for the whole stream.
        TypeError: an item does not fit `returns`.
    """

    _open: Open
    _call: Call
    _seconds: float | None
    _on_progress: OnProgress | None = None
    _repeat: Repeat | None = None
    _begin_trace: Callable[[], Any] | None = None
    #: What the generator returned; None until the stream has ended.
    result: Any = field(default=None, init=False)
    _trace: Any = field(default=None, init=False)
    _deadline: float = field(default=INFINITE, init=False)
    #: An item has come.
    _has_begun: bool = field(default=False, init=False)
    _calls: OutgoingCalls | None = field(default=None, init=False)
    _pending: PendingStream | None = field(default=None, init=False)
    _has_ended: bool = field(default=False, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if self._has_ended:
            raise StopAsyncIteration
        try:
            return await self._first_or_next()
        except StopAsyncIteration:
            self._end()
            raise
        except Exception as error:
            self._abandon(error)
            raise AT_CALLER.strip(error) from error.__cause__

    async def _first_or_next(self) -> Any:
        try:
            return await self._next(self._pending or await self._start())
        except Exception as error:
            # `isinstance`: the end of a stream is no failure of the call.
            if self._repeat is None or self._has_begun or isinstance(error, StopAsyncIteration):
                raise
            return await self._repeat(error, self._deadline, self._again)

    async def _again(self) -> Any:
        return await self._next(await self._start())

    async def _next(self, pending: PendingStream) -> Any:
        marshaller, returns = self._call.marshaller, self._call.returns
        try:
            params, line = await pending.get()
        except StopAsyncIteration:
            if pending.reply is not None:
                self.result = marshaller.value(self._call.method, pending.reply, pending.line)
                if not self._has_begun and self.result is not None:  # of a method that does not stream
                    self._end()
                    return marshaller.value(self._call.method, pending.reply, pending.line, returns)
            raise
        self._has_begun = True
        return marshaller.item(self._call.method, params, line, returns)

    async def aclose(self) -> None:
        """Stop the generator at the other end, unless it has ended. Does not wait for that."""
        self._abandon()

    async def __aenter__(self) -> Stream:
        if self._pending is None and not self._has_ended:
            try:
                await self._enter()
            except Exception as error:
                self._abandon(error)
                raise AT_CALLER.strip(error) from error.__cause__
        return self

    async def _enter(self) -> None:
        try:
            await self._start()
        except Exception as error:
            if self._repeat is None:
                raise
            await self._repeat(error, self._deadline, self._start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()

    def __del__(self) -> None:
        # `break` out of the loop drops the stream, and nothing else says that it is not wanted any more.
        loop = self._loop
        if self._calls is not None and not self._has_ended and loop is not None and not loop.is_closed():
            self._end()
            loop.call_soon_threadsafe(_give_up, self._calls, self._call, self._pending)

    async def _start(self) -> PendingStream:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._seconds is not None:
                self._deadline = self._loop.time() + self._seconds
            if self._begin_trace is not None:
                self._trace = self._begin_trace()
        session = await self._open(self._deadline)
        pending = PendingStream(session.calls, self._call, session)
        pending.deadline, pending.on_progress = self._deadline, self._on_progress
        session.calls.begin(self._call, pending)
        self._calls, self._pending = session.calls, pending
        return pending

    def _end(self, error: Exception | None = None) -> None:
        self._has_ended = True
        if self._trace is not None:
            self._trace.end(error)

    def _abandon(self, error: Exception | None = None) -> None:
        if not self._has_ended:
            self._end(error)
            if self._calls is not None:
                _give_up(self._calls, self._call, self._pending)


def _give_up(calls: OutgoingCalls, call: Call, pending: PendingStream | None) -> None:
    calls.give_up(call)
    if pending is not None:
        pending.drop()
