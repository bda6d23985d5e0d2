"""The known names that are most like an unknown one, for "did you mean ...".

Owns what counts as alike, and how much time a process spends on it for its peers. Does not know what the names are for.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

#: Characters of a name; longer ones are not looked at.
MAX_LENGTH = 64

#: Names beyond which none is suggested: to sort more would keep an event loop for too long.
MAX_NAMES = 50_000

#: Names that are suggested at most.
MAX_SUGGESTED = 3

#: So many names are all compared; of more, those that stand next to the unknown one, by beginning and by end.
_ALL, _NEIGHBOURS, _COMPARED = 32, 12, 8

#: From 0 to 1: how alike two names must be (`difflib.SequenceMatcher.ratio`).
_ALIKE = 0.6

#: How much less alike than the best a name may be to be suggested, too.
_AS_GOOD = 0.1


def nearest(name: object, known: Iterable[str], count: int = 1) -> list[str]:
    """The known names that are most like this one, the best first; few or none where none is like it."""
    return _most_alike(str(name), _Sorted(known), count)


def did_you_mean(names: Sequence[str]) -> str:
    """What an error says of the nearest names: ` (did you mean 'text'?)`; "" where there are none."""
    return f" (did you mean {' or '.join(map(repr, names))}?)" if names else ""


class SearchBudget:
    """Limits the time that is spent on suggestions for peers, who may send unknown names without end.

    Args:
        share: of the processor's time, from 0 to 1.
        burst: seconds that may be spent at once after a pause.
        clock: seconds, monotonic.
        used: seconds of processor time that this thread has used.
    """

    def __init__(
        self,
        *,
        share: float = 0.02,
        burst: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._ahead = burst / share
        self._clock = clock
        self._used = used
        #: When all that was spent so far has been made up for.
        self._settled = 0.0

    def spend(self, search: Callable[[], list[str]]) -> list[str]:
        """What a search gives; no names where the time for it is spent."""
        now = self._clock()
        if self._settled - now >= self._ahead:
            return []
        began = self._used()
        try:
            return search()
        finally:
            self._settled = max(self._settled, now) + (self._used() - began) / self._share


#: Shared by all servers and clients of the process.
BUDGET = SearchBudget()


def nearest_for_peer(name: str, known: Sequence[str]) -> list[str]:
    """As `nearest`, for a name that a peer sent: no names where too much time was spent on such names already."""
    return BUDGET.spend(lambda: nearest(name, known)) if len(name) <= MAX_LENGTH else []


class NameIndex:
    """Finds the nearest of many names that change seldom.

    Args:
        names: gives all names.
        version: counts their changes.
        budget: of the time that is spent.
    """

    def __init__(
        self, names: Callable[[], Iterable[str]], version: Callable[[], int], budget: SearchBudget = BUDGET
    ) -> None:
        self._names = names
        self._version = version
        self._budget = budget
        self._sorted: _Sorted | None = None
        self._sorted_version = -1

    def nearest(self, name: str, is_visible: Callable[[str], bool]) -> list[str]:
        """The names most like this one; none where it is long, or too much time was spent already.

        Args:
            name: as a peer sent it.
            is_visible: whether the peer may learn of a name; asked about a few.
        """
        if len(name) > MAX_LENGTH:
            return []
        return self._budget.spend(lambda: _most_alike(name, self._in_order(), MAX_SUGGESTED, is_visible))

    def _in_order(self) -> _Sorted:
        version = self._version()
        if self._sorted is None or version != self._sorted_version:
            self._sorted, self._sorted_version = _Sorted(self._names()), version
        return self._sorted


class _Sorted:
    """Names in the order of their beginnings, and of their ends; short ones only, and none where there are too many.

    Attributes:
        names: by their form without regard to case.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = {name.casefold(): name for name in names if len(name) <= MAX_LENGTH}
        if len(self.names) > MAX_NAMES:
            self.names = {}
        is_small = len(self.names) <= _ALL
        self._by_beginning = [] if is_small else sorted(self.names)
        self._by_end = [] if is_small else sorted(name[::-1] for name in self.names)

    def candidates(self, text: str) -> list[str]:
        """Those that may be like a text: a slip leaves the beginning of a name as it is, or its end, or both."""
        if not self._by_beginning:
            return list(self.names)
        found = _around(self._by_beginning, text) + [name[::-1] for name in _around(self._by_end, text[::-1])]
        return sorted(set(found), key=lambda name: -_in_common(name, text))[:_COMPARED]


def _around(ordered: list[str], text: str) -> list[str]:
    place = bisect_left(ordered, text)
    return ordered[max(place - _NEIGHBOURS, 0) : place + _NEIGHBOURS]


def _in_common(name: str, text: str) -> int:
    """Characters that two names share at their beginnings and at their ends."""
    shortest = min(len(name), len(text))
    head = next((at for at in range(shortest) if name[at] != text[at]), shortest)
    tail = next((at for at in range(shortest - head) if name[-1 - at] != text[-1 - at]), shortest - head)
    return head + tail


def _most_alike(
    name: str, known: _Sorted, count: int, is_visible: Callable[[str], bool] = lambda name: True
) -> list[str]:
    text = name[:MAX_LENGTH].casefold()
    likeness = _likeness(text, known.candidates(text))
    found: list[str] = []
    least = _ALIKE
    for each in sorted(likeness, key=lambda each: (-likeness[each], len(each))):
        if likeness[each] < least or len(found) == count:
            break
        if is_visible(known.names[each]):
            least = max(least, likeness[each] - _AS_GOOD)
            found.append(known.names[each])
    return found


def _likeness(text: str, candidates: list[str]) -> dict[str, float]:
    """How alike each candidate is to a text, from 0 to 1; 2 if it is the same."""
    import difflib  # takes time to import, and is for errors only

    matcher = difflib.SequenceMatcher(None, "", text)
    found: dict[str, float] = {}
    for each in candidates:
        matcher.set_seq1(each)
        if each == text:
            found[each] = 2.0
        elif len(text) > 2 and (each.startswith(text) or each.endswith("." + text)):
            found[each] = 1.0  # who has written a part of a name knows the name
        elif matcher.real_quick_ratio() >= _ALIKE and matcher.quick_ratio() >= _ALIKE:
            found[each] = matcher.ratio()
    return found
