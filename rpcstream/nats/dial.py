"""Opens a connection to one NATS server by nats-py: the login, TLS, and why the server did not take it.

Owns what is read from files of credentials and keys, that nothing secret is sent without the encryption that was asked
for, and the texts of errors, which name the option to change. Knows neither subscriptions nor what is sent later.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from ..errors import ConnectFailed
from .options import NatsLogin, NatsOptions
from .protocol import ProtocolReader, read_headers

#: Bytes that wait to be written above which nats-py itself would stop: far more than may come to wait in one turn of
#: the loop. Who writes looks after that.
_PENDING_MAX = 1 << 40

#: Seconds between two pings, and how many may stay unanswered: a server that has vanished is noticed after these.
_PING_INTERVAL, _PINGS_UNANSWERED = 15, 2

#: Bytes of a file with credentials or a key. A JWT with long lists of permissions has some thousands.
_MAX_FILE = 64 * 1024

#: Seconds for an orderly end of a connection, and of one that could not be used.
CLOSE_TIME, _DISCARD_TIME = 5.0, 1.0

#: Attempts at a server that asks for certificates of clients and closes the connection behind the handshake. Why it did
#: is often lost, since what was sent meanwhile resets the connection; a server that has ended is not there at the next.
_ATTEMPTS = 3

#: How the two parts of a credentials file are set off.
_JWT = re.compile(rb"-----BEGIN NATS USER JWT-----\s+([\w.=-]+)\s")
_SEED = re.compile(rb"-----BEGIN USER NKEY SEED-----\s+(SU[A-Z2-7]+)\s")
_ONLY_SEED = re.compile(rb"\s*(SU[A-Z2-7]+)\s*\Z")

_NO_TLS = "the NATS server has no TLS: begin the address with nats:// if that is meant"
_NO_CERTIFICATE = "the NATS server asks for a certificate of the client that it accepts: give certificate=, and key="
_TOO_OLD = (
    "the NATS server is too old: {} has no headers, and does not say that nothing subscribes; 2.2 or later is needed"
)
_EXPECTED_TLS = "nats: TLS was asked for, and the connection has none"


class TooOldError(nats.errors.Error):
    """The server lacks what calls need; the text says what, and since when there is that."""


class SecureClient(Client):
    """A client of nats-py that sends no login before TLS stands, where that was asked for.

    nats-py itself encrypts only where the server says that it must be, and so does what an attacker in between says.
    Messages that nats-py cannot read do not end this one: other clients choose what is in them.

    Attributes:
        on_error: called with errors, once it is connected.
        on_closed: called when the connection has ended, once it was connected.
    """

    def __init__(self, *, is_secure: bool) -> None:
        super().__init__()
        self._ps = ProtocolReader(self)
        self.on_error: Callable[[Exception], object] = lambda error: None
        self.on_closed: Callable[[], object] = lambda: None
        self._is_secure = is_secure
        self._has_encrypted = False

    @property
    def writer(self) -> asyncio.StreamWriter | None:
        """Writes to the socket, or to TLS on it; None before there is one."""
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        return writer

    @property
    def may_lack_certificate(self) -> bool:
        """It has got as far as TLS with a server that asks for certificates of clients."""
        return self._has_encrypted and bool(self._server_info.get("tls_verify"))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._is_secure and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise nats.errors.SecureConnRequiredError
            info["tls_required"] = True
        if initial_connection and not info.get("headers"):
            raise TooOldError(_TOO_OLD.format(info.get("version", "it")))
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        return read_headers(headers) if headers else None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Any:
        try:
            message = super()._build_message(sid, b"", reply, data, headers)
        except UnicodeDecodeError:
            return None  # it could not be answered
        # Bytes that are no UTF-8 stay in the subject, and are no name: who counts messages, counts this one.
        message.subject = subject.decode(errors="surrogateescape")
        return message

    def _connect_command(self) -> bytes:
        writer = self.writer
        self._has_encrypted = writer is not None and writer.get_extra_info("ssl_object") is not None
        if self._is_secure and not self._has_encrypted:
            raise nats.errors.Error(_EXPECTED_TLS)
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        try:
            await super()._close(status, do_cbs)
        # What waits cannot be written any more; uvloop raises RuntimeError. nats-py stops there and reports no end.
        except (OSError, RuntimeError):
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            if do_cbs:
                self.on_closed()


async def open_client(server: str, options: NatsOptions, host: str | None = None) -> SecureClient:
    """Connect to one server.

    Args:
        server: `host:port`.
        host: in its certificate; None: that of `server`.

    Raises:
        ConnectFailed: the server is not there, or does not take this login; permanent in the latter case.
    """
    try:
        login = login_arguments(options.login)
    except LoginError as error:
        raise ConnectFailed(str(error), address=options.address, is_permanent=True) from error.__cause__
    failure = ConnectFailed(_NO_CERTIFICATE, address=options.address, is_permanent=True)
    for _ in range(_ATTEMPTS):
        client = SecureClient(is_secure=options.is_secure)
        try:
            await _connect(client, server, options, login if host is None else {**login, "tls_hostname": host})
        except ConnectFailed as error:
            if error.is_permanent or not client.may_lack_certificate:
                raise
            failure.__cause__ = error
        else:
            return client
    raise failure


async def _connect(client: SecureClient, server: str, options: NatsOptions, login: dict[str, Any]) -> None:
    errors = list[Exception]()

    async def failed(error: Exception) -> None:
        errors.append(error)
        if client.is_connected:
            client.on_error(error)

    async def closed() -> None:
        client.on_closed()

    try:
        async with asyncio.timeout(options.connect_timeout):
            await client.connect(
                f"{'tls' if options.is_secure else 'nats'}://{server}",
                name=options.name,
                error_cb=failed,
                closed_cb=closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=max(1, round(options.connect_timeout)),
                ping_interval=_PING_INTERVAL,
                max_outstanding_pings=_PINGS_UNANSWERED,
                tls=options.tls,
                pending_size=_PENDING_MAX,
                skip_subject_validation=True,  # `subjects` makes them
                **login,
            )
    except TimeoutError:
        await _discard(client)
        reason = f"could not connect within {options.connect_timeout:g} s"
        raise ConnectFailed(reason, address=options.address) from None
    except (OSError, ValueError, nats.errors.Error) as error:
        alert = _alert(client)
        await _discard(client)
        shown = errors[-1] if isinstance(error, nats.errors.NoServersError) and errors else error
        raise _failure(alert or shown, options) from error
    except BaseException:
        await _discard(client)
        raise


def _alert(client: SecureClient) -> BaseException | None:
    """What the server has said about TLS before it closed the connection; the error that is raised may not show it."""
    reader = getattr(client._transport, "_io_reader", None)
    found: BaseException | None = None if reader is None else reader.exception()
    return found if isinstance(found, ssl.SSLError) else None


async def _discard(client: SecureClient) -> None:
    """Close a client that is not to be used, at once: nats-py would wait without end where a handshake has failed."""
    writer = getattr(client._transport, "_bare_io_writer", None)
    if writer is not None:
        writer.transport.abort()
    await close_client(client, _DISCARD_TIME)


async def close_client(client: SecureClient, seconds: float = CLOSE_TIME) -> None:
    """Write what waits, and close. What is not written after so many seconds is dropped."""
    closing = asyncio.ensure_future(client.close())
    closing.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait({closing}, timeout=seconds)
    if not closing.done():
        if client.writer is not None:
            client.writer.transport.abort()
        closing.cancel()
        await asyncio.wait({closing})


# -- the login --------------------------------------------------------------------------------------------------------


class LoginError(ValueError):
    """A login that cannot be used; the text names the option and the file."""


def login_arguments(login: NatsLogin) -> dict[str, Any]:
    """A login as arguments of nats-py's `connect`. Files are read.

    Raises:
        LoginError: a file cannot be read, or has something else in it; or the package `nkeys` is missing.
    """
    more: dict[str, Any] = {}
    if login.inbox_prefix is not None:
        more["inbox_prefix"] = login.inbox_prefix
    if login.creds is not None:
        return {**more, **_signed(*_read_credentials(login.creds))}
    if login.nkey is not None:
        text = _read(login.nkey, "nkey=")
        found = _ONLY_SEED.match(text) or _SEED.search(text)
        if found is None:
            raise LoginError(f"nkey= has no seed of a user's key (SU...) in it: {os.fspath(login.nkey)!r}")
        _key_pair(found[1], "nkey=").wipe()
        return {**more, "nkeys_seed_str": found[1].decode()}
    if login.user is not None and login.password is None:
        return {**more, "token": login.user}
    return {**more, "user": login.user, "password": login.password}


def _read_credentials(path: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """The JWT and the seed of a credentials file."""
    text = _read(path, "creds=")
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        what = "JWT of a user" if jwt is None else "seed of a user's key"
        raise LoginError(f"creds= has no {what} in it: {os.fspath(path)!r}")
    _key_pair(seed[1], "creds=").wipe()
    return jwt[1], seed[1]


def _signed(jwt: bytes, seed: bytes) -> dict[str, Any]:
    def sign(nonce: str) -> bytes:
        pair = _key_pair(seed, "creds=")
        signature = pair.sign(nonce.encode())
        pair.wipe()
        return base64.b64encode(signature)

    return {"user_jwt_cb": lambda: bytearray(jwt), "signature_cb": sign}


def _key_pair(seed: bytes, option: str) -> Any:
    try:
        import nkeys
    except ImportError as missing:
        raise LoginError(f"{option} needs the package nkeys: pip install 'rpcstream[nats]'") from missing
    try:
        return nkeys.from_seed(bytearray(seed))
    except Exception as error:  # several of its own, which have no common class
        raise LoginError(f"{option} has a seed in it that is none: {error}") from error


def _read(path: str | os.PathLike[str], option: str) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read(_MAX_FILE) + b"\n"
    except OSError as error:
        raise LoginError(f"{option} cannot be read: {error.strerror or error}: {os.fspath(path)!r}") from error


# -- errors -----------------------------------------------------------------------------------------------------------


def error_text(error: BaseException | None) -> str:
    """The text of an error of nats-py, without what all of them begin with."""
    return "" if error is None else str(error).removeprefix("nats: ").strip("'") or type(error).__name__


def _failure(error: BaseException, options: NatsOptions) -> ConnectFailed:
    """The error of an attempt to connect, which says what to change."""
    text = error_text(error)
    lowered = text.lower()
    reason = None
    if "authorization violation" in lowered or "authentication" in lowered:
        reason = _refusal(options.login)
    elif getattr(error, "verify_message", None) is not None:
        message: str = error.verify_message  # type: ignore[attr-defined]
        reason = f"the certificate of the NATS server is not to be trusted: {message} (authorities to trust: ca=)"
    elif isinstance(error, nats.errors.SecureConnRequiredError) or text == _EXPECTED_TLS.removeprefix("nats: "):
        reason = _NO_TLS
    elif isinstance(error, TooOldError):
        reason = text
    elif isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        reason = _alert_text(error.reason)
    if reason is not None:
        return ConnectFailed(reason, address=options.address, is_permanent=True)
    if isinstance(error, ConnectionRefusedError):
        text = "no NATS server listens at this port (is it running, and the address right?)"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return ConnectFailed(f"could not connect to NATS: {text}", address=options.address)


def _refusal(login: NatsLogin) -> str:
    """Why a server that has said "Authorization Violation" has done so, as far as this end can tell."""
    if login.creds is not None:
        path = os.fspath(login.creds)
        return f"the NATS server does not accept these credentials (creds={path!r}): expired, or of another account"
    if login.nkey is not None:
        return f"the NATS server has no user with this key (nkey={os.fspath(login.nkey)!r})"
    if login.password is not None:
        return f"the NATS server does not accept this name and password (user={login.user!r}, password=)"
    if login.user is not None:
        return "the NATS server does not accept this token (user= without password=)"
    return "the NATS server asks for a login: give creds=, nkey=, or user= and password="


def _alert_text(alert: str) -> str:
    if "CERTIFICATE_REQUIRED" in alert:
        return _NO_CERTIFICATE
    said = alert.partition("_ALERT_")[2].lower().replace("_", " ")
    return f"the NATS server ended the handshake of TLS: {said} (the certificate of the client: certificate=)"


def denied_subject(error: Exception) -> tuple[str, str] | None:
    """What NATS does not permit: "publish" or "subscription", and the subject; None where the error is another."""
    words = error_text(error)
    if not words.lower().startswith("permissions violation for "):
        return None
    what, _, rest = words[len("permissions violation for ") :].partition(" to ")
    return what.lower(), rest.partition('"')[2].partition('"')[0]
