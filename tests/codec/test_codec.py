"""Behaviour of all rich types: lazy imports, hostile values, tags in bytes, options, plain hints."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import types
import typing
import uuid
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
import PIL.Image
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rpcstream.codec import TAG_KEY, Codec, Shape

from ..kit.example_count import example_count

codec = Codec()


class Own:
    pass


codec.register(Own, "own", encode=lambda own: {"parts": []}, decode=lambda parts: [parts["parts"]])

HINTS: list[Any] = [
    *(np.ndarray, NDArray[np.float32], Annotated[NDArray[np.uint8], Shape(None, 3)], PIL.Image.Image, bytes),
    *(bytearray, memoryview, complex, np.float32, np.int8, np.bool_, np.complex64, np.datetime64, np.floating),
    *(np.generic, Own),
]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


EMPTY = "{'$type': 'ndarray', 'dtype': '<i4', 'shape': [0], 'data': ''}"
SPARSE = (
    "{'$type': 'sparse', 'format': 'coo', 'kind': 'array', 'shape': [2, 2], "
    f"'coords': [{EMPTY}, {EMPTY}], 'values': {EMPTY}}}"
)
LIBRARIES = ["numpy", "PIL", "msgspec", "pybase64", "ml_dtypes", "pandas", "polars", "pyarrow", "scipy", "torch"]
LOADED = f"print([name for name in {LIBRARIES} if name in sys.modules])"


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("Codec(); ImageOptions(); Shape(1)", []),
        ("Codec().dumps({'a': [1, 2.5, None, 'x', (1,), {2}]})", []),
        ("Codec().decode([{'$type': 'unknown'}])", []),
        ("Codec().decode([{'$type': 'complex', 'real': 1, 'imag': 2}]); Codec().dumps(1j)", []),
        ("[Codec().rich_hint(hint) for hint in (int, str, list[int], complex, None, int | None)]", []),
        ("Codec().register(type('Own', (), {}), 'own', encode=dict, decode=dict)", []),
        ("Codec().decode([{'$type': 'bytes', 'data': ''}]); Codec().dumps(b'x')", ["pybase64"]),
        ("Codec().dumps({1: 2})", ["msgspec"]),
        ("Codec().decode([{'$type': 'ndarray', 'dtype': '<f4', 'shape': [0], 'data': ''}])", ["numpy", "pybase64"]),
        ("import polars; Codec().dumps([1, b'x'])", ["pybase64", "polars"]),
        ("import polars; Codec().rich_hint(polars.DataFrame)", ["numpy", "pybase64", "polars"]),
        ("import polars; Codec().dumps(polars.DataFrame())", ["numpy", "pybase64", "polars", "pyarrow"]),
        (f"import numpy; Codec().decode({SPARSE})", ["numpy", "pybase64", "scipy"]),
    ],
)
def test_libraries_come_with_the_first_value_of_their_family(code: str, loaded: list[str]) -> None:
    out = run(f"import sys\nfrom rpcstream.codec import *\n{code}\n{LOADED}")
    assert out == str(loaded)


def test_few_plugins_of_pillow_are_loaded() -> None:
    code = "rich = Codec().rich_hint(PIL.Image.Image)\ntry: rich.decode('AAAA')\nexcept ValueError: pass"
    count = "print(sorted(PIL.Image.OPEN))"
    assert run(f"import PIL.Image\nfrom rpcstream.codec import *\n{code}\n{count}") == "['GIF', 'JPEG', 'PNG', 'WEBP']"


names = st.sampled_from(["$type", "dtype", "shape", "data", "format", "mode", "size", "real", "imag", "parts", "a"])
texts = (
    st.sampled_from(
        ["ndarray", "image", "bytes", "complex", "own", "raw", "png", "<f4", "|b1", "RGB", "L", "bfloat16", "", "nan"]
    )
    | st.text(max_size=5)
    | st.binary(max_size=12).map(lambda data: __import__("base64").b64encode(data).decode())
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.integers(-(10**30), 10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.text(max_size=3), inner, max_size=5),
    max_leaves=10,
)
small = st.integers(-1, 4) | st.integers() | json_values
tagged = st.one_of(
    st.fixed_dictionaries(
        {"$type": st.just("ndarray"), "dtype": texts, "shape": st.lists(small, max_size=4), "data": texts}
    ),
    st.fixed_dictionaries(
        {
            "$type": st.just("image"),
            "format": st.just("raw"),
            "mode": texts,
            "size": st.lists(small, min_size=1, max_size=3),
            "data": texts,
        }
    ),
    st.fixed_dictionaries({"$type": st.just("image"), "format": texts, "data": texts}),
    st.fixed_dictionaries({"$type": st.just("complex"), "real": json_values, "imag": json_values}),
    st.fixed_dictionaries({"$type": st.just("own"), "parts": json_values}),
    st.fixed_dictionaries({"$type": texts}, optional={"data": json_values}),
    json_values,
)


@settings(deadline=None, max_examples=example_count(400))
@given(tagged)
@example({"$type": "own"})
def test_any_json_value_is_decoded_or_refused_with_value_error(value: Any) -> None:
    longest = 0
    for attempt in (codec.decode, *(codec.rich_hint(hint).decode for hint in HINTS)):
        for given_value in (value, [value], {"k": value}):
            try:
                attempt(given_value)
            except ValueError as error:
                longest = max(longest, len(str(error)))
    assert longest < 2000


@settings(deadline=None, max_examples=example_count(100))
@given(json_values)
def test_any_python_value_is_accepted_or_refused_with_value_error(value: Any) -> None:
    for hint in HINTS:
        try:
            codec.rich_hint(hint).accept(value)
        except ValueError:
            pass


def test_deep_values() -> None:
    deep: Any = {"$type": "bytes", "data": "YQ=="}
    for _ in range(128):
        deep = [deep]
    found: Any = codec.decode(deep)
    for _ in range(128):
        found = found[0]
    assert found == b"a"
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="nested too deep"):
        codec.decode(orjson.loads(orjson.dumps([])) or deep)


def test_errors_say_where() -> None:
    wrong = {"$type": "bytes", "data": "x"}
    for value, path in (
        (wrong, "$"),
        ([1, wrong], "$[1]"),
        ({"a": [0, {"b": wrong}]}, "$.a[0]"[:3] + "[1].b"),
        ({"$type": "unknown", "a": wrong}, "$.a"),
        ({"k" * 1000: wrong}, "$." + "k" * 37 + "..."),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            codec.decode(value)
        assert (
            str(caught.value)
            == f"the payload is not base64: the padding ('=') at its end is missing or wrong - at `{path}`"
        )


@settings(deadline=None, max_examples=example_count(200))
@given(
    st.sampled_from(["$type", "$Type", "type", "$types", "a"]),
    st.lists(st.booleans(), min_size=8),
    st.text(max_size=20),
)
def test_every_tagged_object_is_seen_however_it_is_written(key: str, escapes: list[bool], text: str) -> None:
    written = "".join(
        f"\\u{ord(letter):04x}" if escape else letter for letter, escape in zip(key, escapes, strict=False)
    )
    line = b'{"a":' + orjson.dumps(text) + b',"' + written.encode() + b'":"bytes"}'
    assert key in orjson.loads(line)
    if key == TAG_KEY:
        assert codec.holds_tags(line)
        assert codec.holds_tags(bytearray(line))


@pytest.mark.parametrize(
    "hint",
    [
        *(int, str, float, bool, None, type(None), Any, object, list, dict, list[bytes], dict[str, Any]),
        *(bytes | None, int | str, typing.Optional[bytes], typing.Literal["a"], typing.TypeVar("T"), "x"),  # noqa: UP045
        *(datetime.datetime, uuid.UUID, decimal.Decimal, msgspec.Struct, typing.NewType("N", bytes), type[int]),
        *(np.str_, np.bytes_, np.void, np.object_, np.matrix, np.dtype, np, tuple[bytes, ...]),
        *(Annotated[bytes, "x"], Annotated[int, 1], ..., [1], 5),
    ],
    ids=str,
)
def test_hints_without_a_leaf(hint: Any) -> None:
    assert codec.rich_hint(hint) is None


def test_the_module_is_not_the_class() -> None:
    with pytest.raises(TypeError, match=r"the hint for an image is PIL\.Image\.Image"):
        codec.rich_hint(PIL.Image)
    assert codec.rich_hint(types) is None
