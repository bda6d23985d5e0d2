"""Unknown names: the known ones that are most like them ("did you mean ..."), and the check of keyword options."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import cleandoc
from itertools import islice
from typing import Any, TypeVar

#: Characters of a name, and names: of longer ones, and of more, none is suggested, since it would take too long.
MAX_LENGTH, MAX_NAMES = 64, 2000

#: How much of two names must be equal, from 0 to 1. All names of ours begin with `rpc.`, which alone is less.
_ALIKE = 0.65

#: Names that are suggested at most to peers.
_SUGGESTED = 3

#: The share of the processor's time that this process spends on suggestions for peers, who may send unknown names
#: without end; and the seconds that it may spend at once after a pause.
_SHARE, _BURST = 0.02, 0.05

#: When all the time that was spent so far has been made up for (monotonic, s).
_settled = 0.0


def nearest(
    name: object, known: Iterable[str], count: int = 1, is_visible: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """The known names that are most like this one, the best first; few or none where none is like it.

    Args:
        is_visible: whether a name may be told.
    """
    import difflib  # takes time to import, and is for errors only

    text, every = str(name).casefold(), list(islice(known, MAX_NAMES + 1))
    if len(text) > MAX_LENGTH or len(every) > MAX_NAMES:
        return []
    names = {each.casefold(): each for each in every if len(each) <= MAX_LENGTH and is_visible(each)}
    return [names[each] for each in difflib.get_close_matches(text, names, count, _ALIKE)]


def did_you_mean(names: Sequence[str]) -> str:
    """What an error says of the nearest names: ` (did you mean 'text'?)`; "" where there are none."""
    return f" (did you mean {' or '.join(map(repr, names))}?)" if names else ""


def nearest_for_peer(
    name: str, known: Iterable[str], is_visible: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """As `nearest`, for a name that a peer sent: no names where too much time was spent on such names already.

    Args:
        known: all names.
        is_visible: whether the peer may learn of a name.
    """
    global _settled
    now = time.monotonic()
    if len(name) > MAX_LENGTH or _settled - now >= _BURST / _SHARE:
        return []
    began = time.thread_time()
    try:
        return nearest(name, known, _SUGGESTED, is_visible)
    finally:
        _settled = max(_settled, now) + (time.thread_time() - began) / _SHARE


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
