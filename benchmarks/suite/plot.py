"""The picture of the results: small calls as a share of the bare echo, arrays as throughput, photos as calls/s.

Imports matplotlib when a picture is drawn.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .contenders import ECHOES, RPCSTREAM, UVLOOP_ECHO
from .report import MIB, number
from .results import Results, Table
from .topics import large

COLUMNS = 3
WIDTH, BAR, EDGE = 4.8, 0.2, 1.0  # inches: of a panel, for each bar in it, for its title and scale
OURS, LIMIT, OTHER, TEXT = "#0b6fb8", "#9aa0a6", "#c9d7e3", "#333333"
LIMITS = frozenset({*ECHOES, large.BARE})
#: The greatest figure over the least, from which bars are drawn on a logarithmic scale.
WIDE = 30
SHARES = ("small-1", "small-32", "small-1000", "pipelined", "login")


class Panel(NamedTuple):
    """Bars from the longest to the shortest, and the contenders without a bar, with the reason."""

    title: str
    unit: str
    bars: list[tuple[str, float]]
    absent: list[str]


def panels(results: Results) -> list[Panel]:
    """Select the results that are drawn."""
    found = [_shares(table) for topic in SHARES for table in results.get(topic, ())]
    found += [_figures(table, 1, "calls/s") for table in results.get("image", ())]
    found += [_figures(table, table.payload / MIB, "MiB/s there and back") for table in results.get("array", ())]
    return [panel for panel in found if panel.bars]


def _shares(table: Table) -> Panel:
    base = table.figures(UVLOOP_ECHO)
    if not base:
        return _figures(table, 1, "calls/s")
    return _figures(table, 100 / statistics.median(base), f"% of the calls of a bare {UVLOOP_ECHO}")


def _figures(table: Table, factor: float, unit: str) -> Panel:
    bars = [(entry.name, statistics.median(entry.figures) * factor) for entry in table.entries if entry.figures]
    absent = [
        f"{entry.name}: {entry.problem.partition(':')[0]}" for entry in table.entries if entry.problem is not None
    ]
    return Panel(table.title, unit, sorted(bars, key=lambda bar: -bar[1]), absent)


def draw(results: Results, caption: str, file: Path) -> bool:
    """Write the picture in the format of the file's ending; False if there is nothing to draw."""
    shown = panels(results)
    if not shown:
        return False
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rpcstream", "font.size": 8.5})
    from matplotlib import pyplot

    columns = min(COLUMNS, len(shown))
    rows = [shown[at : at + columns] for at in range(0, len(shown), columns)]
    longest = [max(len(panel.bars) for panel in row) for row in rows]
    figure, axes = pyplot.subplots(
        len(rows),
        columns,
        figsize=(WIDTH * columns, sum(EDGE + BAR * bars for bars in longest)),
        height_ratios=[EDGE + BAR * bars for bars in longest],
        squeeze=False,
        layout="constrained",
    )
    for row, bars, row_axes in zip(rows, longest, axes, strict=True):
        for panel, axis in zip(row, row_axes, strict=False):
            _draw_panel(panel, bars, axis)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    figure.supxlabel(textwrap.fill(caption, 60 * columns), fontsize=7, color=TEXT)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)
    return True


def _draw_panel(panel: Panel, bars: int, axis: Any) -> None:
    """Draw one panel, with room for a given number of bars, so that the bars of all panels are equally thick."""
    names = [name for name, _ in panel.bars]
    values = [value for _, value in panel.bars]
    drawn = axis.barh(names, values, color=[_colour(name) for name in names], height=0.72)
    axis.bar_label(drawn, [number(value) for value in values], padding=3, fontsize=7.5, color=TEXT)
    if max(values) > WIDE * min(values):
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 2, max(values) * 4)
    else:
        axis.set_xlim(0, max(values) * 1.2)
    axis.set_ylim(bars - 0.4, -0.6)
    axis.set_title(panel.title, fontsize=8.5, loc="left")
    axis.set_xlabel("\n".join([panel.unit, *panel.absent]), fontsize=7.5, color=TEXT)
    axis.spines[["top", "right"]].set_visible(False)
    for label in axis.get_yticklabels():
        if label.get_text().startswith(RPCSTREAM):
            label.set_fontweight("bold")


def _colour(name: str) -> str:
    if name in LIMITS:
        return LIMIT
    return OURS if name.startswith(RPCSTREAM) else OTHER


def caption(machine: Mapping[str, object], run: Mapping[str, Any]) -> str:
    """Make the caption: the machine, the date and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    head = f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}; {run['date'][:10]}"
    return f"{head}; medians of {run['rounds']} rounds of {run['seconds']:g} s; {versions}"
