"""Spans of the calls that a dispatcher answers (`observe.tracing`).

Owns the span of a request from when it is read to its reply, active while the handler runs. What of a reply is an error
is heard from the writer of replies. Imported where tracing is switched on, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from ..errors import CallCancelled, RpcError
from ..observe.tracing import TRACEPARENT, Attributes, CallSpan, Tracing, host_attributes, peer_attributes
from ..peer.inflight import ForwardedCall
from ..peer.interfaces import Later, Waiting
from ..peer.state import ConversationState
from ..wire.buffers import Encoded
from .arguments import Tagged
from .dispatch import Dispatcher, Line
from .replies import ReplyWriter

#: Methods that are no calls of a program: of these there are spans only where the caller sends a trace.
QUIET = frozenset(
    ("rpc.hello", "rpc.ping", "keepAlive", "rpc.authenticate", "rpc.register", "rpc.unregister", "rpc.subscribe")
)

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class TracingReplyWriter(ReplyWriter):
    """A `ReplyWriter` that tells the span of the call of each error.

    Attributes:
        span: of the call that is answered now; None: of none.
    """

    span: CallSpan | None = None

    def error(self, call_id: Any, error: RpcError) -> Encoded | None:
        if self.span is not None:
            self.span.set_error(error)
        return super().error(call_id, error)

    @contextmanager
    def during(self, span: CallSpan | None) -> Iterator[None]:
        """While the block runs, replies are those of the call with this span."""
        before, self.span = self.span, span
        try:
            yield
        finally:
            self.span = before


class TracingDispatcher(Dispatcher):
    """A `Dispatcher` that makes a span of each request that it answers. A batch has one for each member.

    Args:
        tracing: makes the spans.
    """

    WRITER = TracingReplyWriter
    replies: TracingReplyWriter

    def __init__(self, *args: Any, tracing: Tracing, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tracing = tracing

    def answer(
        self, message: Any, line: Line, session: ConversationState, tagged: Tagged = None
    ) -> Encoded | Later | None:
        if type(message) is not dict or _is_quiet(message):
            return super().answer(message, line, session, tagged)
        span = self._begin(message, session)
        try:
            with span.active(), self.replies.during(span):
                reply = super().answer(message, line, session, tagged)
        except BaseException as error:
            span.end(error)
            raise
        if reply is None or isinstance(reply, Encoded):
            span.end()
        elif not isinstance(reply, ForwardedCall):
            return _TracedReply(reply, span, self.replies)
        return reply

    def _begin(self, message: dict[str, Any], session: ConversationState) -> CallSpan:
        headers = _NO_HEADERS if session.is_lasting else session.headers
        return self.tracing.served(
            message,
            is_known=self._is_known(message.get("method")),
            headers=headers,
            attributes=_attributes(session),
            waited=session.waited,
        )

    def _is_known(self, name: Any) -> bool:
        """Whether there is a method of this name."""
        return type(name) is str and name in self._methods


class _TracedReply(Coroutine[Any, Any, Encoded | None]):
    """A reply that comes later, with the span of its call, which ends with it.

    No coroutine around the other, since that one must be closed with it if it is never begun.
    """

    __slots__ = ("_has_begun", "_replies", "_reply", "_span")

    def __init__(self, reply: Waiting, span: CallSpan, replies: TracingReplyWriter) -> None:
        self._reply = reply
        self._span = span
        self._replies = replies
        self._has_begun = False

    def send(self, value: Any) -> Any:
        return self._step(self._reply.send, value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._step(self._reply.throw, *error)
        finally:
            del error  # its traceback has this frame: what the call holds would be kept by a circle

    def close(self) -> None:
        self._reply.close()
        self._span.end(CallCancelled())

    def __await__(self) -> _TracedReply:
        return self

    def __iter__(self) -> _TracedReply:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _step(self, step: Callable[..., Any], *args: Any) -> Any:
        if not self._has_begun:
            self._has_begun = True
            self._span.activate()  # in the context of the task, which no other call has
        replies = self._replies
        before, replies.span = replies.span, self._span
        try:
            return step(*args)
        except StopIteration:
            self._span.end()
            raise
        except asyncio.CancelledError:
            self._span.end(CallCancelled())
            raise
        except BaseException as error:
            self._span.end(error)
            raise
        finally:
            replies.span = before
            del step, args


def traced(kind: type[Dispatcher]) -> type[TracingDispatcher]:
    """The class of dispatchers that does the same with spans; it takes `tracing=` besides."""
    if kind is Dispatcher:
        return TracingDispatcher
    return type(f"Tracing{kind.__name__}", (TracingDispatcher, kind), {})


def _is_quiet(message: dict[str, Any]) -> bool:
    name = message.get("method")
    return type(name) is str and name in QUIET and TRACEPARENT not in message


def _attributes(session: ConversationState) -> Attributes:
    """The attributes of a connection."""
    channel = session.channel
    of_peer = peer_attributes(channel.address) if channel is not None else {}
    host = session.headers.get("host")
    return {**of_peer, **host_attributes(host)} if host else of_peer
