"""Lets these tests import the modules of benchmarks/: `suite` and `soaking`."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(BENCHMARKS)
    import soaking
    import suite

__all__ = ["soaking", "suite"]
