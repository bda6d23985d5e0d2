"""What the samples of a soak say: a table for people, and the reasons why it failed, if it did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

#: Samples of one process, in the order in which they were taken.
Samples = Sequence[dict[str, Any]]

#: Memory may differ by so much between the last third of the samples and the one before it: what the allocator keeps
#: of the largest messages that happened to be there at once. A leak of 100 bytes a call is ten times as much.
KIB, SHARE = 1024, 0.02

#: The same for objects: a cache or two that fill late.
OBJECTS, OBJECT_SHARE = 300, 0.005

#: Fewer samples than these say nothing about growth.
SAMPLES_MIN = 6


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """The median of the second third, and that of the last: what was warming up is left out, and so are outliers."""
    third = len(values) // 3
    return median(values[third : 2 * third]), median(values[2 * third :])


def growth(name: str, samples: Samples) -> list[str]:
    """What of one process grows."""
    found = []
    if len(samples) < SAMPLES_MIN:
        return found
    limits = {"rss": (KIB, SHARE), "objects": (OBJECTS, OBJECT_SHARE)}
    for what in ("rss", "objects", "descriptors", "connections", "tasks", "topics"):
        if what not in samples[0]:
            continue
        least, share = limits.get(what, (0, 0.0))
        before, after = thirds([sample[what] for sample in samples])
        if after - before > max(least, share * before):
            found.append(f"{name}: {what} grows, from {before:.0f} to {after:.0f}")
    return found


def reasons(processes: dict[str, Samples], features: Sequence[str]) -> list[str]:
    """Why the soak failed; nothing if it did not."""
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
    """One rest of all processes."""
    server = samples["server"]
    text = f"{seconds:6.0f} s  {server['connections']:11}  {server['requests']:9}"
    for sample in samples.values():
        text += f"   {sample['rss'] / 1024:12.1f} {sample['descriptors']:5} {sample['objects']:7}"
    return text


def summary(processes: dict[str, Samples]) -> str:
    """The medians that were compared, and what was done."""
    lines = []
    for name, samples in processes.items():
        if len(samples) >= SAMPLES_MIN:
            pairs = {what: thirds([sample[what] for sample in samples]) for what in ("rss", "descriptors", "objects")}
            text = "; ".join(f"{what} {before:.0f} -> {after:.0f}" for what, (before, after) in pairs.items())
            lines.append(f"{name}: {text} (medians of the second and the last third)")
    lines += [
        f"{name}: {', '.join(_done(samples[-1]))}" for name, samples in processes.items() if samples[-1]["counts"]
    ]
    return "\n".join(lines)


def _done(sample: dict[str, Any]) -> list[str]:
    return [f"{count} {name}" for name, count in sorted(sample["counts"].items())]
