"""Reads the text of metrics as Prometheus' own client does, and checks it with promtool where that is installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """The values by name and labels. Each may stand there once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} stands there twice"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    """One value; None if there is no such line."""
    return samples(text).get((name, frozenset(labels.items())))


def outcomes(text: str) -> dict[tuple[str, str], float]:
    """How many calls have ended, by method and code; those that are 0 are left out."""
    found = {}
    for (name, labels), count in samples(text).items():
        if name == "rpcstream_calls_total" and count:
            by_name = dict(labels)
            found[by_name["method"], by_name["code"]] = count
    return found


def check_with_promtool(text: str) -> None:
    """Fail if `promtool check metrics` has anything to say."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
