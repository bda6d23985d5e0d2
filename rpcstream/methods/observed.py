"""A dispatcher whose calls are observed: how long each takes, and how it ends.

Owns the measurement, for metrics and logs of calls. A server without these has a plain `Dispatcher`, whose path is not
touched; one with them has a class made of `ObservedCalls` and that
of its dispatcher (see `observed`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..errors import InternalError, RpcError
from ..observe.calls import CallObserver, EndedCall
from ..observe.metrics import BOUNDS
from ..peer.inflight import ForwardedCall
from ..peer.interfaces import Later, Waiting
from ..peer.state import ConversationState
from ..wire.buffers import Encoded
from .arguments import Tagged
from .dispatch import Dispatcher, Line
from .replies import NO_ID, ReplyWriter

#: Tells how the connection of a channel is transported.
TransportOf = Callable[[Any], str]


class ObservedReplyWriter(ReplyWriter):
    """A `ReplyWriter` that remembers the error reply that it wrote last, until its code is asked for."""

    #: That reply; None if it was asked for, or there was none. Of a notification there is only the code.
    failed: Encoded | None = None
    _code = 0
    _is_silent = False

    def error(self, call_id: Any, error: RpcError) -> Encoded | None:
        """As `ReplyWriter.error`."""
        reply = super().error(call_id, error)
        code = getattr(error, "code", None)
        self.note(reply, code if type(code) is int else InternalError.CODE)
        self._is_silent = call_id is NO_ID
        return reply

    def note(self, reply: Encoded | None, code: int) -> None:
        """Remember that this reply is an error with this code."""
        self.failed, self._code = reply, code

    def code_of(self, reply: Encoded | None) -> int:
        """The error code of a reply that has just been written; 0 for a result."""
        if reply is None:
            is_error, self._is_silent = self._is_silent, False
        else:
            is_error = reply is self.failed
        if not is_error:
            return 0
        self.failed = None
        return self._code


class ObservedCalls(Dispatcher):
    """Reports each call to an observer when it has ended. To be put before the class of a dispatcher.

    A call is measured from being read, the time that it waited under overload included, until its reply is made; a
    notification until its handler is done. Members of a batch are measured one by one.

    Args:
        observer: is told of the calls.
        transport_of: tells how a channel's connection is transported; asked only for logs.
        options: as for the dispatcher.
    """

    WRITER = ObservedReplyWriter
    replies: ObservedReplyWriter

    def __init__(self, *args: Any, observer: CallObserver, transport_of: TransportOf, **options: Any) -> None:
        super().__init__(*args, **options)
        self._observer = observer
        self._transport_of = transport_of
        # Not a method, since this is on the path of each call: what it needs is found sooner so.
        self.answer = _observed(super().answer, self.replies, observer, self._other_end)  # type: ignore[method-assign]

    def _other_end(
        self, message: Any, line: Line, session: ConversationState, began: float, reply: Encoded | Later | None
    ) -> Encoded | Later | None:
        """Report a call that has ended in some other way than most, or see to it that its end is reported.

        Args:
            began: when it was taken up (`perf_counter`, s).
            reply: as the dispatcher gave it.

        Returns:
            What is given in its place.
        """
        if type(message) is not dict:  # its members have come by here
            failed = self.replies.failed
            if failed is not None and isinstance(reply, Encoded) and len(reply) <= len(failed) + 2:
                self._report_refused(None, None, self.replies.code_of(failed), reply)
            return reply
        began -= session.waited
        name, size = message.get("method"), len(line)
        if reply is None or isinstance(reply, Encoded):
            self._ended(name, message.get("id"), size, session, session.channel, began, reply)
            return reply
        if isinstance(reply, ForwardedCall):
            self._follow(reply, name, size, session, began)
            return reply
        return self._until_reply(_Unawaited(reply), name, message.get("id"), size, session, session.channel, began)

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`."""
        replies = self.replies
        replies.failed = None
        reply = super().refuse(message, error)
        if type(message) is list and reply is not replies.failed:
            return reply  # each member was counted by itself
        name, call_id = (message.get("method"), message.get("id")) if type(message) is dict else (None, None)
        self._report_refused(name, call_id, replies.code_of(replies.failed) or error.code, reply)
        return reply

    def accepted(self, message: dict[str, Any], session: ConversationState, reply: Encoded | None) -> None:
        """Report a request that was answered with a result in front of this dispatcher: see `Gate`."""
        self._ended(message["method"], message.get("id"), 0, session, session.channel, session.began, reply, 0)

    def _report_refused(self, name: Any, call_id: Any, code: int, reply: Encoded | None) -> None:
        """Report a call that was not begun; on which connection it came is not known here."""
        observer = self._observer
        if observer.metrics is not None:
            observer.metrics.refused(name, code)
        if observer.reports_from <= 0:
            size = None if reply is None else len(reply)
            observer.report(EndedCall("", None, "", name, call_id, code, 0.0, None, size))

    async def _until_reply(
        self,
        later: _Unawaited,
        name: Any,
        call_id: Any,
        size: int,
        session: ConversationState,
        channel: Any,
        began: float,
    ) -> Encoded | None:
        reply = await later.begin()
        self._ended(name, call_id, size, session, channel, began, reply)
        return reply

    def _follow(self, call: ForwardedCall, name: Any, size: int, session: ConversationState, began: float) -> None:
        """Note when a forwarded call has begun, so that its end is observed."""
        raise NotImplementedError

    def _ended(
        self,
        name: Any,
        call_id: Any,
        size: int,
        session: ConversationState,
        channel: Any,
        began: float,
        reply: Encoded | None,
        code: int | None = None,
    ) -> None:
        """Report a call that has ended.

        Args:
            size: bytes of its message; 0 for a member of a batch.
            channel: that it came by; the session may have lost it.
            began: when it was read (`perf_counter`, s).
            reply: to it; None for a notification.
            code: of the error that the reply is; None: the reply has just been written here.
        """
        seconds = perf_counter() - began
        if code is None:
            code = self.replies.code_of(reply)
        observer = self._observer
        if observer.metrics is not None:
            observer.metrics.ended(name, code, seconds)
        if seconds >= observer.reports_from:
            observer.report(
                EndedCall(
                    address="" if channel is None else channel.address,
                    identity=session.identity,
                    transport="" if channel is None else self._transport_of(channel),
                    method=name,
                    call_id=call_id,
                    code=code,
                    seconds=seconds,
                    request_size=size or None,
                    reply_size=None if reply is None else len(reply),
                )
            )


def _observed(
    answer: Callable[[Any, Line, ConversationState, Tagged], Encoded | Later | None],
    replies: ObservedReplyWriter,
    observer: CallObserver,
    other_end: Callable[[Any, Line, ConversationState, float, Encoded | Later | None], Encoded | Later | None],
) -> Callable[..., Encoded | Later | None]:
    """`Dispatch.answer`, with the time of each call.

    Args:
        answer: carries the calls out.
        replies: tells which of them have failed.
        observer: has the calls by method, for what nearly every call is: it has a result, at once, and quickly.
        other_end: takes all others.
    """
    metrics = observer.metrics
    by_method = {} if metrics is None else metrics.by_method
    quick = BOUNDS[0] if metrics is not None and observer.reports_from > BOUNDS[0] else -1.0

    def observed(message: Any, line: Line, session: ConversationState, tagged: Tagged = None) -> Encoded | Later | None:
        # A member of a batch, which has no line, comes when others before it are answered.
        began = session.began if line else perf_counter()
        reply = answer(message, line, session, tagged)
        if type(reply) is bytes and reply is not replies.failed:
            seconds = perf_counter() - began
            if seconds <= quick and not session.waited:
                try:
                    calls = by_method[message["method"]]
                except (KeyError, TypeError):
                    pass  # the first call of the method, or a batch
                else:
                    calls.quick += 1
                    calls.seconds += seconds
                    return reply
        return other_end(message, line, session, began, reply)

    return observed


class _Unawaited:
    """A coroutine to be awaited by another one; closed should that end before it begins."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Waiting) -> None:
        self._coroutine: Waiting | None = coroutine

    def begin(self) -> Waiting:
        """The coroutine, which is awaited now."""
        coroutine, self._coroutine = self._coroutine, None
        assert coroutine is not None
        return coroutine

    def __del__(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()


def observed(kind: type[Dispatcher], calls: type[ObservedCalls] = ObservedCalls) -> type[ObservedCalls]:
    """The class of dispatchers that does the same with its calls observed; it takes the arguments of `calls`, too.

    Args:
        kind: a class of dispatchers.
        calls: observes them.
    """
    writer = kind.WRITER
    observing = type(f"Observed{writer.__name__}", (ObservedReplyWriter, writer), {})
    return type(f"Observed{kind.__name__}", (calls, kind), {"WRITER": observing})
