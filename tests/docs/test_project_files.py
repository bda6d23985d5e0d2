"""The files around the package say what is true: CI runs every step, the citation has the version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import rpcstream

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def steps_of_ci() -> set[str]:
    listed = subprocess.run([ROOT / ".ci" / "run", "--list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def steps_of(text: str) -> set[str]:
    """The steps of `.ci/run` that a workflow names, in its commands and in its matrix."""
    commands = re.findall(r"\.ci/run ([a-z -]+)$", text, re.MULTILINE)
    matrix = re.search(r"^ +steps:\n((?: +- [a-z -]+\n)+)", text, re.MULTILINE)
    rows = re.findall(r"- ([a-z -]+)$", matrix[1], re.MULTILINE) if matrix else []
    return {step for row in [*commands, *rows] for step in row.split()}


def test_the_workflow_of_tests_runs_every_step() -> None:
    assert steps_of((WORKFLOWS / "tests.yml").read_text()) == steps_of_ci()


def test_other_workflows_run_steps_that_exist() -> None:
    others = {path.stem: steps_of(path.read_text()) for path in WORKFLOWS.glob("*.yml") if path.stem != "tests"}
    assert others == {"release": {"package"}, "site": {"site"}}
    assert set().union(*others.values()) <= steps_of_ci()


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == rpcstream.__version__
