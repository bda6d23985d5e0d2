"""A stream of items, for its reader: `async for item in client.stream.name(…)`.

Owns the life of one such call: it is sent when the first item is wanted, and ended by its reply or by its reader. Does
not know how items become values (`marshal`), nor how credit is counted (`flow_control`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from ..errors import (
    CALL_ERRORS,
    CallCancelled,
    ConnectFailed,
    ConnectionLost,
    InvalidParams,
    MethodNotFound,
    ProviderGone,
    RpcError,
    at_caller,
)
from ..wire import envelope
from ..wire.buffers import Encoded
from .deadline import INFINITE
from .flow_control import StreamReceiver
from .marshal import NOT_GIVEN, Call, Marshaller, advise, told
from .outgoing import OutgoingCalls, PendingStream, StreamTrace
from .pending import OnProgress
from .state import ConversationState

#: Gives the connection to call on; called with the deadline (loop time, s).
Open = Callable[[float], Awaitable[ConversationState]]

#: Gives the seconds until a call is made again that failed with an error before its first item; None if it is not.
#: Called with the error, and the seconds that are left.
PauseBeforeRepeat = Callable[[Exception, float], float | None]


#: Seconds in which the other end says which methods stream.
_ASKING = 10.0


class StreamCall(Call):
    """A call that asks for the items of a generator one by one. `returns` is the type of an item.

    Attributes:
        more: further members of its request.
    """

    __slots__ = ("_window", "more")

    def __init__(
        self, marshaller: Marshaller, method: str, params: Any, timeout: Any, returns: Any, window: int
    ) -> None:
        super().__init__(marshaller, method, params, timeout, returns)
        self._window = window
        self.more: Mapping[str, str] = {}

    @property
    def window(self) -> int:
        return self._window

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        timeout = told(left) if self.tells_time else None
        message = envelope.request(self.method, call_id=self._call_id, timeout=timeout, stream=self._window)
        return self._marshaller.encode(envelope.completed(message, self.more, self.params), self.method)

    def item(self, params: dict[str, Any], line: bytes | bytearray) -> Any:
        return self.checked(self._marshaller.member(self.method, params, line, "value"))

    def checked(self, item: Any) -> Any:
        """The item, if it fits `returns`; TypeError otherwise."""
        return item if self._returns is NOT_GIVEN else self._marshaller.checked(self.method, item, self._returns)

    def question(self) -> Call:
        """The call that asks which methods stream, and tells how long it may take."""
        return Call(self._marshaller, "rpc.discover", None, _ASKING, NOT_GIVEN)

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> Any:
        """The value that the generator returned; raises the error that it raised."""
        try:
            return self._marshaller.value(self.method, reply, line)
        except InvalidParams as error:
            advise(error, self.params)
            raise


class Stream(AsyncIterator[Any]):
    """The items of a streaming method, as they come. For one reader, in one event loop.

    A method that does not stream has one item: its result. Leaving the loop early, `aclose`, and the end of an
    `async with` block stop the generator at the other end.

    Raises, while it is read:
        RpcError: the handler failed, behind the items that it had given before.
        ConnectFailed, ConnectionLost, CallTimeout: as for a call. The time-out is for the whole stream.
        TypeError: an item does not fit `returns`.
    """

    def __init__(
        self,
        open_session: Open,
        call: StreamCall,
        seconds: float | None,
        on_progress: OnProgress | None = None,
        pause: PauseBeforeRepeat = lambda error, left: None,
        trace: StreamTrace | None = None,
    ) -> None:
        self.method = call.method
        #: What the generator returned; None until the stream has ended.
        self.result: Any = None
        self._open = open_session
        self._call = call
        self._seconds = seconds
        self._on_progress = on_progress
        self._pause = pause
        self._trace = trace
        self._deadline = INFINITE
        #: An item has come.
        self._has_begun = False
        self._calls: OutgoingCalls | None = None
        self._pending: PendingStream | None = None
        self._has_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if self._has_ended:
            raise StopAsyncIteration
        while True:
            try:
                return await self._next(self._pending or await self._start())
            except (CallCancelled, ConnectFailed, ConnectionLost, MethodNotFound, ProviderGone) as error:
                pause = self._pause_before_repeat(error)
                if pause is None:
                    self._record_end(error)
                    raise at_caller(error) from error.__cause__
            except StopAsyncIteration:
                self._record_end()
                raise
            except CALL_ERRORS as error:
                self._record_end(error)
                raise at_caller(error) from error.__cause__
            except Exception as error:
                self._record_end(error)
                raise
            self._pending, self._has_ended = None, False
            await asyncio.sleep(pause)

    async def _next(self, pending: PendingStream) -> Any:
        try:
            item = await pending.receiver.get()
            self._has_begun = True
        except StopAsyncIteration:
            self._has_ended = True
            if pending.reply is not None:
                self.result = self._call.outcome(pending.reply, pending.line)
                if not self._has_begun and not await self._does_stream():
                    self._has_begun = True
                    self._record_end()
                    return self._call.checked(self.result)
            raise
        except Exception:
            self._has_ended = True
            raise
        try:
            return self._call.item(*item)
        except Exception as error:
            self._record_end(error)
            self._abandon()
            raise
        except BaseException:
            self._abandon()
            raise

    async def _does_stream(self) -> bool:
        """Whether the method streams: asked once where no item has come, which a stream may have, too.

        Where the other end does not say, a result tells that it does not: few streams without items return a value.
        """
        assert self._calls is not None
        known = self._calls.streaming
        if self.method not in known:
            loop = asyncio.get_running_loop()
            try:
                document = await self._calls.ask(self._call.question(), min(self._deadline, loop.time() + _ASKING))
                known |= {described["name"]: described.get("x-stream") is True for described in document["methods"]}
            except (RpcError, ConnectionError, TimeoutError, LookupError, TypeError, AttributeError):
                pass
        return known.get(self.method, self.result is None)

    async def aclose(self) -> None:
        """Stop the generator at the other end, unless it has ended. Does not wait for that."""
        self._abandon()

    async def __aenter__(self) -> Stream:
        if self._pending is None and not self._has_ended:
            try:
                await self._start()
            except CALL_ERRORS as error:
                self._record_end(error)
                raise at_caller(error) from error.__cause__
            except Exception as error:
                self._record_end(error)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()

    def __del__(self) -> None:
        # `break` out of the loop drops the stream, and nothing else says that it is not wanted any more.
        loop = self._loop
        if self._pending is not None and not self._has_ended and loop is not None and not loop.is_closed():
            self._has_ended = True
            self._record_end()
            assert self._calls is not None
            loop.call_soon_threadsafe(_give_up, self._calls, self._call, self._pending)

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "not started" if self._pending is None else "open"
        return f"<stream of {self.method!r}, {state}>"

    async def _start(self) -> PendingStream:
        loop = asyncio.get_running_loop()
        if self._loop is None and self._seconds is not None:
            self._deadline = loop.time() + self._seconds
        self._loop, deadline = loop, self._deadline
        session = await self._open(deadline)
        calls, call = session.calls, self._call
        receiver = StreamReceiver(call.window, lambda n: _grant(calls, call, n), is_granted=True, memory=session.memory)
        pending = PendingStream(receiver, self.method, deadline, self._on_progress)
        if self._trace is not None:
            self._trace.start(call)
        calls.begin(call, pending)
        self._calls, self._pending = calls, pending
        return pending

    def _pause_before_repeat(self, error: Exception) -> float | None:
        """Seconds until the call is made again that failed with this error; None if it is not."""
        if self._has_begun or self._loop is None or not self._call.is_repeatable:
            return None
        return self._pause(error, self._deadline - self._loop.time())

    def _record_end(self, error: Exception | None = None) -> None:
        if self._trace is not None:
            self._trace.end(error)

    def _abandon(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._record_end()
            if self._calls is not None and self._pending is not None:
                _give_up(self._calls, self._call, self._pending)


def _grant(calls: OutgoingCalls, call: StreamCall, n: int) -> None:
    calls.permit(call, n)


def _give_up(calls: OutgoingCalls, call: StreamCall, pending: PendingStream) -> None:
    calls.give_up(call)
    pending.receiver.end()
    pending.receiver.clear()
