"""The remote peer as an object: `await peer.confirm("…")`, for handlers that call back and for servers that call.

`Peer` is for the event loop of the connection, `BlockingPeer` for a handler in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import CallTimeout, ConnectionLost, InvalidRequest, Unread
from .blocking import BlockingStream, Bridge
from .calls import Call, Method, params_of, remote_name
from .deadline import INFINITE, time_left
from .marshal import NOT_GIVEN
from .pending import OnProgress
from .session import Session
from .stream import Stream


class Peer:
    """The other end of one connection, for the event loop of the connection.

    Args:
        session: the connection's.

    Attributes:
        address: of the other end.
    """

    def __init__(self, session: Session) -> None:
        self.address = session.channel.address if session.channel is not None else ""
        self._session = session
        #: For notifications, which have no answer: `peer.notify.name(…)`; never waits.
        self.notify = Method(self._notify)
        #: For methods that stream: `async for item in peer.stream.name(…)`.
        self.stream = Method(self._stream)

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
            timeout: seconds; by default no limit. Inside a handler with a deadline, the call ends by that deadline.
            returns, on_progress: as for a client's calls.

        Raises the errors of a client's calls; MethodNotFound if the other end offers nothing.
        """
        session = self._opened(method)
        calls = session.calls
        seconds = time_left(None if timeout is NOT_GIVEN else timeout)
        deadline = INFINITE if seconds is None else session.loop.time() + seconds
        call = Call(calls.marshaller, method, params_of(method, args, kwargs), seconds, returns)
        if not session.write_gate.is_open:
            try:
                async with asyncio.timeout(seconds):
                    await session.write_gate.wait()
            except TimeoutError:
                raise CallTimeout("the call could not be sent in time", method=method, address=self.address) from None
            self._opened(method)
        return await calls.call(call, deadline, on_progress)

    def _notify(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        """Send a notification.

        Raises:
            ConnectionLost: the connection is over.
            InvalidRequest: the call came over HTTP, where the caller cannot be notified.
            EncodeError, MessageTooLarge: the params cannot be sent.
        """
        calls = self._opened(method, answers=False).calls
        calls.notify(calls.notification(method, params_of(method, args, kwargs)), method)

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
        session, seconds = self._opened(method), time_left(timeout)
        params, window = params_of(method, args, kwargs), session.limits.stream_window
        call = Call(session.calls.marshaller, method, params, seconds, returns, window)

        async def opened(deadline: float) -> Session:
            return self._opened(method)

        tracing = session.calls.tracing
        return Stream(opened, call, seconds, on_progress, None, None if tracing is None else tracing.stream(call))

    def _opened(self, method: str, *, answers: bool = True) -> Session:
        """The conversation, for a call of this method; `answers`: a reply is wanted.

        Raises:
            ConnectionLost: the connection is over, or no reply can come any more.
            InvalidRequest: the peer called over HTTP.
        """
        session = self._session
        if session.channel is None or (answers and session.is_lasting and session.streams.has_ended):
            raise ConnectionLost("the connection is over", method=method, address=self.address)
        if answers and session.peer_is_leaving:
            raise Unread("the peer reads no more requests", method=method, address=self.address)
        if not session.is_lasting:
            reason = "a caller cannot be asked over HTTP: call this over a WebSocket or the line stream"
            raise InvalidRequest(data={"method": method, "reason": reason})
        return session

    def __repr__(self) -> str:
        return f"<peer at {self.address}>"


class BlockingPeer(Peer):
    """As `Peer`, for a sync handler: `peer.confirm("…")` waits for the result if the handler runs in a thread.

    Args:
        session: as for `Peer`.
        bridge: runs coroutines in the connection's event loop.
    """

    def __init__(self, session: Session, bridge: Bridge) -> None:
        super().__init__(session)
        self._bridge = bridge

    def call(self, method: str, /, *args: Any, **options: Any) -> Any:
        """As `Peer.call`, and wait for the result.

        Raises also:
            RuntimeError: it was called in the event loop, which cannot wait.
            concurrent.futures.CancelledError: the handler that waits was cancelled.
        """
        return self._bridge.run(lambda: super(BlockingPeer, self).call(method, *args, **options))

    def _notify(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        notify = partial(super()._notify, method, *args, **kwargs)
        if self._bridge.is_here:
            notify()
        else:
            self._bridge.run(partial(_called, notify))

    def _stream(self, method: str, /, *args: Any, **options: Any) -> Any:
        return BlockingStream(self._bridge, partial(super()._stream, method, *args, **options))


async def _called(function: Callable[[], object]) -> None:
    function()
