"""Reads the users of a hub from a configuration: their names, tokens, certificates and roles."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ..auth.users import User
from .errors import ConfigError
from .tables import read_token

_KEYS = ("name", "token", "token_file", "certificate", "roles")


def read_users(tables: Iterable[Mapping[str, Any]], place: str) -> tuple[User, ...]:
    """The users in these tables, the tokens read from their files.

    Raises:
        ConfigError: a table is no user, or two have the same to show; the text has the number from 1, and no token.
    """
    users = tuple(_user(table, f"{place}: user {number}") for number, table in enumerate(tables, 1))
    for number, user in enumerate(users):
        for other in users[:number]:
            if user.token is not None and user.token == other.token:
                raise ConfigError(f"{place}: users {other.name!r} and {user.name!r} have the same token")
            if user.certificate is not None and user.certificate == other.certificate:
                raise ConfigError(f"{place}: users {other.name!r} and {user.name!r} have the same certificate")
    return users


def _user(table: Mapping[str, Any], place: str) -> User:
    for key in table:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key)[:100], _KEYS, 1)
            raise ConfigError(f"{place}: unknown field {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    for key in ("name", "token", "token_file", "certificate"):
        value = table.get(key, "x")
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{place}: {key} must be text that is not empty, got {type(value).__name__}")
    if "name" not in table:
        raise ConfigError(f"{place}: name is missing")
    shown = [key for key in ("token", "token_file", "certificate") if key in table]
    if not shown or {"token", "token_file"} <= set(shown):
        raise ConfigError(f"{place}: needs a token, a token_file or a certificate to be known by, and one token only")
    roles = table.get("roles", ())
    roles = (roles,) if isinstance(roles, str) else roles
    if not isinstance(roles, list | tuple) or not all(isinstance(role, str) and role for role in roles):
        raise ConfigError(f"{place}: roles must be a text, or a list of texts")
    token = read_token(table["token_file"], f"{place}: token_file") if "token_file" in table else table.get("token")
    if token is not None and any(part.isspace() or not part.isprintable() for part in token):
        raise ConfigError(f"{place}: a token has no blanks, line ends or control characters in it")
    return User(name=table["name"], token=token, certificate=table.get("certificate"), roles=tuple(roles))
