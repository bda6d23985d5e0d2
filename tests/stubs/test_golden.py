"""The types of one document, as files: `python -m tests.stubs.test_golden` writes them again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .document import DOCUMENT
from .writing import written

FOLDER = Path(__file__).parent / "golden"
FILES = {"python": FOLDER / "api.py", "typescript": FOLDER / "api.ts"}

#: The forms of most methods; for types of parameters and results there is test_of_servers.
NAMES = ("add", "class", "point", "rest", "ticks", "vision.detect", "vision.detect.faces", "weird name!")
METHODS = [each for each in DOCUMENT["methods"] if each["name"] in NAMES]
SCHEMAS = {name: DOCUMENT["components"]["schemas"][name] for name in ("Color", "Image", "Point")}


def types_of(methods: list[dict[str, object]], schemas: dict[str, object], language: str) -> str:
    return written({**DOCUMENT, "methods": methods, "components": {"schemas": schemas}}, language)


@pytest.mark.parametrize("language", FILES)
def test_the_types_are_those_in_the_file_whatever_the_order(language: str) -> None:
    assert types_of(METHODS, SCHEMAS, language) == FILES[language].read_text()
    methods, schemas = list(METHODS), list(SCHEMAS.items())
    for each in (methods, schemas):
        random.Random(7).shuffle(each)
    assert types_of(methods, dict(schemas), language) == FILES[language].read_text()


@pytest.mark.parametrize(
    ("language", "lines"),
    [
        ("python", "    Only with `request`: call, class, weird name!\n"),
        ("python", "def int(self, a: _builtins.int, **options: Unpack[CallOptions]) -> _builtins.int: ..."),
        ("python", "        a: _builtins.int,\n        *,\n        flag: bool,\n        deep: str | None = ...,\n"),
        ("python", '-> None:\n        """Deprecated."""\n'),
        (
            "python",
            "        timeout_2: float,\n        argument: bool = ...,\n        /,\n        **options: Unpack[",
        ),
        ("python", "class SettingsResult(TypedDict):\n    a: NotRequired[SettingsResultA]\n"),
        ("typescript", "params: { a: number | bigint; flag: boolean; deep?: string | null };\n    args: never;"),
        ("typescript", '/**\n   * @deprecated\n   */\n  "old": {\n    params: Record<string, never>;\n    args: [];'),
        ("typescript", 'params: { timeout: number; "a-b"?: boolean };\n    args: [number, boolean?];'),
        ("typescript", "result: { a?: { b: number } };"),
    ],
)
def test_names_that_clients_have_themselves_and_other_forms(language: str, lines: str) -> None:
    assert lines in written(DOCUMENT, language)


def test_the_module_can_be_imported() -> None:
    from .golden import api

    assert issubclass(api.Point, dict)
    assert {"vision", "stream"} <= set(api.Api.__annotations__)
    assert callable(api.Api.add)


if __name__ == "__main__":
    for each, path in FILES.items():
        path.write_text(types_of(METHODS, SCHEMAS, each))
