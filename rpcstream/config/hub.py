"""The options of a hub, and the arguments of its constructor and its `run` that they make."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..auth.authenticator import User
from ..limits import Limits
from ..nearest import did_you_mean, nearest
from .files import ConfigError
from .option_types import (
    FILE,
    FILE_MODE,
    FLAG,
    METRICS,
    SECONDS,
    SECONDS_OR_NONE,
    TEXT,
    TEXTS,
    URL_PATHS,
    choice,
    tables,
    whole,
)
from .schema import ConfigSource, Option, Resolved, Schema, log, read_table
from .shared_options import LIMITS, TOKEN, read_token, take_limits, take_token, values_of

if TYPE_CHECKING:  # imports ssl, which most do without
    from ..tls import TLS

PREFIX = "RPCSTREAM_HUB_"

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

#: The address that a hub listens at: arguments of `run`, not of the constructor.
WHERE = ("host", "port", "unix", "unix_mode")

_USER_KEYS = ("name", "token", "token_file", "certificate", "roles")

_TLS = ("certificate", "key", "password", "ca")

#: How the hub joins others on NATS: of these the login has the names, and the connection the rest.
_NATS = ("url", "service", "creds", "nkey", "user", "password", "ca", "certificate", "key")

HUB = Schema(
    (
        Option(name="host", type=TEXT, displaces=("unix",)),
        Option(name="port", type=whole(0, 65535), displaces=("unix",)),
        Option(name="unix", type=FILE, displaces=("host", "port")),
        Option(name="unix_mode", type=FILE_MODE),
        Option(name="call_timeout", type=SECONDS_OR_NONE),
        Option(name="keepalive_timeout", type=SECONDS_OR_NONE),
        Option(name="ping_interval", type=SECONDS_OR_NONE),
        Option(name="registration_timeout", type=SECONDS_OR_NONE),
        Option(name="grace", type=SECONDS),
        Option(name="balance", type=choice("least_in_flight", "round_robin")),
        Option(name="rules", type=tables()),
        *TOKEN,
        Option(name="users", type=tables(files=("token_file",)), is_secret=True, displaces=("token", "token_file")),
        Option(name="tls_certificate", type=FILE),
        Option(name="tls_key", type=FILE),
        Option(name="tls_password", type=TEXT, is_secret=True),
        Option(name="tls_ca", type=FILE),
        Option(name="nats_url", type=TEXT),
        Option(name="nats_service", type=TEXT),
        Option(name="nats_creds", type=FILE),
        Option(name="nats_nkey", type=FILE),
        Option(name="nats_user", type=TEXT, is_secret=True),
        Option(name="nats_password", type=TEXT, is_secret=True),
        Option(name="nats_ca", type=FILE),
        Option(name="nats_certificate", type=FILE),
        Option(name="nats_key", type=FILE),
        Option(name="hosts", type=TEXTS),
        Option(name="origins", type=TEXTS),
        Option(name="path", type=URL_PATHS),
        Option(name="drain_timeout", type=SECONDS),
        Option(name="drain_delay", type=SECONDS),
        Option(name="event_queue", type=whole(1)),
        Option(name="event_policy", type=choice("drop_oldest", "drop_newest", "disconnect")),
        Option(name="binary", type=FLAG),
        Option(name="shared_memory", type=FLAG),
        Option(name="tracing", type=FLAG),
        Option(name="docs", type=FLAG),
        Option(name="title", type=TEXT),
        Option(name="description", type=TEXT),
        Option(name="public_urls", type=TEXTS),
        Option(name="debug", type=FLAG),
        Option(name="metrics", type=METRICS),
        Option(name="javascript", type=FLAG),
        Option(name="access_log", type=choice("text", "json")),
        Option(name="log_slow_calls", type=SECONDS_OR_NONE),
        Option(name="log_level", type=choice(*LOG_LEVELS)),
        Option(name="thread_count", type=whole(1)),
        *LIMITS,
    ),
    what="a hub",
    groups=("tls", "nats"),
)

_MAY_BE_NONE = ("call_timeout", "keepalive_timeout", "ping_interval", "registration_timeout")


@dataclass(frozen=True, kw_only=True)
class HubConfig:
    """The configuration of a hub, as arguments and tables.

    Attributes:
        options: keyword arguments of `Hub`, all but those for `rules` and `users`.
        where: keyword arguments of `Hub.run`.
        users: those that may connect; None if the configuration has none.
        rules: tables, see `Rules.from_config`; None if the configuration has none.
        rules_place: where these stand, for errors.
        nats: how the hub joins others on NATS, by the names in the table `nats`; None: it does not.
        nats_place: where that stands, for errors.
        log_level: for the logger "rpcstream", in small letters.
    """

    options: dict[str, Any] = field(repr=False)
    where: dict[str, Any]
    users: tuple[User, ...] | None = field(repr=False)
    rules: list[dict[str, Any]] | None
    rules_place: str
    nats: dict[str, Any] | None = field(repr=False)
    nats_place: str
    log_level: str | None


def hub_options(
    source: ConfigSource = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> HubConfig:
    """Read the options of a hub from arguments, the environment (`RPCSTREAM_HUB_…`) and a file.

    Args:
        source: a file (TOML, or JSON with comments), or a mapping with the same options; None for neither.
        arguments: count most: options as in a file, and all else that `Hub` takes. `nats=None`: whatever the others
            say, it joins no group.
        environ: replaces `os.environ`.

    Raises:
        ConfigError: an unknown option, or a wrong value; the text says where it stands.
        OSError: the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    arguments = dict(arguments or {})
    takes_nats = arguments.get("nats", ...) is not None
    if not takes_nats:
        del arguments["nats"]
    own, passed = _split(arguments)
    table = read_table(source)
    found = HUB.resolve([] if table is None else [table], own, prefix=PREFIX, environ=environ)
    HUB.warn_of_unknown(environ, PREFIX)
    if "authenticate" in passed:  # takes the place of what stands elsewhere
        for name in ("token", "token_file", "users"):
            if own.get(name) is not None:
                raise ConfigError(f"argument authenticate: either this or {name}, not both")
            found.pop(name, None)
    threads = found.pop("thread_count", None)
    if threads is not None:
        log.warning("%s sets nothing: a hub is one process with one event loop", threads.place)
    users = found.pop("users", None)
    rules, level = found.pop("rules", None), found.pop("log_level", None)
    where = {name: found.pop(name) for name in WHERE if name in found}
    token, limits = take_token(found), take_limits(found, passed.pop("limits", None))
    if "tls" in passed:
        found = {name: each for name, each in found.items() if not name.startswith("tls_")}
    tls = _take_tls(found)
    nats, nats_place = _take_nats(found, is_wanted=takes_nats)
    options = {**values_of(found, keep_none=_MAY_BE_NONE), **tls, **passed}
    if token is not None:
        options["token"] = token
    if limits is not None:
        options["limits"] = limits
    return HubConfig(
        options=options,
        where=values_of(where),
        users=None if users is None or users.value is None else read_users(users.value, users.place),
        rules=None if rules is None else rules.value,
        rules_place="" if rules is None else rules.place,
        nats=nats,
        nats_place=nats_place,
        log_level=None if level is None else level.value,
    )


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part arguments into options, and those that only Python can give: objects, functions."""
    own: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for name, value in arguments.items():
        is_table = name == "tls" and isinstance(value, Mapping)
        is_object = (name == "rules" and not _is_tables(value)) or (name == "tracing" and not isinstance(value, bool))
        (own if is_table or (name in HUB and not is_object) else passed)[name] = value
    if passed.get("limits", ...) is None:
        del passed["limits"]
    if not isinstance(passed.get("limits", Limits()), Limits):
        raise TypeError(f"limits must be Limits, got {type(passed['limits']).__name__}")
    return own, passed


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value)


def _take_tls(found: dict[str, Resolved]) -> dict[str, Any]:
    """Take the certificate out of the options that were found."""
    given = {name: found.pop(f"tls_{name}") for name in _TLS if f"tls_{name}" in found}
    given = {name: each for name, each in given.items() if each.value is not None}
    if not given:
        return {}
    place = next(iter(given.values())).place
    if "certificate" not in given:
        raise ConfigError(f"{place}: this is for TLS, which needs a certificate (tls.certificate)")
    names = {"ca": "client_ca"}
    tls = read_tls(place, **{names.get(name, name): each.value for name, each in given.items()})
    return {"tls": tls}


def _take_nats(found: dict[str, Resolved], *, is_wanted: bool) -> tuple[dict[str, Any] | None, str]:
    """Take how the hub joins others on NATS out of the options that were found; with where that stands."""
    given = {name: found.pop(f"nats_{name}") for name in _NATS if f"nats_{name}" in found}
    given = {name: each for name, each in given.items() if each.value is not None}
    if not given or not is_wanted:
        return None, ""
    place = next(iter(given.values())).place
    if "url" not in given:
        raise ConfigError(f"{place}: this is for NATS, which needs an address (nats.url)")
    return {name: each.value for name, each in given.items()}, place


def read_tls(place: str, **files: Any) -> TLS:
    """Make a certificate's settings; its files are read once to check them.

    Args:
        place: where the files are named, for errors.
        files: as for `TLS`.

    Raises:
        ConfigError: they cannot be read, or hold no certificate.
    """
    import ssl

    from ..tls import TLS

    tls = TLS(**files)
    try:
        tls.stamp()
        tls.context()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{place}: no certificate with its key: {error}") from None
    return tls


def read_users(tables: Iterable[Mapping[str, Any]], place: str) -> tuple[User, ...]:
    """Read the users in these tables, and the files of their tokens.

    Raises:
        ConfigError: a table is no user, or two have the same token or certificate; the text has the table's number,
            from 1, and no token.
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
        if key not in _USER_KEYS:
            raise ConfigError(f"{place}: unknown field {key!r}{did_you_mean(nearest(key, _USER_KEYS))}")
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
