"""Opens a connection to one NATS server: the login, TLS, and why the server did not take it.

Nothing secret is sent without the encryption that was asked for. Errors name the option to change.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
from typing import Any

import orjson

from .. import __version__
from ..errors import ConnectFailed
from ..tls import client_context
from .options import NatsLogin, NatsOptions, split_address
from .protocol import NatsError, NatsProtocol

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
            raise NatsError("the NATS server sent something before the handshake of TLS")
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
