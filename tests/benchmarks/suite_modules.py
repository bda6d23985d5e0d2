"""The modules of the benchmarks' harness, imported once for its tests, and made-up entries of tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("resource", reason="the benchmarks need Unix")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    from suite import calls, machine, measure, report, targets
    from suite.contenders import Case, Contender, OwnClient, peers
    from suite.load import Load
    from suite.process import Running, Servers, Serving, Skipped
    from suite.results import Entry, Spread, Table, broken, ratio, spread
    from suite.templates import fill
    from suite.topics import TOPICS, before, hub, large, memory, web

__all__ = [
    "TOPICS",
    "Case",
    "Contender",
    "Entry",
    "OwnClient",
    "Running",
    "Servers",
    "Serving",
    "Skipped",
    "Spread",
    "Table",
    "before",
    "broken",
    "calls",
    "fill",
    "hub",
    "large",
    "machine",
    "measure",
    "memory",
    "peers",
    "ratio",
    "report",
    "spread",
    "targets",
    "web",
]

LATENCY = {"p50": 80.0, "p90": 100.0, "p99": 120.0, "p999": 150.0, "max": 200.0}


def load(rate: float) -> Load:
    said = {"calls": 10, "seconds": 1.0, "rate": rate, "latency_us": LATENCY, "wrong": 0, "cpu": 0.5}
    return Load.read(json.dumps(said))


def entry(name: str, *figures: float, **more: Any) -> Entry:
    return Entry(name=name, figures=figures, loads=tuple(map(load, figures)), **more)


def script(path: str) -> Any:
    """A script of the benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{Path(path).stem}", BENCHMARKS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
