"""Spans for the calls of both clients. Imported only if tracing is on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from typing import Any

from ..observe.tracing import Attributes, Tracing
from ..peer.calls import Call
from ..peer.tracing import CallTracing
from .address import Address
from .base import Notice
from .batch import BatchExchange


class ClientTracing(CallTracing):
    """Makes the spans of one client's calls.

    Args:
        address: of the server.
    """

    def __init__(self, tracing: Tracing, address: Address) -> None:
        super().__init__(tracing, address_attributes(address))

    def begin(self, outgoing: Call, parent: Any = None) -> Any:
        if isinstance(outgoing, BatchExchange):
            return BatchTrace(self._tracing, outgoing, self._attributes)
        if isinstance(outgoing, Notice):
            return nullcontext()  # it has a span of its own
        return super().begin(outgoing, parent)

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


class BatchTrace:
    """The spans of a batch that is sent: one for each call and notification in it, all of which end with the batch."""

    def __init__(self, tracing: Tracing, outgoing: BatchExchange, attributes: Attributes) -> None:
        self._spans = [(tracing.made(member.method, attributes), member) for member in outgoing.members]
        outgoing.more = [span.members for span, _ in self._spans]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for span, call in self._spans:
            span.end(call.error if call.has_ended else error)


def address_attributes(address: Address) -> Attributes:
    """The attributes of the server with this address."""
    if address.is_unix:
        return {"network.transport": "unix", "server.address": address.path.replace("\0", "@")}
    if address.is_nats or address.kind == "custom":
        return {"server.address": str(address)}
    return {"network.transport": "tcp", "server.address": address.host, "server.port": address.port}
