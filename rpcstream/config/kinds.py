"""Kinds of values that options have: what a value must be, and how it is written where there is only text.

Each kind is asked with a value as a file or a program gives it (`check`), or with a text out of the environment
(`parse`, whose value is then checked too). Both raise ValueError with the words that go behind "must be". Pure.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Kind:
    """What the values of an option are."""

    #: Can it be written in an environment variable?
    is_text = True

    #: Seconds, which can also be given as milliseconds, under the name with `_ms` behind it.
    is_time = False

    #: None is a value: "no limit".
    takes_none: bool = False

    def parse(self, text: str) -> Any:
        """The value that a text stands for, not checked yet."""
        return text

    def check(self, value: Any) -> Any:
        """The value as the program takes it."""
        raise NotImplementedError

    def check_argument(self, value: Any) -> Any:
        """The same for what the program itself gives."""
        return self.check(value)

    def seen_from(self, value: Any, folder: str) -> Any:
        """The same value with its paths seen from the folder of the file in which it stands."""
        return value


@dataclass(frozen=True)
class Text(Kind):
    """Text that is not empty."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("text that is not empty")
        return value


@dataclass(frozen=True)
class File(Kind):
    """The path of a file."""

    def check(self, value: Any) -> str:
        text = value if isinstance(value, str) else getattr(value, "__fspath__", lambda: "")()
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValueError("the path of a file")
        return text

    def seen_from(self, value: Any, folder: str) -> Any:
        return os.path.join(folder, value)


@dataclass(frozen=True)
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(f"one of {', '.join(self.words)}")
        return value


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number in a range."""

    least: int
    most: int | None = None

    def parse(self, text: str) -> int | str:
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else text

    def check(self, value: Any) -> int:
        too_much = self.most is not None and isinstance(value, int) and value > self.most
        if type(value) is not int or value < self.least or too_much:
            ending = f"from {self.least} to {self.most}" if self.most is not None else f"of {self.least} or more"
            raise ValueError(f"a whole number {ending}")
        return value


@dataclass(frozen=True)
class Seconds(Kind):
    """A time. Where there may be no limit, 0 says that there is none, and so does null of JSON."""

    takes_none: bool = True
    is_time = True

    def check_ms(self, value: Any) -> float | None:
        """The same for a number of milliseconds; gives seconds."""
        try:
            found = self.check(value)
        except ValueError as error:
            raise ValueError(str(error).replace("seconds", "milliseconds")) from None
        return None if found is None else found / 1000

    def parse(self, text: str) -> float | str:
        return float(text) if _NUMBER.fullmatch(text) else text

    def check(self, value: Any) -> float | None:
        if value is None and self.takes_none:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            ending = ", or 0 for no limit" if self.takes_none else ""
            raise ValueError(f"a number of seconds, not negative{ending}")
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError("a number of seconds that is not so large") from None
        return None if self.takes_none and seconds == 0 else seconds


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    def parse(self, text: str) -> bool | str:
        word = text.lower()
        return True if word in _TRUE else False if word in _FALSE else text

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value


@dataclass(frozen=True)
class Texts(Kind):
    """Several texts, or one; in the environment with commas between them."""

    def parse(self, text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    def check(self, value: Any) -> list[str]:
        texts = [value] if isinstance(value, str) else list(value) if _is_several(value) else []
        if not all(isinstance(text, str) and text for text in texts) or not (texts or _is_several(value)):
            raise ValueError("a text, or a list of texts")
        return texts


@dataclass(frozen=True)
class Paths(Texts):
    """Several paths of HTTP requests, or one."""

    def check(self, value: Any) -> list[str]:
        paths = super().check(value) if isinstance(value, str) or _is_several(value) else []
        if not paths or not all(path.startswith("/") and "?" not in path and "#" not in path for path in paths):
            raise ValueError('a path that begins with "/" and has no query, or a list of such paths')
        return paths


@dataclass(frozen=True)
class Mode(Kind):
    """The permissions of a file, in octal digits. A bare number in a file would be read as a decimal one."""

    def check(self, value: Any) -> int:
        if not isinstance(value, str) or re.fullmatch(r"(0o?)?[0-7]{3}", value) is None:
            raise ValueError('the permissions of a file as text with three octal digits, such as "660"')
        return int(value.removeprefix("0o"), 8)

    def check_argument(self, value: Any) -> int:
        """As `os.chmod` takes it: 0o660."""
        return value if type(value) is int and 0 <= value <= 0o777 else self.check(value)


@dataclass(frozen=True)
class Tables(Kind):
    """A list of tables, only looked at as such.

    Args:
        files: the keys in them whose values are paths.
    """

    files: tuple[str, ...] = ()
    is_text = False

    def check(self, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) for each in value):
            raise ValueError("a list of tables")
        return [dict(each) for each in value]

    def seen_from(self, value: Any, folder: str) -> Any:
        return [{key: self._path(key, each, folder) for key, each in table.items()} for table in value]

    def _path(self, key: Any, value: Any, folder: str) -> Any:
        return os.path.join(folder, value) if key in self.files and isinstance(value, str) else value


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping)
