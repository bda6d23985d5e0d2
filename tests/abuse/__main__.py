"""Every attack in full, with a table of what each cost: `python -m tests.abuse [NUMBER …] [--page PAGE]`.

Ends with status 1 when one is over its budget.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .harness import MIB, Report, all_attacks, run

#: Between these lines of a page the table is put.
BEGIN, END = "<!-- table -->", "<!-- end of table -->"

HEADING = (
    "| | attack | wait, processor s (allowed) | by the clock, s (quiet) | memory, MiB (allowed) | log, KiB (allowed) |"
    "\n"
    "|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("wanted", nargs="*", help="numbers or names; all where none is given")
    parser.add_argument("--variants", action="store_true", help="only those that the test suite leaves out")
    parser.add_argument("--short", action="store_true", help="as in the test suite: less work, three times the wait")
    parser.add_argument("--page", type=Path, help="put the table into this page")
    options = parser.parse_args()
    attacks = [
        each
        for each in all_attacks()
        if (not options.wanted or str(each.number) in options.wanted or each.name in options.wanted)
        and not (options.variants and each.in_suite)
    ]
    rows, failed = [], 0
    print(HEADING, flush=True)
    for each in attacks:
        report = run(each, whole=not options.short)
        rows.append(row_of(report))
        print(rows[-1], flush=True)
        for problem in report.problems:
            print(f"    {each.name}: {problem}", flush=True)
        failed += bool(report.problems)
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, behind = rest.partition(END)
        options.page.write_text(
            "\n".join((before + BEGIN, HEADING, *rows, END + behind)),
            encoding="utf-8",
        )
    print(f"{len(attacks) - failed} of {len(attacks)} within their budgets")
    return 1 if failed else 0


def row_of(report: Report) -> str:
    """One line of the table."""
    of = report.attack
    return (
        f"| {of.number} | {of.title} | {report.held:.3f} ({report.allowed:.2f}) "
        f"| {report.longest:.3f} ({report.quiet:.4f}) "
        f"| {report.memory / MIB:.1f} ({of.memory / MIB:.0f}) "
        f"| {report.log / 1024:.1f} ({of.log / 1024:.0f}) |"
    )


if __name__ == "__main__":
    sys.exit(main())
