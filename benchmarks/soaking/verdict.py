"""Evaluate the samples of a soak: a table, and the reasons for a failure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

#: Samples of one process, in the order in which they were taken.
Samples = Sequence[dict[str, Any]]

#: Fewer samples than these say nothing about growth.
SAMPLES_MIN = 6


class Allowance(NamedTuple):
    """How far a figure may rise: by `least` or by this share of it, whichever is more, and once by `step` besides."""

    least: float = 0
    share: float = 0.0
    step: float = 0

    def of(self, before: float) -> float:
        return max(self.least, self.share * before)


#: What is looked at. Memory in KiB: what the allocator keeps of the largest messages that happened to be there at once.
#: CPython takes memory for small objects in arenas of 1 MiB, and glibc for large ones by the page: the one object too
#: many is a step. A leak of 100 bytes a call is ten times as much in five minutes, and not one step. What is in use
#: inside is counted besides, in KiB (`malloc`) and in blocks (`blocks`), where much less is growth: a cache or two that
#: fill late, and their tables, which double.
ALLOWED = {
    "rss": Allowance(1024, 0.02, step=4096),
    "malloc": Allowance(256, 0.01, step=2048),
    "blocks": Allowance(500, 0.003, step=2000),
    "objects": Allowance(300, 0.005),
    "descriptors": Allowance(),
    "connections": Allowance(),
    "tasks": Allowance(),
    "topics": Allowance(),
}


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the second and of the last third, which leaves out the warm-up and outliers."""
    third = len(values) // 3
    return median(values[third : 2 * third]), median(values[2 * third :])


def rise_without_one_step(values: Sequence[float]) -> float:
    """Compute how far the values rise after the first third, without the largest rise between quarters of that time.

    For even growth that is as much as the difference of the `thirds`; for a single step, at any time, it is 0.
    """
    late = values[len(values) // 3 :]
    edges = [len(late) * quarter // 4 for quarter in range(5)]
    medians = [median(late[start:end]) for start, end in pairwise(edges)]
    return medians[-1] - medians[0] - max(after - before for before, after in pairwise(medians))


def growth(name: str, samples: Samples) -> list[str]:
    """List the figures of one process that grow more than they may."""
    found = []
    if len(samples) < SAMPLES_MIN:
        return found
    for what, allowed in ALLOWED.items():
        if what not in samples[0]:
            continue
        values = [sample[what] for sample in samples]
        before, after = thirds(values)
        most = allowed.of(before)
        if after - before > most + allowed.step:
            found.append(f"{name}: {what} grows, from {before:.0f} to {after:.0f}")
        elif allowed.step and (rise := rise_without_one_step(values)) > most:
            found.append(
                f"{name}: {what} grows, from {before:.0f} to {after:.0f}, by {rise:.0f} without the largest step"
            )
    return found


def reasons(processes: dict[str, Samples], features: Sequence[str]) -> list[str]:
    """List the reasons why the soak failed; empty if it passed."""
    found = []
    counts: dict[str, int] = {}
    for name, samples in processes.items():
        for number, sample in enumerate(samples, 1):
            found += [f"{name}: left over at rest {number}: {what}" for what in sample["left"]]
        found += [f"{name}: {what}" for what in samples[-1]["wrong"]]
        found += growth(name, samples)
        counts.update(samples[-1]["counts"])
    return found + [f"never succeeded: {name}" for name in features if not counts.get(name)]


def heading(names: Sequence[str]) -> str:
    return "   time  connections   requests" + "".join(f"   {name + ': MiB':>12} files objects" for name in names)


def row(seconds: float, samples: dict[str, dict[str, Any]]) -> str:
    """Format the samples of one rest, of all processes, as a row."""
    server = samples["server"]
    text = f"{seconds:6.0f} s  {server['connections']:11}  {server['requests']:9}"
    for sample in samples.values():
        text += f"   {sample['rss'] / 1024:12.1f} {sample['descriptors']:5} {sample['objects']:7}"
    return text


def summary(processes: dict[str, Samples]) -> str:
    """Format the compared medians, and how often each feature ran."""
    lines = []
    for name, samples in processes.items():
        if len(samples) >= SAMPLES_MIN:
            shown = [what for what in ("rss", "malloc", "blocks", "descriptors", "objects") if what in samples[0]]
            pairs = {what: thirds([sample[what] for sample in samples]) for what in shown}
            text = "; ".join(f"{what} {before:.0f} -> {after:.0f}" for what, (before, after) in pairs.items())
            lines.append(f"{name}: {text} (medians of the second and the last third)")
    lines += [
        f"{name}: {', '.join(_done(samples[-1]))}" for name, samples in processes.items() if samples[-1]["counts"]
    ]
    return "\n".join(lines)


def _done(sample: dict[str, Any]) -> list[str]:
    return [f"{count} {name}" for name, count in sorted(sample["counts"].items())]
