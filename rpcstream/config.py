"""Reads configuration files (TOML, JSON with comments), tokens and certificates, and checks the options in them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from .codec.rich_hint import in_words
from .limits import Limits
from .nearest import did_you_mean, nearest
from .option import SECONDS_OR_NONE, Kind, Option, whole
from .text import get_logger

if TYPE_CHECKING:
    from .tls import TLS

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

    from .tls import TLS

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


#: A file, or a mapping with the same options.
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None

#: What the readers below return: options by name. None: the option is set to no value.
Values = dict[str, Any]


class Schema:
    """The options of one kind of program.

    Args:
        options: by name; those without a form in files are for Python only.
        what: the program, for errors: "a hub".
        prefix: of the environment variables.
        exclusive: sets of options of which a program takes one: `(("unix",), ("host", "port"))`.
    """

    def __init__(
        self,
        options: Mapping[str, Option],
        *,
        what: str,
        prefix: str,
        exclusive: Iterable[tuple[tuple[str, ...], ...]],
    ) -> None:
        self._kinds = {name: option.file for name, option in options.items() if option.file is not None}
        self._names = {alias: name for name in self._kinds for alias in (name, *options[name].aliases)}
        #: The environment variables, and the options that they give.
        self._variables = {f"{prefix}{name.upper()}": name for name in self._kinds if options[name].env}
        self._what = what
        self._prefix = prefix
        self._exclusive = tuple(exclusive)

    @property
    def names(self) -> Iterable[str]:
        """The names of the options that a file may have."""
        return self._kinds

    # -- one source -----------------------------------------------------------------------------------------------

    def of_arguments(self, arguments: Mapping[str, Any]) -> Values:
        """The arguments of a program. Those that a file could give are checked, and objects are passed on."""
        plain = {name: value for name, value in arguments.items() if name in self._names and _is_plain(value)}
        objects = {name: value for name, value in arguments.items() if name not in plain}
        found = self.of_table(plain, "argument") | objects
        self._check_exclusive(found, "arguments")
        return found

    def of_environment(self, environ: Mapping[str, str]) -> Values:
        """The options that environment variables give. An empty variable counts as not set."""
        found: Values = {}
        for variable, name in self._variables.items():
            if text := environ.get(variable):
                found[name] = _checked(self._kinds[name], text, f"environment variable {variable}", strict=False)
        self._check_exclusive(found, "environment variables")
        return found

    def from_texts(self, name: str, texts: list[str], place: str) -> Any:
        """The value, as a table has it, of an option that texts give: several of them for a list.

        A text that begins with a bracket or a brace is JSON.

        Raises:
            ConfigError: the option is unknown, or cannot have this value.
        """
        known, is_milliseconds = self._name_of(name, place)
        if is_milliseconds:
            raise ConfigError(f"{place}: give seconds, as {known}")
        kind = self._kinds[known]
        try:
            values = [msgspec.json.decode(text) if text[:1] in ("[", "{") else text for text in texts]
            found = msgspec.convert(values[0] if len(values) == 1 else values, kind.type, strict=False)
        except msgspec.DecodeError as error:
            raise ConfigError(_fault(place, error, kind)) from None
        return msgspec.to_builtins(found)

    def of_table(self, values: Mapping[str, Any], title: str, folder: str = "") -> Values:
        """The options in a table.

        Args:
            title: where the table stands, for errors.
            folder: that paths are relative to.

        Raises:
            ConfigError: an option is unknown, has a wrong value, or is given twice.
        """
        found: Values = {}
        for key, value in values.items():
            name, is_milliseconds = self._name_of(key, title)
            if name in found:
                raise ConfigError(f"{title}: {name} is given twice")
            kind = self._kinds[name]
            place = f"argument {key}" if title == "argument" else f"{title}: {key}"
            if title == "argument" and value is None:
                found[name] = None
                continue
            found[name] = _checked(kind, _seconds(value) if is_milliseconds else value, place, folder)
        self._check_exclusive(found, title)
        return found

    def _name_of(self, key: Any, title: str) -> tuple[str, bool]:
        """The name of the option that a key in a table means, and whether the key is in milliseconds."""
        if isinstance(key, str):
            if key in self._names:
                return self._names[key], False
            name = self._names.get(key.removesuffix("_ms"))
            if name is not None and self._kinds[name].is_time:
                return name, True
        hint = did_you_mean(nearest(key, self._names))
        raise ConfigError(f"{title}: unknown option {key!r:.100} of {self._what}{hint}")

    def _check_exclusive(self, found: Values, title: str) -> None:
        for groups in self._exclusive:
            given = [[name for name in group if found.get(name) is not None] for group in groups]
            several = [names[0] for names in given if names]
            if len(several) > 1:
                raise ConfigError(f"{title}: either {several[0]} or {several[1]}, not both")

    # -- several sources ------------------------------------------------------------------------------------------

    def merged(self, *sources: Values) -> Values:
        """The options of several sources; the first that gives an option, or one that excludes it, counts."""
        found: Values = {}
        for source in sources:
            excluded = {
                name
                for groups in self._exclusive
                for group in groups
                if any(found.get(other) is not None for others in groups if others is not group for other in others)
                for name in group
            }
            for name, value in source.items():
                if name not in excluded:
                    found.setdefault(name, value)
        return found

    def warn_of_unknown(self, environ: Mapping[str, str]) -> None:
        """Log environment variables with the prefix that are no options, which are most likely typing errors."""
        for variable in environ:
            if variable.startswith(self._prefix) and variable not in self._variables:
                hint = did_you_mean(nearest(variable, self._variables)).replace("'", "")
                log.warning("the environment variable %s is no option of %s%s", variable, self._what, hint)


def _seconds(milliseconds: Any) -> Any:
    return milliseconds / 1000 if type(milliseconds) in (int, float) else milliseconds


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return isinstance(value, str | int | float | Mapping | os.PathLike | None)


def _checked(kind: Kind, value: Any, place: str, folder: str = "", *, strict: bool = True) -> Any:
    """The value as Python takes it. Raises ConfigError without the value, which may be a secret."""
    try:
        found = msgspec.convert(os.fspath(value) if isinstance(value, os.PathLike) else value, kind.type, strict=strict)
        _check_range(kind, found)
        return found if kind.finish is None else kind.finish(found, folder)
    except msgspec.ValidationError as error:
        raise ConfigError(_fault(place, error, kind)) from None
    except (ValueError, TypeError) as error:  # raised by the class that the value makes
        raise ConfigError(f"{place}: {error}") from None


def _fault(place: str, error: msgspec.DecodeError, kind: Kind) -> str:
    """What is wrong with a value, without the value, which may be a secret."""
    choices = [each for each in get_args(kind.type) if isinstance(each, str)]
    reason = in_words(str(error), choices, "")
    return place + (reason if reason.startswith(("[", ".")) else f": {reason}")


def _check_range(kind: Kind, found: Any) -> None:
    if found in ("", [""]):
        raise ValueError("expected text that is not empty")
    if kind.least is None or found is None:
        return
    if kind.most is not None and not kind.least <= found <= kind.most:
        raise ValueError(f"expected a number from {kind.least} to {kind.most}, got {found}")
    if not kind.least <= found < math.inf:
        raise ValueError(f"expected a number of at least {kind.least}, got {found}")


def limit_options() -> dict[str, Option]:
    """Each field of `Limits` as an option of its own."""
    fields = dataclasses.fields(Limits)
    kinds = {field.name: SECONDS_OR_NONE if "float" in str(field.type) else whole(1) for field in fields}
    return {field.name: Option(field.default, kinds[field.name]) for field in fields}


def take_groups(found: Values, groups: Mapping[str, Any]) -> None:
    """Make the options that are groups, such as `limits`, of the values that were found for their fields.

    Args:
        found: the values of options and fields by name; changed.
        groups: dataclasses by the name of the option.

    Raises:
        ConfigError: a field is out of its range.
        TypeError: the value of such an option itself is of another class.
    """
    for name, group in groups.items():
        base = found.get(name)
        if base is not None and not isinstance(base, group):
            raise TypeError(f"{name} must be {group.__name__}, got {type(base).__name__}")
        fields = [each.name for each in dataclasses.fields(group)]
        given = {each: found.pop(each) for each in fields if each in found}
        try:
            if given:
                found[name] = dataclasses.replace(base or group(), **given)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
