"""The table of types: what each type has besides its row, and that its functions are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcstream.codec.rich_type import BUILT_IN, RichType

ROOT = Path(__file__).parents[2]
TAGGED = [each for each in BUILT_IN if each.tag]
#: Where a type is known by its tag, and in what form.
PLACES = {
    "page": ("docs/reference/wire.md", '{{"$type": "{}"'),
    "stubs": ("rpcstream/stubs/python.py", '"{}"'),
    "JavaScript": ("rpcstream/web/client.js", '"{}"'),
}
#: What a type may do without: in stubs its values are `Any`, in JavaScript the tagged object.
LACKS = {
    **{tag: {"stubs"} for tag in ("arrow", "polars", "pandas")},
    "sparse": {"stubs", "JavaScript"},
}


@pytest.mark.parametrize("kind", TAGGED, ids=lambda kind: str(kind.tag))
def test_each_type_has_a_page_a_stub_and_javascript(kind: RichType) -> None:
    texts = {place: ((ROOT / file).read_text(encoding="utf-8"), form) for place, (file, form) in PLACES.items()}
    lacking = {place for place, (text, form) in texts.items() if form.format(kind.tag) not in text}
    assert lacking == LACKS.get(str(kind.tag), set()), f"{kind.tag} lacks: {lacking}"


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: str(kind.encode))
def test_the_functions_of_each_row_are_there(kind: RichType) -> None:
    if kind.module != "ext.tensors":  # torch is not installed where these tests run
        assert callable(kind.function("encode"))
    if kind.tag:
        assert callable(kind.function("decode"))
    if kind.hint:
        assert callable(kind.function("hint"))
