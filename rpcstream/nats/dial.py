"""Opens a connection to one NATS server by nats-py: the login, TLS, and why the server did not take it.

Nothing secret is sent without the encryption that was asked for. Errors name the option to change.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ..errors import ConnectFailed
from .options import NatsLogin, NatsOptions
from .protocol import ProtocolReader

#: Bytes that wait to be written above which nats-py itself would stop: far more than may come to wait in one turn of
#: the loop. Who writes looks after that.
_PENDING_MAX = 1 << 40

#: Seconds between two pings, and how many may stay unanswered: a server that has vanished is noticed after these.
_PING_INTERVAL, _PINGS_UNANSWERED = 15, 2

#: Bytes of a file with credentials or a key. A JWT with long lists of permissions has some thousands.
_MAX_FILE = 64 * 1024

#: Seconds for an orderly end of a connection, and of one that could not be used.
CLOSE_TIME, _DISCARD_TIME = 5.0, 1.0

#: The seed of a user's key, and the JWT, in a file of credentials.
_SEED = re.compile(r"^(SU[A-Z2-7]+)\s*$", re.MULTILINE | re.ASCII)
_JWT = re.compile(r"^-----BEGIN NATS USER JWT-----\s+[\w.=-]+\s", re.MULTILINE | re.ASCII)

_NO_TLS = "the NATS server has no TLS: begin the address with nats:// if that is meant"
_NO_CERTIFICATE = "the NATS server asks for a certificate of the client that it accepts: give certificate=, and key="
_TOO_OLD = (
    "the NATS server is too old: {} has no headers, and does not say that nothing subscribes; 2.2 or later is needed"
)


class SecureClient(Client):
    """A client of nats-py that sends no login before TLS stands, where that was asked for.

    nats-py itself encrypts only where the server says that it must be, and so does what an attacker in between says.
    Messages that nats-py cannot read do not end this one: other clients choose what is in them.

    Attributes:
        on_error: called with errors, once it is connected.
        on_denied: called with "publish" or "subscription", and the subject, where NATS does not permit one.
        on_closed: called when the connection has ended, once it was connected.
        takers: called with each message, by the number of the subscription; nats-py keeps its own elsewhere.
        received: how many messages have come.
        info: what the server has said of itself.
    """

    def __init__(self, options: NatsOptions) -> None:
        super().__init__()
        self._ps = ProtocolReader(self)
        self.on_error: Callable[[Exception], object] = lambda error: None
        self.on_denied: Callable[[str, str], object] = lambda what, subject: None
        self.on_closed: Callable[[], object] = lambda: None
        self.takers: dict[int, Callable[[Msg], object]] = {}
        self.received = 0
        self.info: dict[str, Any] = {}
        self._options = options

    @property
    def writer(self) -> asyncio.StreamWriter | None:
        """Writes to the socket, or to TLS on it; None before there is one."""
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        return writer

    @property
    def asks_for_certificate(self) -> bool:
        """The server wants certificates of clients."""
        return bool(self.info.get("tls_verify"))

    @property
    def has_jetstream(self) -> bool:
        """The server has JetStream."""
        return bool(self.info.get("jetstream"))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            reason = None
            if not info.get("headers"):
                reason = _TOO_OLD.format(info.get("version", "it"))
            elif self._options.is_secure and not (info.get("tls_required") or info.get("tls_available")):
                reason = _NO_TLS
            if reason is not None:
                raise ConnectFailed(reason, address=self._options.address, is_permanent=True)
            info["tls_required"] = info.get("tls_required") or self._options.is_secure
            self.info = info
        await super()._process_info(info, initial_connection)

    async def send_line(self, line: str) -> None:
        """Send a line of the protocol, behind the messages that wait to be written."""
        await self._send_command(line.encode() + b"\r\n")
        await self._flush_pending()

    def _connect_command(self) -> bytes:
        writer = self.writer
        if self._options.is_secure and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise ConnectFailed(_NO_TLS, address=self._options.address, is_permanent=True)
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
    login = login_arguments(options)
    if host is not None:
        login["tls_hostname"] = host
    client = SecureClient(options)
    try:
        await _connect(client, server, options, login)
    except ConnectFailed as error:
        if error.is_permanent or not client.asks_for_certificate:
            raise
        # Why the server closed the connection behind the handshake is often lost.
        raise ConnectFailed(f"{error.reason}; {_NO_CERTIFICATE}", address=options.address) from error
    return client


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


def login_arguments(options: NatsOptions) -> dict[str, Any]:
    """A login as arguments of nats-py's `connect`.

    Raises:
        ConnectFailed: a file cannot be read, or has something else in it; or the package `nkeys` is missing.
    """
    login = options.login
    more: dict[str, Any] = {} if login.inbox_prefix is None else {"inbox_prefix": login.inbox_prefix}
    if login.creds is not None:
        _seed_in(login.creds, "creds=", options)
        return {**more, "user_credentials": os.fspath(login.creds)}
    if login.nkey is not None:
        return {**more, "nkeys_seed_str": _seed_in(login.nkey, "nkey=", options)}
    if login.user is not None and login.password is None:
        return {**more, "token": login.user}
    return {**more, "user": login.user, "password": login.password}


def _seed_in(path: str | os.PathLike[str], option: str, options: NatsOptions) -> str:
    """The seed of a user's key in a file; one of credentials has a JWT as well."""
    reason = "it has not what is needed in it"
    try:
        import nkeys

        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(_MAX_FILE)
        seed = _SEED.search(text)
        if seed is not None and (option == "nkey=" or _JWT.search(text)):
            nkeys.from_seed(bytearray(seed[1].encode())).wipe()
            return seed[1]
    except Exception as error:  # nkeys has several of its own, which have no common class
        reason = str(error)
    text = f"the login {option}{os.fspath(path)!r} cannot be used: {reason}"
    raise ConnectFailed(text, address=options.address, is_permanent=True)


# -- errors -----------------------------------------------------------------------------------------------------------


def error_text(error: BaseException | None) -> str:
    """The text of an error of nats-py, without what all of them begin with; of one of the system, its reason."""
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return "" if error is None else str(error).removeprefix("nats: ").strip("'") or type(error).__name__


def _failure(error: BaseException, options: NatsOptions) -> ConnectFailed:
    """The error of an attempt to connect, which says what to change."""
    text, alert = error_text(error), str(getattr(error, "reason", None))
    reason = None
    if isinstance(error, ConnectFailed):
        return error
    if "authorization violation" in text.lower() or "authentication" in text.lower():
        reason = _refusal(options.login)
    elif getattr(error, "verify_message", None) is not None:
        reason = f"the certificate of the NATS server is not to be trusted: {text} (authorities to trust: ca=)"
    elif isinstance(error, ssl.SSLError) and "ALERT" in alert:
        reason = f"the NATS server ended the handshake of TLS: {alert}; {_NO_CERTIFICATE}"
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
