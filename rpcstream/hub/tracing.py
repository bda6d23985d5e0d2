"""Spans of the calls that go through a hub (`observe.tracing`): one for the caller's request, one for the provider's.

Owns how the trace goes on to the provider: the second span takes the place of the caller's in the request. Imported
where tracing is switched on, and nowhere else.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..errors import CallCancelled, RpcError
from ..methods.tracing import TracingDispatcher
from ..observe.tracing import CallSpan, peer_attributes
from ..peer.state import ConversationState
from ..wire.buffers import Encoded
from . import passthrough
from .dispatch import HubDispatcher
from .held import HeldCall
from .members import Member
from .passthrough import Line
from .relay import Relay
from .routes import Route


class TracedRelay(Relay):
    """A `Relay` with the span of the caller's request, and one for each provider that the call is sent to."""

    __slots__ = ("_hop", "span")

    _forwarder: TracingHubDispatcher

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The span of the caller's request.
        self.span = self._forwarder.replies.span
        self._hop: CallSpan | None = None

    def request(self, line: Line, message: dict[str, Any], method: bytes, **members: Any) -> Encoded:
        hop = self._hop = self._forwarder.hop(orjson.loads(method), self.provider, self.span)
        hop.set_id(self.pending_id)
        return passthrough.request(line, message, self.pending_id, method, **members, trace=hop.members)

    def send(self, message: Encoded) -> None:
        try:
            super().send(message)
        except RpcError as error:
            if self._hop is not None:
                self._hop.end(error)
            raise

    def answer(self, reply: dict[str, Any], line: Line) -> None:
        error = reply.get("error")
        for span in (self.span, self._hop):
            if span is not None and type(error) is dict:
                span.set_code(error.get("code"), error.get("message"))
            elif span is not None:
                span.clear_error()
        if self._hop is not None:
            self._hop.end()
        super().answer(reply, line)

    def fail(self, error: Exception) -> None:
        if self._hop is not None:
            self._hop.end(error)
        super().fail(error)

    def refuse(self, error: RpcError) -> None:
        with self._forwarder.replies.during(self.span):
            super().refuse(error)

    def _give_up(self) -> None:
        if self._hop is not None:
            self._hop.end(CallCancelled())
        super()._give_up()

    def _finish(self, reply: Encoded | None) -> None:
        super()._finish(reply)
        if self._hop is not None:
            self._hop.end()
        if self.span is not None:
            self.span.end()


class TracedHeldCall(HeldCall):
    """A `HeldCall` with the span of the caller's request."""

    __slots__ = ("dispatcher", "span")

    def __init__(self, *args: Any, dispatcher: TracingHubDispatcher, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dispatcher = dispatcher
        self.span = dispatcher.replies.span

    def refuse(self, error: RpcError | None = None) -> None:
        with self.dispatcher.replies.during(self.span):
            super().refuse(error)

    def finish(self, reply: Encoded | None) -> None:
        super().finish(reply)
        if self.span is not None:
            self.span.end()


class TracingHubDispatcher(TracingDispatcher, HubDispatcher):
    """A `HubDispatcher` that makes spans of its own methods' calls and of those that it forwards."""

    RELAY = TracedRelay

    def _held_call(self, message: dict[str, Any], line: Line, session: ConversationState, **options: Any) -> HeldCall:
        return TracedHeldCall(message, line, session, dispatcher=self, refused=self._refused, **options)

    def hop(self, method: str, provider: Member, span: CallSpan | None, *, has_reply: bool = True) -> CallSpan:
        """Begin the span of a call at a provider, as a part of the caller's."""
        channel = provider.session.channel
        attributes = peer_attributes(channel.address) if channel is not None else {}
        parent = None if span is None else span.context
        return self.tracing.made(method, attributes, parent, has_reply=has_reply)

    def send_again(self, relay: Relay) -> bool:
        with self.replies.during(relay.span if isinstance(relay, TracedRelay) else None):
            return super().send_again(relay)

    def _forward_held(self, call: HeldCall, route: Route) -> None:
        with self.replies.during(call.span if isinstance(call, TracedHeldCall) else None):
            super()._forward_held(call, route)

    def _notification(
        self, route: Route, provider: Member, line: Line, message: dict[str, Any], timeout: float | None
    ) -> Encoded:
        method = route.text_at(provider)
        hop = self.hop(orjson.loads(method), provider, self.replies.span, has_reply=False)
        try:
            return passthrough.request(line, message, None, method, timeout=timeout, trace=hop.members)
        finally:
            hop.end()

    def _is_known(self, name: Any) -> bool:
        return super()._is_known(name) or (type(name) is str and (name in self._routes or self._was_offered(name)))

    def _was_offered(self, name: str) -> bool:
        method = self._held.find(name) if self._held is not None else None
        return method is not None and method.method is not None
