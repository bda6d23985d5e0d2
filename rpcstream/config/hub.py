"""The options of a hub, and what its constructor and its `run` get of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..auth.users import User
from ..limits import Limits
from .errors import ConfigError
from .kinds import Choice, File, Flag, Mode, Paths, Seconds, Tables, Text, Texts, Whole
from .options import ConfigSource, Option, Resolved, Schema, log
from .tables import LIMITS, TOKEN, take_limits, take_token, values_of
from .users import read_users

if TYPE_CHECKING:  # imports ssl, which most do without
    from ..tls import TLS

PREFIX = "RPCSTREAM_HUB_"

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

#: Where a hub listens: of `run`, not of the constructor.
WHERE = ("host", "port", "unix", "unix_mode")

#: Seconds; as `Hub` has it.
PING_INTERVAL = 20.0

_TLS = ("certificate", "key", "password", "ca")

HUB = Schema(
    (
        Option(name="host", kind=Text(), displaces=("unix",)),
        Option(name="port", kind=Whole(0, 65535), displaces=("unix",)),
        Option(name="unix", kind=File(), displaces=("host", "port")),
        Option(name="unix_mode", kind=Mode()),
        Option(name="call_timeout", kind=Seconds()),
        Option(name="keepalive_timeout", kind=Seconds()),
        Option(name="ping_interval", kind=Seconds()),
        Option(name="registration_timeout", kind=Seconds()),
        Option(name="balance", kind=Choice(("least_in_flight", "round_robin"))),
        Option(name="rules", kind=Tables()),
        *TOKEN,
        Option(name="users", kind=Tables(files=("token_file",)), is_secret=True, displaces=("token", "token_file")),
        Option(name="tls_certificate", kind=File()),
        Option(name="tls_key", kind=File()),
        Option(name="tls_password", kind=Text(), is_secret=True),
        Option(name="tls_ca", kind=File()),
        Option(name="hosts", kind=Texts()),
        Option(name="origins", kind=Texts()),
        Option(name="path", kind=Paths()),
        Option(name="drain_timeout", kind=Seconds(takes_none=False)),
        Option(name="drain_delay", kind=Seconds(takes_none=False)),
        Option(name="event_queue", kind=Whole(1)),
        Option(name="event_policy", kind=Choice(("drop_oldest", "drop_newest", "disconnect"))),
        Option(name="title", kind=Text()),
        Option(name="debug", kind=Flag()),
        Option(name="log_level", kind=Choice(LOG_LEVELS)),
        Option(name="thread_count", kind=Whole(1)),
        *LIMITS,
    ),
    what="a hub",
    groups=("tls",),
)

_MAY_BE_NONE = ("call_timeout", "keepalive_timeout", "ping_interval", "registration_timeout")


@dataclass(frozen=True, kw_only=True)
class HubConfig:
    """What a hub is made of.

    Attributes:
        options: keyword arguments of `Hub`, all but `rules` and what `users` says.
        where: keyword arguments of `Hub.run`.
        users: those who may connect; None where nothing says any.
        rules: tables, see `Rules.from_config`; None where nothing says any.
        rules_place: where these stand, for errors.
        log_level: for the logger "rpcstream", in small letters.
    """

    options: dict[str, Any] = field(repr=False)
    where: dict[str, Any]
    users: tuple[User, ...] | None = field(repr=False)
    rules: list[dict[str, Any]] | None
    rules_place: str
    log_level: str | None


def hub_options(
    source: ConfigSource = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> HubConfig:
    """The options of a hub, out of arguments, the environment (`RPCSTREAM_HUB_…`) and a file.

    Args:
        source: a file (TOML, or JSON with comments), or a mapping of what could stand in it; None for neither.
        arguments: count more than all else: options as in a file, and whatever `Hub` takes besides.
        environ: in the place of `os.environ`.

    Raises:
        ConfigError: an unknown option, a value that makes no sense; the text says where it stands.
        OSError: the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    own, passed = _parted(arguments or {})
    found = HUB.resolve(source, own, prefix=PREFIX, environ=environ)
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
    _set_ping_interval(found)
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
        log_level=None if level is None else level.value,
    )


def _parted(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that are options here, and those that only Python can say: objects, functions."""
    own: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for name, value in arguments.items():
        is_table = name == "tls" and isinstance(value, Mapping)
        is_object = name == "rules" and not _is_tables(value)
        (own if is_table or (name in HUB and not is_object) else passed)[name] = value
    if passed.get("limits", ...) is None:
        del passed["limits"]
    if not isinstance(passed.get("limits", Limits()), Limits):
        raise TypeError(f"limits must be Limits, got {type(passed['limits']).__name__}")
    return own, passed


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value)


def _set_ping_interval(found: dict[str, Resolved]) -> None:
    """To a third of the keep-alive timeout, where only that is given and the usual interval is longer."""
    keepalive = found.get("keepalive_timeout")
    if keepalive is not None and keepalive.value is not None and "ping_interval" not in found:
        seconds = min(PING_INTERVAL, keepalive.value / 3)
        found["ping_interval"] = Resolved(value=seconds, place=keepalive.place)


def _take_tls(found: dict[str, Resolved]) -> dict[str, Any]:
    """The certificate, out of what was found."""
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


def read_tls(place: str, **files: Any) -> TLS:
    """A certificate, read once to see whether it is one.

    Args:
        place: who names the files, for errors.
        files: as for `TLS`.

    Raises:
        ConfigError: they cannot be read, or are something else.
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
