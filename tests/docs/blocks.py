"""The blocks of code in the pages: their languages, and the words behind the three backticks. Runs nothing.

`python -m tests.docs.blocks` lists the blocks that are not run, with the reasons.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
FRONT = [
    ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "examples/README.md")
]

#: Where programs are looked for: beside this Python first, where pip puts them.
PROGRAMS = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])

#: The languages whose blocks are run, unless they say `no-run=REASON`.
RUN = ("python", "console", "sh", "javascript")
#: What REASON may be.
REASONS = {
    "ci": "run by .ci/run, or by another test",
    "packages": "installs packages, which needs a network",
    "hosts": "needs other machines",
    "system": "changes the machine: services, web servers, containers",
    "other": "is for another library",
}

_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code in a page; `line` is the number of the line above its first."""

    language: str
    options: list[str]
    code: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block is the text of."""
        return next((option.removeprefix("file=") for option in self.options if option.startswith("file=")), None)

    @property
    def skipped(self) -> str | None:
        """The reason why it is not run, one of `REASONS`."""
        marks = [option for option in self.options if option.startswith("no-run")]
        return marks[0].removeprefix("no-run=") if marks else None

    @property
    def can_run(self) -> bool:
        """Whether the program or the package that it needs is installed; nginx needs root for its folders besides."""
        packages = [option.removeprefix("imports=") for option in self.options if option.startswith("imports=")]
        if any(importlib.util.find_spec(each) is None for each in packages):
            return False
        programs = [option.removeprefix("needs=") for option in self.options if option.startswith("needs=")]
        return all(shutil.which(each, path=PROGRAMS) and (each != "nginx" or os.geteuid() == 0) for each in programs)


def blocks_of(text: str) -> list[Block]:
    return [
        Block(found[1], (found[2] or "").split(), found[3], text.count("\n", 0, found.start(3)))
        for found in _BLOCK.finditer(text)
    ]


def main() -> None:
    for page in [README, *FRONT, *PAGES]:
        for block in blocks_of(page.read_text()):
            if block.skipped:
                first = next(line for line in block.code.splitlines() if line.strip())
                place = f"{page.relative_to(ROOT)}:{block.line}"
                print(f"{place}: {block.language}: {REASONS[block.skipped]}: {first.strip():.60}")


if __name__ == "__main__":
    main()
