"""What a client was asked for: every option of both faces, checked once and then fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import orjson

from ..codec import Codec
from ..limits import Limits
from .address import Address, check_lasting, parse_address
from .hub_messages import check_name
from .retry import Backoff

if TYPE_CHECKING:
    import ssl

#: Called with "send" or "receive" and the bytes of each message, without the delimiter.
Trace = Callable[[str, bytes], None]

#: Where a file is.
File = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a client. Times are in seconds; None is "no limit".

    Attributes:
        tls: what is trusted, and shown, where the address asks for TLS.

    Raises:
        ValueError: an option that makes no sense, named in the message.
        RuntimeError: an option needs a connection that lasts, and the address is one of HTTP.
    """

    address: Address
    timeout: float | None
    connect_timeout: float | None
    pool: int
    retries: int
    codec: Codec
    limits: Limits
    delimiter: bytes
    trace: Trace | None
    on_send: Callable[[int, int], None] | None = None
    retry: str = "all"
    reconnect: Backoff | None = None
    on_state: Callable[[str], object] | None = None
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    http_connections: int = 8
    name: str | None = None
    keepalive: float | None = None
    registration_timeout: float | None = 10.0

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "keepalive", "registration_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive or None, got {seconds!r}")
        if self.pool < 1:
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
            check_name(self.name)
            check_lasting(self.address, "a name at a hub")
        if self.keepalive is not None:
            check_lasting(self.address, "keepalive")
        if self.token is not None:
            _check_token(self.token, self.address)


def make_settings(
    address: str | Address,
    codec: Codec | None,
    limits: Limits,
    *,
    ca: File | None = None,
    certificate: File | None = None,
    key: File | None = None,
    **options: Any,
) -> Settings:
    """The settings for the arguments of a client's constructor.

    Raises, besides ValueError:
        OSError, ssl.SSLError: a file with certificates is not there, or not what it should be.
    """
    if codec is None:
        codec = Codec.of(limits)
    address = parse_address(address)
    tls = _make_tls(address, ca, certificate, key)
    return Settings(address=address, codec=codec, limits=limits, tls=tls, **options)


def _make_tls(address: Address, ca: File | None, certificate: File | None, key: File | None) -> ssl.SSLContext | None:
    for name, file in (("ca", ca), ("certificate", certificate), ("key", key)):
        if file is not None and not address.is_secure:
            raise ValueError(f"{name}= is for TLS (tls://, https://, wss://), and {address} is without")
    if key is not None and certificate is None:
        raise ValueError("key= is the key of a certificate, and certificate= is not given")
    if not address.is_secure:
        return None
    from ..tls import client_context  # imports ssl, which others do without

    return client_context(ca=ca, certificate=certificate, key=key)


def _check_token(token: Any, address: Address) -> None:
    """Raises an error that does not show the token."""
    if type(token) is not str:
        raise TypeError(f"a token is a str, got {type(token).__name__}")
    if not token:
        raise ValueError("the token is empty; None stands for none")
    if (address.is_http or address.is_websocket) and not all("!" <= character <= "~" for character in token):
        raise ValueError("a token that is sent as an HTTP header has only visible ASCII characters, and no blanks")


def hiding(trace: Trace, token: str) -> Trace:
    """The same trace without the token."""
    written = orjson.dumps(token)

    def traced(direction: str, message: bytes) -> None:
        trace(direction, message.replace(written, b'"***"') if b'"rpc.authenticate"' in message else message)

    return traced
