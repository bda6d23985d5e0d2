"""Documents of a careless or hostile server: the types are valid, hold nothing but types, and have a bound."""

from __future__ import annotations

import ast
import json
import re
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ..kit.example_count import example_count
from .document import document, method, param, ref
from .writing import LANGUAGES, RefusedError, written

#: Texts that would end a literal, a docstring or a comment, are read by a checker, or are not what they look like.
TEXTS = [
    *('"""\nimport os\nos.abort()\n"""', 'x\\"""', '"', "'", "\\", "*/ evil(); /*", "${evil()}`"),
    *("# mypy: ignore-errors", "# type: ignore", "@ts-ignore", "\n\n\r\u2028\u2029\x85\x00", "\u202eabc", "\ufb01"),
    *("class", "None", "__init__", "_x", "self", "int", "Any", "timeout", "method", "options", "call", "a.b", "a..b"),
    *("constructor", "__proto__", "x" * 300),
]


def python_tree(source: str) -> ast.Module:
    """Parse and run a module; it has nothing but imports, definitions and texts."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Lambda | ast.Await | ast.Raise | ast.Assert | ast.For | ast.While | ast.With)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            assert node.func.id in ("TypedDict", "TypeVar")
    sys.modules["written"] = module = ModuleType("written")
    exec(compile(source, "written.py", "exec"), module.__dict__)
    del sys.modules["written"]
    return tree


def check(given: Any) -> tuple[str, str]:
    """Write the types of a document in both languages; gives them."""
    python, typescript = written(given, "python"), written(given, "typescript")
    python_tree(python)
    assert re.search(r"^#", "\n".join(python.splitlines()[3:]), re.MULTILINE) is None
    bare = re.sub(
        r'"(?:[^"\\\n]|\\.)*"', '""', re.sub(r"/\*\*.*?^\s*\*/$", "", typescript, flags=re.DOTALL | re.MULTILINE)
    )
    assert "evil(" not in bare
    assert bare.count("/*") == 1
    return python, typescript


def hostile_document(text: str) -> dict[str, Any]:
    """A document that has this text wherever it can have one."""
    made = document(
        method(text, param(text, {"type": "string", "description": text}, description=text), description=text),
        method("plain", param(text, {}, required=False), param("b", {"enum": [text]}), summary=text),
        method(f"a.{text}", param("a", ref("T")), result={"type": "object", "properties": {text: {"const": text}}}),
        method("a-b", param(text, {}), param("b", {}), paramStructure="by-name"),
        method("a b", param("a", {}), param(text, {}), required=False),
        method("other", param("a", ref(text.replace("~", "~0").replace("/", "~1")))),
        T={"type": "object", "title": text, "description": text, "properties": {text: {"type": "integer"}}},
        **{text: {"enum": [text, 1], "description": text}},
    )
    return {**made, "info": {"title": text, "version": text, "description": text}}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:20])
def test_any_text_can_stand_anywhere(text: str) -> None:
    check(hostile_document(text))


def long_descriptions() -> Any:
    each = {"params": [param("a", {}, description="x" * 2000)], "description": "x" * 2000}
    return {"methods": [{"name": f"m{at}", **each} for at in range(20_000)]}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        *((each, "not an OpenRPC document") for each in (None, [], {}, {"methods": {}}, {"methods": "x"})),
        (
            {"methods": [{"name": f"m{at}"} for at in range(20_001)]},
            "has 20,001 methods, and at most 20,000",
        ),
        pytest.param(long_descriptions, "would take more than 64 MiB", marks=pytest.mark.slow),
    ],
    ids=lambda each: str(each)[:20],
)
def test_what_is_refused(given: Any, reason: str) -> None:
    text = json.dumps(given() if callable(given) else given)
    for language in ["typescript"] if callable(given) else LANGUAGES:
        with pytest.raises(RefusedError, match=reason):
            written(text, language)


def test_malformed_parts_are_left_out_or_any_value() -> None:
    odd = [None, 1, "x", [], {}, {"name": 3}, {"name": "", "params": []}]
    methods = [
        *odd,
        {"name": "bare"},
        {"name": "no_list", "params": {}},
        {"name": "nameless", "params": [{"schema": {}}]},
        {"name": "twice", "params": [{"name": "a"}, {"name": "a"}]},
        {"name": "wrong", "params": [{"name": "a", "schema": {"type": ["x", 3], "enum": 7}}], "result": []},
        {"name": "late", "params": [{"name": "a"}, {"name": "b", "required": True, "schema": {"type": "integer"}}]},
        {"name": "bare", "params": [{"name": "second"}]},
    ]
    python, typescript = check({"methods": methods, "components": 3, "info": "x"})
    assert "    def bare(self, **options: Unpack[CallOptions]) -> Any: ..." in python
    for name in ("no_list", "nameless", "twice"):
        assert f"    def {name}(self, *args: Any, **kwargs: Any) -> Any: ..." in python
    assert "def late(self, a: Any, b: int, **options" in python, "b is required, and so is what stands before it"
    assert "args: [a: unknown, b: number | bigint];" in typescript


def test_types_that_consist_of_themselves_are_any_value() -> None:
    python, typescript = check(
        document(
            method("a", param("a", ref("A")), result=ref("C")),
            method("b", param("b", ref("List")), result=ref("Json")),
            A={"anyOf": [ref("B"), {"type": "null"}]},
            B=ref("A"),
            C=ref("C"),
            List={"type": "array", "items": ref("List")},
            Json={"anyOf": [{"type": "object", "additionalProperties": ref("Json")}, {"type": "string"}]},
        )
    )
    assert "A: TypeAlias = 'Any'" in python
    assert "C: TypeAlias = 'Any'" in python
    assert "ListInput: TypeAlias = 'Sequence[ListInput]'" in python
    assert "Json: TypeAlias = 'dict[str, Json] | str'" in python
    assert "export type Json = { [key: string]: Json } | string;" in typescript
    assert "export type ListInput = readonly ListInput[];" in typescript


def test_what_is_nested_too_deep_is_any_value() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    python, _ = check(document(method("a", param("a", schema), result=schema)))
    assert f"{'list[' * 20}" in python
    assert f"{'list[' * 26}" not in python


def test_references_that_lead_nowhere_or_elsewhere_are_any_value() -> None:
    refs = ("#/", "x", "http://example.org/x", "#/methods", "#/components/schemas/B")
    python, _ = check(
        document(*(method(f"m{at}", param("a", {"$ref": each})) for at, each in enumerate(refs)), A={"type": "object"})
    )
    assert python.count("(self, a: Any, ") == 6 * len(refs), "for calls, submit and notify of both clients"


def test_alternatives_of_alternatives_do_not_multiply() -> None:
    layers = {f"L{at}": {"anyOf": [ref(f"L{at + 1}")] * 50} for at in range(10)}
    merged = {f"A{at}": {"allOf": [ref(f"A{at + 1}")] * 60} for at in range(30)}
    python, typescript = check(document(method("a", param("a", ref("L0")), result=ref("A0")), **layers, **merged))
    assert len(python) + len(typescript) < 20_000


def test_names_with_very_many_parts() -> None:
    python, _ = check(document(method(".".join("a" * 90)), method("b" * 201)))
    assert "Only with `request`: a.a.a." in python
    assert "bbbb" not in python, "a name over 200 characters is left out"


_NAMES = st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8"), max_size=5)
_SCHEMAS = st.recursive(
    st.sampled_from([ref("A"), ref("B"), {}, True, False, None, 3])
    | st.sampled_from(["string", "integer", "array", "object", "x"]).map(lambda kind: {"type": kind})
    | st.lists(
        _NAMES | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans(),
        max_size=3,
    ).map(lambda v: {"enum": v}),
    lambda inner: st.one_of(
        st.dictionaries(_NAMES, inner, max_size=3).map(lambda members: {"type": "object", "properties": members}),
        inner.map(lambda item: {"type": "array", "items": item, "x-stream": True}),
        st.sampled_from(["anyOf", "allOf", "prefixItems"]).flatmap(
            lambda word: st.lists(inner, max_size=3).map(lambda members: {word: members, "minItems": len(members)})
        ),
    ),
    max_leaves=6,
)
_PARAMS = st.builds(param, _NAMES, _SCHEMAS, required=st.booleans(), description=_NAMES)


def documents() -> st.SearchStrategy[dict[str, Any]]:
    """Documents of any methods and types."""
    return st.builds(
        lambda name, params, result, a, b: document(
            method(name, *params, result=result), method("m", param("a", ref("A"))), A=a, B=b
        ),
        _NAMES,
        st.lists(_PARAMS, max_size=3),
        _SCHEMAS,
        _SCHEMAS,
        _SCHEMAS,
    )


@settings(max_examples=example_count(30))
@given(given=documents())
def test_any_document(given: Any) -> None:
    check(given)
