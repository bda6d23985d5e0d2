"""The options of a server: documented, typed and with their defaults in one place, for `Server` and `Hub`.

Owns what users may give to the constructor. Does not know what the options do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..auth.authenticator import Authenticate
from ..codec import Codec
from ..events.event_queue import Policy
from ..limits import DEFAULT_LIMITS, Limits
from ..observe.call_log import AccessLogFormat
from ..tls import TLS

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

#: Called with the server; gives what is entered before it serves, and left afterwards.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


#: Whether there are metrics; and "public": shown without authentication.
Metrics = bool | Literal["public"]


class ServerOptions(TypedDict, total=False):
    """Options of `Server`. Times are in seconds.

    Attributes:
        token: a token that callers must show before they can call anything. Read it from where secrets are kept.
        authenticate: instead of a token, a function, sync or async, that is called with `Credentials` (a token, the
            names of a certificate, the process at a Unix socket). It returns the identity of the caller, which handlers
            get as `ctx.identity`, or None for a caller that is refused.
        hosts: names of this server, besides those of loopback, that an HTTP request may have as its host:
            "example.org", "*.example.org", or "*" for any.
        origins: web pages that may call the server: "https://example.org", or "*" for any.
        path: the paths for calls by HTTP (POST) and WebSocket: "/rpc", or several, ["/", "/rpc"]; the query does not
            matter. None: POST to "/", and WebSockets at any path.
        limits: limits of size, number and time; see `Limits`.
        codec: encodes and decodes rich values; give one to register your own types or to choose how images are sent.
        lifespan: called with the server; gives an async context manager that is entered before the first connection is
            accepted and left after the last one is closed. Put what handlers need on `server.state`.
        debug: log every message, and show callers the exceptions of handlers. Not for servers that others can reach.
        threads: the largest number of handlers with `offload="thread"` that run at a time.
        processes: the same for `offload="process"`.
        delimiter: ends a message on the line stream.
        binary: send and receive large payloads (arrays, images, bytes) as they are, to and from clients that do so too.
        shared_memory: on a Unix socket, and with `binary`, these go by memory that the two programs share, if both run
            as the same user (Linux).
        notification_status: of the response by HTTP to notifications: 200, or 204, which some clients expect.
        tls: the server's certificate; with it all connections are encrypted, without it none is.
        drain_timeout: seconds that calls in flight have to finish when the server stops.
        drain_delay: seconds that a stopping server goes on as before, while `/readyz` says 503, so that a load balancer
            sends no more connections to it.
        slow_call: seconds; a handler that keeps the event loop for longer is named in a warning.
        event_queue: the number of events of one subscription that may wait for a connection that does not take them.
        event_policy: what is dropped when that many wait: "drop_oldest", "drop_newest", or "disconnect" the subscriber.
        tracing: make spans of the calls with OpenTelemetry: True, by the global provider, or a TracerProvider. The
            extra `opentelemetry` is needed.
        metrics: answer `/metrics` with counters and durations for Prometheus; a server with authentication shows them
            to callers that are authenticated, with "public" to all.
        access_log: write a line for each call to the logger `rpcstream.access`: "text", or "json" for JSON lines.
        log_slow_calls: seconds; a call that takes longer from its request to its reply is named in a warning.
        mcp: offer the methods as tools to agents, by the Model Context Protocol, to POST at "/mcp", or at another path
            that is given here. One with `@server(mcp=False)` is left out.
        javascript: answer `/rpcstream.js` with the JavaScript client, for web pages; without authentication, too.
        docs: answer `/docs` with the explorer, a page on which people see and call the methods. The page itself is
            shown without authentication, what it shows is not. None: no; but `rpcstream-server` shows it on loopback.
        title: of the service, for `rpc.discover`.
        version: of the service, for `rpc.discover`.
        description: of the service, for `rpc.discover`; Markdown.
        public_urls: where callers reach it, for `rpc.discover`, if that is not where it listens:
            "https://example.org/rpc", "wss://example.org/rpc".
    """

    token: str | None
    authenticate: Authenticate | None
    hosts: Iterable[str]
    origins: Iterable[str]
    path: str | Iterable[str] | None
    limits: Limits
    codec: Codec | None
    lifespan: Lifespan | None
    debug: bool
    threads: int | None
    processes: int | None
    delimiter: bytes
    binary: bool
    shared_memory: bool
    notification_status: Literal[200, 204]
    tls: TLS | None
    drain_timeout: float
    drain_delay: float
    slow_call: float
    event_queue: int
    event_policy: Policy
    tracing: bool | TracerProvider
    metrics: Metrics
    access_log: AccessLogFormat | None
    log_slow_calls: float | None
    mcp: bool | str
    javascript: bool
    docs: bool | None
    title: str
    version: str
    description: str | None
    public_urls: Iterable[str]


#: The default of every option.
DEFAULTS: Mapping[str, Any] = {
    "token": None,
    "authenticate": None,
    "hosts": (),
    "origins": (),
    "path": None,
    "limits": DEFAULT_LIMITS,
    "codec": None,
    "lifespan": None,
    "debug": False,
    "threads": None,
    "processes": None,
    "delimiter": b"\n",
    "binary": True,
    "shared_memory": True,
    "notification_status": 200,
    "tls": None,
    "drain_timeout": 10.0,
    "drain_delay": 0.0,
    "slow_call": 0.1,
    "event_queue": 1000,
    "event_policy": "drop_oldest",
    "tracing": False,
    "metrics": False,
    "access_log": None,
    "log_slow_calls": None,
    "mcp": False,
    "javascript": False,
    "docs": None,
    "title": "rpcstream server",
    "version": "0",
    "description": None,
    "public_urls": (),
}
