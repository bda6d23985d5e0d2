"""`--help` of both commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rpcstream.cli.call import main
from rpcstream.cli.serve import main as serve_main


@pytest.mark.parametrize("command", [main, serve_main])
def test_help_fits_a_screen(command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: ")
    assert len(lines) <= 55
    assert max(map(len, lines)) <= 80


def test_the_flags_are_few_enough_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """What is seldom turned stands in a configuration; no flag is hidden."""
    main(["--help"])
    serve_main(["--help"])
    flags = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  -")]
    assert len(flags) <= 60
