"""Options of a client: documented, checked and with their defaults in one place for both clients.

`Settings` are the checked options of one client. Certificate files are read here; no connection is opened.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import orjson

from ..backoff import Backoff
from ..codec import Codec
from ..codec.options import Binary
from ..limits import DEFAULT_HOST, DEFAULT_LIMITS, DEFAULT_PORT, Limits
from ..nearest import check_names
from ..observe import make_tracing
from ..option import BINARY, FLAG, SECONDS_OR_NONE, TEXT, Kind, Option, defaults_of, whole
from .address import Address, check_lasting, check_one_server, parse_address

if TYPE_CHECKING:
    import ssl

    from opentelemetry.trace import TracerProvider

    from ..nats.options import NatsLogin
    from ..observe.tracing import Tracing
    from ..tls import ClientTLS
    from ..transports.stream import LineStream

#: Called with "send" or "receive" and the bytes of each message, without the delimiter.
TraceMessage = Callable[[str, bytes], None]

#: Joins the protocol that the given function makes to a transport, and returns it.
Connect = Callable[[Callable[[], "LineStream"]], Awaitable["LineStream"]]

#: The address of a client that was given none.
DEFAULT_ADDRESS = f"{DEFAULT_HOST}:{DEFAULT_PORT}"


def _nats_login(table: dict[str, str], folder: str) -> "NatsLogin":
    from ..nats.options import NatsLogin

    files = {name: os.path.join(folder, table[name]) for name in ("creds", "nkey") if name in table}
    return NatsLogin(**(table | files))


#: The login for NATS in a file: a table with the fields of `NatsLogin`.
NATS_LOGIN = Kind(dict[str, str], finish=_nats_login)


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Which failed calls a client repeats, and how often.

    This covers calls for which no connection can be opened, whose connection is lost, or whose provider a hub loses.
    Error replies are never retried.

    Attributes:
        times: how often one call is repeated.
        repeats: "idempotent": calls that did not start, and calls of methods that the server declares idempotent.
            "all": every call, even one that may have run.

    Raises:
        ValueError: a value is invalid.
    """

    times: int = 0
    repeats: Literal["all", "idempotent"] = "idempotent"

    def __post_init__(self) -> None:
        if not isinstance(self.times, int) or self.times < 0:
            raise ValueError(f"retry: times must be a whole number and not negative, got {self.times!r}")
        if self.repeats not in ("all", "idempotent"):
            raise ValueError(f"retry: repeats must be 'all' or 'idempotent', got {self.repeats!r}")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Functions that get the messages of a client. They never see a token.

    Attributes:
        message: called with "send" or "receive" and the bytes of each message, without the delimiter.
        on_send: called with the bytes sent and the total, while a `Client` sends a message over 1 MiB. Not called for
            calls that run in the event loop.
    """

    message: TraceMessage | None = None
    on_send: Callable[[int, int], None] | None = None


#: A `Retry` in a file: a table with its fields.
RETRY = Kind(dict[str, int | str], finish=lambda table, folder: Retry(**table))


class ClientOptions(TypedDict, total=False):
    """Options of `Client` and `AsyncClient`. Times are in seconds; None is "no limit".

    Attributes:
        timeout: seconds that a call may take, including connecting and retries. A call may set its own.
        connect_timeout: seconds that connecting may take, including registering at a hub.
        wait_for: seconds that a call waits, within its timeout, for a server that is not running, and at a hub for a
            provider of the method. A call may set its own. None: the call fails at once, or with `reconnect` waits for
            a connection until it times out.
        pool: the most connections. In an event loop, calls share them, and each call uses the connection with the
            fewest pending calls. Over HTTP, and in a `Client` without an event loop, each connection carries one call
            at a time, and further calls wait for a free connection. None: 1 in an event loop, otherwise 8.
        retry: which failed calls are repeated, and how often (a `Retry`). None: no calls.
        reconnect: keep a connection open. `with`, `async with` or the first call opens it, and the client reconnects
            after each loss, with the pauses of a `Backoff` (True: the default pauses). Calls wait for the connection
            until they time out. Not over HTTP, where each call connects if necessary.
        on_state: called with each new `state`, in the event loop of the client.
        codec: encodes and decodes rich values. Pass a `Codec` with your own types.
        limits: limits on size, number and time (a `Limits`).
        delimiter: the bytes that end each message on a line stream; the server must use the same.
        trace: a function that is called with "send" or "receive" and the bytes of each message, or a `Trace`.
        binary: send and receive large payloads (arrays, images, bytes) as raw bytes if the server supports it, and over
            a Unix socket in shared memory. "copy": also copy arrays that arrive in shared memory, so that they are
            writable. False: always use base64.
        token: authenticates the client: sent first on each new connection of a line stream, and as
            `Authorization: Bearer` with each HTTP request and WebSocket handshake, without white space at its ends
            (`token=open("token").read()`). Never logged or shown.
        tls: whom to trust, for addresses with TLS: a PEM file with the certificate authorities, a `TLS` that also has
            the client's own certificate, or an `ssl.SSLContext`. None: trust the authorities of the system. Unless a
            context says otherwise, the server's certificate and host name are verified.
        name: the client's name at a hub, 1 to 128 of A-Z, a-z, 0-9, "_" and "-". The client registers it before any
            call. Connecting fails if the hub refuses the name, or if the server is not a hub.
        keepalive: seconds of silence after which the client closes the connection. It pings the server after half of
            them. None: rely on the operating system.
        nats: authenticates the client at NATS (a `NatsLogin`), for addresses `nats://…`.
        tracing: create OpenTelemetry spans for calls in both directions: True for the global provider, or a
            TracerProvider. Needs the extra `opentelemetry`.
    """

    timeout: Annotated[float | None, Option(60.0, SECONDS_OR_NONE, env=True, aliases=("call_timeout",))]
    connect_timeout: Annotated[float | None, Option(10.0, SECONDS_OR_NONE)]
    wait_for: Annotated[float | None, Option(None, SECONDS_OR_NONE)]
    pool: Annotated[int | None, Option(None, whole(1))]
    retry: Annotated[Retry | None, Option(None, RETRY)]
    reconnect: Annotated[bool | Backoff, Option(False, FLAG)]
    on_state: Annotated[Callable[[str], object] | None, Option(None)]
    codec: Annotated[Codec | None, Option(None)]
    limits: Annotated[Limits, Option(DEFAULT_LIMITS)]
    delimiter: Annotated[bytes, Option(b"\n")]
    trace: Annotated[TraceMessage | Trace | None, Option(None)]
    binary: Annotated[Binary, Option(True, BINARY)]
    token: Annotated[str | None, Option(None, TEXT, env=True)]
    tls: Annotated["ClientTLS | None", Option(None)]
    name: Annotated[str | None, Option(None, TEXT, aliases=("client_id",))]
    keepalive: Annotated[float | None, Option(None, SECONDS_OR_NONE, aliases=("keepalive_timeout",))]
    nats: Annotated["NatsLogin | None", Option(None, NATS_LOGIN)]
    tracing: Annotated["bool | TracerProvider", Option(False, FLAG)]


#: The default of every option.
DEFAULTS: Mapping[str, Any] = defaults_of(ClientOptions)


@dataclass(kw_only=True, eq=False, repr=False)
class Settings:
    """The checked options of one client, which no longer change.

    Attributes:
        address: of the server.
        connect: makes the connection instead of a socket; None: the address says how to connect.
        reconnect: the pauses between attempts to connect; None: connect with the next call.
        tls: trusted authorities and own certificate, where the address asks for TLS.
        tracing: makes spans of the calls; None: there are none.
        trace, on_send: see `Trace`.

    The other attributes are those of `ClientOptions`.

    Raises:
        ValueError: an option makes no sense; the message names it.
        RuntimeError: an option needs a lasting connection, and the address is an HTTP one.
    """

    address: Address
    connect: Connect | None
    timeout: float | None
    connect_timeout: float | None
    wait_for: float | None
    pool: int | None
    retry: Retry
    reconnect: Backoff | None
    on_state: Callable[[str], object] | None
    codec: Codec
    limits: Limits
    delimiter: bytes
    trace: TraceMessage | None
    on_send: Callable[[int, int], None] | None
    binary: Binary
    token: str | None
    tls: "ssl.SSLContext | None"
    name: str | None
    keepalive: float | None
    nats: "NatsLogin | None"
    tracing: "Tracing | None"

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "wait_for", "keepalive"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive or None, got {seconds!r}")
        if self.pool is not None and self.pool < 1:
            raise ValueError(f"pool must be at least 1 connection, got {self.pool!r}")
        if not isinstance(self.retry, Retry):
            raise TypeError(f"retry= takes a Retry, such as Retry(times=3), got {self.retry!r}")
        if not self.delimiter:
            raise ValueError("the delimiter must have at least one byte")
        if self.name is not None:
            _check_name(self.name)
            check_one_server(self.address, "a name at a hub")
        for name in ("keepalive", "reconnect"):
            if getattr(self, name) is not None:
                check_lasting(self.address, name)
        if self.nats is not None and not self.address.is_nats:
            raise ValueError(f"nats= is a login for nats://, and the address is {self.address}")
        if self.token is not None:
            _check_token(self.token, self.address)


def make_settings(client: str, address: str | Address | Connect, options: Mapping[str, Any]) -> Settings:
    """The settings of a client that was given these options.

    Args:
        client: the name of its class, for errors.
        address: of the server, or what connects to it.
        options: as given; defaults are added.

    Raises:
        ValueError: an option makes no sense.
        TypeError: an option is unknown.
        RuntimeError: an option needs a lasting connection, and the address is an HTTP one.
        OSError, ssl.SSLError: a certificate file is missing or not valid.
    """
    check_names(f"{client}()", options, DEFAULTS.keys())
    given = {**DEFAULTS, **options}
    connect: Connect | None = None
    if callable(address) and not isinstance(address, Address):
        connect, name = address, getattr(address, "__name__", type(address).__name__)
        address = Address(kind="custom", path=name)
    address = parse_address(address)
    trace = given["trace"]
    shown = trace if isinstance(trace, Trace) else Trace(message=trace)
    given |= {
        "codec": given["codec"] or Codec.of(given["limits"]),
        "retry": given["retry"] or Retry(),
        "reconnect": (Backoff() if given["reconnect"] is True else given["reconnect"]) or None,
        "tracing": make_tracing(given["tracing"]),
        "tls": _make_tls(address, given["tls"]),
        "token": given["token"].strip() if isinstance(given["token"], str) else given["token"],
        **{"trace": shown.message, "on_send": shown.on_send},
    }
    settings = Settings(address=address, connect=connect, **given)
    if settings.trace is not None and settings.token is not None:
        settings.trace = _without_token(settings.trace, settings.token)
    return settings


def _make_tls(address: Address, tls: "ClientTLS | None") -> "ssl.SSLContext | None":
    if not address.is_secure:
        if tls is not None:
            raise ValueError(f"tls= is for TLS (tls://, https://, wss://, nats+tls://), and {address} is without")
        return None
    from ..tls import client_context  # imports ssl, which is not needed without TLS

    return client_context(tls)


def _check_name(name: Any) -> None:
    """Raise TypeError or ValueError unless a client may have this name at a hub."""
    if type(name) is not str:
        raise TypeError(f"the name of a client is a str, got {type(name).__name__}")
    from ..events.patterns import CLIENT_NAME

    if CLIENT_NAME.fullmatch(name) is None or name == "rpc":
        reason = "has 1 to 128 of A-Z, a-z, 0-9, '_' and '-', and is not 'rpc'"
        raise ValueError(f"the name of a client {reason}; got {name[:200]!r}")


def _check_token(token: Any, address: Address) -> None:
    """Raise TypeError or ValueError for a token that cannot be sent; the error does not show it."""
    if type(token) is not str:
        raise TypeError(f"a token is a str, got {type(token).__name__}")
    if not token:
        raise ValueError("the token is empty: pass None for no token")
    if (address.is_http or address.is_websocket or address.is_nats) and not all(
        "!" <= character <= "~" for character in token
    ):
        raise ValueError("a token in an HTTP header must have visible ASCII characters only, without blanks")


def _without_token(trace: TraceMessage, token: str) -> TraceMessage:
    """A trace that gets the messages without the token in them."""
    written = orjson.dumps(token)

    def traced(direction: str, message: bytes) -> None:
        trace(direction, message.replace(written, b'"***"') if b'"rpc.authenticate"' in message else message)

    return traced


def config_file(environ: Mapping[str, str]) -> str | None:
    """Return the path of the user's configuration file, which need not exist; None if there is no home folder.

    `RPCSTREAM_CONFIG` if it is set, else `rpcstream/config.toml` in `XDG_CONFIG_HOME`, `~/.config`, or on Windows
    `APPDATA`.
    """
    if named := environ.get("RPCSTREAM_CONFIG"):
        return named
    home = os.path.join(environ.get("HOME", ""), ".config")
    folders = (environ.get("XDG_CONFIG_HOME", ""), environ.get("APPDATA", "") if os.name == "nt" else home)
    # The XDG Base Directory Specification says to ignore relative paths.
    return next((os.path.join(each, "rpcstream", "config.toml") for each in folders if os.path.isabs(each)), None)
