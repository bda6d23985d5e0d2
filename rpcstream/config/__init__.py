"""Reads configuration files, TOML and JSON with comments, and files that hold a token or a certificate."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any

from ..text import get_logger

if TYPE_CHECKING:
    from ..tls import TLS

__all__ = ["ConfigError", "read_file"]

log = get_logger("rpcstream.config")

#: Bytes. A thousand rules are a tenth of it; a device or a film that is named by mistake is refused.
MAX_FILE_SIZE = 1024 * 1024

#: Tokens that a server accepts from one file: the old one and the new one, while clients change over.
MAX_TOKENS = 2

#: Bytes of a token file; as many as a token that is sent to a server may have.
MAX_TOKEN_FILE = 64 * 1024

#: A string as a whole, so that nothing in it is taken for a comment; or a comment.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NOT_BLANK = re.compile(r"[^\r\n]")


class ConfigError(ValueError):
    """An option, or a whole file, that cannot be used. The text begins with the place of the mistake."""


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
        found = json.loads(_without_comments(text)) if _is_json(name, text) else _toml(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}: line {line}: this is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # both name line and column
        raise ConfigError(f"{name}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: the file must contain an object with options")
    return found


def _is_json(name: str, text: str) -> bool:
    ending = os.path.splitext(name)[1].lower()
    if ending in (".json", ".jsonc"):
        return True
    return ending != ".toml" and text.lstrip().startswith(("{", "//", "/*"))


def _without_comments(text: str) -> str:
    """Replace comments by blanks, so that lines and columns stay the same."""
    return _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else _NOT_BLANK.sub(" ", found[0]), text)


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


# -- secrets ----------------------------------------------------------------------------------------------------------


def take_token(found: dict[str, Any], *, most: int = 1) -> str | None:
    """Read the token in the file that `token_file` names, if there is no `token`; return the path of the file.

    Args:
        most: how many tokens the file may hold, each on a line.

    Raises:
        ConfigError: as `read_tokens`.
    """
    file: str | None = found.pop("token_file", None)
    if file is None or found.get("token") is not None:
        return None
    warn_of_readers(file)
    found["token"] = one_or_all(read_tokens(file, most=most))
    return file


def warn_of_readers(path: str) -> None:
    """Log a warning if other users may read a file that holds a token."""
    if _is_readable_by_others(path):
        log.warning("%s contains a token that other users of this machine can read: run chmod 600 %s", path, path)


def one_or_all(tokens: list[str]) -> str | list[str]:
    """The token where there is one only, else all."""
    return tokens[0] if len(tokens) == 1 else tokens


def read_tokens(path: str, place: str = "token_file", *, most: int = 1) -> list[str]:
    """Read the tokens that a file holds, one on each line, without blanks and line ends around them.

    Args:
        place: where the file is named, for errors.
        most: how many there may be.

    Raises:
        ConfigError: the file cannot be read, or holds no token or too many; the text does not show what it holds.
    """
    try:
        with open(path, "rb") as opened:
            data = opened.read(MAX_TOKEN_FILE + 1)
        tokens = [line.strip() for line in data.decode().strip().split("\n")]
    except OSError as error:
        raise ConfigError(f"{place}: cannot read {path!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{place}: {path!r} is empty") from None
    is_wrong = any(token.split() != [token] or not token.isprintable() for token in tokens)
    if is_wrong or len(tokens) > most or len(data) > MAX_TOKEN_FILE:
        several = "" if most == 1 else f" (or up to {most}, each on a line of its own)"
        raise ConfigError(f"{place}: {path!r} must contain one token, without blanks, on one line{several}")
    return tokens


def read_tls(**files: Any) -> TLS:
    """Make a certificate's settings; its files are read once to check them.

    Args:
        files: as for `TLS`.

    Raises:
        ConfigError: the files cannot be read, or hold no certificate.
    """
    import ssl

    from ..tls import TLS

    tls = TLS(**files)
    try:
        tls.context()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot load the certificate and its key: {error}") from None
    return tls


def _is_readable_by_others(path: str) -> bool:
    """Whether users besides the owner may read a file, by its permissions; False where there are none (Windows)."""
    try:
        return os.name == "posix" and bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
