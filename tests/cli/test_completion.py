"""Shell completion, over argcomplete's protocol."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import environment

pytest.importorskip("argcomplete")

Complete = Callable[[str], list[str]]


def completions(module: str, line: str, folder: Path) -> list[str]:
    """What the shell would offer at the end of the line."""
    answer = folder / "answer"
    environ = environment(
        _ARGCOMPLETE="1",
        _ARGCOMPLETE_IFS="\v",
        _ARGCOMPLETE_SUPPRESS_SPACE="1",
        _ARGCOMPLETE_COMP_WORDBREAKS=" \t\n\"'><=;|&(:",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer),
        COMP_LINE=line,
        COMP_POINT=str(len(line.encode())),
        COMP_TYPE="9",
    )
    here = folder / "here"
    here.mkdir()
    for name in ("cat.png", "cart.py", "notes.txt", ".hidden"):
        (here / name).touch()
    (here / "carts").mkdir()
    subprocess.run([sys.executable, "-m", module], cwd=here, env=environ, timeout=30, check=True, capture_output=True)
    return sorted(answer.read_text().split("\v")) if answer.read_text() else []


@pytest.fixture
def call(tmp_path: Path, address: str) -> Complete:
    return lambda line: completions("rpcstream", f"rpcstream --uri {address} {line}", tmp_path)


def test_method_names_from_the_server(call: Complete) -> None:
    assert call("s") == ["say", "shape", "size", "square", "sum"]


def test_the_protocols_own_methods_when_asked_for(call: Complete) -> None:
    assert "rpc.discover" in call("rpc.")


def test_parameter_names_that_are_missing(call: Complete) -> None:
    offered = call("sum a=1 ")
    assert "b=" in offered
    assert "a=" not in offered


def test_the_beginning_of_a_parameter_name(call: Complete) -> None:
    assert call("size ph") == ["photo="]


def test_options(call: Complete) -> None:
    assert call("sum --fo") == ["--format"]


def test_options_whose_value_nobody_can_guess(call: Complete) -> None:
    assert call("sum --po") == ["--port", "--positional"]


def test_a_value_that_nobody_can_guess(call: Complete) -> None:
    assert call("sum --timeout ") == []


def test_choices(call: Complete) -> None:
    assert call("sum --format j") == ["json"]


def test_files(call: Complete) -> None:
    assert call("size -i ca") == ["cart.py", "carts/", "cat.png"]


@pytest.mark.parametrize("line", ["size -i photo=ca", "size photo:image=ca"])
def test_files_behind_a_name_and_a_type(call: Complete, line: str) -> None:
    assert call(line) == ["cart.py", "carts/", "cat.png"]


def test_topics_of_help(call: Complete) -> None:
    assert call("help v") == ["values"]


def test_nobody_there_is_no_suggestion(tmp_path: Path) -> None:
    assert completions("rpcstream", "rpcstream --uri unix:///no/such s", tmp_path) == []


def test_targets_of_the_server(tmp_path: Path) -> None:
    assert completions("rpcstream.cli.serve", "rpcstream-server ca", tmp_path) == ["cart.py", "carts/"]


def test_options_of_the_server(tmp_path: Path) -> None:
    assert completions("rpcstream.cli.serve", "rpcstream-server --fu", tmp_path) == ["--functions"]
