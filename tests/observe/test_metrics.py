"""The text of metrics: families, labels, histograms, what the system tells of the process; as Prometheus reads it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rpcstream.observe.metrics import (
    BOUNDS,
    MAX_MEMBER_METHODS,
    MAX_OWN_CODES,
    OTHER,
    UNKNOWN,
    CallMetrics,
    Family,
    Sample,
    process_families,
    render,
)

from .reading import check_with_promtool, value


def calls_of(*known: str, offered: frozenset[str] = frozenset()) -> CallMetrics:
    return CallMetrics(frozenset(known).__contains__, [-32601, -32602], is_offered=offered.__contains__)


def test_a_call_counts_in_its_outcome_and_in_each_bucket_from_its_duration_on() -> None:
    calls = calls_of("sum")
    calls.ended("sum", 0, 0.0002)
    calls.ended("sum", -32602, 3.0)
    text = render(calls.families())
    assert value(text, "calls_total", method="sum", code="0") == 1
    assert value(text, "calls_total", method="sum", code="-32602") == 1
    counts = [value(text, "call_duration_seconds_bucket", method="sum", le=str(bound)) for bound in BOUNDS]
    assert counts == [0 if bound < 0.0002 else 1 if bound < 3 else 2 for bound in BOUNDS]
    assert value(text, "call_duration_seconds_bucket", method="sum", le="+Inf") == 2
    assert value(text, "call_duration_seconds_count", method="sum") == 2
    assert value(text, "call_duration_seconds_sum", method="sum") == pytest.approx(3.0002)


@pytest.mark.parametrize("seconds", [0.0, *BOUNDS, 11.0])
def test_a_duration_on_a_bound_belongs_to_the_bucket_of_that_bound(seconds: float) -> None:
    calls = calls_of("f")
    calls.ended("f", 0, seconds)
    text = render(calls.families())
    first = next(
        (bound for bound in BOUNDS if value(text, "call_duration_seconds_bucket", method="f", le=str(bound))), 11.0
    )
    assert first == max(seconds, BOUNDS[0])


def test_a_refused_call_has_an_outcome_and_no_duration() -> None:
    calls = calls_of("f")
    calls.refused("f", -32601)
    text = render(calls.families())
    assert value(text, "calls_total", method="f", code="-32601") == 1
    assert value(text, "calls_total", method="f", code="0") == 0
    assert value(text, "call_duration_seconds_count", method="f") == 0


def test_names_that_callers_make_up_are_one_label() -> None:
    calls = calls_of("f")
    for number in range(10_000):
        calls.ended(f"made up {number}", -32601, 0.0)
    calls.ended(["no", "name"], -32601, 0.0)
    assert list(calls.by_method) == [UNKNOWN]
    assert value(render(calls.families()), "calls_total", method=UNKNOWN, code="-32601") == 10_001


def test_methods_that_members_offer_have_labels_up_to_a_limit() -> None:
    names = [f"m{number}" for number in range(MAX_MEMBER_METHODS + 500)]
    calls = calls_of(offered=frozenset(names))
    for name in names + names[:1]:
        calls.ended(name, 0, 0.0)
    assert len(calls.by_method) == MAX_MEMBER_METHODS + 1
    text = render(calls.families())
    assert value(text, "calls_total", method=OTHER, code="0") == 500
    assert value(text, "calls_total", method="m0", code="0") == 2


def test_codes_of_handlers_have_labels_up_to_a_limit() -> None:
    calls = calls_of("f")
    for code in range(1, MAX_OWN_CODES + 101):
        calls.ended("f", code, 0.0)
        calls.ended("f", -32602, 0.0)
    errors = calls.by_method["f"].errors
    assert len(errors) == MAX_OWN_CODES + 2
    assert (errors[OTHER], errors["-32602"], errors["1"]) == (100, MAX_OWN_CODES + 100, 1)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ä€\u2028", "\ud800", "a\\n\\", 'x"} 1\nforged_total 7'])
def test_hostile_names_stay_inside_their_label(name: str) -> None:
    calls = calls_of(name)
    calls.ended(name, 0, 0.0)
    text = render(calls.families(), prefix="rpcstream_")
    shown = name.encode(errors="replace").decode()
    assert value(text, "rpcstream_calls_total", method=shown, code="0") == 1
    assert {each.name for each in text_string_to_metric_families(text)} == {
        "rpcstream_calls",
        "rpcstream_call_duration_seconds",
    }
    check_with_promtool(text)


def test_a_family_without_samples_is_left_out() -> None:
    assert render([Family("empty", "gauge", "Nothing.", [])]) == ""
    assert render([Family("one", "gauge", "A\nb \\ c.", [Sample(1)])]) == (
        "# HELP one A\\nb \\\\ c.\n# TYPE one gauge\none 1\n"
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
def test_the_system_tells_of_this_process() -> None:
    text = render(process_families())
    assert (value(text, "process_resident_memory_bytes") or 0) > 1_000_000
    assert (value(text, "process_cpu_seconds_total") or 0) > 0
    assert (value(text, "process_open_fds") or 0) >= 3
    check_with_promtool(text)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
def test_the_system_tells_when_this_process_started() -> None:
    code = "from rpcstream.observe.metrics import process_families, render; print(render(process_families()))"
    before = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The system counts from when it was started, in whole seconds.
    assert before - 2 < (value(done.stdout, "process_start_time_seconds") or 0) < time.time() + 2


def test_a_program_whose_name_has_brackets_and_blanks_is_read(tmp_path: Path) -> None:
    own = tmp_path / "self"
    (own / "fd").mkdir(parents=True)
    (own / "stat").write_text("1 (a ) b) S " + " ".join(map(str, range(4, 53))))
    (own / "limits").write_text("Limit  Soft\nMax open files            123                 456\n")
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1000\n")
    text = render(process_families(str(tmp_path)))
    ticks = os.sysconf("SC_CLK_TCK")
    assert value(text, "process_cpu_seconds_total") == (14 + 15) / ticks
    assert value(text, "process_start_time_seconds") == 1000 + 22 / ticks
    assert value(text, "process_max_fds") == 123


def test_without_proc_the_process_is_left_out(tmp_path: Path) -> None:
    assert process_families(str(tmp_path)) == []
