"""Shell completion, over argcomplete's protocol."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Stranger, environment
from .test_output import METHOD, NASTY, OBEYED

pytest.importorskip("argcomplete")

CALL, SERVE = "rpcstream", "rpcstream.cli.serve"


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
    here.mkdir(exist_ok=True)
    for name in ("cat.png", "cart.py", "notes.txt", ".hidden"):
        (here / name).touch()
    (here / "carts").mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", module], cwd=here, env=environ, timeout=30, check=True, capture_output=True)
    return sorted(answer.read_text().split("\v")) if answer.read_text() else []


FILES = ["cart.py", "carts/", "cat.png"]


@pytest.mark.parametrize(
    ("module", "line", "offered"),
    [
        (CALL, "sh", ["shape"]),
        (CALL, "photo_size ph", ["photo="]),
        (CALL, "sum --fo", ["--format"]),
        (CALL, "sum --po", ["--port", "--positional"]),
        (CALL, "sum --format j", ["json"]),
        (CALL, "photo_size -i ca", FILES),
        (CALL, "photo_size -i photo=ca", FILES),
        (CALL, "photo_size photo:image=ca", FILES),
        (CALL, "photo_size photo=ca", FILES),
        (CALL, "--uri unix:///no/such s", []),
        (SERVE, "ca", ["cart.py", "carts/"]),
        (SERVE, "--fu", ["--functions"]),
    ],
)
def test_what_is_offered(module: str, line: str, offered: list[str], tmp_path: Path, address: str) -> None:
    command = f"rpcstream --uri {address}" if module == CALL else "rpcstream-server"
    assert completions(module, f"{command} {line}", tmp_path) == offered


def test_what_is_missing_and_the_protocols_own_methods(tmp_path: Path, address: str) -> None:
    offered = completions(CALL, f"rpcstream --uri {address} sum a=1 ", tmp_path)
    assert ("b=" in offered, "a=" in offered) == (True, False)
    assert "rpc.discover" in completions(CALL, f"rpcstream --uri {address} rpc.", tmp_path)


@pytest.mark.parametrize("line", ["", "m ", "m a=1 "])
def test_names_that_a_shell_would_obey_are_not_offered(stranger: Stranger, tmp_path: Path, line: str) -> None:
    bad = [NASTY, "a b", "a\vb", "$(x)", "`x`", "a;b", "'", '"', "a\nb", "--output", "-x", "~root", "a*", "a" * 300, ""]
    methods = [
        {**METHOD, "name": name, "params": [{"name": each} for each in [*bad[:-2], "plain"]]} for name in [*bad, "m"]
    ]
    offered = completions(CALL, f"rpcstream --uri {stranger(result={'methods': methods})} {line}", tmp_path)
    names = [each for each in offered if not each.startswith("--") and each not in FILES]
    assert ("plain=" if line else "m") in names
    assert not [each for each in names if OBEYED.search(each) or set(each) & set(" \t\n\"'`$;()*~")], names
    assert "--output=" not in offered
