"""The known names that are most like an unknown one, for "did you mean ..."."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

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
