"""Measure rpcstream beside the limits and other libraries: `python benchmarks/run.py [TOPIC ...]`, all without topics.

Every server is a process of its own, on one core, the load on another; rounds in turn; every reply is checked. Ends
with status 1 when something of rpcstream's own did not work; what a peer does, or a missed target, is only reported.
Short, to see that it works: `--seconds 0.1 --rounds 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from suite import machine, plot, report
from suite.contenders import peers
from suite.load import LoadFailed, build
from suite.measure import Settings
from suite.results import Results, broken
from suite.targets import TARGETS, Verdict, evaluate
from suite.topics import TOPICS


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="*", help="what to measure (all); --list names them")
    add("--seconds", type=float, default=1.0, help="that a round of each contender takes (%(default)s)")
    add("--rounds", type=int, default=5, help="of all contenders in turn (%(default)s)")
    add("--only", metavar="PEER,...", default="", help="of the peers only these; ours and the bare echoes always")
    add("--connections", type=int, help="that are idle in the topic idle (10000, in short runs 500)")
    add(
        "--against",
        metavar="PATH",
        type=Path,
        help="another checkout, with which the topic before compares small calls",
    )
    add("--json", metavar="FILE", type=Path, help="write everything there, too")
    add("--plot", metavar="FILE", type=Path, help="draw a picture, .svg or .png; needs matplotlib")
    add("--page", metavar="FILE", type=Path, help="write the tables as a page in Markdown, with the picture of --plot")
    add("--list", action="store_true", help="name the topics and the peers")
    return parser


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    options.only = frozenset(filter(None, options.only.split(",")))
    for kind, given, known in (("topic", options.topics, list(TOPICS)), ("peer", options.only, peers())):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"no {kind} {', '.join(unknown)}; there are {', '.join(known)}")
    if options.against is None:
        if "before" in options.topics:
            parser.error("the topic before needs another checkout: --against PATH")
    elif problem := not_another_checkout(options.against):
        parser.error(f"--against {options.against}: {problem}")
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds must be over 0, --rounds at least 1")
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return options


def not_another_checkout(path: Path) -> str | None:
    """Say why there is nothing to compare with at this path; None where there is."""
    import rpcstream

    package = path / "rpcstream"
    if not (package / "__init__.py").is_file():
        return "no package rpcstream lies there"
    return "that is the one that is measured" if package.samefile(Path(rpcstream.__file__).parent) else None


def tell(text: str) -> None:
    """Show progress on one line of the terminal; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}"[:118])
        sys.stderr.flush()


def measure(options: argparse.Namespace) -> Results:
    """Measure the chosen topics, and print each table as soon as it is complete."""
    settings = Settings(
        seconds=options.seconds,
        rounds=options.rounds,
        connections=options.connections,
        only=options.only,
        against=options.against and options.against.resolve(),
        tell=tell,
    )
    results = {}
    everything = [topic for topic in TOPICS if topic != "before" or options.against]
    for topic in options.topics or everything:
        began = monotonic()
        results[topic] = tables = TOPICS[topic](settings)
        tell("")
        print(f"== {topic} ({monotonic() - began:.0f} s)", *map(report.table_text, tables), sep="\n\n", end="\n\n")
        sys.stdout.flush()
    return results


def write_page(options: argparse.Namespace, results: Results, verdicts: Sequence[Verdict], caption: str) -> None:
    """Write the page; sections of topics that were not measured now stay as they are in it."""
    sections = report.sections_of(options.page.read_text()) if options.page.exists() else {}
    for topic, tables in results.items():
        own = [verdict for verdict in verdicts if verdict.target.topic == topic]
        targets = report.targets_text(own) if own else ""
        sections[topic] = report.section(caption, "\n\n".join(map(report.table_text, tables)), targets)
    ordered = {topic: sections[topic] for topic in TOPICS if topic in sections}
    picture = options.plot or options.page.with_suffix(".svg")
    path = os.path.relpath(picture, options.page.parent) if picture.exists() else None
    options.page.write_text(report.page(ordered, path))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.list:
        print("topics:", *TOPICS, "\npeers: ", *peers())
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):  # so that all servers are stopped
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        build()
    except LoadFailed as error:
        print(error, file=sys.stderr)
        return 1
    date = datetime.now(UTC).isoformat(timespec="seconds")
    results = measure(options)
    verdicts = [evaluate(target, results) for target in TARGETS if target.topic in results]
    print(report.LEGEND)
    if verdicts:
        print("", report.targets_text(verdicts), sep="\n")
    run = {
        "date": date,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "versions": machine.versions() | report.peer_versions(results),
    }
    if options.json:
        document = report.document(results, verdicts, machine.describe(), run)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if options.plot and not plot.draw(results, plot.caption(machine.describe(), run), options.plot):
        print("\nNo picture: none of the topics in it was measured", file=sys.stderr)
    if options.page:
        write_page(options, results, verdicts, plot.caption(machine.describe(), run))
    faults = broken(results)
    if faults:
        print("\nOf ours, this did not work:", *faults, sep="\n  ", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
