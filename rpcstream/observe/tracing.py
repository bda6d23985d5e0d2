"""Spans and durations of calls for OpenTelemetry, and the W3C Trace Context that makes one trace of them.

Owns the names of the semantic conventions (version 1.44, RPC and JSON-RPC) and the members `traceparent` and
`tracestate`. Knows neither messages nor connections. Imported where tracing is switched on, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from time import time_ns
from typing import Any

try:
    from opentelemetry import context as otel
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise ImportError(
        "tracing needs the package opentelemetry-api: pip install 'rpcstream[opentelemetry]'"
    ) from missing

#: The members of a request, and headers of HTTP, that carry the trace (W3C Trace Context, sections 3.2 and 3.3).
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

#: Characters of each that are read. A `traceparent` has 55; those of later versions may be longer.
MAX_CONTEXT = 512

#: Characters that are kept of what a peer has chosen: an unknown method, an id, the text of an error.
MAX_TEXT = 256

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_SYSTEM = "jsonrpc"
_OTHER = "_OTHER"

#: Seconds; as the conventions advise.
_BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_propagator = TraceContextTextMapPropagator()
_NOTHING = otel.Context()

#: Attributes of a span.
Attributes = Mapping[str, str | int]


class Tracing:
    """Makes the spans of a server, a hub or a client, and measures how long their calls take.

    Args:
        provider: of the spans; None: the global one. The durations go to the global meter provider.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        from .. import __version__

        self._tracer = trace.get_tracer("rpcstream", __version__, tracer_provider=provider, schema_url=_SCHEMA)
        meter = metrics.get_meter("rpcstream", __version__, schema_url=_SCHEMA)
        self._durations = {
            kind: meter.create_histogram(
                f"rpc.{name}.call.duration", "s", description, explicit_bucket_boundaries_advisory=_BOUNDARIES
            )
            for kind, name, description in (
                (trace.SpanKind.SERVER, "server", "Duration of calls that were answered"),
                (trace.SpanKind.CLIENT, "client", "Duration of calls that were made"),
            )
        }

    @classmethod
    def of(cls, option: Any) -> Tracing | None:
        """The tracing that the option `tracing` of a server or client asks for; None for none.

        Raises:
            TypeError: it is neither a bool nor a TracerProvider.
        """
        if option is None or option is False:
            return None
        if isinstance(option, Tracing):
            return option
        if option is True:
            return cls()
        if not callable(getattr(option, "get_tracer", None)):
            raise TypeError(f"tracing is True, False or a TracerProvider of OpenTelemetry, got {type(option).__name__}")
        return cls(option)

    def served(
        self,
        message: Mapping[str, Any],
        *,
        is_known: bool,
        headers: Mapping[str, str],
        attributes: Attributes,
        waited: float,
    ) -> CallSpan:
        """Begin the span of a request that is to be answered.

        Args:
            message: the request, not checked.
            is_known: there is a method of this name.
            headers: of HTTP; read where the request has no trace of its own.
            attributes: of the connection.
            waited: seconds since the request came.
        """
        name = message.get("method")
        parent = parent_in(message)
        if parent is None and TRACEPARENT in headers:
            parent = parent_in(headers)
        more: dict[str, str | int] = {**attributes, "jsonrpc.protocol.version": "2.0"}
        call_id = message.get("id")
        if type(call_id) is int or type(call_id) is str:
            more["jsonrpc.request.id"] = str(call_id)[:MAX_TEXT]
        if not is_known and type(name) is str:
            more["rpc.method_original"] = name[:MAX_TEXT]
        method = name if is_known and type(name) is str else _OTHER
        since = time_ns() - int(waited * 1e9)
        # Without a parent it begins a trace: what is current here belongs to whatever has read the message.
        return self._begin(trace.SpanKind.SERVER, method, more, _NOTHING if parent is None else parent, since)

    def made(
        self,
        method: str,
        attributes: Attributes,
        parent: otel.Context | None = None,
        *,
        has_reply: bool = True,
    ) -> CallSpan:
        """Begin the span of a call that is made.

        Args:
            method: its name at the other end.
            attributes: of the connection, or of the address.
            parent: holds the span that the call is made in; None: the current context.
            has_reply: False for a notification, which has no duration.
        """
        more = {**attributes, "jsonrpc.protocol.version": "2.0"}
        return self._begin(trace.SpanKind.CLIENT, method, more, parent, time_ns(), is_measured=has_reply)

    def _begin(
        self,
        kind: trace.SpanKind,
        method: str,
        more: Attributes,
        parent: otel.Context | None,
        since: int,
        *,
        is_measured: bool = True,
    ) -> CallSpan:
        of_call: dict[str, str | int] = {"rpc.system.name": _SYSTEM, "rpc.method": method}
        name = _SYSTEM if method == _OTHER else method
        span = self._tracer.start_span(name, parent, kind, {**of_call, **more}, start_time=since)
        if kind is trace.SpanKind.CLIENT:
            of_call.update({name: more[name] for name in ("server.address", "server.port") if name in more})
        histogram = self._durations[kind] if is_measured else None
        return CallSpan(span, trace.set_span_in_context(span, parent), since, histogram, of_call)


class CallSpan:
    """The span of one call, and the measuring of its duration. It ends once; what is said later is dropped.

    Attributes:
        context: the context that has it as its current span.
        has_ended: nothing more is recorded.
    """

    __slots__ = ("_attributes", "_error", "_histogram", "_since", "_span", "context", "has_ended")

    def __init__(
        self,
        span: trace.Span,
        context: otel.Context,
        since: int,
        histogram: metrics.Histogram | None,
        attributes: dict[str, str | int],
    ) -> None:
        self.context = context
        self.has_ended = False
        self._span = span
        self._since = since
        self._histogram = histogram
        self._attributes = attributes
        #: The attributes of the error that the call ends with, and its text.
        self._error: tuple[dict[str, str | int], str] | None = None

    @property
    def members(self) -> dict[str, str]:
        """The members of a request, or headers, by which the other end continues the trace."""
        members: dict[str, str] = {}
        _propagator.inject(members, self.context)
        return members

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

    def set_id(self, call_id: object) -> None:
        """Say which id the request has."""
        self._span.set_attribute("jsonrpc.request.id", str(call_id)[:MAX_TEXT])

    def add_event(self, name: str) -> None:
        """Note that something has happened."""
        self._span.add_event(name)

    def set_code(self, code: object, text: object) -> None:
        """Say that the reply is an error, with its code and message."""
        status = str(code) if type(code) is int else _OTHER
        attributes: dict[str, str | int] = {"error.type": status}
        if status != _OTHER:
            attributes["rpc.response.status_code"] = status
        self._error = attributes, str(text)[:MAX_TEXT]

    def set_error(self, error: BaseException) -> None:
        """Say what the call has ended with: an error reply, or an exception in the place of a reply."""
        if hasattr(error, "to_wire"):  # an RpcError
            self.set_code(getattr(error, "code", None), getattr(error, "message", ""))
        else:
            kind = type(error)
            name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
            self._error = {"error.type": name}, _text_of(error)

    def clear_error(self) -> None:
        """Say that the call goes on after an error."""
        self._error = None

    def end(self, error: BaseException | None = None) -> None:
        """End it now. Harmless at any time.

        Args:
            error: as for `set_error`.
        """
        if self.has_ended:
            return
        self.has_ended = True
        if error is not None:
            self.set_error(error)
        if self._error is not None:
            attributes, text = self._error
            self._attributes.update(attributes)
            self._span.set_attributes(attributes)
            self._span.set_status(trace.StatusCode.ERROR, text or None)
        now = max(time_ns(), self._since)
        self._span.end(now)
        if self._histogram is not None:
            self._histogram.record((now - self._since) / 1e9, self._attributes, self.context)


def parent_in(carrier: Mapping[str, Any]) -> otel.Context | None:
    """The context that the members of a request, or headers, name; None where there is none, or a malformed one."""
    parent = carrier.get(TRACEPARENT)
    if type(parent) is not str or len(parent) > MAX_CONTEXT:
        return None
    members = {TRACEPARENT: parent}
    state = carrier.get(TRACESTATE)
    if type(state) is str and len(state) <= MAX_CONTEXT:
        members[TRACESTATE] = state
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
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return {}
    return {
        "network.transport": "tcp",
        "network.peer.address": host.strip("[]"),
        "network.peer.port": int(port),
    }


@lru_cache(maxsize=64)
def host_attributes(host: str) -> Attributes:
    """The attributes for the header `Host` of an HTTP request: how its client names the server."""
    name, colon, port = host[:MAX_TEXT].rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5:
        return {"server.address": host[:MAX_TEXT].strip("[]")}
    return {"server.address": name.strip("[]"), "server.port": int(port)}


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except Exception:
        return ""
