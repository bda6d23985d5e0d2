"""Keyword options that are declared as TypedDicts: unknown ones are refused, and docstrings list them with defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from inspect import cleandoc
from typing import Any, TypeVar

from .nearest import did_you_mean, nearest

T = TypeVar("T", bound=Callable[..., Any])


def check_names(where: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError if an option is unknown; the text has its name, and the nearest known one.

    Args:
        where: the function or class that was called, for the error.
        given: the names of the options that were given.
        known: the names of all options.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{where} has no option {name!r}{did_you_mean(nearest(name, known))}")


def with_options(defaults: Mapping[str, Any], *kinds: type) -> Callable[[T], T]:
    """Decorator: append the documentation of these options, with their defaults, to a docstring.

    Args:
        defaults: the default of every option. One of a type of ours is written as its constructor without arguments.
        kinds: TypedDicts that describe their own options under "Attributes:".
    """

    def entry(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}={_shown(defaults[found[2]])}:"

    def append(target: T) -> T:
        if target.__doc__ is not None and all(kind.__doc__ for kind in kinds):  # there is none with `python -OO`
            tables = [cleandoc(str(kind.__doc__)).partition("Attributes:\n")[2].rstrip() for kind in kinds]
            entries = re.sub(r"(?m)^( {4})(\w+):", entry, "\n".join(tables))
            target.__doc__ = f"{cleandoc(target.__doc__)}\n\nOptions:\n{entries}\n"
        return target

    return append


def _shown(default: Any) -> str:
    is_ours = type(default).__module__.partition(".")[0] == __name__.partition(".")[0]
    return f"{type(default).__name__}()" if is_ours else repr(default)
