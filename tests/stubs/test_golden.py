"""The types of one document, as files: `python -m tests.stubs.test_golden` writes them again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .document import DOCUMENT
from .writing import written

FOLDER = Path(__file__).parent / "golden"
FILES = {"python": FOLDER / "api.py", "typescript": FOLDER / "api.ts"}


@pytest.mark.parametrize("language", FILES)
def test_the_types_are_those_in_the_file_whatever_the_order(language: str) -> None:
    assert written(DOCUMENT, language) == FILES[language].read_text()
    methods, schemas = list(DOCUMENT["methods"]), list(DOCUMENT["components"]["schemas"].items())
    for each in (methods, schemas):
        random.Random(7).shuffle(each)
    shuffled = {**DOCUMENT, "methods": methods, "components": {"schemas": dict(schemas)}}
    assert written(shuffled, language) == FILES[language].read_text()


def test_the_module_can_be_imported() -> None:
    from .golden import api

    assert issubclass(api.Point, dict)
    assert {"add", "vision", "stream"} <= set(api.Api.__annotations__)


if __name__ == "__main__":
    for each, path in FILES.items():
        path.write_text(written(DOCUMENT, each))
