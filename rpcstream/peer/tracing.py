"""Spans of the calls that one end of a connection makes (`observe.tracing`), and how its requests carry the trace.

Imported where tracing is switched on, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from ..observe.tracing import Attributes, CallSpan, Tracing, current, peer_attributes
from ..wire.buffers import Encoded
from .calls import Call
from .marshal import Marshaller
from .outgoing import OutgoingCalls


class CallTracing:
    """Makes the spans of the calls to one server or peer.

    Args:
        attributes: of the connection, or of the address.
    """

    def __init__(self, tracing: Tracing, attributes: Attributes) -> None:
        self._tracing = tracing
        self._attributes = attributes

    def begin(self, outgoing: Call, parent: Any = None) -> Any:
        """Begin the span of what is to be sent, a context manager.

        Args:
            parent: the context that the call was made in; None: the present one.
        """
        return outgoing.begin_span(lambda method: self._tracing.made(method, self._attributes, parent))

    def stream(self, outgoing: Call) -> Callable[[], CallSpan]:
        """What begins the span of a stream, when its first item is asked for, perhaps in another thread than now."""
        return partial(self.begin, outgoing, current())

    def performing(self, perform: Callable[..., Any]) -> Callable[..., Any]:
        """As `perform`, which sends a call and waits for its outcome, with a span."""

        def traced(outgoing: Call, *options: Any) -> Any:
            with self.begin(outgoing):
                return perform(outgoing, *options)

        return traced

    def awaiting(self, perform: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """As `perform`, which is awaited, with a span."""

        async def traced(outgoing: Call, *options: Any) -> Any:
            with self.begin(outgoing):
                return await perform(outgoing, *options)

        return traced

    def submitting(self, submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        """As `submit`, which sends a call and gives a future, with a span."""

        def traced(outgoing: Call, *options: Any) -> Future[Any]:
            trace = self.begin(outgoing)

            def ended(future: Future[Any]) -> None:
                trace.end(CancelledError() if future.cancelled() else future.exception())

            future = submit(outgoing, *options)
            Future.add_done_callback(future, ended)  # where it ends, not in the thread for callbacks of users
            return future

        return traced

    def notification(self, marshaller: Marshaller, method: str, params: Any) -> Encoded:
        """The bytes of a notification, which carry the trace; its span is over once it is encoded."""
        with self._tracing.made(method, self._attributes) as span:
            return marshaller.notification(method, params, span.members)


def traced_calls(tracing: Tracing, session: Any, marshaller: Marshaller) -> OutgoingCalls:
    """The calls that are made on one conversation, with spans for those that users make."""
    calls = OutgoingCalls(session, marshaller)
    calls.tracing = CallTracing(tracing, peer_attributes(marshaller.address))
    return calls
