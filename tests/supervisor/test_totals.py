"""Counters of several workers, added up."""

from __future__ import annotations

import pytest

from rpcstream.observe.counters import BatchCounters
from rpcstream.supervisor.totals import Totals, add

pytestmark = pytest.mark.slow


def test_the_counters_of_batches_are_those_of_one_process_that_had_run_them_all() -> None:
    waits = [[0.5, 0.25, 0.25], [1.0], [0.125, 0.125]]
    whole, parts = BatchCounters(), [BatchCounters(), BatchCounters(), BatchCounters()]
    for each, part in zip(waits, parts, strict=True):
        whole.count_run(each)
        part.count_run(each)
    total: dict[str, object] = {}
    for part in parts:
        total = add(total, {"batched": {"method": part.as_dict()}})
    assert total == {"batched": {"method": whole.as_dict()}}


def test_what_a_worker_has_counted_stays_when_it_ends_but_its_connections_do_not() -> None:
    totals = Totals()
    totals.add_past({"requests": 5, "connections": 2, "subscriptions": 1})
    assert totals.sum([{"requests": 1, "connections": 3, "subscriptions": 0}]) == {
        "requests": 6,
        "connections": 3,
        "subscriptions": 0,
    }
