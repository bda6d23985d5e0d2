"""What both tables of options have in common: the limits, and secrets that stand in files of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..limits import Limits
from .errors import ConfigError
from .kinds import File, Seconds, Text, Whole
from .options import Option, Resolved

#: Every field of `Limits` is an option of that name.
LIMITS = tuple(
    Option(name=field.name, kind=Seconds() if "float" in str(field.type) else Whole(1))
    for field in dataclasses.fields(Limits)
)

TOKEN = (
    Option(name="token", kind=Text(), is_secret=True, displaces=("token_file", "users")),
    Option(name="token_file", kind=File(), displaces=("token", "users")),
)

#: Bytes. As long as a token may be that is said to a server.
MAX_TOKEN_FILE = 64 * 1024


def take_limits(found: dict[str, Resolved], base: Limits | None) -> Limits | None:
    """The limits out of what was found, which they are taken from; None for the usual ones.

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
    return any(option.name == name and option.kind.takes_none for option in LIMITS)


def take_token(found: dict[str, Resolved]) -> str | None:
    """The token, taken out of what was found, read from its file where it stands in one.

    Raises:
        ConfigError: see `read_token`.
    """
    token, file = found.pop("token", None), found.pop("token_file", None)
    if token is not None and token.value is not None:
        return str(token.value)
    if file is None or file.value is None:
        return None
    return read_token(file.value, file.place)


def read_token(path: str, place: str) -> str:
    """The token that a file holds, blanks and line ends around it left out.

    Args:
        place: who names the file, for errors.

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
    """The plain values. What is None has no value, unless None is one."""
    return {name: each.value for name, each in found.items() if each.value is not None or name in keep_none}
