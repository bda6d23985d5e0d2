"""Collects every attack as a test in its short form, which fails when it costs more than its budget.

Those that are variants of another are left to `python -m tests.abuse`, which runs all of them whole.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Attack, attacks_of, run


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    is_attacks = file_path.parent == Path(__file__).parent and file_path.match("attacks_*.py")
    return AttackFile.from_parent(parent, path=file_path) if is_attacks else None


class AttackFile(pytest.File):
    """The attacks of one module."""

    def collect(self) -> Iterator[AttackTest]:
        module = importlib.import_module(f"{__package__}.{self.path.stem}")
        for each in attacks_of(module.__name__):
            yield AttackTest.from_parent(self, name=f"{each.number}-{each.name}", attack=each)


class AttackTest(pytest.Item):
    """One attack."""

    def __init__(self, *, attack: Attack, **options: object) -> None:
        super().__init__(**options)
        self.attack = attack
        self.add_marker(pytest.mark.slow)
        if not attack.in_suite:
            self.add_marker(pytest.mark.skip(reason="a variant: python -m tests.abuse"))
        if sys.platform != "linux":
            self.add_marker(pytest.mark.skip(reason="reads /proc"))

    def runtest(self) -> None:
        report = run(self.attack, whole=False)
        assert not report.problems, report.problems

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        return str(excinfo.value) if excinfo.errisinstance(AssertionError) else str(excinfo.getrepr())

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.attack.number}: {self.attack.title}"
