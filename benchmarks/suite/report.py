"""The report: tables as text, and all results as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .results import Entry, Results, Spread, Table, ratio, spread
from .targets import Verdict

MIB = 1024 * 1024

LEGEND = """\
Medians of the rounds, with the least and the greatest beside them. "of X": the figure by that of X in the same round.
load cpu: the share of the time that the load generator was on its processor; near 100 % it may be the bottleneck,
not the server. peak MiB: the most memory that the server held."""


#: A part of the page.
HOW_TO_RUN = """\
## How to run it

`pip install '.[bench]'`, a C compiler, and `python benchmarks/run.py`; `--list` names topics and peers, `--page FILE`
writes this page, or, with the names of topics, their sections in it. Servers have one processor, loads another one; all
contenders of a table are measured in turn, round by round, and the ratios of the rounds are what counts. Medians of
five rounds are the default.

Arrays and pictures alone, and small calls beside those of another checkout:

```text
git worktree add ../before HEAD~1
python benchmarks/run.py array array-unix array-hub array-memory image photo before \\
    --only grpc-sync,flight,zmq --against ../before
```

| topic | measured | beside |
|---|---|---|
| `array` | 64 KiB, 1 MiB and 16 MiB of float32 there and back over TCP | Arrow Flight, pyzmq, grpc sync |
| `array-unix` | 1 MiB and 16 MiB over a Unix socket | pyzmq over ipc |
| `array-hub` | 1 MiB through a hub | the provider called directly |
| `array-memory` | what the echo of 16 MiB takes of a server above its idle memory | the array; other servers |
| `image` | an image of 640 x 480 by our client with default options | the load from C with bytes that are ready |
| `photo` | a JPEG file of 12 megapixels by `Image.open(path)`, by its path | its bytes, opened by the handler or not |
| `metrics` | small calls on a server with `metrics=True` | without |
| `workers` | a handler of 5 ms of Python on two workers | on one |
| `nats` | over NATS: small calls, 1 MiB by claim ticket and in messages | nats-py alone; calls without NATS |
| `before` | small calls without arrays; only with `--against PATH` | the package of another checkout |
"""


def number(value: float) -> str:
    """Format a number with three digits; very small ones with two."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def span(measured: Spread) -> str:
    """Format a spread as `0.72 (0.70..0.75)`; a single round as its figure alone."""
    if measured.low == measured.high:
        return number(measured.median)
    return f"{number(measured.median)} ({number(measured.low)}..{number(measured.high)})"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, the first one to the left; the last cell of a shorter row may have any length."""
    columns = len(rows[0])
    widths = [0] * columns
    for row in rows:
        for column, cell in enumerate(row if len(row) == columns else row[:-1]):
            widths[column] = max(widths[column], len(cell))
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    whole = len(row) == len(widths)
    cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
    cells[0] = row[0].ljust(widths[0])
    return "  ".join(cells if whole else [*cells[:-1], row[-1]]).rstrip()


def table_text(table: Table) -> str:
    """Format a table for a terminal. A contender that was not measured has the reason in place of its figures."""
    loaded = any(entry.loads for entry in table.entries)
    head = ["", table.unit, *(["MiB/s"] if table.payload else []), *(["p50 us", "p99 us"] if loaded else [])]
    head += [f"of {base}" for base in table.bases] + (["load cpu"] if loaded else []) + ["peak MiB"]
    rows = [head, *(_row(table, entry, loaded) for entry in table.entries)]
    return "\n".join([table.title, aligned(rows), *_notes(table)])


def _notes(table: Table) -> list[str]:
    """List the notes, each once, with the names of its contenders."""
    names: dict[str, list[str]] = {}
    for entry in table.entries:
        if entry.note and not entry.problem:
            names.setdefault(entry.note, []).append(entry.name)
    return [f"  {', '.join(who)}: {note}" for note, who in names.items()]


def _row(table: Table, entry: Entry, loaded: bool) -> list[str]:
    if entry.problem is not None or not entry.figures:
        return [entry.name, entry.problem or "not measured"]
    row = [entry.name, span(spread(entry.figures))]
    if table.payload:
        row.append(number(statistics.median(entry.figures) * table.payload / MIB))
    if loaded:
        row += [_latency(entry, "p50"), _latency(entry, "p99")]
    for base in table.bases:
        figures = table.figures(base)
        row.append(span(ratio(entry.figures, figures)) if figures else "-")
    if loaded:
        row.append(f"{statistics.median(load.cpu for load in entry.loads):.0%}" if entry.loads else "-")
    return [*row, "-" if entry.peak_memory is None else number(entry.peak_memory / MIB)]


def _latency(entry: Entry, name: str) -> str:
    if not entry.loads:
        return "-"
    return number(statistics.median(getattr(load.latency_us, name) for load in entry.loads))


def targets_text(verdicts: Sequence[Verdict]) -> str:
    """Format the targets as a table: case, target, measured, met or not."""
    rows: list[Sequence[str]] = [["target", "wanted", "measured", ""]]
    for verdict in verdicts:
        target = verdict.target
        if verdict.measured is None:
            rows.append([target.case, target.text, f"not measured: {verdict.why}"])
        else:
            rows.append([target.case, target.text, span(verdict.measured), "met" if verdict.met else "NOT MET"])
    return aligned(rows)


def section(caption: str, tables: str, targets: str) -> str:
    """Make the part of the page about one topic, without its heading.

    Args:
        caption: where and when it was measured, and how.
        tables: the text of its tables.
        targets: the text of `targets_text` for its targets; empty for none.
    """
    parts = [caption, _fenced(tables)]
    if targets:
        parts.append(_fenced(targets))
    return "\n\n".join(parts)


def sections_of(text: str) -> dict[str, str]:
    """The sections of a page that was made before, by topic."""
    parts = text.partition(LEGEND)[2].split("\n## ")[1:]
    return {topic: body.strip("\n") for topic, _, body in (part.partition("\n") for part in parts)}


def page(sections: Mapping[str, str], picture: str | None) -> str:
    """Make a page of the documentation, in Markdown.

    Args:
        sections: of the topics, in order; each as of `section`.
        picture: its path, relative to the page.
    """
    parts = [
        "# Benchmarks",
        "Made by `benchmarks/run.py --page benchmarks/RESULTS.md --plot docs/reference/benchmarks.svg`; not edited by"
        " hand. Each topic says when it was measured.",
    ]
    if picture:
        parts.append(f"![small calls as a share of a bare echo, arrays as throughput]({picture})")
    parts += [HOW_TO_RUN.rstrip(), LEGEND]
    for topic, text in sections.items():
        parts += [f"## {topic}", text]
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def document(
    results: Results, verdicts: Sequence[Verdict], machine: Mapping[str, object], run: Mapping[str, object]
) -> dict[str, Any]:
    """Return all results as JSON values. `run` has the date, seconds, rounds and versions."""
    return {
        **run,
        "machine": dict(machine),
        "topics": {topic: [_table(table) for table in tables] for topic, tables in results.items()},
        "targets": [_verdict(verdict) for verdict in verdicts],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "unit": table.unit,
        "payload": table.payload,
        "bases": list(table.bases),
        "entries": [_entry(table, entry) for entry in table.entries],
    }


def _entry(table: Table, entry: Entry) -> dict[str, Any]:
    shares = {base: table.figures(base) for base in table.bases if entry.figures and table.figures(base)}
    return {
        "name": entry.name,
        "figure": spread(entry.figures)._asdict() if entry.figures else None,
        "shares": {base: ratio(entry.figures, figures)._asdict() for base, figures in shares.items()},
        "rounds": list(entry.figures),
        "loads": [dataclasses.asdict(load) for load in entry.loads],
        "peak_memory": entry.peak_memory,
        "problem": entry.problem,
        "note": entry.note,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    target = verdict.target
    return {
        "case": target.case,
        "sense": target.sense,
        "bound": target.bound,
        "unit": target.unit,
        "measured": verdict.measured._asdict() if verdict.measured else None,
        "met": verdict.met,
        "why": verdict.why,
    }


def peer_versions(results: Results) -> dict[str, str]:
    """Return the versions of all peers that took part, from their ready lines."""
    entries = [entry for tables in results.values() for table in tables for entry in table.entries]
    return dict(sorted({name: version for entry in entries for name, version in entry.versions.items()}.items()))
