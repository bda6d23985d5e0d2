"""How to connect to NATS, and where an instance listens for direct connections.

`open_connection` connects to one NATS server: the login, TLS, and why the server did not take it. It sends nothing
secret without the encryption that was asked for. Errors name the option to change.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from .. import __version__
from ..errors import ConnectFailed
from ..limits import DEFAULT_HOST
from ..tls import TLS, ClientTLS, client_context
from .messages import INBOX, NO_INBOX, ROOT, check_service
from .protocol import NatsError, NatsProtocol

#: The port of NATS servers where an address names none.
DEFAULT_PORT = 4222

#: Schemes of addresses, and whether the connection is encrypted from its beginning on. With `nats://` it is where the
#: server asks for that.
SCHEMES = {"nats": False, "nats+tls": True}


#: A prefix of inboxes: up to 128 characters.
_PREFIX = re.compile(r"(?=.{1,128}\Z)[!#%-)+-\-/-=?-~][!-)+-\-/-=?-~]*(\.[!-)+-\-/-=?-~]+)*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class NatsLogin:
    """The login of a client or server at NATS. Pass one of `creds`, `nkey` and `user`.

    Attributes:
        creds: a credentials file (`.creds`: a JWT and the seed of its key).
        nkey: a file with the seed of an nkey.
        user, password: the user's name and password. A user without a password is a NATS token.
        inbox_prefix: the prefix of reply subjects, if the user's permissions require another than `_INBOX`.
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


# -- connecting ------------------------------------------------------------------------------------------------------

#: Bytes of a file with credentials or a key. A JWT with long lists of permissions has some thousands.
_MAX_FILE = 64 * 1024

#: Seconds for an orderly end of a connection.
CLOSE_TIME = 5.0

#: The seed of a user's key, and the JWT, in a file of credentials.
_SEED = re.compile(r"^(SU[A-Z2-7]+)\s*$", re.MULTILINE | re.ASCII)
_JWT = re.compile(r"^-----BEGIN NATS USER JWT-----\s+([\w.=-]+)\s", re.MULTILINE | re.ASCII)

_NO_TLS = "the NATS server has no TLS: begin the address with nats:// if that is meant"
_NO_CERTIFICATE = "the NATS server asks for a certificate of the client that it accepts: give certificate=, and key="
_TOO_OLD = (
    "the NATS server is too old: {} has no headers, and does not say that nothing subscribes; 2.2 or later is needed"
)


async def open_connection(protocol: NatsProtocol, server: str, options: NatsOptions) -> None:
    """Connect to one server.

    Args:
        protocol: gets the connection.
        server: `host:port`.

    Raises:
        ConnectFailed: the server is not there, or does not take this login; permanent in the latter case.
    """
    try:
        async with asyncio.timeout(options.connect_timeout):
            await _open(protocol, server, options)
    except TimeoutError:
        protocol.fail(NatsError("connecting took too long"))
        reason = f"could not connect within {options.connect_timeout:g} s"
        raise ConnectFailed(reason, address=options.address) from None
    except (OSError, ValueError, ConnectFailed) as error:
        protocol.fail(NatsError("it was given up"))
        failure = _failure(error, options)
        # Why the server closed the connection behind the handshake is often lost.
        if failure.is_permanent or not protocol.info.get("tls_verify"):
            raise failure from error
        raise ConnectFailed(f"{failure.reason}; {_NO_CERTIFICATE}", address=options.address) from error
    except BaseException:
        protocol.fail(NatsError("it was given up"))
        raise


async def _open(protocol: NatsProtocol, server: str, options: NatsOptions) -> None:
    loop = asyncio.get_running_loop()
    host, port = split_address(server)
    await loop.create_connection(lambda: protocol, host, int(port))
    await protocol.greeted
    info, needs_tls = protocol.info, options.is_secure or bool(protocol.info.get("tls_required"))
    if not info.get("headers"):
        text = _TOO_OLD.format(info.get("version", "it"))
        raise ConnectFailed(text, address=options.address, is_permanent=True)
    if options.is_secure and not (info.get("tls_required") or info.get("tls_available")):
        raise ConnectFailed(_NO_TLS, address=options.address, is_permanent=True)
    if needs_tls:
        if protocol.has_unread or protocol.transport is None:
            raise NatsError("the NATS server sent something before the TLS handshake")
        context = options.tls or client_context()
        protocol.use(await loop.start_tls(protocol.transport, protocol, context, server_hostname=host))
    login = _login(options, str(info.get("nonce", "")))
    connect = {
        "verbose": False,
        "pedantic": False,
        "tls_required": needs_tls,
        "lang": "python",
        "version": __version__,
        "protocol": 1,
        "name": options.name,
        "headers": True,
        "no_responders": True,
        "echo": options.has_echo,
        **(login if info.get("auth_required") else {}),
    }
    protocol.write(b"CONNECT ", orjson.dumps(connect), b"\r\n")
    await protocol.ping()


async def close_connection(protocol: NatsProtocol) -> None:
    """Write what waits, and close. What is not written after `CLOSE_TIME` is dropped."""
    protocol.write_out()
    if protocol.transport is not None:
        protocol.transport.close()
    await asyncio.wait({protocol.lost}, timeout=CLOSE_TIME)
    protocol.fail(NatsError("it was closed"))


# -- the login --------------------------------------------------------------------------------------------------------


def _login(options: NatsOptions, nonce: str) -> dict[str, str]:
    """Return a login as members of `CONNECT`. Raises ConnectFailed as `_key_in`.

    Args:
        nonce: of the server; a key signs it.
    """
    login = options.login
    if login.creds is None and login.nkey is None:
        if login.user is None:
            return {}
        return {"auth_token": login.user} if login.password is None else {"user": login.user, "pass": login.password}
    key, jwt = _key_in(login.nkey or login.creds or "", "creds=" if login.nkey is None else "nkey=", options)
    signature = base64.b64encode(key.sign(nonce.encode())).decode()
    who = {"jwt": jwt} if login.nkey is None else {"nkey": key.public_key.decode()}
    key.wipe()
    return {**who, "sig": signature}


def _key_in(path: str | os.PathLike[str], option: str, options: NatsOptions) -> tuple[Any, str]:
    """The key of a user in a file, and the JWT in one of credentials.

    Raises:
        ConnectFailed: the file cannot be read, or has something else in it; or the package `nkeys` is missing.
    """
    reason = "it has not what is needed in it"
    try:
        import nkeys

        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(_MAX_FILE)
        seed, jwt = _SEED.search(text), _JWT.search(text)
        if seed is not None and (option == "nkey=" or jwt):
            return nkeys.from_seed(bytearray(seed[1].encode())), jwt[1] if jwt else ""
    except ImportError:
        reason = "it needs the package nkeys: pip install 'rpcstream[nats]'"
    except Exception as error:  # nkeys has several of its own, which have no common class
        reason = str(error)
    text = f"the login {option}{os.fspath(path)!r} cannot be used: {reason}"
    raise ConnectFailed(text, address=options.address, is_permanent=True)


# -- errors -----------------------------------------------------------------------------------------------------------


def error_text(error: BaseException | None) -> str:
    """The text of an error; of one of the system, its reason."""
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return "" if error is None else str(error) or type(error).__name__


def _failure(error: BaseException, options: NatsOptions) -> ConnectFailed:
    """The error of an attempt to connect, which says what to change."""
    text, alert = error_text(error), str(getattr(error, "reason", None))
    reason = None
    if isinstance(error, ConnectFailed):
        return error
    if "authorization violation" in text.lower() or "authentication" in text.lower():
        reason = _refusal(options.login)
    elif getattr(error, "verify_message", None) is not None:
        reason = f"the certificate of the NATS server cannot be trusted: {text} (authorities to trust: ca=)"
    elif isinstance(error, ssl.SSLError) and "ALERT" in alert:
        reason = f"the NATS server ended the TLS handshake: {alert}; {_NO_CERTIFICATE}"
    if reason is not None:
        return ConnectFailed(reason, address=options.address, is_permanent=True)
    return ConnectFailed(f"could not connect to NATS: {text}", address=options.address)


def _refusal(login: NatsLogin) -> str:
    """Why a server says "Authorization Violation"."""
    options = {"creds=": login.creds, "nkey=": login.nkey, "password=": login.password, "user=": login.user}
    given = next((name for name, value in options.items() if value is not None), None)
    if given is None:
        return "the NATS server asks for a login: give creds=, nkey=, or user= and password="
    return f"the NATS server does not accept this login ({given})"


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
