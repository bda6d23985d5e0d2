"""The client's options from arguments, environment variables and a configuration file, which may have profiles."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

from ..config import (
    ConfigError,
    ConfigSource,
    Schema,
    Values,
    limit_options,
    read_file,
    take_groups,
    take_token,
    warn_of_readers,
)
from ..limits import Limits
from ..nearest import did_you_mean, nearest
from ..option import FILE, TEXT, Option, options_of, whole
from .options import ClientOptions, config_file

PREFIX = "RPCSTREAM_"

#: Options of a file of which `tls` is made.
_TLS_FILES = ("ca", "certificate", "key")


class ClientFile(ClientOptions, total=False):
    """The options of a client in a file."""

    address: Annotated[str, Option(None, TEXT, env=True)]
    host: Annotated[str, Option(None, TEXT)]
    port: Annotated[int, Option(None, whole(1, 65535))]
    token_file: Annotated[str, Option(None, FILE)]
    ca: Annotated[str, Option(None, FILE, env=True)]
    certificate: Annotated[str, Option(None, FILE, aliases=("cert",))]
    key: Annotated[str, Option(None, FILE)]


CLIENT = Schema(
    options_of(ClientFile) | limit_options(),
    what="a client",
    prefix=PREFIX,
    exclusive=((("address",), ("host", "port")), (("token",), ("token_file",)), (("tls",), _TLS_FILES)),
)

#: Where the server is.
_WHERE = ("address", "host", "port")
#: What a client shows, or trusts, at one address: not for another one.
_CREDENTIALS = ("token", "token_file", "ca", "certificate", "key", "tls", "nats")

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
            (see `options.config_file`), which need not exist.
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
    given = CLIENT.of_arguments(arguments or {})
    of_environment = CLIENT.of_environment(environ)
    nearer = {name for name, value in given.items() if value is not None} | of_environment.keys()
    tables = _tables(source, profile, environ, nearer)
    address = _address(CLIENT.merged(given, of_environment, *tables))
    if _scheme(address) not in _TLS_SCHEMES:
        of_environment.pop("ca", None)  # which other addresses need
    found = CLIENT.merged(given, of_environment, *tables)
    for name in _WHERE:
        found.pop(name, None)
    if address is not None:
        found["address"] = address
    if _scheme(address) in _NATS_SCHEMES:
        from ..nats.options import login_from

        found["nats"] = login_from(found.get("nats"), environ)
    _take_tls(found, address)
    take_token(found)
    take_groups(found, {"limits": Limits})
    return {name: value for name, value in found.items() if value is not None or name in _MAY_BE_NONE}


#: Options for which None is a value of its own.
_MAY_BE_NONE = ("timeout", "connect_timeout", "wait_for", "keepalive")


# -- the file, and the profiles in it ---------------------------------------------------------------------------------


def _tables(source: ConfigSource, profile: str | None, environ: Mapping[str, str], nearer: set[str]) -> list[Values]:
    """The options of the profile, if there is one, and those outside of profiles.

    Args:
        nearer: the options that arguments and environment variables say.
    """
    read, title, folder = _read(source, environ)
    values = dict(read)
    profiles, name = values.pop("profiles", {}), values.pop("profile", None)
    place = f"{title}: profile"
    if profile is not None:
        name, place = profile, "argument profile"
    elif variable := environ.get(f"{PREFIX}PROFILE"):
        name, place = variable, f"environment variable {PREFIX}PROFILE"
    tables = []
    if name is not None:
        own = CLIENT.of_table(_profile(profiles, name, place, title), f"{title}: {name}", folder)
        # Whoever names the profile and the address means both.
        tables.append(_without_foreign(own, nearer if source is None and profile is None else set()))
    rest = CLIENT.of_table(values, title, folder)
    above = {key for table in tables for key in table}
    tables.append(_without_foreign(rest, above | nearer if source is None else above))
    if folder and any("token" in each for each in tables):
        warn_of_readers(title)
    return tables


def _read(source: ConfigSource, environ: Mapping[str, str]) -> tuple[Mapping[str, Any], str, str]:
    """What a program gives, else the user's own file, where there is one; with its title and folder for `of_table`."""
    if isinstance(source, Mapping):
        return source, "configuration", ""
    if source is not None and not isinstance(source, str | os.PathLike):
        raise TypeError(f"a configuration is a file's path or a mapping, got {type(source).__name__}")
    path = config_file(environ) if source is None else os.fspath(source)
    is_named = source is not None or bool(environ.get(f"{PREFIX}CONFIG"))
    if path is None or not (is_named or os.path.exists(path)):
        return {}, path or "configuration", ""
    return read_file(path), path, os.path.dirname(os.path.abspath(path))


def _profile(profiles: Any, name: Any, place: str, title: str) -> Mapping[str, Any]:
    names = [each for each in profiles if isinstance(each, str)] if isinstance(profiles, Mapping) else []
    if name not in names or not isinstance(profiles[name], Mapping):
        there = ", ".join(f"{each:.40}" for each in names[:20]) or "none"
        near = did_you_mean(nearest(str(name), names))
        raise ConfigError(f"{place}: {title} has no profile {name!r:.100}{near}; it has: {there}")
    return profiles[name]  # type: ignore[no-any-return]


# -- the address, and what is for one address alone -------------------------------------------------------------------


def _without_foreign(table: Values, nearer: set[str]) -> Values:
    """The table without the credentials that are for its own address, if something nearer gives another address."""
    is_displaced = ("address" in table and not nearer.isdisjoint(_WHERE)) or (
        ("host" in table or "port" in table) and not nearer.isdisjoint(("address", "host"))
    )
    return {name: value for name, value in table.items() if not (is_displaced and name in _CREDENTIALS)}


def _take_tls(found: Values, address: Any) -> None:
    """Make the option `tls` of the files for it. Raises ConfigError where the address is without TLS."""
    files = {name: file for name in _TLS_FILES if (file := found.pop(name, None)) is not None}
    if not files:
        return
    if _scheme(address) not in _TLS_SCHEMES:
        name, where = next(iter(files)), address or "the default address"
        raise ConfigError(f"{name}= is for TLS (tls://, https://, wss://, nats+tls://), and {where} is without")
    from ..tls import TLS

    try:
        found["tls"] = TLS(**files)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _scheme(address: Any) -> str:
    return str(address).partition("://")[0].lower()


def _address(found: Values) -> Any:
    """The address that the options say."""
    if found.get("address") is not None:
        return found["address"]
    name, port = found.get("host") or "", found.get("port")
    if "://" in name or "/" in name or "[" in name:
        raise ConfigError("host must be a name or an IP address; a whole address is the option 'address'")
    name = f"[{name}]" if ":" in name else name
    return f"{name}:{port}" if port is not None else name or None
