"""Authentication: from the credentials of a peer to its identity.

Owns the decision whether credentials are accepted, by comparing a token or by asking the server's own function, whose
result is the identity; and such a function for users that a configuration lists. Knows neither messages nor methods,
nor when a peer is asked (that is `gate`), nor how a configuration writes users.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ..limits import DEFAULT_LIMITS
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.credentials import Credentials

log = logging.getLogger("rpcstream.server")

#: The identity of every peer that shows the token of `Server(token=…)`.
TOKEN_IDENTITY = "token"

#: A connection is closed at so many wrong tokens: room for a typing error, none for guessing.
MAX_WRONG = 3


class _NotSync:
    def __repr__(self) -> str:
        return "NOT_SYNC"


#: Returned by `identify_now` where the function is async: `identify` must be awaited.
NOT_SYNC: Final = _NotSync()

Authenticate = Callable[[Credentials], Any]


class Authenticator:
    """Finds the identity of a peer by its credentials.

    Args:
        token: the one token that is accepted; its identity is "token".
        authenticate: a function, sync or async, called with `Credentials`. It gives an identity, or None (or False)
            for a peer that is not accepted. If it raises, the exception is logged and the peer is not accepted.
        timeout: seconds that an async function may take; after that the peer is not accepted.
        counters: count who is not accepted.

    Raises:
        ValueError: neither or both are given, or the token is empty or has characters that could not be sent.
        TypeError: the token is no string, or `authenticate` no function.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        authenticate: Authenticate | None = None,
        timeout: float | None = DEFAULT_LIMITS.auth_timeout,
        counters: Counters | None = None,
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
        self._counters = counters or Counters()
        self._is_async = authenticate is not None and is_async(authenticate)

    def replace(self, other: Authenticator) -> None:
        """Accept from now on what another one accepts; the identities that were found stay what they are."""
        self._digest, self._authenticate, self._is_async = other._digest, other._authenticate, other._is_async

    def accepts_as(self, other: Authenticator) -> bool:
        """Whether both accept the same token."""
        return self._authenticate is other._authenticate and hmac.compare_digest(self._digest, other._digest)

    @property
    def takes_shown(self) -> bool:
        """True if a peer may be accepted by what its connection shows, without a token."""
        return self._authenticate is not None

    def identify_now(self, credentials: Credentials) -> Any:
        """The identity, or None if the peer is not accepted; NOT_SYNC where `identify` must be awaited instead."""
        if self._authenticate is None:
            token = credentials.token
            # Digests have one length, so neither time nor length reveals anything of the token.
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
        # The function returns an awaitable without being declared async: `identify` calls it again and awaits it.
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
            return self._failed(credentials, error)  # not this task, something inside the function was cancelled
        except BaseException as error:
            return self._failed(credentials, error)

    def refused(self, address: str, *, has_shown: bool, requests: int = 1) -> None:
        """Count and log that a peer was refused, since it is not authenticated.

        Args:
            address: of the peer.
            has_shown: it has shown a token that is not accepted.
            requests: how many of its requests were refused.
        """
        self._counters.not_authenticated += requests
        host = address.rpartition(":")[0]
        if has_shown:
            self._counters.logins_refused += 1
            self._log.warning(host, "refused a login from %s: the token is not accepted", address or "a peer")
        else:
            self._log.warning(host, "refused a request from %s: it has shown no token", address or "a peer")

    def _failed(self, credentials: Credentials, error: BaseException) -> None:
        kind = "the server's authenticate function raised, %s is not accepted"
        self._log.error(None, kind, credentials.address or "a peer", error=error)


# -- users ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class User:
    """A program or person that may connect.

    Attributes:
        token: identifies the user.
        certificate: a name in a verified certificate; identifies the user, too.
        roles: names under which rules may refer to several users.
    """

    name: str
    token: str | None = field(default=None, repr=False)
    certificate: str | None = None
    roles: tuple[str, ...] = ()


class UserIdentity(str):
    """The identity of a user: its name, as a string, with its roles.

    Attributes:
        user: the entry that the peer was found by.
    """

    __slots__ = ("roles", "user")

    roles: frozenset[str]
    user: User


def authenticate_users(users: Iterable[User]) -> Callable[[Credentials], UserIdentity | None]:
    """Make a function for `authenticate=`: it finds the user by token, or without one by verified certificate.

    An unknown token is refused, whatever certificate comes with it.
    """
    by_token: dict[bytes, UserIdentity] = {}
    by_certificate: dict[str, UserIdentity] = {}
    for user in users:
        identity = UserIdentity(user.name)
        identity.roles, identity.user = frozenset(user.roles), user
        if user.token is not None:
            by_token[_digest(user.token)] = identity
        if user.certificate is not None:
            by_certificate[user.certificate] = identity

    def authenticate(credentials: Credentials) -> UserIdentity | None:
        if credentials.token is not None:
            # How long it takes to find a digest says nothing of the token.
            return by_token.get(_digest(credentials.token))
        found = (by_certificate.get(name) for name in credentials.names)
        return next((identity for identity in found if identity is not None), None)

    return authenticate


# -- tokens and functions ---------------------------------------------------------------------------------------------


def _identity(found: Any) -> Any:
    """The identity that the server's function returned; None if it returned False, as one that only compares does."""
    return None if found is False else found


def _check_token(token: object) -> None:
    """Raise TypeError or ValueError for what cannot be sent as `Authorization: Bearer`."""
    if not isinstance(token, str):
        raise TypeError(f"the token must be a string, got {type(token).__name__}")
    if not token:
        raise ValueError("the token must not be empty")
    if any(character.isspace() or not character.isprintable() for character in token):
        raise ValueError("the token must have no blanks, line ends or control characters in it")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def is_async(function: Any) -> bool:
    """True for an async function, also behind partials, wrappers and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
