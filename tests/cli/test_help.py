"""`--help` of both commands."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from rpcstream.cli.call import main
from rpcstream.cli.serve import main as serve_main


@pytest.mark.parametrize("command", [main, serve_main])
def test_help_fits_a_screen(command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: ")
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 80


def test_the_flags_are_few_enough_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """What is seldom turned stands in a configuration; no flag is hidden."""
    count = 0
    for command in (main, serve_main):
        command(["--help"])
        found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
        count += len(found - {"--no-progress", "--no-docs", "--cert"})
    assert 50 < count <= 60
