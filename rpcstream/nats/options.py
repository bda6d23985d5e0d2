"""How to connect to NATS, and where an instance listens for direct connections. Opens no connection and no file."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..limits import DEFAULT_HOST
from .messages import INBOX, NO_INBOX, ROOT, check_service

if TYPE_CHECKING:
    from ..tls import TLS, ClientTLS

#: The port of NATS servers where an address names none.
DEFAULT_PORT = 4222

#: Schemes of addresses, and whether the connection is encrypted from its beginning on. With `nats://` it is where the
#: server asks for that.
SCHEMES = {"nats": False, "nats+tls": True}


#: A prefix of inboxes: up to 128 characters.
_PREFIX = re.compile(r"(?=.{1,128}\Z)[!#%-)+-\-/-=?-~][!-)+-\-/-=?-~]*(\.[!-)+-\-/-=?-~]+)*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class NatsLogin:
    """What shows NATS who this process is; at most one way of the three.

    Attributes:
        creds: a credentials file (`.creds`: a JWT and the seed of its key).
        nkey: a file with the seed of an nkey.
        user, password: a name and its password; a user alone is a token of NATS.
        inbox_prefix: what subjects for answers begin with, for a user whose permissions name other ones than `_INBOX`.
    """

    creds: str | os.PathLike[str] | None = None
    nkey: str | os.PathLike[str] | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    inbox_prefix: str | None = None

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.creds, self.nkey, self.user)) > 1:
            raise ValueError("a NATS login has one of creds, nkey and user")
        if self.password is not None and self.user is None:
            raise ValueError("a NATS login with a password needs a user")
        prefix = self.inbox_prefix
        if prefix is not None and (not _PREFIX.fullmatch(prefix) or f"{prefix}.".startswith(NO_INBOX)):
            reason = f"inbox_prefix= is a subject without '*' and '>', and begins neither with '$' nor with '{ROOT}.'"
            raise ValueError(f"{reason}; got {self.inbox_prefix!r}")


def login_from(login: NatsLogin | None, environ: Mapping[str, str]) -> NatsLogin | None:
    """A login with what `RPCSTREAM_NATS_CREDS` and `RPCSTREAM_NATS_PASSWORD` add to it."""
    creds, password = environ.get("RPCSTREAM_NATS_CREDS"), environ.get("RPCSTREAM_NATS_PASSWORD")
    found = login or NatsLogin()
    if creds and found.creds is found.nkey is found.user is None:
        return replace(found, creds=creds)
    if password and found.user is not None and found.password is None:
        return replace(found, password=password)
    return login


@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """How this process connects to NATS.

    Attributes:
        servers: `host:port` of each, tried in random order.
        login: who this process is.
        tls: for the connection; None: the system's authorities, where the server asks for TLS.
        is_secure: TLS also where the server does not ask for it.
        name: of this connection in NATS's monitoring.
        connect_timeout: seconds for one server.
        has_echo: NATS sends back what this connection itself publishes.
        inbox_prefix: what subjects for answers begin with, unless the login says it.
    """

    servers: tuple[str, ...]
    login: NatsLogin = NatsLogin()
    tls: ssl.SSLContext | None = None
    is_secure: bool = False
    name: str = "rpcstream"
    connect_timeout: float = 5.0
    has_echo: bool = True
    inbox_prefix: str = "_INBOX"

    @property
    def address(self) -> str:
        """The servers as one text, for errors."""
        return f"{'nats+tls' if self.is_secure else 'nats'}://{','.join(self.servers)}"


def joining_options(
    url: str,
    service: str | None,
    login: NatsLogin | None,
    tls: ClientTLS | None,
) -> tuple[str, NatsOptions]:
    """How a server joins a service, and the name of the service: in the address, or given.

    Raises:
        ValueError: the address or the name has another form, there is no name, or there are two.
    """
    servers, named, is_secure = parse_url(url)
    if service is not None and named is not None and service != named:
        raise ValueError(f"the address names the service {named!r}, and service= is {service!r}")
    name = service or named
    if name is None:
        raise ValueError("the name of the service is missing: join_nats(url, service=...), or nats://host/name")
    context = None
    if tls is not None:
        from ..tls import client_context

        context = client_context(tls)
    return check_service(name), NatsOptions(
        servers=servers,
        login=login or NatsLogin(),
        tls=context,
        is_secure=is_secure,
        name=f"rpcstream {name}",
        has_echo=False,
        inbox_prefix=f"{ROOT}.{name}.{INBOX}",
    )


def parse_url(url: str) -> tuple[tuple[str, ...], str | None, bool]:
    """Parse `nats://host:port,host:port/service`, or `nats+tls://…`.

    Returns:
        `host:port` of each server; the service, None where none is named; and whether TLS is asked for.

    Raises:
        ValueError: the text has another form.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        raise ValueError(f"an address of NATS begins with nats:// or nats+tls://, got {url!r}")
    if "@" in rest:  # the text is not shown: it may contain a password
        raise ValueError("an address of NATS has no user and no password, but this one has an '@': use a login")
    names, _, service = rest.partition("/")
    servers = tuple(_server(url, name) for name in names.split(","))
    return servers, check_service(service) if service else None, SCHEMES[scheme.lower()]


def _server(url: str, text: str) -> str:
    host, port = text, ""
    if not text.startswith("["):
        host, _, port = text.partition(":")
    elif "]" in text:
        host, _, rest = text.partition("]")
        host, port = host + "]", rest.removeprefix(":")
    if any(character.isspace() or character in "/?#" for character in host):
        raise ValueError(f"the address {url!r} has no valid host")
    if port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"the port in the address {url!r} must be a number from 1 to 65535")
    return f"{host or DEFAULT_HOST}:{port or DEFAULT_PORT}"


# -- direct connections ------------------------------------------------------------------------------------------------


class DirectError(ConnectionError):
    """A direct connection could not be made; the text says why."""


@dataclass(frozen=True, kw_only=True)
class DirectOptions:
    """Where an instance listens for direct connections.

    Attributes:
        is_on: there are direct connections. Where it is True and the connection to NATS is encrypted, but the server
            has no certificate, direct connections are not encrypted; None: then there are none.
        host: to bind; None: the address from which this machine reaches NATS.
        port: to bind; 0: a free one.
        advertised: `host:port` that clients are told; None: what is bound.
        tls: the certificate; None: without TLS.
    """

    is_on: bool | None = None
    host: str | None = None
    port: int = 0
    advertised: str | None = None
    tls: TLS | None = None

    @classmethod
    def parse(cls, direct: bool | str | None) -> DirectOptions:
        """Read the option `direct`: True, False, None, or `host:port`, perhaps with `=advertised:port` behind it.

        Raises:
            ValueError: the text has another form.
        """
        if direct is None or isinstance(direct, bool):
            return cls(is_on=direct)
        bound, _, advertised = direct.partition("=")
        host, port = split_address(bound) if bound else ("", "0")
        if advertised:
            split_address(advertised)
        return cls(is_on=True, host=host or None, port=int(port), advertised=advertised or None)


def split_address(text: str) -> tuple[str, str]:
    """The host and the port of `host:port` or `[host]:port`.

    Raises:
        ValueError: the text has another form.
    """
    host, separator, port = text.rpartition(":")
    if not (separator and port.isascii() and port.isdecimal() and int(port) < 65536) or (
        host.count(":") and (not (host.startswith("[") and host.endswith("]")))
    ):
        raise ValueError(f"an address for direct connections is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), port


@dataclass(frozen=True, slots=True)
class Offer:
    """What opens one direct connection, once.

    Attributes:
        address: `host:port`.
        secret: as hexadecimal digits.
        fingerprint: SHA-256 of the certificate, as hexadecimal digits; None: without TLS.
    """

    address: str
    secret: str
    fingerprint: str | None = None

    def to_wire(self) -> dict[str, str]:
        """As members of a message."""
        wire = {"address": self.address, "secret": self.secret}
        return wire if self.fingerprint is None else {**wire, "tls": self.fingerprint}

    @classmethod
    def of(cls, result: Any) -> Offer:
        """The offer that an instance has sent. Raises DirectError if it is malformed."""
        found = result if type(result) is dict else {}
        address, secret, fingerprint = found.get("address"), found.get("secret"), found.get("tls")
        if type(address) is not str or type(secret) is not str or not secret.isalnum():
            raise DirectError("the instance sent no address")
        return cls(address, secret, fingerprint if type(fingerprint) is str else None)
