"""Spans of calls for OpenTelemetry, and the W3C Trace Context that makes one trace of them.

The names are those of the semantic conventions, version 1.44, for RPC and JSON-RPC. Imported where tracing is switched
on, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from time import time_ns
from typing import Any

try:
    from opentelemetry import context as otel
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(
        "tracing needs the package opentelemetry-api: pip install 'rpcstream[opentelemetry]'"
    ) from missing

from ..errors import CallCancelled, RpcError
from .limited_log import shortened

#: The members of a request, and headers of HTTP, that carry the trace (W3C Trace Context, sections 3.2 and 3.3).
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

#: Characters of each that are read. A `traceparent` has 55; those of later versions may be longer.
MAX_CONTEXT = 512

#: Characters that are kept of what a peer has chosen: an unknown method, an id, the text of an error.
MAX_TEXT = 256

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_SYSTEM = "jsonrpc"
_OTHER = "_OTHER"

_propagator = TraceContextTextMapPropagator()
_NOTHING = otel.Context()

#: Methods that are no calls of a program: of these there are spans only where the caller sends a trace.
QUIET = frozenset(
    ("rpc.hello", "rpc.ping", "keepAlive", "rpc.authenticate", "rpc.register", "rpc.unregister", "rpc.subscribe")
)

#: Attributes of a span.
Attributes = Mapping[str, str | int]


class Tracing:
    """Makes the spans of a server, a hub or a client.

    Args:
        provider: of the spans; None: the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        from .. import __version__

        self._tracer = trace.get_tracer("rpcstream", __version__, tracer_provider=provider, schema_url=_SCHEMA)

    def served(self, message: Mapping[str, Any], session: Any, is_known: Callable[[str], bool]) -> CallSpan | None:
        """Begin the span of a request that is to be answered; None for one that has none.

        Args:
            message: the request, not checked.
            session: that it came on; its HTTP headers are read where the request has no trace of its own.
            is_known: whether there is a method of this name.
        """
        name = message.get("method")
        name = name if type(name) is str else ""
        if name in QUIET and TRACEPARENT not in message:
            return None
        parent = parent_in(message)
        if parent is None and not session.is_lasting:
            parent = parent_in(session.headers)
        more = dict(_attributes_of(session))
        call_id = message.get("id")
        if type(call_id) is int or type(call_id) is str:
            more["jsonrpc.request.id"] = str(call_id)[:MAX_TEXT]
        if not is_known(name):
            more["rpc.method_original"] = name[:MAX_TEXT]
            name = _OTHER
        since = time_ns() - int(session.waited * 1e9)
        # Without a parent it begins a trace: what is current here belongs to whatever has read the message.
        return self._begin(trace.SpanKind.SERVER, name, more, _NOTHING if parent is None else parent, since)

    def made(self, method: str, attributes: Attributes, parent: otel.Context | None = None) -> CallSpan:
        """Begin the span of a call that is made.

        Args:
            method: its name at the other end.
            attributes: of the connection, or of the address.
            parent: holds the span that the call is made in; None: the current context.
        """
        return self._begin(trace.SpanKind.CLIENT, method, attributes, parent, time_ns())

    def _begin(
        self, kind: trace.SpanKind, method: str, more: Attributes, parent: otel.Context | None, since: int
    ) -> CallSpan:
        name = _SYSTEM if method == _OTHER else method
        every = {"rpc.system.name": _SYSTEM, "rpc.method": method, **more, "jsonrpc.protocol.version": "2.0"}
        span = self._tracer.start_span(name, parent, kind, every, start_time=since)
        return CallSpan(span, trace.set_span_in_context(span, parent))


@dataclass(slots=True)
class CallSpan:
    """The span of one call; a context manager that ends it.

    Attributes:
        context: the context that has it as its current span.
        was_sent: the request was sent.
        has_ended: nothing more is recorded.
    """

    span: trace.Span
    context: otel.Context
    was_sent: bool = False
    has_ended: bool = False

    @property
    def members(self) -> dict[str, str]:
        """The members of a request, or headers, by which the other end continues the trace."""
        members: dict[str, str] = {}
        _propagator.inject(members, self.context)
        return members

    def sent(self, call_id: object) -> dict[str, str]:
        """Note that the call is sent with this id, perhaps again; gives further members of its request."""
        if self.was_sent:
            self.span.add_event("retry")
        self.was_sent = True
        self.span.set_attribute("jsonrpc.request.id", str(call_id)[:MAX_TEXT])
        return self.members

    @contextmanager
    def active(self) -> Iterator[None]:
        """While the block runs, the span is the current one."""
        token = otel.attach(self.context)
        try:
            yield
        finally:
            otel.detach(token)

    def activate(self) -> None:
        """Make the span the current one of this task, for the rest of it."""
        otel.attach(self.context)

    def set_code(self, code: object, text: object) -> None:
        """Say that the reply is an error, with its code and message."""
        status = str(code)[:MAX_TEXT]
        self._fail({"error.type": status, "rpc.response.status_code": status}, str(text))

    def _fail(self, attributes: dict[str, str], text: str) -> None:
        self.span.set_attributes(attributes)
        self.span.set_status(trace.StatusCode.ERROR, text[:MAX_TEXT] or None)

    def end(self, error: BaseException | None = None) -> None:
        """End it now, with an error reply, or an exception in the place of a reply. Harmless at any time."""
        if self.has_ended:
            return
        self.has_ended = True
        if isinstance(error, RpcError):
            self.set_code(error.code, error.message)
        elif error is not None:
            name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
            self._fail({"error.type": name}, shortened(error))
        self.span.end()

    def __del__(self) -> None:
        self.end(CallCancelled())  # its task was cancelled before its first step

    def __enter__(self) -> CallSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)


def parent_in(carrier: Mapping[str, Any]) -> otel.Context | None:
    """The context that the members of a request, or headers, name; None where there is none, or a malformed one."""
    members = {
        name: value
        for name in (TRACEPARENT, TRACESTATE)
        if type(value := carrier.get(name)) is str and len(value) <= MAX_CONTEXT
    }
    found = _propagator.extract(members, _NOTHING)
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def current() -> otel.Context:
    """The present context, for a call that is made later."""
    return otel.get_current()


@lru_cache(maxsize=1024)
def peer_attributes(address: str) -> Attributes:
    """The attributes of a connection, by the other end's address: "127.0.0.1:50412", "[::1]:8545", "unix:///path"."""
    if address.startswith("unix://"):
        path = address.removeprefix("unix://")
        return {"network.transport": "unix", **({"network.peer.address": path} if path else {})}
    return {"network.transport": "tcp", **_location("network.peer", address)} if ":" in address else {}


def _attributes_of(session: Any) -> Attributes:
    """The attributes of a connection, as the end that is called sees it: `Host` is how its client names the server."""
    host = session.headers.get("host")
    address = "" if session.channel is None else session.channel.address
    return {**peer_attributes(address), **(_location("server", host[:MAX_TEXT]) if host else {})}


def _location(prefix: str, text: str) -> dict[str, str | int]:
    name, _, port = text.rpartition(":")
    if not port.isdecimal() or len(port) > 5:
        return {f"{prefix}.address": text.strip("[]")}
    return {f"{prefix}.address": name.strip("[]"), f"{prefix}.port": int(port)}
