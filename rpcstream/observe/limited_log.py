"""A log for what peers can cause as often as they like: so many lines in a minute, and then how many were left out.

Owns the counting, and the length of a line. Knows no event loop but for the timer that says what was left out.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from ..text import visible

#: Lines of one kind in one period: for one key (a connection, a method), and for all keys together.
EACH, TOTAL = 10, 100

#: Seconds.
PERIOD = 60.0

#: Characters of one value in a line, and of a traceback.
VALUE_MAX, TRACEBACK_MAX = 300, 16 * 1024

#: Kinds that are named when it is said what was left out; and keys that are told apart at the same time.
_NAMED, _KEYS = 5, 1000


class LimitedLog:
    """Writes to a logger, each kind of line up to `each` times in `PERIOD` for one key, and `TOTAL` times for all.

    When the period is over, one line says how many were left out. Lines of different kinds do not count against each
    other; a kind is the text with its placeholders. Values are shortened to `VALUE_MAX` characters, and what cannot be
    printed in them is escaped, so that no value ends a line.

    For the thread of the event loop.

    Args:
        each: lines of one kind for one key.
        clock: seconds, monotonic.
    """

    def __init__(
        self, logger: logging.Logger, *, each: int = EACH, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._each = each
        self._clock = clock
        self._ends = 0.0
        #: Lines of a kind in this period: by kind and key, and by kind.
        self._by_key: Counter[tuple[str, Hashable]] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def info(self, key: Hashable, text: str, *values: Any) -> None:
        """Log at INFO, if there is room for it."""
        self._log(logging.INFO, key, text, values, None)

    def warning(self, key: Hashable, text: str, *values: Any) -> None:
        """Log at WARNING, if there is room for it."""
        self._log(logging.WARNING, key, text, values, None)

    def error(self, key: Hashable, text: str, *values: Any, error: BaseException | None = None) -> None:
        """Log at ERROR, if there is room for it; with the traceback of an exception."""
        self._log(logging.ERROR, key, text, values, error)

    def flush(self) -> None:
        """Say what was left out until now, and begin a new period."""
        left_out = self._left_out
        if left_out:
            named = "; ".join(f"{count} of {kind!r}" for kind, count in left_out.most_common(_NAMED))
            more = ", …" if len(left_out) > _NAMED else ""
            self._logger.warning("%d lines were left out of the log: %s%s", left_out.total(), named, more)
        for counter in (self._by_key, self._by_kind, left_out):
            counter.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log(self, level: int, key: Hashable, text: str, values: tuple[Any, ...], error: BaseException | None) -> None:
        if not self._logger.isEnabledFor(level) or not self._has_room(key, text):
            return
        shown = [value if isinstance(value, int | float) else shortened(value) for value in values]
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if len(trace) > TRACEBACK_MAX:
            half = TRACEBACK_MAX // 2
            text, error = text + "\n%s", None
            shown.append(f"{trace[:half]}\n[… {len(trace) - 2 * half} characters …]\n{trace[-half:]}")
        self._logger.log(level, text, *shown, exc_info=error, stacklevel=3)

    def _has_room(self, key: Hashable, kind: str) -> bool:
        now = self._clock()
        if now >= self._ends:
            self.flush()
            self._ends = now + PERIOD
        if len(self._by_key) >= _KEYS:
            key = None
        self._by_key[kind, key] += 1
        if self._by_key[kind, key] <= self._each and self._by_kind[kind] < TOTAL:
            self._by_kind[kind] += 1
            return True
        self._left_out[kind] += 1
        if self._timer is None:
            self._arm(self._ends - now)
        return False

    def _arm(self, seconds: float) -> None:
        """Have said what is left out even if nothing more is logged."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # then the next line says it
            return
        self._timer = loop.call_later(seconds, self.flush)


def shortened(value: object) -> str:
    """The text of a value, of bounded length; what a terminal would obey, as escapes."""
    try:
        text = str(value)
    except Exception:
        text = f"(a {type(value).__name__} that has no text)"
    return visible(text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…")
