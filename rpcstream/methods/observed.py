"""Observes the calls of a dispatcher: how long each takes, how it ends, and which span it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import RpcError
from ..observe.call_log import CallLog, EndedCall
from ..observe.metrics import CallMetrics
from ..peer.inflight import Later
from ..peer.session import Session
from ..wire.buffers import Encoded
from .arguments import Line
from .dispatch import Dispatcher

if TYPE_CHECKING:
    from ..observe.tracing import CallSpan, Tracing


class ObservedCalls:
    """Wraps `answer` and `refuse` of a dispatcher: counts each call, tells logs when it has ended, and makes its span.

    A call lasts from being read, the time that it waited under overload included, until its reply is made; a
    notification until its handler is done. Members of a batch are calls of their own.

    Args:
        is_known: whether there is a method of this name.
        metrics: counts every call; None: calls are not counted.
        logs: are told of every call.
        tracing: makes the spans; None: there are none.
        transport_of: tells how a channel's connection is transported; asked only for logs.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        is_known: Callable[[str], bool],
        *,
        metrics: CallMetrics | None = None,
        logs: Sequence[CallLog] = (),
        tracing: Tracing | None = None,
        transport_of: Callable[[Any], str] = str,
    ) -> None:
        self.replies = dispatcher.replies
        self.metrics = metrics
        self.transport_of = transport_of
        self.logs = logs
        self._is_known = is_known
        self._tracing = tracing
        self._dispatcher = dispatcher
        self._answer, dispatcher.answer = dispatcher.answer, self.answer
        self._refuse, dispatcher.refuse = dispatcher.refuse, self.refuse

    def answer(self, message: Any, line: Line, session: Session) -> Encoded | Later | None:
        """As `Dispatch.answer`."""
        if type(message) is list:
            return self._answer(message, line, session)
        dispatcher, request = self._dispatcher, message if type(message) is dict else {}
        span = None if self._tracing is None else self._tracing.served(request, session, self._is_known)
        call = ObservedCall(self, request, line, session, span)
        before, dispatcher.observed, self.replies.failed = dispatcher.observed, call, None
        try:
            if span is None:
                reply = self._answer(message, line, session)
            else:
                with span.active():
                    reply = self._answer(message, line, session)
        finally:
            dispatcher.observed = before
        if type(reply) is bytes or reply is None or isinstance(reply, Encoded):
            call.end(reply)
        return reply

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`. On which connection the call came is not known here."""
        reply = self._refuse(message, error)
        if type(message) is list:  # each member was counted by itself
            return reply
        call = message if type(message) is dict else {}
        name, size = call.get("method"), len(reply or b"") or None
        if self.metrics is not None:
            self.metrics.of(name).count(error.code, None)
        for log in self.logs:
            log(EndedCall("", None, "", name, call.get("id"), error.code, None, None, size))
        return reply


class ObservedCall:
    """A call that is observed.

    Args:
        line: its message; empty for a member of a batch.
    """

    __slots__ = ("_began", "_calls", "_channel", "_message", "_observed", "_session", "_size", "_span")

    def __init__(
        self, observed: ObservedCalls, message: dict[str, Any], line: Line, session: Session, span: CallSpan | None
    ) -> None:
        self._observed = observed
        self._message = message
        self._size = len(line)
        self._session = session
        self._span = span
        self._began = perf_counter() - session.waited
        # Kept, since the connection may be lost when the call ends, and its provider may be gone.
        self._channel = session.channel
        self._calls = None if observed.metrics is None else observed.metrics.of(message.get("method"))

    def begin(self) -> None:
        """The handler of a call that is awaited begins. To be called in the context of its task."""
        if self._span is not None:
            self._span.activate()

    def end(self, reply: Encoded | None) -> None:
        """Report the call, which has ended with the reply that was made last; None: it is a notification."""
        observed, seconds, failed = self._observed, perf_counter() - self._began, self._observed.replies.failed
        code = 0 if failed is None else failed[0]
        if self._calls is not None:
            self._calls.count(code, seconds)
        if self._span is not None:
            if failed is not None:
                self._span.set_code(*failed)
            self._span.end()
        if observed.logs:
            channel, message = self._channel, self._message
            address, transport = ("", "") if channel is None else (channel.address, observed.transport_of(channel))
            sizes = self._size or None, None if reply is None else len(reply)
            who = address, self._session.identity, transport, message.get("method"), message.get("id")
            for log in observed.logs:
                log(EndedCall(*who, code, seconds, *sizes))
