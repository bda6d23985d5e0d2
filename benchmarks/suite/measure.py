"""Measure a case: start, warm up and check every server, then measure them in turn, round by round.

A contender that cannot be measured keeps its place in the table with the reason; the others go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from .contenders import Case, Contender, Measure
from .load import Load, LoadFailed, WrongReply
from .process import Failed, Running, Servers, Skipped
from .results import FAILED, SKIPPED, WRONG, Entry, Table

LONGEST_REASON = 300

C = TypeVar("C")


def ignore(text: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, from the command line."""

    seconds: float = 1.0
    rounds: int = 5
    #: How many idle connections; None leaves it to the topic.
    connections: int | None = None
    #: The peers to measure besides ours and the bare echoes; empty for all.
    only: frozenset[str] = frozenset()
    #: Another checkout of this repository, to compare small calls with.
    against: Path | None = None
    #: Told what is going on.
    tell: Callable[[str], None] = ignore

    @property
    def warmup(self) -> float:
        """The seconds before each timed part that are not counted."""
        return min(self.seconds / 5, 1.0)


@dataclass
class Problems:
    """The reasons why contenders have no figures, by name."""

    of: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def noted(self, name: str, end: Callable[[], str | None] = lambda: None) -> Iterator[None]:
        """Context manager: a failure inside excludes this contender; `end` tells how its server ended, if it did."""
        try:
            yield
        except Skipped as reason:
            self.of[name] = _line(SKIPPED, reason)
        except WrongReply as reason:
            self.of[name] = _line(WRONG, reason)
        except (Failed, LoadFailed, OSError) as reason:
            ended = end()
            self.of[name] = _line(FAILED, f"the server ended: {ended}" if ended else reason)


def _line(kind: str, reason: object) -> str:
    text = " ".join(str(reason).split()) or type(reason).__name__
    return f"{kind}: {text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + '…'}"


def plan(contenders: Sequence[C], rounds: int) -> list[tuple[int, C]]:
    """Order the measurements as A B C A B C …, so that a change of the machine over time affects all contenders."""
    return [(number, contender) for number in range(rounds) for contender in contenders]


def run_case(case: Case, settings: Settings) -> Table:
    """Measure the chosen contenders of a case."""
    contenders = [contender for contender in case.contenders if contender.wanted(settings.only)]
    problems = Problems()
    loads: dict[str, list[Load]] = {contender.name: [] for contender in contenders}
    entries: list[Entry] = []
    for first, rounds in enumerate([1] * settings.rounds) if case.restarts else [(0, settings.rounds)]:
        order = contenders[::-1] if first % 2 else contenders
        with Servers() as servers:
            _measure(case, order, range(first, first + rounds), settings, servers, problems, loads)
            entries = [
                _entry(each, loads[each.name], problems.of.get(each.name), servers.find(each.server))
                for each in contenders
            ]
    return Table(title=case.title, entries=tuple(entries), bases=case.bases, unit=case.unit, payload=case.payload)


def _measure(
    case: Case,
    contenders: Sequence[Contender],
    rounds: range,
    settings: Settings,
    servers: Servers,
    problems: Problems,
    loads: dict[str, list[Load]],
) -> None:
    """Start the servers and measure these rounds of all contenders; those that have a problem are left out."""
    measures = _prepared(contenders, settings, servers, problems)
    for number, contender in plan(contenders, len(rounds)):
        if contender.name in problems.of:
            continue
        settings.tell(f"{case.title}: round {rounds[number] + 1}, {contender.name}")
        with problems.noted(contender.name, servers[contender.server].end), servers.awake(contender.server):
            loads[contender.name].append(measures[contender.name](settings.seconds, settings.warmup))


def _prepared(
    contenders: Sequence[Contender], settings: Settings, servers: Servers, problems: Problems
) -> dict[str, Measure]:
    """Start, check and warm up each server; return the functions that measure them."""
    measures: dict[str, Measure] = {}
    for contender in contenders:
        if contender.name in problems.of:
            continue
        settings.tell(f"starting {contender.name}")
        with problems.noted(contender.name):
            servers.start(contender.server)
        if contender.name in problems.of:
            continue
        with problems.noted(contender.name, servers[contender.server].end), servers.awake(contender.server) as server:
            measures[contender.name] = measure = contender.load(server)
            measure(settings.warmup, 0.0)
    return measures


def _entry(contender: Contender, loads: Sequence[Load], problem: str | None, server: Running | None) -> Entry:
    return Entry(
        name=contender.name,
        figures=() if problem else tuple(load.rate * contender.calls for load in loads),
        loads=() if problem else tuple(loads),
        problem=problem,
        peak_memory=server.peak_memory() if server else None,
        versions=server.versions if server else {},
        ours=contender.ours,
        note=contender.note,
    )
