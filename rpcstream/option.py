"""Declares options: the name, the type, the default and the form in a file of each stand in one line of a TypedDict."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple


class Kind(NamedTuple):
    """What an option may be in a configuration file.

    Attributes:
        type: the type that msgspec checks.
        least, most: the range of a number.
        finish: makes the value that Python takes; called with the value and the folder of the file.
        is_time: seconds. With `_ms` behind its name the option is in milliseconds.
    """

    type: Any
    least: float | None = None
    most: float | None = None
    finish: Callable[[Any, str], Any] | None = None
    is_time: bool = False


class Option(NamedTuple):
    """The part of an option's declaration that its type hint does not say.

    Attributes:
        default: the value if the option is not given.
        file: what it may be in a configuration file; None: only a program can give it.
        env: a container may give it as an environment variable.
        aliases: other names of it in files.
    """

    default: Any = None
    file: Kind | None = None
    env: bool = False
    aliases: tuple[str, ...] = ()


FLAG = Kind(bool)
#: `codec.options.Binary`.
BINARY = Kind(bool | Literal["copy"])
TEXT = Kind(str)
SECONDS = Kind(float, 0, is_time=True)
#: A time where 0, and null in JSON, stand for no limit.
SECONDS_OR_NONE = Kind(float | None, 0, finish=lambda seconds, folder: seconds or None, is_time=True)
#: Several texts, or one.
TEXTS = Kind(str | list[str], finish=lambda found, folder: [found] if isinstance(found, str) else found)
FILE = Kind(str, finish=lambda path, folder: os.path.join(folder, path))


def _file_mode(mode: str, folder: str) -> int:
    if re.fullmatch("(0o?)?[0-7]{3}", mode) is None:
        raise ValueError('expected three octal digits, such as "660"')
    return int(mode.removeprefix("0o"), 8)


#: The permissions of a file, as text: a bare number in a file would be read as a decimal one.
FILE_MODE = Kind(str, finish=_file_mode)


def whole(least: int, most: int | None = None) -> Kind:
    """A whole number in a range."""
    return Kind(int, least, most)


def choice(*words: str) -> Kind:
    """One of these words."""
    return Kind(Literal[words])


def options_of(kind: type) -> dict[str, Option]:
    """The options that a TypedDict declares: `name: Annotated[type, Option(default)]`."""
    return {name: hint.__metadata__[0] for name, hint in kind.__annotations__.items()}


def group_options(group: type) -> dict[str, Option]:
    """The options that a dataclass declares: `name: Annotated[type, Kind] = default`. In files they stand alone."""
    hints = group.__annotations__
    return {each.name: Option(each.default, hints[each.name].__metadata__[0]) for each in dataclasses.fields(group)}


def defaults_of(kind: type) -> dict[str, Any]:
    """The default of every option that a TypedDict declares."""
    return {name: option.default for name, option in options_of(kind).items()}
