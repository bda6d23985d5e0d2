"""Options that hubs and clients share: the limits, the login for NATS, and the token, which may stand in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..limits import Limits
from ..user_files import is_readable_by_others
from .files import ConfigError
from .option_types import FILE, SECONDS_OR_NONE, TEXT, whole
from .schema import Option, Resolved, Schema, log

if TYPE_CHECKING:
    from ..nats.options import NatsLogin

#: Each field of `Limits` is an option with its name.
LIMITS = tuple(
    Option(name=field.name, type=SECONDS_OR_NONE if "float" in str(field.type) else whole(1))
    for field in dataclasses.fields(Limits)
)

TOKEN = (
    Option(name="token", type=TEXT, is_secret=True, displaces=("token_file", "users")),
    Option(name="token_file", type=FILE, displaces=("token", "users")),
)

#: What shows NATS who this program is (`NatsLogin`).
NATS_LOGIN = (
    Option(name="nats_creds", type=FILE, displaces=("nats_nkey", "nats_user")),
    Option(name="nats_nkey", type=FILE, displaces=("nats_creds", "nats_user")),
    Option(name="nats_user", type=TEXT, displaces=("nats_creds", "nats_nkey")),
    Option(name="nats_password", type=TEXT, is_secret=True, displaces=("nats_password_file",)),
    Option(name="nats_password_file", type=FILE, displaces=("nats_password",)),
    Option(name="nats_inbox_prefix", type=TEXT),
)

#: Bytes; as many as a token that is sent to a server may have.
MAX_TOKEN_FILE = 64 * 1024


def take_limits(found: dict[str, Resolved], base: Limits | None) -> Limits | None:
    """Take the limits out of the options that were found; return None for the default ones.

    Raises:
        ConfigError: a limit is out of its range.
    """
    given = {option.name: found.pop(option.name) for option in LIMITS if option.name in found}
    usual = Limits()
    values = {
        name: getattr(usual, name) if each.value is None and not _may_be_none(name) else each.value
        for name, each in given.items()
    }
    if not values:
        return base
    try:
        return dataclasses.replace(base or usual, **values)
    except ValueError as error:
        name = str(error).partition(" ")[0]
        place = given[name].place if name in given else "configuration"
        raise ConfigError(f"{place}: {error}") from None


def _may_be_none(name: str) -> bool:
    return any(option.name == name and option.type.takes_none for option in LIMITS)


def take_token(found: dict[str, Resolved], *, warns: bool = False) -> str | None:
    """Take the token out of the options that were found; read its file if it stands in one.

    Args:
        warns: log a warning if other users may read that file.

    Raises:
        ConfigError: see `read_token`.
    """
    token, file = found.pop("token", None), found.pop("token_file", None)
    if token is not None and token.value is not None:
        return str(token.value)
    if file is None or file.value is None:
        return None
    if warns:
        warn_of_readers(file.value)
    return read_token(file.value, file.place)


def take_nats_login(found: dict[str, Resolved]) -> NatsLogin | None:
    """Take the login for NATS out of the options that were found; read the password's file if it stands in one.

    A password without a name is left out: it may stand in the environment for other programs.

    Raises:
        ConfigError: an option makes no sense, or the file cannot be read.
    """
    given = {name: found.pop(name) for name in [option.name for option in NATS_LOGIN] if name in found}
    given = {name: each for name, each in given.items() if each.value is not None}
    password, file = given.pop("nats_password", None), given.pop("nats_password_file", None)
    if not given:
        return None
    from ..nats.options import NatsLogin

    values = {name.removeprefix("nats_"): each.value for name, each in given.items()}
    if "user" in values and password is not None:
        values["password"] = password.value
    elif "user" in values and file is not None:
        warn_of_readers(file.value)
        values["password"] = read_token(file.value, file.place)
    try:
        return NatsLogin(**values)
    except ValueError as error:
        raise ConfigError(f"the login for NATS: {error}") from None


def nats_login(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> NatsLogin | None:
    """The login for NATS of a server, out of these options and the variables `RPCSTREAM_NATS_…`.

    Args:
        arguments: options of `NATS_LOGIN`; None where one is not given.

    Raises:
        ConfigError: see `take_nats_login`.
    """
    schema = Schema(NATS_LOGIN, what="a server")
    given = {name: value for name, value in arguments.items() if value is not None}
    return take_nats_login(schema.resolve([], given, prefix="RPCSTREAM_", environ=environ))


def warn_of_readers(path: str) -> None:
    """Log a warning if other users may read a file that holds a token."""
    if is_readable_by_others(path):
        log.warning("%s holds a token, and other users of this machine may read it: chmod 600 %s", path, path)


def read_token(path: str, place: str) -> str:
    """Read the token that a file holds, without blanks and line ends around it.

    Args:
        path: of the file.
        place: where the file is named, for errors.

    Raises:
        ConfigError: it cannot be read, or holds no token; the text does not show what it holds.
    """
    try:
        with open(path, "rb") as opened:
            data = opened.read(MAX_TOKEN_FILE + 1)
        text = data.decode().strip()
    except OSError as error:
        raise ConfigError(f"{place}: cannot read {path!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{place}: {path!r} holds no text") from None
    if not text or len(data) > MAX_TOKEN_FILE or any(part.isspace() or not part.isprintable() for part in text):
        raise ConfigError(f"{place}: {path!r} must hold one token, without blanks, on one line")
    return text


def values_of(found: Mapping[str, Resolved], *, keep_none: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the plain values; options that are None are left out, but for those in `keep_none`."""
    return {name: each.value for name, each in found.items() if each.value is not None or name in keep_none}
