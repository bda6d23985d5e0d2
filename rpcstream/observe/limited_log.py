"""A log with a limited number of lines a minute, for events that peers can cause without limit."""

from __future__ import annotations

import logging
import os
import traceback
from collections import Counter
from collections.abc import Hashable
from time import monotonic
from typing import Any

from ..text import visible

#: Lines of one kind in a period: for one key (a connection, a method), and for all keys together.
EACH, TOTAL = 10, 100

#: Seconds for which lines are counted.
PERIOD = 60.0

#: Characters of one value in a line, and of a traceback.
VALUE_MAX, TRACEBACK_MAX = 300, 16 * 1024

#: Kinds and keys that are counted apart in a period.
_KEYS = 1000


class LimitedLog:
    """Writes each kind of line to a logger up to `each` times in `PERIOD` for one key, and `TOTAL` times for all keys.

    The next line after the period comes behind one that tells how many were omitted. A kind is the text with its
    placeholders; kinds are counted apart. Values are cut to `VALUE_MAX` characters, and control characters in them are
    escaped, so that no value ends a line.

    To be used in the thread of the event loop.

    Args:
        logger: gets the lines.
        each: lines of one kind for one key.
    """

    def __init__(self, logger: logging.Logger, *, each: int = EACH) -> None:
        self._logger = logger
        self._each = each
        self._ends = 0.0
        #: Lines in this period: by kind, and by kind and key.
        self._counts: Counter[Hashable] = Counter()
        self._left_out = 0

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
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self._logger.warning("%d lines were left out of the log", left_out)
        self._counts.clear()

    def _log(self, level: int, key: Hashable, text: str, values: tuple[Any, ...], error: BaseException | None) -> bool:
        """Log a line, unless it is omitted; true if it was logged."""
        if not self._logger.isEnabledFor(level):
            return False
        now = monotonic()
        if now >= self._ends:
            self.flush()
            self._ends = now + PERIOD
        counts, of_key = self._counts, (text, key if len(self._counts) < _KEYS else None)
        counts[of_key] += 1
        if counts[of_key] > self._each or counts[text] >= TOTAL:
            self._left_out += 1
            return False
        counts[text] += 1
        shown = [value if isinstance(value, int | float) else shortened(value) for value in values]
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if len(trace) > TRACEBACK_MAX:
            half = TRACEBACK_MAX // 2
            text, error = text + "\n%s", None
            shown.append(f"{trace[:half]}\n[… {len(trace) - 2 * half} characters …]\n{trace[-half:]}")
        self._logger.log(level, text, *shown, exc_info=error, stacklevel=3)
        return True


def shortened(value: object) -> str:
    """The text of a value, cut to `VALUE_MAX` characters, with control characters escaped."""
    try:
        text = str(value)
    except Exception:
        text = f"(a {type(value).__name__} that has no text)"
    return visible(text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…")
