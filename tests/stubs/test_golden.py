"""The types of one document, as files: `python -m tests.stubs.test_golden` writes them again."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from rpcstream.stubs import stubs

from .document import DOCUMENT

FOLDER = Path(__file__).parent / "golden"
FILES = {"python": FOLDER / "api.py", "typescript": FOLDER / "api.ts"}


@pytest.mark.parametrize("language", FILES)
def test_the_types_are_those_in_the_file(language: str) -> None:
    assert stubs(DOCUMENT, language) == FILES[language].read_text()


@pytest.mark.parametrize("language", FILES)
def test_the_order_of_methods_and_of_components_does_not_matter(language: str) -> None:
    methods, schemas = list(DOCUMENT["methods"]), list(DOCUMENT["components"]["schemas"].items())
    for each in (methods, schemas):
        random.Random(7).shuffle(each)
    shuffled = {**DOCUMENT, "methods": methods, "components": {"schemas": dict(schemas)}}
    assert stubs(orjson.loads(orjson.dumps(shuffled)), language) == FILES[language].read_text()


def test_the_module_can_be_imported() -> None:
    from .golden import api

    assert issubclass(api.Point, dict)
    assert {"add", "vision", "stream"} <= set(api.Api.__annotations__)


if __name__ == "__main__":
    for each, path in FILES.items():
        path.write_text(stubs(DOCUMENT, each))
