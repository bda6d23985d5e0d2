"""Adds up the counters of several processes: most are sums, some are the largest, some are means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Numbers that tell the present: those of a process that has ended do not count.
PRESENT = frozenset(("connections", "subscriptions", "metrics_present"))

#: Of which the largest is taken; and means, each with the number that it is a mean over.
_LARGEST = frozenset(("largest", "max_wait"))
_MEANS = {"mean_size": "runs", "mean_wait": "items"}


class Totals:
    """The counters of all workers that there are and were."""

    def __init__(self) -> None:
        self._past: dict[str, Any] = {}

    def add_past(self, counters: dict[str, Any]) -> None:
        """Add the last counters of a worker that has ended."""
        self._past = add(self._past, {name: value for name, value in counters.items() if name not in PRESENT})

    def sum(self, present: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """The counters of these workers and of those that have ended."""
        total = self._past
        for counters in present:
            total = add(total, counters)
        return total


def add(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Add counters by name; those that are dicts, name by name."""
    total = dict(one)
    for name, value in other.items():
        if name not in one:
            total[name] = value
        elif isinstance(value, dict):
            total[name] = add(one[name], value)
        elif name in _LARGEST:
            total[name] = max(one[name], value)
        elif name in _MEANS:
            weights = one.get(_MEANS[name], 0), other.get(_MEANS[name], 0)
            whole = sum(weights)
            total[name] = (one[name] * weights[0] + value * weights[1]) / whole if whole else 0.0
        else:
            total[name] = one[name] + value
    return total
