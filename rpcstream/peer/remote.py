"""The remote peer as an object: `await peer.confirm("…")`, for handlers that call back and for servers that call.

Owns the calls that users make on one given connection, in an event loop (`Peer`) and in a thread (`BlockingPeer`). The
methods are those of a client, which makes its connections itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import CallTimeout, ConnectionLost, InvalidRequest, RpcError, Unread
from ..wire.buffers import AttachedMessage
from .blocking import BlockingStream, Bridge
from .deadline import INFINITE, time_left
from .marshal import NOT_GIVEN, Call, given_params
from .naming import MixedParams, facts_of, named, refused
from .pending import OnProgress
from .proxy import Method, Methods, remote_name
from .state import ConversationState
from .stream import Stream, StreamCall

T = TypeVar("T")

#: Calls a function when the reply of the handler is on its way.
AfterReply = Callable[[Callable[[], object]], None]


class Peer:
    """The other end of one connection, for the event loop of the connection.

    Args:
        session: the connection's.
        after_reply: calls a function when the reply of the handler that this is for is on its way.

    Attributes:
        address: of the other end.
    """

    def __init__(self, session: ConversationState, after_reply: AfterReply | None = None) -> None:
        self.address = session.channel.address if session.channel is not None else ""
        self._session = session
        self._after_reply = after_reply
        #: For notifications, which have no answer: `peer.notify.name(…)`; never waits. With `after_reply=True` it is
        #: sent behind the reply of the handler.
        self.notify = Methods(self._notify)
        #: For methods that stream: `async for item in peer.stream.name(…)`.
        self.stream = Methods(self._stream)

    @property
    def is_connected(self) -> bool:
        """Calls can be made."""
        return self._session.is_open

    def __getattr__(self, name: str) -> Any:
        return Method(self.call, remote_name(self, name))

    async def call(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = NOT_GIVEN,
        returns: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method that the other end offers, and await its result.

        Args:
            timeout: seconds; no limit of its own where it is not given. Inside a handler with a deadline no call lasts
                longer than that.
            returns, on_progress: as for a client's calls.

        Raises what a client's calls raise; MethodNotFound too where the other end offers nothing.
        """
        params: Any = given_params(args, kwargs)
        if isinstance(params, MixedParams):
            params = await self._named(method, params, timeout)
        session = self._opened(method)
        calls = session.calls
        call = Call(calls.marshaller, method, params, timeout, returns)
        seconds = time_left(None if timeout is NOT_GIVEN else timeout)
        call.tells_time = seconds is not None
        deadline = INFINITE if seconds is None else session.loop.time() + seconds
        if not session.write_gate.is_open:
            try:
                async with asyncio.timeout(seconds):
                    await session.write_gate.wait()
            except TimeoutError:
                raise CallTimeout("the call could not be sent in time", method=method, address=self.address) from None
            self._opened(method)
        return await calls.call(call, deadline, on_progress)

    def _notify(self, method: str, /, *args: Any, after_reply: bool = False, **kwargs: Any) -> None:
        """Send a notification.

        Args:
            after_reply: not now, but when the reply of the handler is on its way; see `Context.after_reply`. What the
                values are now is what is sent.

        Raises:
            ConnectionLost: the connection is over.
            InvalidRequest: the call came over HTTP, where the caller cannot be notified.
            EncodeError, MessageTooLarge: the params cannot be sent.
            RuntimeError: `after_reply` where there is no reply to come: outside of a handler, or after it.
        """
        calls = self._opened(method, answers=False).calls
        params: Any = given_params(args, kwargs)
        if isinstance(params, MixedParams):  # it cannot wait for an answer
            params = named(method, params, self._session.known_methods)
        message = calls.notification(method, params)
        if not after_reply:
            calls.send(message)
        elif self._after_reply is None:
            raise RuntimeError("after_reply is for the ctx.peer of a handler: here is no reply to wait for")
        else:
            if type(message) is AttachedMessage:
                message.secure()
            self._after_reply(lambda: calls.send(message))

    def _stream(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        returns: Any = NOT_GIVEN,
        on_progress: OnProgress | None = None,
        **kwargs: Any,
    ) -> Stream:
        session = self._opened(method)
        window = session.limits.stream_window
        seconds = time_left(timeout)
        params = given_params(args, kwargs)
        call = StreamCall(session.calls.marshaller, method, params, seconds, returns, window)

        async def opened(deadline: float) -> ConversationState:
            if isinstance(call.params, MixedParams):
                call.params = await self._named(method, call.params, timeout)
            return self._opened(method)

        return Stream(opened, call, seconds, on_progress, trace=session.calls.stream_trace(method))

    async def _named(self, method: str, params: MixedParams, timeout: float | None) -> dict[str, Any]:
        """All arguments of a call by name; asks the other end once for the names of its parameters."""
        session = self._session
        if session.known_methods is None or method not in session.known_methods:
            try:
                session.known_methods = facts_of(await self.call("rpc.discover", timeout=timeout))
            except RpcError as error:
                raise refused(method, params, error) from None
        return named(method, params, session.known_methods)

    def _opened(self, method: str, *, answers: bool = True) -> ConversationState:
        """The conversation, for a call of this method; `answers`: a reply is wanted.

        Raises:
            ConnectionLost: the connection is over, or no reply can come any more.
            InvalidRequest: the peer called over HTTP.
        """
        session = self._session
        if session.channel is None or (answers and session.is_lasting and session.streams.has_ended):
            reason = "the connection is over" if session.channel is None else "the peer has closed its sending half"
            raise ConnectionLost(reason, method=method, address=self.address)
        if answers and session.peer_is_leaving:
            raise Unread("the peer reads no more requests", method=method, address=self.address)
        if not session.is_lasting:
            reason = "a caller cannot be asked over HTTP: call this over a WebSocket or the line stream"
            raise InvalidRequest(data={"method": method, "reason": reason})
        return session

    def __repr__(self) -> str:
        return f"<peer at {self.address}>"


class BlockingPeer:
    """As `Peer`, for a sync handler: `peer.confirm("…")` waits for the result if the handler runs in a thread.

    Args:
        peer: makes the calls.
        bridge: runs coroutines in the connection's event loop.
    """

    def __init__(self, peer: Peer, bridge: Bridge) -> None:
        self.address = peer.address
        self._peer = peer
        self._bridge = bridge
        self.notify = Methods(self._notify)
        self.stream = Methods(self._stream)

    @property
    def is_connected(self) -> bool:
        """Calls can be made."""
        return self._peer.is_connected

    def __getattr__(self, name: str) -> Any:
        return Method(self.call, remote_name(self, name))

    def call(self, method: str, /, *args: Any, **options: Any) -> Any:
        """As `Peer.call`, and wait for the result.

        Raises also:
            RuntimeError: it was called in the event loop, which cannot wait.
            concurrent.futures.CancelledError: the handler that waits was cancelled.
        """
        return self._bridge.run(lambda: self._peer.call(method, *args, **options))

    def _notify(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        if self._bridge.is_here:
            self._peer.notify(method, *args, **kwargs)
        else:
            self._bridge.run(_called(lambda: self._peer.notify(method, *args, **kwargs)))

    def _stream(self, method: str, /, *args: Any, **options: Any) -> BlockingStream:
        return BlockingStream(self._bridge, lambda: self._peer.stream(method, *args, **options))

    def __repr__(self) -> str:
        return f"<peer at {self.address}>"


def _called(function: Callable[[], T]) -> Callable[[], Coroutine[Any, Any, T]]:
    async def coroutine() -> T:
        return function()

    return coroutine
