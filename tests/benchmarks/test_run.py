"""The harness of the benchmarks with peers that are missing, wrong or broken, and its command.

Nothing here measures a time: what is loaded is a script that pretends.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from suite import measure, report
from suite.contenders import Case, Contender, OwnClient
from suite.process import Servers, Serving
from suite.results import Entry, Table, broken
from suite.topics import memory

from ..kit import until_in_thread
from .load_generator import entry, script

pytestmark = pytest.mark.slow


FAKE = """
import json, sys, time
if sys.argv[1] == "serve":
    if "missing" in sys.argv:
        print("module x is missing", file=sys.stderr)
        sys.exit(77)
    if "broken" in sys.argv:
        raise RuntimeError("no such thing")
    print(json.dumps({"port": 1, "versions": {"fake": "1.2"}}), flush=True)
    time.sleep(1000)
if "wrong" in sys.argv:
    print(json.dumps({"wrong": 1, "error": "expected 1, got 2"}))
    sys.exit(3)
if "late" in sys.argv and "0.125" in sys.argv:
    print(json.dumps({"wrong": 0, "error": "connection lost"}))
    sys.exit(4)
latency = {"p50": 1, "p90": 1, "p99": 1, "p999": 1, "max": 1}
print(json.dumps({"calls": 5, "seconds": 1, "rate": 100, "latency_us": latency, "wrong": 0, "cpu": 0.5}))
"""

SETTINGS = measure.Settings(seconds=0.125, rounds=2)


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    """Makes a contender of which everything is pretended."""
    (tmp_path / "fake_.py").write_text(FAKE)

    def make(name: str, *serve: str, load: tuple[str, ...] = (), batch: int = 1) -> Contender:
        server = Serving("fake_", serve, directory=tmp_path)
        return Contender(name=name, server=server, load=OwnClient(options=load), calls=batch)

    return make


def test_case_is_measured_and_peers_that_cannot_be_are_named(fake: Any) -> None:
    contenders = (
        fake("good", batch=10),
        fake("missing", "missing"),
        fake("broken", "broken"),
        fake("wrong", load=("wrong",)),
        fake("late", load=("late",)),
    )
    told: list[str] = []
    case = Case(title="sum", contenders=contenders, bases=("good",))
    table = measure.run_case(case, replace(SETTINGS, tell=told.append))
    good, missing, failed, wrong, late = table.entries
    assert good.figures == (1000, 1000)
    assert [one.rate for one in good.loads] == [100, 100]
    assert good.versions == {"fake": "1.2"}
    assert good.problem is None
    assert failed.problem is not None
    assert failed.problem.startswith("failed: ")
    assert failed.problem.endswith("RuntimeError: no such thing")
    assert [each.problem for each in (missing, wrong, late)] == [
        "skipped: module x is missing",
        "answers wrongly: expected 1, got 2",
        "failed: connection lost",
    ]
    assert [one.figures for one in table.entries[1:]] == [()] * 4
    assert [line for line in told if "round" in line] == [
        f"sum: round {each}" for each in ("1, good", "1, late", "2, good")
    ]
    assert broken({"t": [table]}) == []


def test_servers_of_a_case_are_started_anew_in_each_round_and_the_order_turns(fake: Any) -> None:
    told: list[str] = []
    contenders = (fake("a"), fake("b", "with an option of its own"))
    case = Case(title="sum", contenders=contenders, bases=("b",), restarts=True)
    table = measure.run_case(case, replace(SETTINGS, tell=told.append))
    first = ["starting a", "starting b", "sum: round 1, a", "sum: round 1, b"]
    assert told == [*first, "starting b", "starting a", "sum: round 2, b", "sum: round 2, a"]
    assert [(each.name, each.figures) for each in table.entries] == [("a", (100, 100)), ("b", (100, 100))]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_memory_is_what_large_echoes_take_above_the_idle_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SETTLE", 0.0)
    (table,) = memory.memory(replace(SETTINGS, rounds=1, only=frozenset({"none"})))
    for each in table.entries:
        (taken,) = each.figures
        # An array of the client's memory goes back as it is; and an idle server has some memory that it uses again.
        least = 0 if each.name == memory.UNIX else 0.9 * memory.SIZE
        assert least <= taken <= 10 * memory.SIZE
        assert (each.peak_memory or 0) > taken


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_servers_sleep_while_others_are_measured_and_end(fake: Any) -> None:
    server = fake("x").server

    def state() -> str:
        return Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[0]

    with Servers() as servers:
        servers.start(server)
        first = servers[server]
        servers.start(server)
        assert servers[server] is first
        until_in_thread(lambda: state() == "T")  # signals take a moment to arrive
        with servers.awake(server):
            until_in_thread(lambda: state() != "T")
        until_in_thread(lambda: state() == "T")
        assert (first.peak_memory() or 0) > 1 << 20
    assert not Path(f"/proc/{first.pid}").exists()


@pytest.mark.parametrize(("problem", "status"), [(None, 0), ("failed: so", 1)])
def test_command_reports_and_fails_for_ours_only(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    problem: str | None,
    status: int,
) -> None:
    run = script("run.py")
    ours = Entry(name="rpcstream", problem=problem, ours=True) if problem else entry("rpcstream", 1, ours=True)
    # What is missed by far: the target for the round trip.
    others = (entry("uvloop echo", 100), Entry(name="grpc sync", problem="failed: their own matter"))
    seen: list[measure.Settings] = []

    def topic(settings: measure.Settings) -> list[Table]:
        seen.append(settings)
        return [Table(title="sum(a: int, b: int), 1 connection", entries=(ours, *others))]

    monkeypatch.setattr(run, "TOPICS", {"small-1": topic, "page": topic})
    monkeypatch.setattr(run, "build", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    file, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text(report.page({"small-1": "of before", "other": "of before", "page": "of before"}, None))
    command = ["small-1", "--seconds", "0.5", "--rounds", "3", "--json", str(file), "--page", str(page)]
    assert run.main(command) == status
    assert (seen[0].seconds, seen[0].rounds) == (0.5, 3)
    sections = report.sections_of(page.read_text())
    assert list(sections) == ["small-1", "page"], "sections of topics that there are no more go"
    assert "\n\n```text\nsum(a: int, b: int), 1 connection\n" in sections["small-1"]
    assert sections["page"] == "of before"
    printed = capsys.readouterr()
    assert "grpc sync    failed: their own matter" in printed.out
    assert ("NOT MET" in printed.out) == (problem is None)
    assert ("rpcstream: failed: so" in printed.err) == (problem is not None)
    document = json.loads(file.read_text())
    assert set(document) == {"date", "seconds", "rounds", "versions", "machine", "topics", "targets"}
