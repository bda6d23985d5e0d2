"""Spans of the calls that one end of a connection makes (`observe.tracing`), and how its requests carry the trace.

Owns the span of a call from before it is sent to its outcome, for clients and for handlers that call back. Imported
where tracing is switched on, and nowhere else.
"""

from __future__ import annotations

from typing import Any

from ..observe.tracing import Attributes, CallSpan, Tracing, current, peer_attributes
from ..wire.buffers import Encoded
from .marshal import Call, ExtendedCall, Marshaller, Outgoing, RawCall
from .outgoing import Conversation, ExtensibleCall, OutgoingCalls
from .pending import OnProgress


class TracedCall(ExtendedCall):
    """A call whose request carries the trace. Each time that it is sent again is an event of the span.

    Attributes:
        span: of the call.
    """

    __slots__ = ("span",)

    span: CallSpan

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        if self.sent:
            self.span.add_event("retry")
        return super().encode(left, says_whole=says_whole)


class CallTrace:
    """The span of one call that is made: it begins with this object, and ends with `done` or `failed`.

    Args:
        outgoing: a call, or a raw request.
        attributes: of the connection, or of the address.

    Attributes:
        outgoing: what is to be sent in its place.
    """

    def __init__(self, tracing: Tracing, outgoing: Outgoing, attributes: Attributes) -> None:
        self.span = span = tracing.made(outgoing.method, attributes)
        self.outgoing = outgoing
        if type(outgoing) is Call:
            call = self.outgoing = outgoing.remade(TracedCall)
            call.more, call.span = span.members, span
        elif isinstance(outgoing, RawCall):
            self.outgoing = outgoing.extended(span.members)

    def done(self, value: Any) -> None:
        """The call has this outcome."""
        if isinstance(self.outgoing, RawCall) and isinstance(value, dict) and isinstance(value.get("error"), dict):
            self.span.set_code(value["error"].get("code"), value["error"].get("message"))
        self._end()

    def failed(self, error: BaseException) -> None:
        """The call has raised this."""
        self.span.set_error(error)
        self._end()

    def _end(self) -> None:
        for call_id in self.outgoing.call_ids:
            if call_id:  # it was sent
                self.span.set_id(call_id)
        self.span.end()


class StreamSpan:
    """The span of a stream (`outgoing.StreamTrace`), which begins when its first item is asked for.

    Args:
        attributes: of the connection, or of the address.
    """

    def __init__(self, tracing: Tracing, method: str, attributes: Attributes) -> None:
        self._tracing = tracing
        self._method = method
        self._attributes = attributes
        # A sync client's stream is started in another thread than the one that it was asked for in.
        self._parent = current()
        self._span: CallSpan | None = None
        self._call: ExtensibleCall | None = None

    def start(self, call: ExtensibleCall) -> None:
        self._call = call
        if self._span is None:
            self._span = self._tracing.made(self._method, self._attributes, self._parent)
            call.more = self._span.members
        else:
            self._span.add_event("retry")

    def end(self, error: Exception | None) -> None:
        if self._span is None and error is not None:  # there was no connection to send it on
            self._span = self._tracing.made(self._method, self._attributes, self._parent)
        if self._span is None:
            return
        for call_id in self._call.call_ids if self._call is not None else ():
            if call_id:  # it was sent
                self._span.set_id(call_id)
        self._span.end(error)


class TracedOutgoingCalls(OutgoingCalls):
    """The calls that are made on one conversation, with spans for those that users make.

    Args:
        attributes: of the server's address; None: those of the other end's.
    """

    __slots__ = ("_attributes", "_tracing")

    def __init__(
        self, session: Conversation, marshaller: Marshaller, *, tracing: Tracing, attributes: Attributes | None = None
    ) -> None:
        super().__init__(session, marshaller)
        self._tracing = tracing
        self._attributes = peer_attributes(marshaller.address) if attributes is None else attributes

    async def call(self, outgoing: Outgoing, deadline: float, on_progress: OnProgress | None = None) -> Any:
        trace = CallTrace(self._tracing, outgoing, self._attributes)
        try:
            value = await self.ask(trace.outgoing, deadline, on_progress)
        except BaseException as error:
            trace.failed(error)
            raise
        trace.done(value)
        return value

    def notification(self, method: str, params: list[Any] | dict[str, Any] | None) -> Encoded:
        span = self._tracing.made(method, self._attributes, has_reply=False)
        try:
            return self.marshaller.notification(method, params, span.members)
        except Exception as error:
            span.set_error(error)
            raise
        finally:
            span.end()

    def stream_trace(self, method: str) -> StreamSpan:
        return StreamSpan(self._tracing, method, self._attributes)
