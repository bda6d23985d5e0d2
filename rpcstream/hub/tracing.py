"""Spans of the calls that go through a hub (`observe.tracing`): one for the caller's request, one for the provider's.

The second span takes the place of the caller's in the request that goes on to the provider. Imported only where tracing
is switched on.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..errors import CallCancelled, RpcError
from ..observe.tracing import CallSpan, Tracing, current, peer_attributes
from ..wire.buffers import Encoded
from . import passthrough
from .members import Member
from .passthrough import Line
from .relay import Relay


class TracedRelay(Relay):
    """A `Relay` with a span for each provider that the call is sent to, as parts of the span that is current now."""

    __slots__ = ("_hop", "_parent", "_tracing")

    def __init__(self, tracing: Tracing, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tracing = tracing
        self._parent = current()
        self._hop: CallSpan | None = None

    def request(self, line: Line, message: dict[str, Any], method: bytes, **members: Any) -> Encoded:
        hop = self._hop = _hop(self._tracing, method, self.provider, self._parent)
        trace = hop.sent(self.pending_id)
        return passthrough.request(line, message, self.pending_id, method, **members, trace=trace)

    def send(self, message: Encoded) -> None:
        try:
            super().send(message)
        except RpcError as error:
            if self._hop is not None:
                self._hop.end(error)
            raise

    def turn_to(self, provider: Member) -> None:
        if self._hop is not None:
            self._hop.end(CallCancelled())  # this provider has not begun it
        super().turn_to(provider)

    def _finish(self, reply: Encoded | None) -> None:
        hop, self._hop = self._hop, None
        if hop is not None:
            if (failed := self._forwarder.replies.failed) is not None:
                hop.set_code(*failed)
            hop.end()
        super()._finish(reply)


def traced_notification(
    tracing: Tracing, provider: Member, line: Line, message: dict[str, Any], method: bytes, timeout: float | None
) -> Encoded:
    """As `Forwarding`'s own, with a span."""
    with _hop(tracing, method, provider) as hop:
        return passthrough.request(line, message, None, method, timeout=timeout, trace=hop.members)


def _hop(tracing: Tracing, method: bytes, provider: Member, parent: Any = None) -> CallSpan:
    """Begin the span of a call at a provider, as a part of the caller's."""
    channel = provider.session.channel
    attributes = peer_attributes(channel.address) if channel is not None else {}
    return tracing.made(orjson.loads(method), attributes, parent)
