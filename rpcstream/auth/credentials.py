"""Who a peer is: what it shows, and what a server makes of that.

Owns the credentials of one connection and the decision whether they are accepted. An accepted peer has an identity,
which is whatever the server's own function gave. Knows neither messages nor methods.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import inspect
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ..limits import DEFAULT_LIMITS
from ..observe.limited_log import LimitedLog

log = logging.getLogger("rpcstream.server")

#: The identity of everybody who knows the token of `Server(token=…)`.
TOKEN_IDENTITY = "token"

#: Wrong tokens on one connection before it is closed: room for a typing error, none for guessing.
MAX_WRONG = 3

#: pid, uid and gid as Linux gives them.
_PEER = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a peer shows of itself: each of these where there is one.

    Attributes:
        token: what it said itself: in `rpc.authenticate`, or as `Authorization: Bearer`.
        names: of the certificate that it showed, which was verified (mutual TLS): the common name, then the alternative
            names (DNS, URI, email).
        pid, uid, gid: of the process at the other end of a Unix socket when it connected, as the system knows them.
        address: "127.0.0.1:50412".
    """

    token: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    pid: int | None = None
    uid: int | None = None
    gid: int | None = None
    address: str = ""

    @property
    def are_shown(self) -> bool:
        """Is there something besides the token that says who it is?"""
        return bool(self.names) or self.uid is not None


def credentials_of(
    transport: asyncio.BaseTransport | None, *, address: str = "", token: str | None = None
) -> Credentials:
    """What the connection itself tells of the peer, and a token."""
    if transport is None:
        return Credentials(address=address, token=token)
    names = _certificate_names(transport.get_extra_info("ssl_object"))
    pid, uid, gid = _unix_peer(transport.get_extra_info("socket"))
    return Credentials(token=token, names=names, pid=pid, uid=uid, gid=gid, address=address)


def _certificate_names(tls: Any) -> tuple[str, ...]:
    # Empty for a certificate that was not asked for, and so not verified.
    certificate = (tls.getpeercert() if tls is not None else None) or {}
    subject = [pair for parts in certificate.get("subject", ()) for pair in parts]
    common = [value for kind, value in subject if kind == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
    return tuple(dict.fromkeys(name for name in (*common, *others) if name and "\0" not in name))


def _unix_peer(sock: Any) -> tuple[int | None, int | None, int | None]:
    if sock is None or sock.family != getattr(socket, "AF_UNIX", None) or not hasattr(socket, "SO_PEERCRED"):
        return None, None, None
    try:
        pid, uid, gid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:  # closed meanwhile
        return None, None, None
    return pid, uid, gid


class _NotSync:
    def __repr__(self) -> str:
        return "NOT_SYNC"


#: Stands for an identity that must be waited for.
NOT_SYNC: Final = _NotSync()

Authenticate = Callable[[Credentials], Any]


class Authenticator:
    """Decides who a peer is.

    Args:
        token: the one token that is accepted; its identity is "token".
        authenticate: a function, sync or async, called with `Credentials`. It gives an identity, or None (or False)
            for a peer that is not accepted. What it raises is logged, and the peer not accepted.
        timeout: seconds that an async one may take; then the peer is not accepted.

    Raises:
        ValueError: none of both or both, or a token that is empty or could not be sent as it is.
        TypeError: they are no string and no function.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        authenticate: Authenticate | None = None,
        timeout: float | None = DEFAULT_LIMITS.auth_timeout,
    ) -> None:
        if (token is None) is (authenticate is None):
            raise ValueError("give either token= or authenticate=")
        if token is not None:
            _check_token(token)
        elif not callable(authenticate):
            raise TypeError(f"authenticate must be a function, got {type(authenticate).__name__}")
        self._digest = _digest(token) if token is not None else b""
        self._authenticate = authenticate
        self._timeout = timeout
        self._log = LimitedLog(log)
        self._is_async = authenticate is not None and _is_async(authenticate)

    @property
    def takes_shown(self) -> bool:
        """Can it accept a peer without a token?"""
        return self._authenticate is not None

    def identify_now(self, credentials: Credentials) -> Any:
        """The identity, or None if the peer is not accepted; NOT_SYNC where `identify` must be awaited instead."""
        if self._authenticate is None:
            token = credentials.token
            # Digests are of one length, so neither time nor length says anything of the token.
            is_same = hmac.compare_digest(self._digest, _digest("" if token is None else token))
            return TOKEN_IDENTITY if is_same and token is not None else None
        if self._is_async:
            return NOT_SYNC
        try:
            found = self._authenticate(credentials)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(credentials, error)
        if not inspect.isawaitable(found):
            return _identity(found)
        # It does not look async, and is: it is called again, this time to be awaited.
        self._is_async = True
        if inspect.iscoroutine(found):
            found.close()
        return NOT_SYNC

    async def identify(self, credentials: Credentials) -> Any:
        """The identity, or None if the peer is not accepted."""
        found = self.identify_now(credentials)
        if found is not NOT_SYNC:
            return found
        assert self._authenticate is not None
        try:
            async with asyncio.timeout(self._timeout):
                found = self._authenticate(credentials)
                return _identity(await found if isinstance(found, Awaitable) else found)
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(credentials, error)  # something in it was cancelled
        except BaseException as error:
            return self._failed(credentials, error)

    def _failed(self, credentials: Credentials, error: BaseException) -> None:
        kind = "the server's authenticate failed, %s is not accepted"
        self._log.error(None, kind, credentials.address or "a peer", error=error)


def _identity(found: Any) -> Any:
    """False is what a function gives that compares and returns: it must not become a way in."""
    return None if found is False else found


def _check_token(token: object) -> None:
    if not isinstance(token, str):
        raise TypeError(f"the token must be a string, got {type(token).__name__}")
    if not token:
        raise ValueError("the token must not be empty")
    if any(character.isspace() or not character.isprintable() for character in token):
        raise ValueError("the token must have no blanks, line ends or control characters in it")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
