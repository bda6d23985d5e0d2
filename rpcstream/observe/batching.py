"""What a batched method counts about itself: sizes and waits.

Plain numbers that only the event loop writes. Knows no items and no handler.
"""

from __future__ import annotations

from typing import Any


class BatchCounters:
    """The numbers of one method, since it was registered."""

    def __init__(self) -> None:
        #: Runs of the handler and the items in them; those that repeat a failed run are counted apart.
        self.runs = 0
        self.items = 0
        self.retries = 0
        #: Items whose caller left before they were run.
        self.cancelled = 0
        self.largest = 0
        self._total_wait = 0.0
        self._longest_wait = 0.0
        #: By the power of two that they do not pass: 1, 2, 3 to 4, 5 to 8, …
        self._sizes: list[int] = []

    def ran(self, waits: list[float]) -> None:
        """A run begins; each of its items has waited so many seconds."""
        size = len(waits)
        self.runs += 1
        self.items += size
        self.largest = max(self.largest, size)
        self._total_wait += sum(waits)
        self._longest_wait = max(self._longest_wait, *waits)
        power = (size - 1).bit_length()
        self._sizes += [0] * (power + 1 - len(self._sizes))
        self._sizes[power] += 1

    def as_dict(self) -> dict[str, Any]:
        """Name to number; `sizes` are keyed by the largest size that a number stands for. Times are seconds."""
        return {
            "runs": self.runs,
            "items": self.items,
            "retries": self.retries,
            "cancelled": self.cancelled,
            "largest": self.largest,
            "mean_size": self.items / self.runs if self.runs else 0.0,
            "sizes": {str(2**power): count for power, count in enumerate(list(self._sizes)) if count},
            "mean_wait": self._total_wait / self.items if self.items else 0.0,
            "max_wait": self._longest_wait,
        }
