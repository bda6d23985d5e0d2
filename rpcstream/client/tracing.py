"""Spans of the calls of a client (`observe.tracing`): around the functions that send and wait, for both clients.

Owns the spans of a batch, and which attributes an address has. Imported where tracing is switched on, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from ..observe.tracing import Attributes, Tracing
from ..peer.marshal import NOT_GIVEN, Marshaller, Outgoing
from ..peer.tracing import CallTrace, StreamSpan
from ..wire.buffers import Encoded
from .address import Address
from .batch import BatchCall, BatchExchange


class ClientTracing:
    """Makes the spans of one client's calls.

    Args:
        address: of the server.
    """

    def __init__(self, tracing: Tracing, address: Address) -> None:
        self._tracing = tracing
        self._attributes = address_attributes(address)

    def begin(self, outgoing: Outgoing) -> CallTrace | BatchTrace:
        """Begin the spans of what is to be sent."""
        if isinstance(outgoing, BatchExchange):
            return BatchTrace(self._tracing, outgoing, self._attributes)
        return CallTrace(self._tracing, outgoing, self._attributes)

    def performing(self, perform: Callable[..., Any]) -> Callable[..., Any]:
        """As `perform`, which sends a call and waits for its outcome, with a span."""

        def traced(outgoing: Outgoing, timeout: Any, on_progress: Any = None, wait_for: Any = NOT_GIVEN) -> Any:
            trace = self.begin(outgoing)
            try:
                value = perform(trace.outgoing, timeout, on_progress, wait_for)
            except BaseException as error:
                trace.failed(error)
                raise
            trace.done(value)
            return value

        return traced

    def awaiting(self, perform: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """As `perform`, which is awaited, with a span."""

        async def traced(outgoing: Outgoing, timeout: Any, on_progress: Any = None, wait_for: Any = NOT_GIVEN) -> Any:
            trace = self.begin(outgoing)
            try:
                value = await perform(trace.outgoing, timeout, on_progress, wait_for)
            except BaseException as error:
                trace.failed(error)
                raise
            trace.done(value)
            return value

        return traced

    def submitting(self, submit: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        """As `submit`, which sends a call and gives a future, with a span."""

        def traced(outgoing: Outgoing, timeout: Any, on_progress: Any = None, wait_for: Any = NOT_GIVEN) -> Future[Any]:
            trace = self.begin(outgoing)

            def ended(future: Future[Any]) -> None:
                error = CancelledError() if future.cancelled() else future.exception()
                if error is None:
                    trace.done(future.result())
                else:
                    trace.failed(error)

            try:
                future: Future[Any] = submit(trace.outgoing, timeout, on_progress, wait_for)
            except BaseException as error:
                trace.failed(error)
                raise
            Future.add_done_callback(future, ended)  # where it ends, not in the thread for callbacks of users
            return future

        return traced

    def notifying(self, marshaller: Marshaller) -> Callable[..., Encoded]:
        """As `Marshaller.notification`, with a span."""

        def traced(method: str, params: Any) -> Encoded:
            span = self._tracing.made(method, self._attributes, has_reply=False)
            try:
                return marshaller.notification(method, params, span.members)
            except Exception as error:
                span.set_error(error)
                raise
            finally:
                span.end()

        return traced

    def notified(self, method: str) -> Mapping[str, str]:
        """Make the span of a notification in a batch without calls; gives the members that carry the trace."""
        span = self._tracing.made(method, self._attributes, has_reply=False)
        span.end()
        return span.members

    def stream(self, method: str) -> StreamSpan:
        """The span of a stream that is to be read."""
        return StreamSpan(self._tracing, method, self._attributes)


class BatchTrace:
    """The spans of a batch that is sent: one for each call and notification in it.

    Attributes:
        outgoing: the batch.
    """

    def __init__(self, tracing: Tracing, outgoing: BatchExchange, attributes: Attributes) -> None:
        self.outgoing = outgoing
        self._spans = [
            tracing.made(
                member.method if isinstance(member, BatchCall) else member[0],
                attributes,
                has_reply=isinstance(member, BatchCall),
            )
            for member in outgoing.members
        ]
        outgoing.more = [span.members for span in self._spans]

    def done(self, value: Any) -> None:
        """The batch was answered: each call knows its outcome."""
        self._end(None)

    def failed(self, error: BaseException) -> None:
        """The batch has failed: calls that have no outcome end with this error."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        ids = self.outgoing.ids
        for span, member in zip(self._spans, self.outgoing.members, strict=True):
            if not isinstance(member, BatchCall):
                span.end(error)
                continue
            if member in ids:
                span.set_id(ids[member])
            span.end(member.error if member.has_ended else error)


def address_attributes(address: Address) -> Attributes:
    """The attributes of the server with this address."""
    if address.is_unix:
        return {"network.transport": "unix", "server.address": address.path.replace("\0", "@")}
    if address.is_nats:
        return {"network.transport": "tcp", "network.protocol.name": "nats", "server.address": str(address)}
    if address.kind == "custom":
        return {"server.address": address.path}
    return {"network.transport": "tcp", "server.address": address.host, "server.port": address.port}
