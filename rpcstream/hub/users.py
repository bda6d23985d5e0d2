"""Who a caller is, by the users of a configuration. Pure; what a user is in a file is the configuration's matter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from ..config import User
from ..peer.credentials import Credentials


class Known(str):
    """The identity of a user: the name, which it is as a string, with roles."""

    __slots__ = ("roles",)

    roles: frozenset[str]


def authenticate_users(users: Iterable[User]) -> Callable[[Credentials], Known | None]:
    """A function for `authenticate=`: the user with this token, else the one with this verified certificate.

    A token that nobody has is nobody's, whatever else is shown.
    """
    by_token: dict[bytes, Known] = {}
    by_certificate: dict[str, Known] = {}
    for user in users:
        known = Known(user.name)
        known.roles = frozenset(user.roles)
        if user.token is not None:
            by_token[_digest(user.token)] = known
        if user.certificate is not None:
            by_certificate[user.certificate] = known

    def authenticate(credentials: Credentials) -> Known | None:
        if credentials.token is not None:
            # How long it takes to find a digest says nothing of the token.
            return by_token.get(_digest(credentials.token))
        found = (by_certificate.get(name) for name in credentials.names)
        return next((known for known in found if known is not None), None)

    return authenticate


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
