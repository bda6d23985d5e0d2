"""Finds what refers to itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter


def in_cycles(references: Mapping[str, Collection[str]]) -> set[str]:
    """The names that refer to themselves, directly or through others, and those that refer to such names.

    Args:
        references: by name, the names that it refers to.
    """
    sorter = TopologicalSorter(references)
    left = set(references)
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        left.difference_update(ready)
        sorter.done(*ready)
    return left
