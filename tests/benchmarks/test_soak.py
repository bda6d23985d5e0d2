"""The soak test: that it works for some seconds, and that its verdict finds growth."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from .suite_modules import BENCHMARKS

pytestmark = pytest.mark.slow

if sys.platform != "linux":
    pytest.skip("memory and descriptors are read from /proc", allow_module_level=True)

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    from soaking import churn, tasks, threads, verdict


def sample(**changed: Any) -> dict[str, Any]:
    rested = {"rss": 50_000, "descriptors": 20, "objects": 40_000, "left": [], "wrong": [], "counts": {"calls": 5}}
    return {**rested, **changed}


def judged(*samples: dict[str, Any]) -> list[str]:
    return verdict.reasons({"server": samples}, ["calls"])


def test_what_stays_as_it_is_is_well() -> None:
    assert judged(*[sample()] * 9) == []


@pytest.mark.parametrize(
    ("what", "step"), [("rss", 700), ("objects", 150), ("descriptors", 1)], ids=["memory", "objects", "descriptors"]
)
def test_what_grows_is_found(what: str, step: int) -> None:
    (reason,) = judged(*[sample(**{what: sample()[what] + number * step}) for number in range(9)])
    assert f"{what} grows" in reason


def test_warming_up_and_outliers_are_not_growth() -> None:
    sizes = [40_000, 45_000, 49_000, 50_000, 50_000, 60_000, 50_000, 70_000, 50_100]
    assert judged(*[sample(rss=size) for size in sizes]) == []


def series(*sizes: float) -> list[dict[str, Any]]:
    return [sample(rss=size) for size in sizes]


@pytest.mark.parametrize("place", range(1, 30))
def test_one_step_is_not_growth_whenever_it_comes(place: int) -> None:
    assert judged(*series(*[54_000] * place, *[55_300] * (30 - place))) == []
    noise = [0, 40, -30, 10, 60, -50] * 5
    steps = [54_000] * place + [55_300] * (30 - place)
    assert judged(*series(*[size + each for size, each in zip(steps, noise, strict=True)])) == []


def test_a_step_that_is_no_arena_is_growth() -> None:
    (reason,) = judged(*series(*[50_000] * 20, *[60_000] * 10))
    assert "rss grows" in reason


@pytest.mark.parametrize("noise", [0, 100])
def test_growth_beside_a_step_is_found(noise: int) -> None:
    sizes = [54_000 + 130 * number + (1300 if number > 14 else 0) + noise * (number % 3) for number in range(30)]
    (reason,) = judged(*series(*sizes))
    assert "rss grows" in reason


def test_growth_in_many_steps_is_found() -> None:
    (reason,) = judged(*series(*[50_000 + 1024 * (number // 5) for number in range(30)]))
    assert "rss grows" in reason


@pytest.mark.parametrize(("what", "size", "step"), [("malloc", 10_000, 30), ("blocks", 190_000, 80)])
def test_some_kib_a_period_are_found_in_what_is_in_use(what: str, size: int, step: int) -> None:
    found = judged(*[sample(**{what: size + step * number}) for number in range(30)])
    assert [what in reason for reason in found] == [True]
    assert judged(*[sample(**{what: size + (400 if number > 17 else 0)}) for number in range(30)]) == []
    assert judged(*[sample(**{what: size + step * (number % 4)}) for number in range(30)]) == []


def test_a_rise_without_its_largest_step() -> None:
    assert verdict.rise_without_one_step([0] * 4 + [0] * 4 + [7] * 4) == 0
    even = [3 * number for number in range(24)]
    before, after = verdict.thirds(even)
    assert verdict.rise_without_one_step(even) == after - before == 24
    assert verdict.rise_without_one_step([5] * 12) == 0


def test_what_is_left_over_or_wrong_or_never_done_is_told() -> None:
    found = judged(sample(left=["a task"]), sample(wrong=["calls: crossed"], counts={}))
    assert found == [
        "server: left over at rest 1: a task",
        "server: calls: crossed",
        "never succeeded: calls",
    ]


def test_a_soak_of_some_seconds() -> None:
    command = [sys.executable, BENCHMARKS / "soak.py", "--minutes", "0.1", "--period", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all is well\n")
    assert len(tasks.FEATURES) + len(threads.FEATURES) > 30
    assert churn.liars in tasks.FEATURES.values()
