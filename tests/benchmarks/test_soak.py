"""The soak: that it works, for some seconds, and that it sees what is wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from .measuring import BENCHMARKS

if sys.platform != "linux":
    pytest.skip("memory and descriptors are read from /proc", allow_module_level=True)

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    from soaking import coming, tasks, threads, verdict


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
    assert coming.liars in tasks.FEATURES.values()
