"""The options of `Server` and `Hub`, with types and defaults; and the addresses that a server tells of itself."""

import dataclasses
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict
from urllib.parse import quote, urlsplit

from ..auth.authenticator import Authenticate
from ..codec import Codec
from ..codec.options import Binary
from ..errors import RegistrationError
from ..events.event_queue import Policy
from ..limits import DEFAULT_HOST, DEFAULT_LIMITS, DEFAULT_PORT, Limits
from ..observe.call_log import AccessLogFormat
from ..option import (
    BINARY,
    FILE,
    FILE_MODE,
    FLAG,
    SECONDS,
    SECONDS_OR_NONE,
    TEXT,
    TEXTS,
    Kind,
    Option,
    choice,
    defaults_of,
    whole,
)
from ..supervisor.options import WorkerOptions
from ..tls import TLS
from ..web.handlers import check_path

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

#: Name, plain scheme and encrypted scheme of each kind of address.
_KINDS = (("http", "http", "https"), ("websocket", "ws", "wss"), ("stream", "tcp", "tls"))
_NAMES = {scheme: name for name, *schemes in _KINDS for scheme in schemes} | {"unix": "unix"}

#: Hosts that mean all addresses of a machine; callers cannot use them.
_ALL = ("0.0.0.0", "[::]")


def checked_urls(given: Iterable[str]) -> tuple[str, ...]:
    """The option `public_urls`, as a tuple.

    Raises:
        ValueError, TypeError: one of them is no URL by which a server can be reached.
    """
    if isinstance(given, str):
        raise TypeError(f"public_urls is a list of URLs, got {given!r}")
    urls = tuple(given)
    for url in urls:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in _NAMES or not (parts.netloc or parts.scheme == "unix"):
            raise ValueError(f"public_urls: a URL begins with one of {', '.join(_NAMES)}, got {url!r}")
    return urls


def server_objects(
    addresses: Iterable[str], *, paths: tuple[str, ...] | None, is_encrypted: bool, public: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The Server Objects of a server, HTTP first, which most tools can do.

    Args:
        addresses: `host:port`, a service on NATS, or `unix:///path`, which only counts where there is no other.
        paths: for calls by HTTP and WebSocket; None: "/".
        is_encrypted: there is a certificate.
        public: URLs to be taken in place of all that.
    """
    if public:
        return [{"name": _NAMES[urlsplit(url).scheme], "url": url} for url in public]
    addresses = list(addresses)
    services = [{"name": "nats", "url": each} for each in addresses if each.startswith("nats")]
    listed = [each for each in addresses if not each.startswith("nats")]
    hosts = [each for each in listed if not each.startswith("unix:")]
    if not hosts:
        return [{"name": "unix", "url": each} for each in listed] + services
    target = quote(paths[0] if paths else "/")
    objects = []
    for name, plain, encrypted in _KINDS:
        for each in hosts:
            host, colon, port = each.rpartition(":")
            reachable = f"localhost{colon}{port}" if host in _ALL else each
            path = "" if name == "stream" else target
            objects.append({"name": name, "url": f"{encrypted if is_encrypted else plain}://{reachable}{path}"})
    return list({each["url"]: each for each in [*objects, *services]}.values())


#: Called with the server; gives what is entered before it serves, and left afterwards.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


#: Gives `token` or `authenticate` for `Server`, and a function that tells which identities keep their connection when
#: these have changed; None: no identity does.
ReadAccess = Callable[[], tuple[Mapping[str, Any], Callable[[Any], bool] | None]]

#: Whether there are metrics; and "public": shown without authentication.
Metrics = bool | Literal["public"]


#: The default path of MCP over HTTP.
MCP_PATH = "/mcp"


def _checked_paths(path: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The paths for calls as a tuple. Raises ValueError or TypeError for a path that is none."""
    if path is None:
        return None
    paths = (path,) if isinstance(path, str) else tuple(path)
    for each in paths:
        try:
            check_path(each)
        except RegistrationError as error:
            raise ValueError(f"path: {error}") from None
    if not paths:
        raise ValueError("path: give at least one, or None for calls at /")
    return paths


def mcp_path(option: bool | str) -> str | None:
    """The path that the option `mcp` means; None: no MCP over HTTP. Raises ValueError for a malformed path."""
    if isinstance(option, bool):
        return MCP_PATH if option else None
    try:
        check_path(option)
    except RegistrationError as error:
        raise ValueError(f"mcp: {error}") from None
    return option


@dataclass(frozen=True, kw_only=True)
class Info:
    """The description of a service in `rpc.discover`.

    Attributes:
        title: the name of the service. None: "rpcstream server", or "rpcstream hub".
        version: its version.
        description: its purpose, in Markdown.
        public_urls: where callers reach the service: "https://example.org/rpc", "wss://example.org/rpc". Empty: where
            it listens.

    Raises:
        ValueError, TypeError: a URL is malformed.
    """

    title: Annotated[str | None, TEXT] = None
    version: Annotated[str, TEXT] = "0"
    description: Annotated[str | None, TEXT] = None
    public_urls: Annotated[Iterable[str], TEXTS] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "public_urls", checked_urls(self.public_urls))


@dataclass(frozen=True, kw_only=True)
class Http:
    """How a server answers HTTP and WebSockets.

    Attributes:
        hosts: names that requests may have in `Host`, besides loopback names: "example.org", "*.example.org", or "*"
            for any name.
        origins: origins of web pages that may call the server: "https://example.org", or "*" for any origin.
        path: the path for calls by POST and WebSocket, "/rpc", or several: ["/", "/rpc"]. None: POST to "/", and
            WebSockets at any path.
        notification_status: the status of responses to notifications: 200, or 204, which some clients expect.

    Raises:
        ValueError, TypeError: an option is malformed.
    """

    hosts: Annotated[Iterable[str], TEXTS] = ()
    origins: Annotated[Iterable[str], TEXTS] = ()
    path: Annotated[str | Iterable[str] | None, TEXTS] = None
    notification_status: Annotated[Literal[200, 204], Kind(Literal[200, 204])] = 200

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _checked_paths(self.path))
        if self.notification_status not in (200, 204):
            raise ValueError(f"notification_status: 200 or 204, got {self.notification_status!r}")


@dataclass(frozen=True, kw_only=True)
class Logs:
    """What a server logs about calls.

    Attributes:
        access_log: write a line for each call to the logger `rpcstream.access`: "text", or "json" for JSON lines.
        log_slow_calls: warn about calls that take more seconds than this from request to reply. None: no warnings.
        slow_call: warn about handlers that block the event loop for more seconds than this.

    Raises:
        ValueError: an option is invalid.
    """

    access_log: Annotated[AccessLogFormat | None, choice("text", "json")] = None
    log_slow_calls: Annotated[float | None, SECONDS_OR_NONE] = None
    slow_call: Annotated[float, SECONDS] = 0.1

    def __post_init__(self) -> None:
        if self.access_log not in (None, "text", "json"):
            raise ValueError(f"access_log must be 'text', 'json' or None, got {self.access_log!r}")
        if self.log_slow_calls is not None and not self.log_slow_calls > 0:
            raise ValueError(
                f"log_slow_calls must be a positive number of seconds, or None, got {self.log_slow_calls!r}"
            )


#: The options that are groups, by their names. Their fields stand alone in configuration files.
GROUPS: Mapping[str, type] = {"info": Info, "http": Http, "logs": Logs}


class ServerOptions(TypedDict, total=False):
    """Options of `Server`. Times are in seconds.

    Attributes:
        token: a secret that callers must send before they can call anything, or a list of accepted tokens, such as the
            old and the new one.
        authenticate: instead of a token, a sync or async function that takes `Credentials` (a token, the names of a
            certificate, the process at a Unix socket). It returns the caller's identity, which handlers find in
            `ctx.identity`, or None to refuse the caller.
        http: how the server answers HTTP and WebSockets: hosts, origins, paths (an `Http`).
        limits: limits on size, number and time (a `Limits`).
        codec: encodes and decodes rich values. Pass a `Codec` to register your own types, or to choose how images are
            sent.
        lifespan: a function that takes the server and returns an async context manager. The server enters it before it
            accepts connections, and exits it after the last connection is closed. Put what handlers need on
            `server.state`.
        debug: log every message, and send callers the exceptions of handlers. Never use it on servers that others can
            reach.
        threads: how many handlers with `offload="thread"` may run at the same time.
        processes: how many handlers with `offload="process"` may run at the same time.
        delimiter: the bytes that end a message on the line stream.
        binary: send and receive large payloads (arrays, images, bytes) as raw bytes if the client supports it, and over
            a Unix socket in shared memory. "copy": also copy arrays that arrive in shared memory, so that they are
            writable. False: always use base64.
        tls: the server's certificate (a `TLS`), with which all connections are encrypted. None: connections are not
            encrypted.
        trusted_proxies: networks of proxies that report the addresses of clients, by the PROXY protocol,
            `X-Forwarded-For`, or `Forwarded`: "10.0.0.0/8", a single address, or "unix" for Unix sockets. `ctx.address`
            and logs show the reported address.
        drain_timeout: seconds that running calls have to finish when the server stops.
        drain_delay: seconds that a stopping server continues as before while `/readyz` returns 503, so that a load
            balancer sends no more connections to it.
        event_queue: how many events of one subscription may wait while its connection is full.
        event_policy: what happens when the queue is full: "drop_oldest", "drop_newest", or "disconnect" the subscriber.
        tracing: create OpenTelemetry spans for calls: True for the global provider, or a TracerProvider. Needs the
            extra `opentelemetry`.
        metrics: answer `/metrics` with counters and durations for Prometheus. A server with authentication also
            requires it here, except with "public".
        logs: what the server logs about calls: a line for each call, and warnings about slow calls (a `Logs`).
        mcp: offer the methods to agents as tools, over the Model Context Protocol, at "/mcp" or at the given path.
            Methods with `@server(mcp=False)` are left out.
        javascript: answer `/rpcstream.js` with the JavaScript client, without authentication.
        docs: answer `/docs` with the explorer, a page to see and call the methods. The page is public, but its content
            needs authentication if the server does. None: off; `rpcstream-server` serves it on loopback.
        info: title, version and description of the service in `rpc.discover` (an `Info`).
    """

    token: Annotated[str | Iterable[str] | None, Option(None, Kind(str | list[str]), env=True)]
    authenticate: Annotated[Authenticate | None, Option(None)]
    http: Annotated[Http, Option(Http())]
    limits: Annotated[Limits, Option(DEFAULT_LIMITS)]
    codec: Annotated[Codec | None, Option(None)]
    lifespan: Annotated[Lifespan | None, Option(None)]
    debug: Annotated[bool, Option(False, FLAG)]
    threads: Annotated[int | None, Option(None, whole(1))]
    processes: Annotated[int | None, Option(None, whole(1))]
    delimiter: Annotated[bytes, Option(b"\n")]
    binary: Annotated[Binary, Option(True, BINARY)]
    tls: Annotated[TLS | None, Option(None)]
    trusted_proxies: Annotated[Iterable[str], Option((), TEXTS)]
    drain_timeout: Annotated[float, Option(10.0, SECONDS)]
    drain_delay: Annotated[float, Option(0.0, SECONDS)]
    event_queue: Annotated[int, Option(1000, whole(1))]
    event_policy: Annotated[Policy, Option("drop_oldest", choice("drop_oldest", "drop_newest", "disconnect"))]
    tracing: Annotated["bool | TracerProvider", Option(False, FLAG)]
    metrics: Annotated[Metrics, Option(False, Kind(bool | Literal["public"]))]
    logs: Annotated[Logs, Option(Logs())]
    mcp: Annotated[bool | str, Option(False)]
    javascript: Annotated[bool, Option(False, FLAG)]
    docs: Annotated[bool | None, Option(None, FLAG)]
    info: Annotated[Info, Option(Info())]


class ListenOptions(TypedDict, total=False):
    """Where a server listens.

    Attributes:
        host: the name or address to listen on; "" for all addresses.
        port: the port; 0 for a free port.
        unix: the path of a Unix socket to listen on, instead of host and port.
        unix_mode: the permissions of this socket, such as 0o660; None: by the umask.
        sockets: bound TCP or Unix stream sockets to listen on, instead of the options above, such as the sockets from
            systemd (`rpcstream.systemd.take_sockets`). The server does not close them, and leaves connections that it
            has not accepted to the next server. Empty: host and port.
    """

    host: Annotated[str, Option(DEFAULT_HOST, TEXT, env=True)]
    port: Annotated[int, Option(DEFAULT_PORT, whole(0, 65535), env=True)]
    unix: Annotated[str | os.PathLike[str] | None, Option(None, FILE)]
    unix_mode: Annotated[int | None, Option(None, FILE_MODE)]
    sockets: Annotated[Iterable[socket.socket], Option(())]


class RunOptions(ListenOptions, WorkerOptions, total=False):
    """Where `Server.run` listens, and in how many processes it runs."""


#: The default of every option of these.
LISTEN_DEFAULTS: Mapping[str, Any] = defaults_of(ListenOptions)
RUN_DEFAULTS: Mapping[str, Any] = defaults_of(RunOptions)
DEFAULTS: Mapping[str, Any] = defaults_of(ServerOptions)

#: What a configuration gives to the servers that are made now; see `configured`.
_configured: dict[str, Any] = {}


@contextmanager
def configured(options: Mapping[str, Any]) -> Iterator[None]:
    """Within this block, give these options to every server that is made: those in its own program count less.

    Groups of options, such as `limits`, are mappings with the changed fields; `hosts` and `origins` are added. A
    `token` or `authenticate` of the program stays, since it may be stricter; `Server.guard` refuses that.
    """
    _configured.update(options)
    try:
        yield
    finally:
        _configured.clear()


def with_configured(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a server: those of the configuration, of the program, and the defaults."""
    found = {**DEFAULTS, **given, **_configured}
    if given.get("token") is not None or given.get("authenticate") is not None:
        found.update(token=given.get("token"), authenticate=given.get("authenticate"))
    for name in _configured.keys() & {*GROUPS, "limits"}:
        group = given.get(name, DEFAULTS[name])
        changed = dict(_configured[name])
        for added in changed.keys() & {"hosts", "origins"}:
            changed[added] = [*getattr(group, added), *changed[added]]
        found[name] = dataclasses.replace(group, **changed)
    return found
