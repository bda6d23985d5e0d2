"""The notebook: its cells run and give what is stored with them; nbconvert executes it where it is installed."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rpcstream

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def cells() -> list[tuple[str, str | None]]:
    """The code of each cell, and the text of the value that is stored with it."""
    found = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            values = [output["data"]["text/plain"] for output in cell["outputs"] if "data" in output]
            found.append(("".join(cell["source"]), "".join(values[0]) if values else None))
    return found


def test_the_cells_give_what_is_stored_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    namespace: dict[str, Any] = {}
    with asyncio.Runner() as runner:
        for source, stored in cells():
            tree = ast.parse(source)
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
            code = compile(ast.fix_missing_locations(tree), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, namespace)
            if running is not None:
                runner.run(running)
            assert stored is None or repr(namespace["_"]).partition(" at 0x")[0] == stored.removesuffix(">")


@pytest.mark.timeout(180)
def test_nbconvert_executes_it(tmp_path: Path) -> None:
    for package in ("nbconvert", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install rpcstream[notebook]")
    command = ["-m", "nbconvert", "--to", "notebook", "--execute", "--output-dir", str(tmp_path), str(NOTEBOOK)]
    environment = {**os.environ, "PYTHONPATH": str(Path(rpcstream.__file__).parents[1])}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    executed = json.loads((tmp_path / NOTEBOOK.name).read_text())
    [picture] = [
        output["data"]["image/png"]
        for cell in executed["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(picture) > 1000
