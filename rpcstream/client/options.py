"""Options of a client: documented, checked and with their defaults in one place for both clients.

`Settings` are the checked options of one client. Certificate files are read here; no connection is opened.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import orjson

from ..backoff import Backoff
from ..codec import Codec
from ..keyword_options import check_names
from ..limits import DEFAULT_HOST, DEFAULT_LIMITS, DEFAULT_PORT, Limits
from ..observe import make_tracing
from ..option import FILE, FLAG, SECONDS_OR_NONE, TEXT, Kind, Option, choice, defaults_of, whole
from .address import Address, check_lasting, check_one_server, parse_address

if TYPE_CHECKING:
    import ssl

    from opentelemetry.trace import TracerProvider

    from ..nats.options import NatsLogin
    from ..observe.tracing import Tracing
    from ..transports.stream import LineStream

#: Called with "send" or "receive" and the bytes of each message, without the delimiter.
Trace = Callable[[str, bytes], None]

#: Joins the protocol that the given function makes to a transport, and returns it.
Connect = Callable[[Callable[[], "LineStream"]], Awaitable["LineStream"]]

#: The path of a file.
File = str | PathLike[str]

#: The address of a client that was given none.
DEFAULT_ADDRESS = f"{DEFAULT_HOST}:{DEFAULT_PORT}"


def _nats_login(table: dict[str, str], folder: str) -> "NatsLogin":
    from ..nats.options import NatsLogin

    files = {name: os.path.join(folder, table[name]) for name in ("creds", "nkey") if name in table}
    return NatsLogin(**(table | files))


#: The login for NATS in a file: a table with the fields of `NatsLogin`.
NATS_LOGIN = Kind(dict[str, str], finish=_nats_login)


class ClientOptions(TypedDict, total=False):
    """Options of `Client` and `AsyncClient`. Times are in seconds; None is "no limit".

    Attributes:
        timeout: seconds that a call may take in all, connecting included; each call may give its own.
        connect_timeout: seconds that making a connection may take.
        pool: the largest number of connections. In an event loop they are shared: a call takes the one with the fewest
            waiting calls. A `Client` without an event loop uses one for each call that is waiting; when all are in use,
            a thread waits for one until it times out. None: 1 in an event loop, else 8.
        wait_for: seconds that a call waits for a server that is not there (not started yet, or being restarted), and at
            a hub for a provider of its method; each call may give its own. The time-out counts all the same. None:
            such a call fails at once, or with `reconnect` waits for a connection until it times out.
        retries: how often a call is repeated that failed because there was no connection, the connection was lost, or a
            hub lost the program that ran the call.
        retry: which failed calls are retried. "idempotent": calls that did not start, and calls of methods that the
            server declares idempotent. "all": every call, even one that may have run.
        reconnect: keep a connection open: made by `with`, `async with` or the first call, and made again whenever it is
            lost, with the pauses of a `Backoff` (True: the default ones). Calls wait for it until they time out.
        on_state: called with each new `state`, in the event loop of the client.
        codec: encodes and decodes rich values; give one in which your own types are registered.
        limits: `max_message_size` applies to messages sent and received; images have limits of their own.
        delimiter: the bytes that end each message on a line stream; the server must use the same.
        trace: called with "send" or "receive" and the bytes of each message. A token is not shown.
        binary: send and receive large payloads (arrays, images, bytes) as they are, where the server does so, too;
            False: always as base64.
        shared_memory: on a Unix socket, and with `binary`, these go by memory that the two programs share, if both run
            as the same user (Linux).
        on_receive: called with the number of bytes whenever some have come, before they are handled: to measure when an
            answer begins. In the thread that reads them.
        token: authenticates the client: sent first on each new connection of a line stream, and as
            `Authorization: Bearer` with each HTTP request and WebSocket handshake. Never logged or shown.
        ca: a PEM file with the certificate authorities to trust instead of the system's. The server's certificate and
            host name are always verified.
        certificate: a PEM file with the client's own certificate, for servers that ask for one (mutual TLS).
        key: a PEM file with the private key of `certificate`, unless that file has it.
        http_connections: the largest number of HTTP connections; each carries one call or stream at a time.
        name: the client's name at a hub: 1 to 128 of A-Z, a-z, 0-9, "_" and "-". It is registered before any call is
            sent; connecting fails if the hub refuses it or the server is no hub.
        keepalive: a server that was silent for half of this many seconds is sent a ping, and the connection is closed
            when it stays silent. None: rely on the operating system.
        registration_timeout: seconds that a hub may take to answer the registration of the name or of methods.
        nats: what shows NATS who this client is (a `NatsLogin`), for addresses `nats://…`; None: it need not know.
        tracing: make spans of the calls with OpenTelemetry, and of those that the server makes here: True, by the
            global provider, or a TracerProvider. The extra `opentelemetry` is needed.
    """

    timeout: Annotated[float | None, Option(60.0, SECONDS_OR_NONE, env=True, aliases=("call_timeout",))]
    connect_timeout: Annotated[float | None, Option(10.0, SECONDS_OR_NONE)]
    wait_for: Annotated[float | None, Option(None, SECONDS_OR_NONE)]
    pool: Annotated[int | None, Option(None, whole(1))]
    retries: Annotated[int, Option(0, whole(0))]
    retry: Annotated[Literal["all", "idempotent"], Option("idempotent", choice("all", "idempotent"))]
    reconnect: Annotated[bool | Backoff, Option(False, FLAG)]
    on_state: Annotated[Callable[[str], object] | None, Option(None)]
    codec: Annotated[Codec | None, Option(None)]
    limits: Annotated[Limits, Option(DEFAULT_LIMITS)]
    delimiter: Annotated[bytes, Option(b"\n")]
    trace: Annotated[Trace | None, Option(None)]
    binary: Annotated[bool, Option(True, FLAG)]
    shared_memory: Annotated[bool, Option(True, FLAG)]
    on_receive: Annotated[Callable[[int], object] | None, Option(None)]
    token: Annotated[str | None, Option(None, TEXT, env=True)]
    ca: Annotated[File | None, Option(None, FILE, env=True)]
    certificate: Annotated[File | None, Option(None, FILE, aliases=("cert",))]
    key: Annotated[File | None, Option(None, FILE)]
    http_connections: Annotated[int, Option(8, whole(1))]
    name: Annotated[str | None, Option(None, TEXT, aliases=("client_id",))]
    keepalive: Annotated[float | None, Option(None, SECONDS_OR_NONE, aliases=("keepalive_timeout",))]
    registration_timeout: Annotated[float | None, Option(10.0, SECONDS_OR_NONE)]
    nats: Annotated["NatsLogin | None", Option(None, NATS_LOGIN)]
    tracing: Annotated["bool | TracerProvider", Option(False, FLAG)]


class SyncClientOptions(ClientOptions, total=False):
    """Options of `Client`.

    Attributes:
        on_send: called with the number of bytes sent so far and in all, while a message of more than 1 MiB is sent; not
            for calls that go by an event loop.
    """

    on_send: Annotated[Callable[[int, int], None] | None, Option(None)]


class AsyncClientOptions(ClientOptions, total=False):
    """Options of `AsyncClient`.

    Attributes:
        connect: makes the connection instead of a socket, for tests and your own transports: called with a function
            that makes the protocol (a LineStream), joins it to a transport and returns it. The address is then only a
            name for error messages.
    """

    connect: Annotated[Connect | None, Option(None)]


#: The default of every option.
DEFAULTS: Mapping[str, Any] = {**defaults_of(SyncClientOptions), **defaults_of(AsyncClientOptions)}


@dataclass(kw_only=True, eq=False, repr=False)
class Settings:
    """The checked options of one client, which no longer change.

    Attributes:
        address: of the server.
        reconnect: the pauses between attempts to connect; None: connect with the next call.
        tls: trusted authorities and own certificate, where the address asks for TLS.
        tracing: makes spans of the calls; None: there are none.
        learned: servers of a NATS cluster that others of it have named, for the next connection.

    The other attributes are those of `ClientOptions`.

    Raises:
        ValueError: an option makes no sense; the message names it.
        RuntimeError: an option needs a lasting connection, and the address is an HTTP one.
    """

    address: Address
    timeout: float | None
    connect_timeout: float | None
    wait_for: float | None
    pool: int | None
    retries: int
    retry: str
    reconnect: Backoff | None
    on_state: Callable[[str], object] | None
    codec: Codec
    limits: Limits
    delimiter: bytes
    trace: Trace | None
    binary: bool
    shared_memory: bool
    on_receive: Callable[[int], object] | None
    token: str | None
    tls: "ssl.SSLContext | None"
    http_connections: int
    name: str | None
    keepalive: float | None
    registration_timeout: float | None
    nats: "NatsLogin | None"
    tracing: "Tracing | None"
    on_send: Callable[[int, int], None] | None
    connect: Connect | None
    learned: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "wait_for", "keepalive", "registration_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive or None, got {seconds!r}")
        if self.pool is not None and self.pool < 1:
            raise ValueError(f"pool must be at least 1 connection, got {self.pool!r}")
        if self.retry not in ("all", "idempotent"):
            raise ValueError(f"retry must be 'all' or 'idempotent', got {self.retry!r}")
        if self.retries < 0:
            raise ValueError(f"retries must not be negative, got {self.retries!r}")
        if not self.delimiter:
            raise ValueError("the delimiter must have at least one byte")
        if self.http_connections < 1:
            raise ValueError(f"http_connections must be at least 1, got {self.http_connections!r}")
        if self.name is not None:
            _check_name(self.name)
            check_one_server(self.address, "a name at a hub")
        if self.keepalive is not None:
            check_lasting(self.address, "keepalive")
        if self.nats is not None and not self.address.is_nats:
            raise ValueError(f"nats= is a login for nats://, and the address is {self.address}")
        if self.token is not None:
            _check_token(self.token, self.address)


def make_settings(client: str, kind: type, address: str | Address, options: Mapping[str, Any]) -> Settings:
    """The settings of a client that was given these options.

    Args:
        client: the name of its class, for errors.
        kind: the TypedDict with the options that it takes.
        address: of the server.
        options: as given; defaults are added.

    Raises:
        ValueError: an option makes no sense.
        TypeError: an option is unknown.
        RuntimeError: an option needs a lasting connection, and the address is an HTTP one.
        OSError, ssl.SSLError: a certificate file is missing or not valid.
    """
    check_names(f"{client}()", options, kind.__optional_keys__)  # type: ignore[attr-defined]
    given = {**DEFAULTS, **options}
    if given["connect"] is not None and isinstance(address, str):
        address = Address(kind="custom", path=address)
    address = parse_address(address)
    if given["codec"] is None:
        given["codec"] = Codec.of(given["limits"])
    given["reconnect"] = (Backoff() if given["reconnect"] is True else given["reconnect"]) or None
    given["tracing"] = make_tracing(given["tracing"])
    tls = _make_tls(address, *(given.pop(name) for name in ("ca", "certificate", "key")))
    return Settings(address=address, tls=tls, **given)


def _make_tls(address: Address, ca: File | None, certificate: File | None, key: File | None) -> "ssl.SSLContext | None":
    for name, file in (("ca", ca), ("certificate", certificate), ("key", key)):
        if file is not None and not address.is_secure:
            raise ValueError(f"{name}= is for TLS (tls://, https://, wss://, nats+tls://), and {address} is without")
    if key is not None and certificate is None:
        raise ValueError("key= is the key of a certificate, and certificate= is not given")
    if not address.is_secure:
        return None
    from ..tls import client_context  # imports ssl, which is not needed without TLS

    return client_context(ca=ca, certificate=certificate, key=key)


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
        raise ValueError("the token is empty; None stands for none")
    if (address.is_http or address.is_websocket or address.is_nats) and not all(
        "!" <= character <= "~" for character in token
    ):
        raise ValueError("a token that is sent as an HTTP header has only visible ASCII characters, and no blanks")


def hide_token(trace: Trace, token: str) -> Trace:
    """A trace that gets the messages without the token in them."""
    written = orjson.dumps(token)

    def traced(direction: str, message: bytes) -> None:
        trace(direction, message.replace(written, b'"***"') if b'"rpc.authenticate"' in message else message)

    return traced
