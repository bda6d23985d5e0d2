"""The pure part of the harness: medians, ratios and targets from figures, and the messages that calls send."""

from __future__ import annotations

import json
import os
import xmlrpc.client
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite import calls, measure, report, targets
from suite.contenders import Case
from suite.results import Entry, Spread, Table, broken, ratio, spread
from suite.templates import fill
from suite.topics import TOPICS, before, large

from rpcstream import Client, Server
from rpcstream.testing import serve_in_thread

from .load_generator import entry, script

pytestmark = pytest.mark.slow


def test_what_is_ours_must_work() -> None:
    ours, theirs = Entry(name="rpcstream", problem="failed: so", ours=True), Entry(name="grpc", problem="failed: so")
    skipped = Entry(name="java", problem="skipped: no JDK", ours=True)
    table = Table(title="sum", entries=(ours, theirs, skipped))
    assert broken({"small": [table]}) == ["small, sum: rpcstream: failed: so"]


def test_spread_has_the_median_and_the_ends() -> None:
    assert spread([5, 1, 3]) == Spread(3, 1, 5)
    assert spread([4, 2]) == Spread(3, 2, 4)
    with pytest.raises(ValueError, match="no figures"):
        spread([])


def test_ratio_is_taken_round_by_round() -> None:
    # The machine was half as fast in the second round, for both.
    assert ratio([100, 50, 110], [200, 100, 200]) == Spread(0.5, 0.5, 0.55)
    with pytest.raises(ValueError, match="zip"):
        ratio([1], [1, 2])


def target(**changes: Any) -> targets.Target:
    one = targets.Target(case="c", topic="t", title="x", entry="us", base="them", bound=2, sense="at least")
    return replace(one, **changes)


def results(*entries: Entry) -> dict[str, list[Table]]:
    return {"t": [Table(title="x", entries=entries)]}


@pytest.mark.parametrize(
    ("changes", "measured", "met"),
    [
        ({}, Spread(3, 2, 4), True),
        ({"bound": 3.5}, Spread(3, 2, 4), False),
        ({"sense": "at most", "inverse": True, "bound": 0.5}, Spread(1 / 3, 0.25, 0.5), True),
        ({"sense": "at most", "inverse": True, "bound": 0.3}, Spread(1 / 3, 0.25, 0.5), False),
        ({"base": None, "sense": "at most", "bound": 2, "scale": 10}, Spread(3, 2, 4), False),
        ({"base": None, "sense": "at most", "bound": 3, "scale": 10}, Spread(3, 2, 4), True),
    ],
)
def test_target_is_judged_by_the_median(changes: dict[str, Any], measured: Spread, met: bool) -> None:
    verdict = targets.evaluate(target(**changes), results(entry("us", 20, 30, 40), entry("them", 10, 10, 10)))
    assert verdict == targets.Verdict(target(**changes), measured, met)


def test_every_target_names_a_topic_and_contenders_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[tuple[str, str], set[str]] = {}

    def remember(topic: str) -> Any:
        def run_case(case: Case, settings: measure.Settings) -> Table:
            names[topic, case.title] = {contender.name for contender in case.contenders}
            assert set(case.bases) <= names[topic, case.title]
            return Table(title=case.title, entries=())

        return run_case

    for topic, make in TOPICS.items():
        if topic not in ("idle", "startup", "java", "array-memory", "workers"):
            monkeypatch.setattr("suite.topics.run_case", remember(topic))
            make(measure.Settings(against=Path("elsewhere")))
    for one in targets.TARGETS:
        if one.topic in ("idle", "startup", "array-memory", "workers"):
            continue
        assert {one.entry, one.base or one.entry} <= names[one.topic, one.title], one.case


def test_small_calls_are_compared_with_the_package_of_another_checkout_only(tmp_path: Path) -> None:
    assert before.before(None) == []
    for case in before.before(tmp_path):
        assert case.restarts
        ours, theirs = (contender.server for contender in case.contenders)
        assert ours.environment() == os.environ
        assert theirs.environment() == {**os.environ, "PYTHONPATH": str(tmp_path)}
        assert ours.command() == theirs.command()
        first, second = (contender.load for contender in case.contenders)
        assert (first.shape, getattr(first, "request", "")) == (second.shape, getattr(second, "request", ""))


def test_table_shows_figures_shares_and_reasons() -> None:
    table = Table(
        title="sum",
        bases=("echo",),
        entries=(
            entry("rpcstream", 900, 1000, 1100, peak_memory=3 * 1024 * 1024),
            entry("echo", 2000, 2000, 2000),
            Entry(name="ucall", problem="answers wrongly: expected 1, got 2", note="not shown"),
            entry("other", 1, 1, 1, note="with its client"),
            entry("more", 1, 1, 1, note="with its client"),
        ),
    )
    assert report.table_text(table).splitlines() == [
        "sum",
        "                      calls/s  p50 us  p99 us               of echo  load cpu  peak MiB",
        "rpcstream  1,000 (900..1,100)    80.0     120  0.500 (0.450..0.550)       50%      3.00",
        "echo                    2,000    80.0     120                  1.00       50%         -",
        "ucall      answers wrongly: expected 1, got 2",
        "other                    1.00    80.0     120                0.0005       50%         -",
        "more                     1.00    80.0     120                0.0005       50%         -",
        "  other, more: with its client",
    ]


def test_requests_say_the_number() -> None:
    request = {"jsonrpc": "2.0", "id": 2000000, "method": "sum", "params": [2000000, 1]}
    assert json.loads(fill(calls.line(calls.SUM), 2000000)) == request
    assert json.loads(fill(calls.named(calls.LOGIN), 2000000))["user"] == "user2000000"
    assert xmlrpc.client.loads(fill(calls.xml_request(calls.SUM), 2000000)) == ((2000000, 1), "sum")
    assert xmlrpc.client.loads(fill(calls.xml_reply(calls.SUM), 2000000))[0] == (2000001,)
    head, body = calls.post("/x", b"abc").split(b"\r\n\r\n")
    assert (b"Content-Length: 3" in head, body) == (True, b"abc")


def test_wrong_results_do_not_fit() -> None:
    members = json.loads(fill(calls.batch(100), 2000000))
    assert len({member["id"] for member in members}) == 100
    replies = [{"jsonrpc": "2.0", "id": one["id"], "result": one["params"][0] + 1} for one in members]
    fits = calls.fits_batch(100)
    assert fits(replies[::-1], 2000000)
    for wrong in (replies[1:], [*replies[1:], replies[1]], [{**replies[0], "result": 0}, *replies[1:]]):
        assert not fits(wrong, 2000000)
    assert calls.fits_reply(calls.SUM)({"jsonrpc": "2.0", "id": 5, "result": 6}, 5)
    assert not calls.fits_reply(calls.SUM)({"jsonrpc": "2.0", "id": 6, "result": 6}, 5)
    assert [calls.fits_result(calls.SUM)(result, 5) for result in (6, 6.0, 7)] == [True, False, False]


def test_bare_exchanges_carry_the_bytes_of_our_client() -> None:
    server, sent, frames = Server(), [], []
    server.add(lambda array: None, name="echo")
    server.add(lambda a, b: a + b, name="sum")
    array = np.arange(4000, dtype=np.float32)
    lines = script("peers/bare_call.py").Lines(None)
    with (
        serve_in_thread(server) as address,
        Client(address, trace=lambda way, data: sent.append((way, bytes(data))), binary=False) as client,
        Client(address, trace=lambda way, data: frames.append(bytes(data))) as binary,
    ):
        client.sum(1000000, 1)
        client.echo(array)
        for _ in range(3):
            binary.echo(array)
    # A trace shows the JSON of a frame, and the sizes of its payloads.
    shown = next(data.partition(b" + payloads of ") for data in frames if b" + payloads of " in data)
    sizes = [b"@%d" % (len(shown[0]) + 1), shown[2].split()[0]]  # with the line end
    assert sizes == large.our_frame("echo", array).split()[:2]
    requests = [data.rstrip(b"\n") + b"\n" for way, data in sent if way == "send"]
    assert requests[0] == lines.ask(0)[0]
    assert len(requests[1]) == len(large.our_request("echo", array))
    replies = [data.rstrip(b"\n") + b"\n" for way, data in sent if way == "receive"]
    assert lines.fits(0, replies[0])
