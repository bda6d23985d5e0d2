"""The known names that are most like an unknown one, for "did you mean ...". Does not know what the names are for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

#: Characters of a name, and names: of longer ones, and of more, none is suggested, since it would take too long.
MAX_LENGTH, MAX_NAMES = 64, 2000

#: Names that are suggested at most to peers.
_SUGGESTED = 3


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
    found = [each for each in names if each == text]
    if len(text) > 2:  # who has written a part of a name knows the name
        found += sorted((each for each in names if each.startswith(text) or each.endswith("." + text)), key=len)
    for likeness in (0.9, 0.8, 0.7, 0.6):  # what is much less alike than the best is none
        if not found:
            found = sorted(difflib.get_close_matches(text, names, count, likeness))
    return [names[each] for each in dict.fromkeys(found)][:count]


def did_you_mean(names: Sequence[str]) -> str:
    """What an error says of the nearest names: ` (did you mean 'text'?)`; "" where there are none."""
    return f" (did you mean {' or '.join(map(repr, names))}?)" if names else ""


class _SearchBudget:
    """Limits the time that this process spends on suggestions for peers, who may send unknown names without end."""

    #: Of the processor's time, and seconds that may be spent at once after a pause.
    _SHARE, _BURST = 0.02, 0.05

    def __init__(self) -> None:
        #: When all that was spent so far has been made up for (monotonic, s).
        self._settled = 0.0

    def spend(self, search: Callable[[], list[str]]) -> list[str]:
        """What a search gives; no names where the time for it is spent."""
        now = time.monotonic()
        if self._settled - now >= self._BURST / self._SHARE:
            return []
        began = time.thread_time()
        try:
            return search()
        finally:
            self._settled = max(self._settled, now) + (time.thread_time() - began) / self._SHARE


_BUDGET = _SearchBudget()


def nearest_for_peer(
    name: str, known: Iterable[str], is_visible: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """As `nearest`, for a name that a peer sent: no names where too much time was spent on such names already.

    Args:
        known: all names.
        is_visible: whether the peer may learn of a name.
    """
    if len(name) > MAX_LENGTH:
        return []
    return _BUDGET.spend(lambda: nearest(name, known, _SUGGESTED, is_visible))
