"""The options of a hub from arguments, environment variables and a configuration file; and the users in it."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ..auth.authenticator import digest_of
from ..config import (
    MAX_TOKENS,
    ConfigSource,
    Schema,
    limit_options,
    log,
    read_file,
    read_tls,
    read_tokens,
    take_groups,
    take_token,
)
from ..limits import Limits
from ..option import FILE, SECONDS_OR_NONE, Kind, Option, choice, group_options, options_of, whole
from ..peer.credentials import Credentials
from ..server.options import GROUPS, ListenOptions, ServerOptions
from .rules import Rule

PREFIX = "RPCSTREAM_HUB_"

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

#: The address that a hub listens at: arguments of `run`, not of the constructor.
WHERE = tuple(name for name, option in options_of(ListenOptions).items() if option.file is not None)

#: How `rpcstream-server` logs: a level, and a table for `logging.config.dictConfig`, which a file may contain.
LOGGING = ("log_level", "log_config", "logging")


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program or person that may connect.

    Attributes:
        token, token_file: identifies the user; or the file that holds it.
        certificate: a name in a verified certificate; identifies the user, too.
        roles: names under which rules may refer to several users.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    token: str | None = None
    token_file: str | None = None
    certificate: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    roles: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tokens = [each for each in (self.token, self.token_file) if each is not None]
        if len(tokens) > 1 or (not tokens and self.certificate is None):
            raise ValueError("expected a token, a token_file or a certificate, and one token only")
        if self.token is not None and (not self.token.isprintable() or " " in self.token or not self.token):
            raise ValueError("token: expected visible characters without blanks")

    def __repr__(self) -> str:
        return f"User(name={self.name!r}, certificate={self.certificate!r}, roles={self.roles!r})"


def _users(users: list[User], folder: str) -> tuple[User, ...]:
    """The users with their tokens read. Raises ConfigError; ValueError if two have the same token or certificate."""
    found = []
    for user in users:
        roles = (user.roles,) if isinstance(user.roles, str) else user.roles
        token = read_tokens(os.path.join(folder, user.token_file))[0] if user.token_file is not None else user.token
        found.append(msgspec.structs.replace(user, token=token, token_file=None, roles=roles))
    for number, user in enumerate(found):
        for other in found[:number]:
            if user.token is not None and user.token == other.token:
                raise ValueError(f"users {other.name!r} and {user.name!r} have the same token")
            if user.certificate is not None and user.certificate == other.certificate:
                raise ValueError(f"users {other.name!r} and {user.name!r} have the same certificate")
    return tuple(found)


class TlsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificate of a hub in a file; `ca`: the authorities of the clients' certificates."""

    certificate: str
    key: str | None = None
    password: str | None = None
    ca: str | None = None


def _tls(table: TlsTable, folder: str) -> Any:
    certificate, key, ca = (file and os.path.join(folder, file) for file in (table.certificate, table.key, table.ca))
    return read_tls(certificate=certificate, key=key, password=table.password, ca=ca)


def _log_config(path: str, folder: str) -> dict[str, Any]:
    try:
        return read_file(os.path.join(folder, path))
    except OSError as error:
        raise ValueError(f"cannot read {path!r}: {error.strerror or error}") from None


class ServerFile(ServerOptions, ListenOptions, total=False):
    """What a configuration file of a server or a hub may have besides the options of `Server`."""

    tls: Annotated[Any, Option(None, Kind(TlsTable, finish=_tls))]
    users: Annotated[Any, Option(None, Kind(list[User], finish=_users))]
    token_file: Annotated[str, Option(None, FILE)]
    log_level: Annotated[str, Option(None, choice(*LOG_LEVELS))]
    log_config: Annotated[dict[str, Any], Option(None, Kind(str, finish=_log_config))]
    logging: Annotated[dict[str, Any], Option(None, Kind(dict[str, Any]))]


class HubFile(ServerFile, total=False):
    """What a configuration file of a hub may have besides those."""

    call_timeout: Annotated[float | None, Option(None, SECONDS_OR_NONE)]
    keepalive_timeout: Annotated[float | None, Option(60.0, SECONDS_OR_NONE)]
    ping_interval: Annotated[float | None, Option(None, SECONDS_OR_NONE)]
    registration_timeout: Annotated[float | None, Option(None, SECONDS_OR_NONE)]
    rules: Annotated[Any, Option(None, Kind(list[Rule]))]
    thread_count: Annotated[int, Option(None, whole(1))]


#: Sets of options of which a server takes one.
EXCLUSIVE = (("unix",), ("host", "port")), (("token",), ("token_file",), ("users",), ("authenticate",))

#: The fields of options that are groups, each as an option of its own.
FIELDS = {name: option for group in GROUPS.values() for name, option in group_options(group).items()} | limit_options()

HUB = Schema(
    options_of(HubFile) | FIELDS,
    what="a hub",
    prefix=PREFIX,
    exclusive=EXCLUSIVE,
)

_MAY_BE_NONE = ("call_timeout", "keepalive_timeout", "ping_interval", "registration_timeout")


@dataclass(frozen=True, kw_only=True)
class HubConfig:
    """The configuration of a hub, as arguments and tables.

    Attributes:
        options: keyword arguments of `Hub`, all but those for `users`.
        where: keyword arguments of `Hub.run`.
        users: those that may connect; None if the configuration has none.
        logging: those of `LOGGING`. `log_level` is in small letters, for the logger "rpcstream".
        token_file: the path of the file that the token was read from.
    """

    options: dict[str, Any] = field(repr=False)
    where: dict[str, Any]
    users: tuple[User, ...] | None = field(repr=False)
    logging: dict[str, Any] = field(repr=False)
    token_file: str | None = None


def hub_options(
    source: ConfigSource = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> HubConfig:
    """Read the options of a hub from arguments, the environment (`RPCSTREAM_HUB_…`) and a file.

    Args:
        source: a file (TOML, or JSON with comments), or a mapping with the same options; None for neither.
        arguments: count most: options as in a file, and all else that `Hub` takes.
        environ: replaces `os.environ`.

    Raises:
        ConfigError: an unknown option, or a wrong value; the text says where it stands.
        OSError: the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    given = HUB.of_arguments(arguments or {})
    of_environment = HUB.of_environment(environ)
    HUB.warn_of_unknown(environ)
    title, table = "configuration", {}
    if isinstance(source, Mapping):
        table = HUB.of_table(source, title)
    elif source is not None:
        title = os.fspath(source)
        table = HUB.of_table(read_file(source), title, os.path.dirname(os.path.abspath(title)))
    found = HUB.merged(given, of_environment, table)
    token_file = take_token(found, most=MAX_TOKENS)
    if found.pop("thread_count", None) is not None:
        log.warning("thread_count sets nothing: a hub is one process with one event loop")
    where = {name: found.pop(name) for name in WHERE if name in found}
    users = found.pop("users", None)
    logging = {name: found.pop(name) for name in LOGGING if found.get(name) is not None}
    take_groups(found, {**GROUPS, "limits": Limits})
    return HubConfig(
        options={name: value for name, value in found.items() if value is not None or name in _MAY_BE_NONE},
        where={name: value for name, value in where.items() if value is not None},
        users=users,
        logging=logging,
        token_file=token_file,
    )


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
