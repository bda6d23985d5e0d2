"""The types that `rpcstream --stubs` writes, as mypy, pyright and tsc see them, each at its strictest.

tsc comes with what tests/javascript needs (`npm install --prefix tests/javascript`).
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from rpcstream import Server
from rpcstream.testing import serve_in_thread

from ..stubs.document import DOCUMENT
from ..stubs.test_hostile_documents import TEXTS, documents, hostile_document
from ..stubs.test_of_servers import make_server
from ..stubs.writing import written

pytestmark = pytest.mark.tools

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WEB = ROOT / "rpcstream" / "web"
TSC = ROOT / "tests" / "javascript" / "node_modules" / "typescript" / "bin" / "tsc"
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if "Server(" in path.read_text())
PATIENCE = 240

#: Checks the modules of a folder; gives file, line and text of each error.
Checker = Callable[[Path], list[tuple[str, int, str]]]


def run(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode in (0, 1, 2), done.stdout + done.stderr
    return done.stdout + done.stderr


def errors(pattern: str, output: str) -> list[tuple[str, int, str]]:
    return [(found[1], int(found[2]), found[3]) for found in re.finditer(pattern, output, re.MULTILINE)]


def mypy(folder: Path) -> list[tuple[str, int, str]]:
    # What rpcstream itself imports may be missing here. It is read once for all tests.
    cache = folder.parent / "mypy"
    options = ["--strict", "--no-error-summary", "--follow-imports=silent", "--cache-dir", str(cache)]
    output = run([sys.executable, "-m", "mypy", *options, *sorted(map(str, folder.glob("*.py")))], folder)
    return errors(r"^(?:.*/)?(\w+\.py):(\d+): error: (.*)", output)


def pyright(folder: Path) -> list[tuple[str, int, str]]:
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"include": ["*.py"], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"})
    )
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(folder)]
    found = json.loads(run(command, folder))["generalDiagnostics"]
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def tsc(folder: Path) -> list[tuple[str, int, str]]:
    if shutil.which("node") is None or not TSC.exists():
        pytest.skip("there is no TypeScript (npm install --prefix tests/javascript)")
    package = folder / "node_modules" / "rpcstream"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "client.js", "client.d.ts"):
        shutil.copy(WEB / name, package)
    (folder / "package.json").write_text('{"type": "module"}')
    options = {
        "strict": True,
        "noEmit": True,
        "target": "es2022",
        "module": "nodenext",
        "types": [],
        "skipLibCheck": True,
    }
    options["lib"] = ["es2022", "dom", "dom.asynciterable"]
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["*.ts"]}))
    return errors(r"^(?:.*/)?([\w.]+\.ts)\((\d+),\d+\): error (.*)", run(["node", TSC, "-p", str(folder)], folder))


CHECKERS: dict[str, tuple[Checker, str, str]] = {
    "mypy": (mypy, "python", "py"),
    "pyright": (pyright, "python", "py"),
    "tsc": (tsc, "typescript", "ts"),
}
each_checker = pytest.mark.parametrize("checker", CHECKERS)


@each_checker
def test_uses_are_right_and_mistakes_are_errors(checker: str, tmp_path: Path) -> None:
    check, language, ending = CHECKERS[checker]
    (tmp_path / f"api.{ending}").write_text(written(DOCUMENT, language))
    uses = (HERE / f"uses.{ending}.txt").read_text()
    (tmp_path / f"uses.{ending}").write_text(uses)
    lines = uses.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith((" # wrong", " // wrong"))}
    assert len(wrong) > 25
    found = check(tmp_path)
    assert [each for each in found if each[0] != f"uses.{ending}" or each[1] not in wrong] == []
    missed = wrong - {number for _, number, _ in found}
    assert [lines[number - 1] for number in sorted(missed)] == []


@each_checker
def test_types_of_hostile_and_of_random_documents_are_valid(checker: str, tmp_path: Path) -> None:
    check, language, ending = CHECKERS[checker]
    documented = [hostile_document(text) for text in TEXTS]

    @seed(7)
    @settings(max_examples=120, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(document=documents())
    def gather(document: Any) -> None:
        documented.append(document)

    gather()
    assert len(documented) > 100
    for number, document in enumerate(documented):
        (tmp_path / f"api{number}.{ending}").write_text(written(document, language))
    assert check(tmp_path) == []


@each_checker
def test_types_of_hints_and_of_examples_are_valid(
    checker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, language, ending = CHECKERS[checker]
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    servers = {"hints": make_server()}
    for path in EXAMPLES:
        try:
            names = runpy.run_path(str(path), run_name="example")
        except ImportError:  # what an example needs besides rpcstream
            continue
        found = [each for each in names.values() if isinstance(each, Server)]
        servers |= {f"{path.stem}{number}": each for number, each in enumerate(found)}
    assert len(servers) > 6
    for name, server in servers.items():
        with serve_in_thread(server) as address:
            (tmp_path / f"{name}.{ending}").write_text(written(None, language, uri=address))
    assert check(tmp_path) == []
