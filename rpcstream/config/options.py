"""From several sources of values to one value for each option: an argument counts more than the environment, that more
than a file, and what none of them says is left to the default of whoever takes the options.

Owns names (with what else an option may be called), precedence, and complaints that say where the wrong thing stands.
Knows no option itself.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..text import get_logger
from .errors import ConfigError
from .files import read_file
from .kinds import Kind, Seconds

log = get_logger("rpcstream.config")

#: A file, or what could stand in one.
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        aliases: what it may be called besides. A time may also be given as milliseconds, with `_ms` behind its name.
        is_secret: its value is never shown.
        displaces: the options whose place it takes: a stronger source that gives this one makes the weaker ones silent
            about those, and no source may give both.
    """

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    is_secret: bool = False
    displaces: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        own = (self.name, *self.aliases)
        return (*own, *(f"{name}_ms" for name in own)) if self.kind.is_time else own


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A value, and in words where it stands."""

    value: Any
    place: str


class Schema:
    """The options of one kind of program.

    Args:
        what: the program, for complaints: "a hub".
        groups: names of tables in a file whose members are options: `tls` with `key` in it gives `tls_key`.
    """

    def __init__(self, options: Iterable[Option], *, what: str, groups: Iterable[str] = ()) -> None:
        self._options = {name: option for option in options for name in option.names}
        self._what = what
        self._groups = frozenset(groups)

    def __contains__(self, name: object) -> bool:
        return name in self._options

    def resolve(
        self, source: ConfigSource, arguments: Mapping[str, Any], *, prefix: str, environ: Mapping[str, str]
    ) -> dict[str, Resolved]:
        """The values of all options that any source gives.

        Args:
            arguments: of the program itself; None there means that the option has no value at all.
            prefix: of the environment's variables.

        Raises:
            ConfigError: an unknown option, a value that makes no sense.
            OSError: the file cannot be read.
        """
        found: dict[str, Resolved] = {}
        displaced: set[str] = set()
        sources = (
            self._of_arguments(arguments),
            self._of_environment(environ, prefix),
            self._of_file(source),
        )
        for given in sources:
            taken: set[str] = set()
            for name, each in given.items():
                others = self._options[name].displaces if each.value is not None else ()
                for other in others:
                    if other in given and given[other].value is not None:
                        raise ConfigError(f"{each.place}: either {name} or {other}, not both")
                if name not in displaced:
                    found.setdefault(name, each)
                    taken.update(others)
            displaced |= taken | given.keys()
        return found

    def warn_of_unknown(self, environ: Mapping[str, str], prefix: str) -> None:
        """Log what is called like one of the environment's variables, and is none: a slip, most likely."""
        for variable in environ:
            name = variable.removeprefix(prefix).lower()
            if variable.startswith(prefix) and (name not in self._options or not self._options[name].kind.is_text):
                texts = [f"{prefix}{known.upper()}" for known, option in self._options.items() if option.kind.is_text]
                hint = _nearest(variable, texts).replace("'", "")
                log.warning("the environment variable %s is no option of %s%s", variable, self._what, hint)

    # -- the sources ------------------------------------------------------------------------------------------------

    def _of_arguments(self, values: Mapping[str, Any]) -> dict[str, Resolved]:
        given: dict[str, Resolved] = {}
        for name, value in self._spread(values, "argument"):
            option = self._option(name, "argument")
            place = f"argument {name}"
            if value is None:
                self._put(given, option, Resolved(value=None, place=place))
            else:
                self._put(given, option, self._checked(option, name, value, place, is_argument=True))
        return given

    def _of_environment(self, environ: Mapping[str, str], prefix: str) -> dict[str, Resolved]:
        given: dict[str, Resolved] = {}
        for name, option in self._options.items():
            text = environ.get(prefix + name.upper(), "") if option.kind.is_text else ""
            if text:
                place = f"environment variable {prefix}{name.upper()}"
                self._put(given, option, self._checked(option, name, option.kind.parse(text), place))
        return given

    def _of_file(self, source: ConfigSource) -> dict[str, Resolved]:
        if source is None:
            return {}
        if isinstance(source, Mapping):
            values, title, folder = source, "configuration", ""
        elif isinstance(source, str | os.PathLike):
            values, title = read_file(source), os.fspath(source)
            folder = os.path.dirname(os.path.abspath(title))
        else:
            raise TypeError(f"a configuration is a file's path or a mapping, got {type(source).__name__}")
        given: dict[str, Resolved] = {}
        for name, value in self._spread(values, title):
            option = self._option(name, title)
            each = self._checked(option, name, value, f"{title}: {name}")
            if folder:
                each = Resolved(value=option.kind.seen_from(each.value, folder), place=each.place)
            self._put(given, option, each)
        return given

    # -- one value --------------------------------------------------------------------------------------------------

    def _spread(self, values: Mapping[str, Any], title: str) -> Iterable[tuple[str, Any]]:
        """Names and values, those in groups among them."""
        for name, value in values.items():
            if name not in self._groups:
                yield name, value
            elif isinstance(value, Mapping):
                for inner, each in value.items():
                    joined = f"{name}_{inner}"
                    if joined not in self._options:
                        known = [option.removeprefix(f"{name}_") for option in self._options if name in option]
                        raise ConfigError(f"{title}: unknown option {inner!r} in {name}{_nearest(inner, known)}")
                    yield joined, each
            else:
                raise ConfigError(f"{title}: {name} must be a table, got {type(value).__name__}")

    def _option(self, name: Any, title: str) -> Option:
        option = self._options.get(name) if isinstance(name, str) else None
        if option is None:
            raise ConfigError(f"{title}: unknown option {name!r} of {self._what}{self._nearest(name)}")
        return option

    def _put(self, given: dict[str, Resolved], option: Option, found: Resolved) -> None:
        if option.name in given:
            raise ConfigError(f"{found.place}: {option.name} is given already ({given[option.name].place})")
        given[option.name] = found

    @staticmethod
    def _checked(option: Option, name: str, value: Any, place: str, *, is_argument: bool = False) -> Resolved:
        kind = option.kind
        try:
            if isinstance(kind, Seconds) and name.endswith("_ms"):
                value = kind.check_ms(value)
            else:
                value = kind.check_argument(value) if is_argument else kind.check(value)
        except ValueError as error:
            got = type(value).__name__ if option.is_secret else f"{value!r:.100}"
            raise ConfigError(f"{place} must be {error}, got {got}") from None
        return Resolved(value=value, place=place)

    def _nearest(self, name: Any) -> str:
        return _nearest(name, [*self._options, *self._groups])


def _nearest(name: Any, known: Iterable[str]) -> str:
    known, text = list(known), str(name)[:100]
    longer = [each for each in known if len(text) > 2 and each.startswith(text)]
    near = longer or difflib.get_close_matches(text, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
