"""Users that are known by a token or a certificate, and the function that authenticates them.

Knows neither how a configuration writes users nor what they may do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..peer.credentials import Credentials


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
    """The identity of a user: its name, as a string, with its roles."""

    __slots__ = ("roles",)

    roles: frozenset[str]


def authenticate_users(users: Iterable[User]) -> Callable[[Credentials], UserIdentity | None]:
    """Make a function for `authenticate=`: it finds the user by token, or without one by verified certificate.

    An unknown token is refused, whatever certificate comes with it.
    """
    by_token: dict[bytes, UserIdentity] = {}
    by_certificate: dict[str, UserIdentity] = {}
    for user in users:
        identity = UserIdentity(user.name)
        identity.roles = frozenset(user.roles)
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


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
