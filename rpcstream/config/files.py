"""Reads configuration files: TOML, and JSON with comments.

Owns which of both a file is. Every error names the file, and the line where there is one. Knows no option.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NoReturn

#: Bytes. A thousand rules are a tenth of it; a device or a film that is named by mistake is refused.
MAX_FILE_SIZE = 1024 * 1024

#: A string as a whole, so that nothing in it is taken for a comment; or a comment; or the start of an endless one.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/|/\*', re.DOTALL)
_NOT_BLANK = re.compile(r"[^\r\n]")


class ConfigError(ValueError):
    """An option, or a whole file, that cannot be used. The text is one sentence that begins with where it stands."""


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file: names and values.

    `.toml` is TOML, `.json` and `.jsonc` are JSON, in which `//` and `/* */` begin comments. Any other file is JSON if
    it begins with a brace or such a comment, and else TOML.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is not valid; the text names the line.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        data = file.read(MAX_FILE_SIZE + 1)
    if len(data) > MAX_FILE_SIZE:
        raise ConfigError(f"{name}: a configuration file has at most {MAX_FILE_SIZE} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}: line {line}: this is not UTF-8") from None
    if _is_json(os.path.splitext(name)[1].lower(), text):
        return parse_json(text, name)
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: this is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: too many arrays and tables inside each other") from None


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Parse an object of JSON with comments.

    Args:
        text: of the file.
        name: of the file, for errors.

    Raises:
        ConfigError: it is not valid, or a name stands twice in one object.
    """
    plain = _without_comments(text, name)
    try:
        value = json.loads(plain, object_pairs_hook=_ObjectMaker(name), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        at = _trailing_comma(plain, error.pos)
        if at is not None:
            _fail(plain, name, at, "a comma stands behind the last value")
        _fail(plain, name, error.pos, f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}")
    except _ConstantError as error:
        raise ConfigError(f"{name}: {error} is no number in JSON") from None
    except RecursionError:
        raise ConfigError(f"{name}: too many arrays and objects inside each other") from None
    except ConfigError:
        raise
    except ValueError:  # a number of thousands of digits, which Python does not read
        raise ConfigError(f"{name}: a number in it is too long") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: the file holds {type(value).__name__}, not an object with options")
    return value


def _is_json(ending: str, text: str) -> bool:
    if ending in (".json", ".jsonc"):
        return True
    return ending != ".toml" and text.lstrip().startswith(("{", "//", "/*"))


def _without_comments(text: str, name: str) -> str:
    """Replace comments by blanks, so that lines and columns stay the same."""

    def replace(found: re.Match[str]) -> str:
        piece = found[0]
        if piece == "/*":
            _fail(text, name, found.start(), "a comment begins here and does not end")
        return piece if piece.startswith('"') else _NOT_BLANK.sub(" ", piece)

    return _STRING_OR_COMMENT.sub(replace, text)


def _trailing_comma(plain: str, at: int) -> int | None:
    """Return the place of a comma before a closing bracket, if that is the parser's error at this place."""
    before = plain[:at].rstrip()
    if plain[at : at + 1] in ("}", "]") and before.endswith(","):
        return len(before) - 1
    # Later Pythons point at the comma itself.
    behind = plain[at + 1 :].lstrip()
    return at if plain[at : at + 1] == "," and behind[:1] in ("}", "]") else None


def _fail(text: str, name: str, at: int, why: str) -> NoReturn:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    raise ConfigError(f"{name}: line {line}, column {column}: {why}") from None


class _ObjectMaker:
    """Makes an object of its names and values; each name may stand there once."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ConfigError(f"{self._name}: {twice!r} stands twice in one object")
        return made


class _ConstantError(Exception):
    """NaN or Infinity."""


def _refuse_constant(text: str) -> NoReturn:
    raise _ConstantError(text)
