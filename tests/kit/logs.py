"""What is logged while a test runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager


class LogLines(logging.Handler):
    """Collects log lines; those of errors must be expected where `check` is called.

    Attributes:
        lines: every line, formatted.
        records: the same as records.
    """

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.lines: list[str] = []
        self.records: list[logging.LogRecord] = []
        self._expected: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(self.format(record))

    def matching(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.search(pattern, line)]

    def expect(self, pattern: str, times: int = 1) -> None:
        """Expect this many lines that match; any other fails `check`."""
        self._expected += [pattern] * times

    def check(self) -> None:
        unexpected = list(self.lines)
        for pattern in self._expected:
            found = [text for text in unexpected if re.search(pattern, text)]
            assert found, f"no line was logged that matches {pattern!r}, only {unexpected}"
            unexpected.remove(found[0])
        assert not unexpected, "logged:\n" + "\n".join(unexpected)


@contextmanager
def logged(name: str = "", level: int = logging.NOTSET, *, alone: bool = False) -> Iterator[LogLines]:
    """The lines of a logger while the block runs.

    Args:
        alone: the lines go nowhere else.
    """
    logger, lines = logging.getLogger(name), LogLines(level)
    before = logger.level, logger.propagate
    logger.addHandler(lines)
    if level and logger.getEffectiveLevel() > level:
        logger.setLevel(level)
    logger.propagate = logger.propagate and not alone
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.level, logger.propagate = before
