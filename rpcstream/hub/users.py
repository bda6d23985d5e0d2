"""The identities of the users that a hub's configuration lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..auth.authenticator import digest_of
from ..peer.credentials import Credentials
from .config import User


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
            by_token[digest_of(user.token)] = identity
        if user.certificate is not None:
            by_certificate[user.certificate] = identity

    def authenticate(credentials: Credentials) -> UserIdentity | None:
        if credentials.token is not None:
            return by_token.get(digest_of(credentials.token))
        found = (by_certificate.get(name) for name in credentials.names)
        return next((identity for identity in found if identity is not None), None)

    return authenticate
