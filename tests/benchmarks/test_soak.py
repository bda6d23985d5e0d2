"""The soak test: that it works for some seconds, and that its verdict finds growth."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from .conftest import BENCHMARKS

if sys.platform != "linux":
    pytest.skip("memory and descriptors are read from /proc", allow_module_level=True)

from soaking import churn, tasks, threads, verdict

pytestmark = pytest.mark.slow


def sample(**changed: Any) -> dict[str, Any]:
    rested = {"rss": 50_000, "descriptors": 20, "objects": 40_000, "left": [], "wrong": [], "counts": {"calls": 5}}
    return {**rested, **changed}


def judged(*samples: dict[str, Any]) -> list[str]:
    return verdict.reasons({"server": samples}, ["calls"])


@pytest.mark.parametrize(("what", "step"), [("rss", 700), ("objects", 150), ("descriptors", 1)])
def test_what_grows_is_found_and_what_stays_is_well(what: str, step: int) -> None:
    (reason,) = judged(*[sample(**{what: sample()[what] + number * step}) for number in range(9)])
    assert f"{what} grows" in reason
    assert judged(*[sample()] * 9) == []


def series(*sizes: float) -> list[dict[str, Any]]:
    return [sample(rss=size) for size in sizes]


@pytest.mark.parametrize("place", [1, 2, 7, 15, 28, 29])
def test_one_step_is_not_growth_whenever_it_comes(place: int) -> None:
    assert judged(*series(*[54_000] * place, *[55_300] * (30 - place))) == []
    noise = [0, 40, -30, 10, 60, -50] * 5
    steps = [54_000] * place + [55_300] * (30 - place)
    assert judged(*series(*[size + each for size, each in zip(steps, noise, strict=True)])) == []


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
