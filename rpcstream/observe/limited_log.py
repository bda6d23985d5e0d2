"""A log with a limited number of lines a minute, for events that peers can cause without limit.

Owns the counts and the length of a line. Uses the event loop only for the timer that reports the omitted lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from ..text import visible

#: Lines of one kind in a period: for one key (a connection, a method), and for all keys together.
EACH, TOTAL = 10, 100

#: Seconds for which lines are counted.
PERIOD = 60.0

#: Characters of one value in a line, and of a traceback.
VALUE_MAX, TRACEBACK_MAX = 300, 16 * 1024

#: Kinds that the line about omitted lines names, and keys that are counted apart in a period.
_NAMED, _KEYS = 5, 1000


class LimitedLog:
    """Writes each kind of line to a logger up to `each` times in `PERIOD` for one key, and `TOTAL` times for all keys.

    At the end of the period, one line tells how many lines were omitted. A kind is the text with its placeholders;
    kinds are counted apart. Values are cut to `VALUE_MAX` characters, and control characters in them are escaped, so
    that no value ends a line.

    To be used in the thread of the event loop.

    Args:
        logger: gets the lines.
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
        #: Lines in this period: by kind and key, and by kind.
        self._by_key: Counter[tuple[str, Hashable]] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def info(self, key: Hashable, text: str, *values: Any) -> None:
        """Log at INFO, within the limit."""
        self._log(logging.INFO, key, text, values, None)

    def warning(self, key: Hashable, text: str, *values: Any) -> None:
        """Log at WARNING, within the limit."""
        self._log(logging.WARNING, key, text, values, None)

    def error(self, key: Hashable, text: str, *values: Any, error: BaseException | None = None) -> None:
        """Log at ERROR, within the limit, with the traceback of `error`."""
        self._log(logging.ERROR, key, text, values, error)

    def failure(self, key: Hashable, text: str, *values: Any, error: BaseException | None = None) -> str | None:
        """As `error`, with a new id at the end of the line; gives the id, None if the line was omitted."""
        failure_id = os.urandom(4).hex()
        is_logged = self._log(logging.ERROR, key, f"{text}, id %s", (*values, failure_id), error)
        return failure_id if is_logged else None

    def flush(self) -> None:
        """Log how many lines were omitted so far, and begin a new period."""
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

    def _log(self, level: int, key: Hashable, text: str, values: tuple[Any, ...], error: BaseException | None) -> bool:
        """Log a line, unless it is omitted; true if it was logged."""
        if not self._logger.isEnabledFor(level) or not self._has_room(key, text):
            return False
        shown = [value if isinstance(value, int | float) else shortened(value) for value in values]
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if len(trace) > TRACEBACK_MAX:
            half = TRACEBACK_MAX // 2
            text, error = text + "\n%s", None
            shown.append(f"{trace[:half]}\n[… {len(trace) - 2 * half} characters …]\n{trace[-half:]}")
        self._logger.log(level, text, *shown, exc_info=error, stacklevel=3)
        return True

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
        """Set the timer that reports the omitted lines even if nothing more is logged."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop: the next line reports them
            return
        self._timer = loop.call_later(seconds, self.flush)


def shortened(value: object) -> str:
    """The text of a value, cut to `VALUE_MAX` characters, with control characters escaped."""
    try:
        text = str(value)
    except Exception:
        text = f"(a {type(value).__name__} that has no text)"
    return visible(text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…")
