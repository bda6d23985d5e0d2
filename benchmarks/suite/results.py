"""The results as data: the figures of each round, and the values computed from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .load import Load

#: What a figure counts. Of the first two more is better, of the others less.
Unit = Literal["calls/s", "items/s", "ms", "bytes"]


#: With what the problem of an entry begins, by its kind.
SKIPPED, WRONG, FAILED = "skipped", "answers wrongly", "failed"


class Spread(NamedTuple):
    """The median, the lowest and the highest figure of several rounds."""

    median: float
    low: float
    high: float


def spread(figures: Iterable[float]) -> Spread:
    """Summarise figures; raises ValueError where there are none."""
    values = sorted(figures)
    if not values:
        raise ValueError("no figures")
    return Spread(statistics.median(values), values[0], values[-1])


def ratio(figures: Sequence[float], base: Sequence[float]) -> Spread:
    """Divide figures round by round, so that a moment in which the machine is slow affects both."""
    return spread(one / other for one, other in zip(figures, base, strict=True))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The result of one contender: a figure for each round, or the reason why there is none."""

    name: str
    figures: tuple[float, ...] = ()
    #: What the load generator said in each round; none where something else was measured.
    loads: tuple[Load, ...] = ()
    #: What kept it from being measured, in one line: its kind, a colon, the reason.
    problem: str | None = None
    #: Of the server, in bytes.
    peak_memory: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    #: It is ours, or a bare echo: that it does not work is an error.
    ours: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The contenders of one case."""

    title: str
    entries: tuple[Entry, ...]
    #: The names of those that all others are given as a share of.
    bases: tuple[str, ...] = ()
    unit: Unit = "calls/s"
    #: Bytes of payload that each call carries there, and back again; 0 where that does not matter.
    payload: int = 0

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def figures(self, name: str) -> tuple[float, ...]:
        """Return the figures of the entry with that name; empty where there are none."""
        entry = self.entry(name)
        return entry.figures if entry else ()


#: Topic -> its tables.
Results = Mapping[str, Sequence[Table]]


def find(results: Results, topic: str, title: str) -> Table | None:
    return next((table for table in results.get(topic, ()) if table.title == title), None)


def broken(results: Results) -> list[str]:
    """List failures of rpcstream itself, without what cannot be measured on this machine."""
    return [
        f"{topic}, {table.title}: {entry.name}: {entry.problem}"
        for topic, tables in results.items()
        for table in tables
        for entry in table.entries
        if entry.ours and entry.problem is not None and not entry.problem.startswith(SKIPPED)
    ]
