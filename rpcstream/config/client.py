"""The client's options in configuration files and environment variables, as arguments of its constructor.

Owns which of the options of `client.options` can be written in a file, and how. Defaults are the constructor's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..limits import Limits
from ..nearest import did_you_mean, nearest
from ..user_files import config_file
from .files import ConfigError
from .option_types import FILE, FLAG, SECONDS_OR_NONE, TEXT, WAIT, choice, whole
from .schema import ConfigSource, Option, Resolved, Schema, Table, read_table
from .shared_options import (
    LIMITS,
    NATS_LOGIN,
    TOKEN,
    take_limits,
    take_nats_login,
    take_token,
    values_of,
    warn_of_readers,
)

if TYPE_CHECKING:
    from ..nats.options import NatsLogin

PREFIX = "RPCSTREAM_"

CLIENT = Schema(
    (
        Option(name="address", type=TEXT, displaces=("host", "port")),
        Option(name="host", type=TEXT, displaces=("address",)),
        Option(name="port", type=whole(1, 65535), displaces=("address",)),
        Option(name="name", type=TEXT, aliases=("client_id",)),
        Option(name="timeout", type=SECONDS_OR_NONE, aliases=("call_timeout",)),
        Option(name="connect_timeout", type=SECONDS_OR_NONE),
        Option(name="wait_for", type=WAIT),
        Option(name="keepalive", type=SECONDS_OR_NONE, aliases=("keepalive_timeout",)),
        Option(name="registration_timeout", type=SECONDS_OR_NONE),
        Option(name="reconnect", type=FLAG),
        Option(name="retries", type=whole(0)),
        Option(name="retry", type=choice("all", "idempotent")),
        Option(name="pool", type=whole(1)),
        Option(name="http_connections", type=whole(1)),
        Option(name="binary", type=FLAG),
        Option(name="shared_memory", type=FLAG),
        Option(name="tracing", type=FLAG),
        *TOKEN,
        Option(name="ca", type=FILE),
        Option(name="certificate", type=FILE, aliases=("cert",)),
        Option(name="key", type=FILE),
        *NATS_LOGIN,
        *LIMITS,
    ),
    what="a client",
)

_MAY_BE_NONE = ("timeout", "connect_timeout", "wait_for", "keepalive", "registration_timeout")


#: What a client shows, or trusts, at one address: not for another one.
_CREDENTIALS = frozenset(
    ("token", "token_file", "ca", "certificate", "cert", "key", *(option.name for option in NATS_LOGIN))
)

_TLS_FILES = ("ca", "certificate", "key")
_TLS_SCHEMES = ("tls", "https", "wss", "nats+tls")
_NATS_SCHEMES = ("nats", "nats+tls")


def client_options(
    source: ConfigSource = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Read keyword arguments for `Client` and `AsyncClient` from arguments, the environment (`RPCSTREAM_…`) and a file.

    In the file, a profile takes precedence over the options outside of profiles.

    Args:
        source: a file (TOML, or JSON with comments), or a mapping with the same options; None for the user's own file
            (see `user_files.config_file`), which need not exist.
        arguments: these take precedence: the same options, and others that the client takes.
        profile: the name of a table in `profiles`; None for that in `RPCSTREAM_PROFILE`, else the one that the file
            itself names as its `profile`.
        environ: replaces `os.environ`.

    Raises:
        ConfigError: an option or the profile is unknown, or a value makes no sense; the text says where it was given.
        TypeError: `limits` are no Limits.
        OSError: the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    own: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        is_object = (name in ("reconnect", "tracing") and not isinstance(value, bool)) or (
            name == "address" and not isinstance(value, str)
        )
        (own if name in CLIENT and not is_object else passed)[name] = value
    base = passed.pop("limits", None)
    if not isinstance(base, Limits | None):
        raise TypeError(f"limits must be Limits, got {type(base).__name__}")
    tables = _tables(source, profile, {name for name, value in (arguments or {}).items() if value is not None}, environ)
    found = CLIENT.resolve(tables, own, prefix=PREFIX, environ=environ)
    token, limits = take_token(found, warns=True), take_limits(found, base)
    address, rank = _take_address(found)
    _drop_tls_files(found, address, rank)
    nats = _take_nats_login(found, address)
    options = {**values_of(found, keep_none=_MAY_BE_NONE), **passed}
    for name, value in (("token", token), ("limits", limits), ("address", address), ("nats", nats)):
        if value is not None:
            options.setdefault(name, value)
    return options


# -- the file, and the profiles in it


#: How near a choice is to the call: made by an argument (or a file that the program names), the environment, the file.
_BY_ARGUMENT, _BY_VARIABLE, _BY_FILE = 0, 1, 2


def _tables(source: ConfigSource, profile: str | None, arguments: set[str], environ: Mapping[str, str]) -> list[Table]:
    """Read the file: the table of the profile, if there is one, and the options outside of profiles."""
    table, file_choice = _read(source, environ)
    values = {} if table is None else dict(table.values)
    profiles, default = values.pop("profiles", {}), values.pop("profile", None)
    variable = environ.get(f"{PREFIX}PROFILE") or None
    if profile is not None:
        name, place, choice = profile, "argument profile", _BY_ARGUMENT
    elif variable is not None:
        name, place, choice = variable, f"environment variable {PREFIX}PROFILE", _BY_VARIABLE
    else:
        name, place, choice = default, "" if table is None else f"{table.title}: profile", _BY_FILE
    if table is None:
        if name is None:
            return []
        raise ConfigError(f"{place}: there is no configuration file with a profile ({config_file(environ)})")
    variables = {name for name in ("address", "host", "port") if environ.get(PREFIX + name.upper())}
    stronger = {_BY_ARGUMENT: set[str](), _BY_VARIABLE: arguments, _BY_FILE: arguments | variables}
    rest, found = replace(table, values=values), []
    if name is not None:
        of_profile = replace(table, values=_profile(profiles, name, place, table.title), title=f"{table.title}: {name}")
        found.append(_without_foreign(of_profile, stronger[min(choice, file_choice)]))
    found.append(_without_foreign(rest, stronger[file_choice].union(*(each.values for each in found))))
    if table.folder and any("token" in each.values for each in found):
        warn_of_readers(table.title)
    return found


def _read(source: ConfigSource, environ: Mapping[str, str]) -> tuple[Table | None, int]:
    """Read what a program gives, else the user's own file, where there is one; also return by what it was chosen."""
    if source is not None:
        return read_table(source), _BY_ARGUMENT
    path = config_file(environ)
    if environ.get(f"{PREFIX}CONFIG"):
        return read_table(path), _BY_VARIABLE
    return read_table(path if path is not None and os.path.exists(path) else None), _BY_FILE


def _profile(profiles: Any, name: Any, place: str, title: str) -> Mapping[str, Any]:
    if not isinstance(name, str):
        raise ConfigError(f"{place} must be the name of a profile, got {type(name).__name__}")
    if not isinstance(profiles, Mapping):
        raise ConfigError(f"{title}: profiles must be a table of tables, got {type(profiles).__name__}")
    found = profiles.get(name)
    if found is None:
        there = ", ".join(f"{each:.40}" for each in list(profiles)[:20]) or "none"
        raise ConfigError(
            f"{place}: {title} has no profile {name!r:.100}{did_you_mean(nearest(name, profiles))}; it has: {there}"
        )
    if not isinstance(found, Mapping):
        raise ConfigError(f"{title}: the profile {name!r:.100} must be a table, got {type(found).__name__}")
    return found


def _without_foreign(table: Table, stronger: set[str]) -> Table:
    """The table without the credentials that are for its own address, if a stronger source gives another address."""
    values = table.values
    is_displaced = ("address" in values and not stronger.isdisjoint(("address", "host", "port"))) or (
        ("host" in values or "port" in values) and not stronger.isdisjoint(("address", "host"))
    )
    if not is_displaced:
        return table
    kept = {name: value for name, value in values.items() if name not in _CREDENTIALS}
    return replace(table, values=kept)


def _drop_tls_files(found: dict[str, Resolved], address: str | None, rank: int) -> None:
    """Drop files for TLS where the address is without TLS, and a source that takes precedence gave it."""
    if address is None or address.partition("://")[0].lower() in _TLS_SCHEMES:
        return
    for name in _TLS_FILES:
        if name in found and found[name].rank > rank:
            del found[name]


def _take_nats_login(found: dict[str, Resolved], address: str | None) -> NatsLogin | None:
    """Take the login for NATS out of the options that were found; it is not for other addresses.

    Raises:
        ConfigError: the program itself gives one for another address; or see `take_nats_login`.
    """
    if _is_nats(address):
        return take_nats_login(found)
    for option in NATS_LOGIN:
        each = found.pop(option.name, None)
        if each is not None and each.value is not None and each.rank == 0:
            raise ConfigError(
                f"{each.place} is for addresses nats://…, and the address is {address or 'none of these'}"
            )
    return None


def _is_nats(address: str | None) -> bool:
    return address is not None and address.partition("://")[0].lower() in _NATS_SCHEMES


def _take_address(found: dict[str, Resolved]) -> tuple[str | None, int]:
    """Take the address out of the options that were found; also return the rank of its source."""
    address, host, port = (found.pop(name, None) for name in ("address", "host", "port"))
    rank = min((each.rank for each in (address, host, port) if each is not None), default=0)
    if address is not None and address.value is not None:
        return str(address.value), rank
    if host is None and port is None:
        return None, rank
    name = "" if host is None or host.value is None else str(host.value)
    if host is not None and ("://" in name or "/" in name or "[" in name):
        raise ConfigError(f"{host.place} must be a name or an IP address; a whole address is the option 'address'")
    name = f"[{name}]" if ":" in name else name
    return (f"{name}:{port.value}" if port is not None and port.value is not None else name or None), rank
