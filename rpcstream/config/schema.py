"""Finds the value of each option: in the arguments, else in the environment, else in a file.

Owns the names of options (aliases too), which source counts, and errors that say where a wrong value stands. Defaults
are those of the program. Knows no option itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..nearest import did_you_mean, nearest
from ..text import get_logger
from .files import ConfigError, read_file
from .option_types import OptionType

log = get_logger("rpcstream.config")

#: A file, or a mapping with the same options.
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        aliases: other names of it. A time may also be given as milliseconds, with `_ms` behind its name.
        is_secret: its value is never shown.
        displaces: options that it replaces: where a source gives this one, those of later sources are ignored, and no
            source may give both.
    """

    name: str
    type: OptionType
    aliases: tuple[str, ...] = ()
    is_secret: bool = False
    displaces: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which it may be given."""
        own = (self.name, *self.aliases)
        return (*own, *(f"{name}_ms" for name in own)) if self.type.is_time else own


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The value of an option.

    Attributes:
        place: in words, where it stands.
        rank: the number of its source, 0 for the arguments and 1 for the environment; a lower one takes precedence.
    """

    value: Any
    place: str
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Table:
    """Options as they stand in a file or a mapping.

    Attributes:
        title: the file, for errors.
        folder: that paths in it are relative to; "" for the current one.
    """

    values: Mapping[str, Any]
    title: str
    folder: str = ""


def read_table(source: ConfigSource) -> Table | None:
    """Read a file, or take a mapping as it is; None for None.

    Raises:
        ConfigError: the file is not valid.
        OSError: it cannot be read.
        TypeError: the source is neither a path nor a mapping.
    """
    if source is None:
        return None
    if isinstance(source, Mapping):
        return Table(values=source, title="configuration")
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"a configuration is a file's path or a mapping, got {type(source).__name__}")
    title = os.fspath(source)
    return Table(values=read_file(source), title=title, folder=os.path.dirname(os.path.abspath(title)))


class Schema:
    """The options of one kind of program.

    Args:
        what: the program, for errors: "a hub".
        groups: names of tables in a file whose members are options: `tls` with `key` in it gives `tls_key`.
    """

    def __init__(self, options: Iterable[Option], *, what: str, groups: Iterable[str] = ()) -> None:
        self._options = {name: option for option in options for name in option.names}
        self._what = what
        self._groups = frozenset(groups)

    def __contains__(self, name: object) -> bool:
        return name in self._options

    def resolve(
        self, tables: Iterable[Table], arguments: Mapping[str, Any], *, prefix: str, environ: Mapping[str, str]
    ) -> dict[str, Resolved]:
        """Find the values of all options that any source gives.

        Args:
            tables: from files; an option of an earlier one takes precedence.
            arguments: of the program itself; None there means that the option has no value at all.
            prefix: of the environment's variables.
            environ: the environment.

        Raises:
            ConfigError: an unknown option, or a wrong value.
        """
        found: dict[str, Resolved] = {}
        displaced: set[str] = set()
        sources = (
            self._of_arguments(arguments),
            self._of_environment(environ, prefix),
            *(self._of_table(table) for table in tables),
        )
        for rank, given in enumerate(sources):
            taken: set[str] = set()
            for name, each in given.items():
                others = self._options[name].displaces if each.value is not None else ()
                for other in others:
                    if other in given and given[other].value is not None:
                        raise ConfigError(f"{each.place}: either {name} or {other}, not both")
                if name not in displaced:
                    found.setdefault(name, replace(each, rank=rank))
                    taken.update(others)
            displaced |= taken | given.keys()
        return found

    def warn_of_unknown(self, environ: Mapping[str, str], prefix: str) -> None:
        """Log environment variables with the prefix that are no options: most likely a slip."""
        known = [f"{prefix}{name.upper()}" for name, option in self._options.items() if option.type.from_text]
        for variable in environ:
            option = self._options.get(variable.removeprefix(prefix).lower())
            if variable.startswith(prefix) and (option is None or option.type.from_text is None):
                hint = did_you_mean(nearest(variable, known)).replace("'", "")
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
            from_text, text = option.type.from_text, environ.get(prefix + name.upper(), "")
            if text and from_text is not None:
                place = f"environment variable {prefix}{name.upper()}"
                self._put(given, option, self._checked(option, name, from_text(text), place))
        return given

    def _of_table(self, table: Table) -> dict[str, Resolved]:
        given: dict[str, Resolved] = {}
        for name, value in self._spread(table.values, table.title):
            option = self._option(name, table.title)
            each = self._checked(option, name, value, f"{table.title}: {name}")
            if table.folder:
                each = Resolved(value=option.type.relative_to(each.value, table.folder), place=each.place)
            self._put(given, option, each)
        return given

    # -- one value --------------------------------------------------------------------------------------------------

    def _spread(self, values: Mapping[str, Any], title: str) -> Iterable[tuple[str, Any]]:
        """Yield names and values, those in groups under their whole names."""
        for name, value in values.items():
            if name not in self._groups:
                yield name, value
            elif isinstance(value, Mapping):
                for inner, each in value.items():
                    joined = f"{name}_{inner}"
                    if joined not in self._options:
                        known = [option.removeprefix(f"{name}_") for option in self._options if name in option]
                        raise ConfigError(
                            f"{title}: unknown option {inner!r} in {name}{did_you_mean(nearest(inner, known))}"
                        )
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
        try:
            if option.type.is_time and name.endswith("_ms"):
                value = option.type.check_milliseconds(value)
            else:
                value = option.type.check(value, is_argument=is_argument)
        except ValueError as error:
            got = type(value).__name__ if option.is_secret else f"{value!r:.100}"
            raise ConfigError(f"{place} must be {error}, got {got}") from None
        return Resolved(value=value, place=place)

    def _nearest(self, name: Any) -> str:
        return did_you_mean(nearest(name, [*self._options, *self._groups]))
