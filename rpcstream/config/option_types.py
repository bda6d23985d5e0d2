"""The types of options: which values an option may have, and how an environment variable's text stands for one.

Values are checked by msgspec; an error says in words what an option must be. Pure; knows no option.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class OptionType:
    """The type of an option's values.

    Attributes:
        type: the type that msgspec converts a value to.
        expected: the words behind "must be" in an error.
        argument_type: the type of a value that the program itself gives, if that may be another.
        from_text: makes a value, not checked yet, of an environment variable's text. None: it cannot be given there.
        prepare: called with a value before it is converted.
        finish: makes the value that the program takes of a converted one.
        relative_to: makes the same value with its paths relative to a folder: that of the file which has the option.
        is_time: seconds; may also be given as milliseconds, under the option's name with `_ms` behind it.
        takes_none: None is a value: "no limit".
    """

    type: Any
    expected: str
    argument_type: Any = None
    from_text: Callable[[str], Any] | None = _same
    prepare: Callable[[Any], Any] = _same
    finish: Callable[[Any], Any] = _same
    relative_to: Callable[[Any, str], Any] = lambda value, folder: value
    is_time: bool = False
    takes_none: bool = False

    def check(self, value: Any, *, is_argument: bool = False) -> Any:
        """Return the value as the program takes it; ValueError with `expected` if it is of another type."""
        wanted = self.argument_type if is_argument and self.argument_type is not None else self.type
        try:
            return self.finish(msgspec.convert(self.prepare(value), wanted))
        except msgspec.ValidationError:
            raise ValueError(self.expected) from None

    def check_milliseconds(self, value: Any) -> float | None:
        """Return seconds, as `check` does, of a time that is given in milliseconds."""
        try:
            found = self.check(value)
        except ValueError:
            raise ValueError(self.expected.replace("seconds", "milliseconds")) from None
        return None if found is None else found / 1000


def choice(*words: str) -> OptionType:
    """Make the type of an option that is one of some words."""
    return OptionType(type=Literal[words], expected=f"one of {', '.join(words)}")


def whole(least: int, most: int | None = None) -> OptionType:
    """Make the type of an option that is a whole number in a range."""
    ending = f"from {least} to {most}" if most is not None else f"of {least} or more"
    return OptionType(
        type=Annotated[int, Meta(ge=least, le=most)], expected=f"a whole number {ending}", from_text=_whole_number
    )


def _whole_number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else text


def _number(text: str) -> float | str:
    return float(text) if _NUMBER.fullmatch(text) else text


def _listed(value: Any) -> Any:
    """Make a list of one text, or of several in any collection."""
    if isinstance(value, str):
        return [value]
    is_several = isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | Mapping)
    return list(value) if is_several else value


def _comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


_Text = Annotated[str, Meta(min_length=1)]
_Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]

TEXT = OptionType(type=_Text, expected="text that is not empty")

FLAG = OptionType(type=bool, expected="true or false", from_text=lambda text: _BOOLEANS.get(text.lower(), text))

METRICS = OptionType(
    type=bool | Literal["public"],
    expected='true, false or "public"',
    from_text=lambda text: _BOOLEANS.get(text.lower(), text),
)

#: A time that always is limited.
SECONDS = OptionType(type=_Seconds, expected="a number of seconds, not negative", from_text=_number, is_time=True)

#: A time where 0, and null in JSON, stand for no limit.
SECONDS_OR_NONE = OptionType(
    type=_Seconds | None,
    expected=f"{SECONDS.expected}, or 0 for no limit",
    from_text=_number,
    finish=lambda seconds: seconds or None,
    is_time=True,
    takes_none=True,
)

#: A time to wait, where 0, and null in JSON, stand for not waiting.
WAIT = replace(SECONDS_OR_NONE, expected=f"{SECONDS.expected}; 0 is not to wait")

#: Several texts, or one; in an environment variable with commas between them.
TEXTS = OptionType(type=list[_Text], expected="a text, or a list of texts", from_text=_comma_separated, prepare=_listed)

#: Several paths of HTTP requests, or one.
URL_PATHS = OptionType(
    type=Annotated[list[Annotated[str, Meta(pattern=r"\A/[^?#]*\Z")]], Meta(min_length=1)],
    expected='a path that begins with "/" and has no query, or a list of such paths',
    from_text=_comma_separated,
    prepare=_listed,
)

#: The path of a file.
FILE = OptionType(
    type=Annotated[str, Meta(pattern=r"\A[^\0]+\Z")],
    expected="the path of a file",
    prepare=lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value,
    relative_to=lambda value, folder: os.path.join(folder, value),
)

#: The permissions of a file in octal digits, as text: a bare number in a file would be read as a decimal one. The
#: program itself may give a number, as for `os.chmod`.
_Mode = Annotated[str, Meta(pattern=r"\A(0o?)?[0-7]{3}\Z")]
FILE_MODE = OptionType(
    type=_Mode,
    argument_type=_Mode | Annotated[int, Meta(ge=0, le=0o777)],
    expected='the permissions of a file as text with three octal digits, such as "660"',
    finish=lambda mode: mode if isinstance(mode, int) else int(mode.removeprefix("0o"), 8),
)


def tables(*, files: tuple[str, ...] = ()) -> OptionType:
    """Make the type of an option that is a list of tables, whose members are not checked.

    Args:
        files: the keys in them whose values are paths.
    """

    def with_folder(found: list[dict[Any, Any]], folder: str) -> list[dict[Any, Any]]:
        return [
            {
                key: os.path.join(folder, value) if key in files and isinstance(value, str) else value
                for key, value in table.items()
            }
            for table in found
        ]

    return OptionType(type=list[dict[Any, Any]], expected="a list of tables", from_text=None, relative_to=with_folder)
