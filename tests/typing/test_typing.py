"""The public types, as mypy and pyright see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.timeout(150)
def test_mypy_agrees_with_the_examples() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(HERE / "typed_examples.py")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.timeout(150)
def test_pyright_agrees_with_the_examples() -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(HERE / "typed_examples.py")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
