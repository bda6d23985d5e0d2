"""Authentication: from the credentials of a peer to its identity.

The server compares a token, or calls its own function, which returns the identity.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from ..errors import RegistrationError
from ..limits import DEFAULT_LIMITS
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.credentials import Credentials

log = logging.getLogger("rpcstream.server")

#: The identity of every peer that shows the token of `Server(token=…)`.
TOKEN_IDENTITY = "token"

#: A connection is closed at so many wrong tokens: room for a typing error, none for guessing.
MAX_WRONG = 3

Authenticate = Callable[[Credentials], Any]


class Authenticator:
    """Finds the identity of a peer by its credentials.

    Args:
        token: the token that is accepted, or several, such as the old and the new one; the identity is "token".
        authenticate: a function, sync or async, called with `Credentials`. It gives an identity, or None (or False)
            for a peer that is not accepted. If it raises, the exception is logged and the peer is not accepted.
        timeout: seconds that an async function may take; after that the peer is not accepted.
        counters: count who is not accepted.

    Raises:
        ValueError: neither or both are given, or the token is empty, or could not be sent.
        TypeError: `authenticate` is no function.
    """

    def __init__(
        self,
        *,
        token: str | Iterable[str] | None = None,
        authenticate: Authenticate | None = None,
        timeout: float | None = DEFAULT_LIMITS.auth_timeout,
        counters: Counters | None = None,
    ) -> None:
        if (token is None) is (authenticate is None):
            raise ValueError("give either token= or authenticate=")
        if token is None and not callable(authenticate):
            raise TypeError(f"authenticate must be a function, got {type(authenticate).__name__}")
        #: Of the tokens that are accepted; None: the function is asked.
        self._digests = None if token is None else _digests_of(token)
        self._authenticate = authenticate
        self._timeout = timeout
        self._log = LimitedLog(log)
        self._counters = counters or Counters()

    def replace(self, other: Authenticator) -> bool:
        """Accept from now on what another one accepts; return False if every token of before is still accepted.

        The identities that were found stay what they are.
        """
        before, self._digests = self._digests, other._digests
        self._authenticate = other._authenticate
        return before is None or not before <= (self._digests or frozenset())

    @property
    def takes_shown(self) -> bool:
        """True if a peer may be accepted by what its connection shows, without a token."""
        return self._authenticate is not None

    def identify(self, credentials: Credentials) -> Any:
        """The identity, None if the peer is not accepted; an awaitable of that where the function is async."""
        try:
            found = self._by_token(credentials) if self._authenticate is None else self._authenticate(credentials)
        except Exception as error:
            return self._failed(credentials, error)
        if inspect.isawaitable(found):
            return self._in_time(found, credentials)
        return None if found is False else found

    async def _in_time(self, later: Awaitable[Any], credentials: Credentials) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                found = await later
        except Exception as error:
            return self._failed(credentials, error)
        return None if found is False else found

    def _by_token(self, credentials: Credentials) -> str | None:
        # Digests have one length, so neither time nor length reveals anything of the token.
        shown = digest_of(credentials.token or "")
        found = [hmac.compare_digest(each, shown) for each in self._digests or ()]
        return TOKEN_IDENTITY if any(found) else None

    def refused(self, address: str, *, has_shown: bool, requests: int = 1) -> None:
        """Count and log that a peer was refused, since it is not authenticated.

        Args:
            address: of the peer.
            has_shown: it has shown a token that is not accepted.
            requests: how many of its requests were refused.
        """
        self._counters.not_authenticated += requests
        self._counters.logins_refused += has_shown
        told = "a login from %s: the token is not accepted" if has_shown else "a request from %s: it has shown no token"
        self._log.warning(address.rpartition(":")[0], f"refused {told}", address or "a peer")

    def _failed(self, credentials: Credentials, error: BaseException) -> None:
        kind = "the server's authenticate function raised, %s is not accepted"
        self._log.error(None, kind, credentials.address or "a peer", error=error)


def _digests_of(token: str | Iterable[str]) -> frozenset[bytes]:
    """Raise ValueError unless there is a token, and each can be sent as `Authorization: Bearer`."""
    tokens: list[Any] = [token] if isinstance(token, str) or not isinstance(token, Iterable) else list(token)
    for each in tokens or [None]:
        if not isinstance(each, str) or not each.isprintable() or each.split() != [each]:
            reason = "the token must be a string, not empty, with no blanks, line ends or control characters in it"
            raise ValueError(reason)
    return frozenset(map(digest_of, tokens))


def digest_of(token: str) -> bytes:
    """What tokens are compared and found by: how long that takes says nothing of a token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


#: The option `allow`: a name, several, or a function of the identity.
AllowRule = str | Collection[str] | Callable[[Any], bool]


class CallerRule:
    """Decides which identities may call one method.

    Args:
        rule: a name, or several: an identity that has one of them may call. Or a function of the identity that returns
            whether it may; if it raises, the exception is logged and the caller is not permitted.
        method: the remote name, for errors and the log.

    Raises:
        RegistrationError: there are no names, one is no string or empty, or the function is async.
    """

    __slots__ = ("_function", "_log", "_method")

    def __init__(self, rule: AllowRule, *, method: str) -> None:
        self._method = method
        self._log = LimitedLog(log)
        if isinstance(rule, str | Collection):
            names = [rule] if isinstance(rule, str) else list(rule)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise RegistrationError(f"{method}: allow must contain names that are not empty, got {rule!r}")
            self._function: Callable[[Any], Any] = lambda identity: not names_of(identity).isdisjoint(names)
        elif not callable(rule) or inspect.iscoroutinefunction(rule):
            raise RegistrationError(
                f"{method}: allow must be a name, a list of names, or a sync function, got {rule!r}"
            )
        else:
            self._function = rule

    def permits(self, identity: Any) -> bool:
        """True if a caller with this identity may call the method; a caller without an identity never may."""
        if identity is None:
            return False
        try:
            found = self._function(identity)
            if inspect.isawaitable(found):
                raise TypeError("the function for allow= returned an awaitable: pass a plain function")
            return bool(found)
        except Exception as error:
            kind = "the function for allow of method %r raised, the caller is not permitted"
            self._log.error(None, kind, self._method, error=error)
            return False


def names_of(identity: Any) -> set[str]:
    """The names of an identity: itself, if it is a string, and its `roles` (an attribute, or an item of a mapping).

    Roles are one string or a collection of strings; anything else in there is left out.
    """
    names = {str(identity)} if isinstance(identity, str) else set()
    roles = identity.get("roles") if isinstance(identity, Mapping) else getattr(identity, "roles", None)
    if isinstance(roles, str):
        names.add(roles)
    elif isinstance(roles, Collection):
        names.update(role for role in roles if isinstance(role, str))
    return names
