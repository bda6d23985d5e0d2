"""Check the types in the Python code of all pages and notebooks: `python -m tests.docs.check_types [FOLDER]`.

Writes the code of each page into modules and runs `mypy --strict` and `pyright` over them; ends with status 1 where one
of them finds something. The lines of the modules have the numbers of the page's lines. With a FOLDER the modules are
kept.

* The blocks that run are one module for each page, in their order: what one defines the next ones use, and may define
  anew.
* A block with `file=NAME` is a module of its own. Where a page writes a file twice, both are checked.
* A fragment (`no-run`) and a cell (`await`) may await, and use what the blocks above them define; so they become async
  functions.
* Code for other libraries (`no-run=other`) is left out.
* Tests (`test_*.py`, `conftest.py`) need no hints.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from .blocks import PAGES, README, ROOT, blocks_of

#: For the modules that are made of a page's blocks.
JOINED = '# mypy: disable-error-code="no-redef"\n# pyright: reportRedeclaration=false, reportUnusedExpression=false\n'
#: For modules that import one which a command of the page writes (`-o api.py`).
WRITTEN = '# mypy: disable-error-code="import-not-found"\n# pyright: reportMissingImports=false\n'
#: For tests.
TESTS = "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls\n"


def modules_of(page: Path) -> dict[str, str]:
    """The modules that a page's code makes, by name without `.py`."""
    stem = re.sub(r"\W", "_", page.stem.lower())
    text = page.read_text()
    written = re.findall(r"^\$ .* -o (\w+)\.py$", text, re.MULTILINE)
    python = [block for block in blocks_of(text) if block.language == "python"]
    blocks = [block for block in python if block.skipped != "other"]
    files = {Path(block.file).stem for block in blocks if block.file}
    modules: dict[str, str] = {}
    lines: list[str] = []
    for block in blocks:
        code = _with_own_names(block.code, stem, files)
        if block.file:
            name = f"{stem}_{Path(block.file).stem}"
            marks = TESTS if re.match(r"test_|conftest", block.file) else ""
            marks += WRITTEN if any(f"from {each} import" in code for each in written) else ""
            modules[f"{name}_{block.line}" if name in modules else name] = "\n" * block.line + code + marks
        else:
            lines += [""] * (block.line - len(lines))
            if block.skipped or "await" in block.options:
                lines[-1] = f"async def fragment_{block.line}() -> None:"  # where the page has the three backticks
                code = textwrap.indent(code, "    ")
            lines += code.splitlines()
    if lines:
        modules[f"{stem}_page"] = "\n".join(lines) + "\n" + JOINED
    return modules


def module_of_notebook(notebook: Path) -> str:
    """The code of a notebook's cells; those that await are async functions."""
    parts = []
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            awaits = any(
                isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor) for node in ast.walk(ast.parse(code))
            )
            parts.append(f"async def cell_{number}() -> None:\n" + textwrap.indent(code, "    ") if awaits else code)
    return "\n\n".join(parts) + "\n" + JOINED


def _with_own_names(code: str, stem: str, files: set[str]) -> str:
    """The code with imports of the page's own files under the names that these have here."""
    for name in files:
        code = re.sub(rf"^(\s*)from {name} import", rf"\1from {stem}_{name} import", code, flags=re.MULTILINE)
        code = re.sub(rf"^(\s*)import {name}$", rf"\1import {stem}_{name} as {name}", code, flags=re.MULTILINE)
    return code


def all_modules() -> dict[str, str]:
    """The modules of all pages and notebooks, by name without `.py`."""
    found: dict[str, str] = {}
    for page in [README, *PAGES]:
        modules = modules_of(page)
        taken = modules.keys() & found.keys()
        if taken:
            raise ValueError(
                f"{page} makes modules that another page makes, too: {sorted(taken)}; rename a file or the page"
            )
        found |= modules
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        found[f"{notebook.stem}_cells"] = module_of_notebook(notebook)
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, code in all_modules().items():
            (folder / f"{name}.py").write_text(code)
        (folder / "pyrightconfig.json").write_text(json.dumps({"include": ["."], "extraPaths": [str(ROOT)]}))
        bin_folder = Path(sys.executable).parent
        cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
        config = ["--config-file", str(ROOT / "pyproject.toml")]
        failed = False
        for command in (
            [bin_folder / "mypy", "--strict", *config, *cache, *sorted(folder.glob("*.py"))],
            [bin_folder / "pyright", "--pythonpath", sys.executable, "-p", folder],
        ):
            failed |= subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
