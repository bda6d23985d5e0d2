"""Behaviour of all rich types: lazy imports, hostile values, tags however they are written."""

from __future__ import annotations

import base64
import platform
import subprocess
import sys
from typing import Annotated, Any

import numpy as np
import orjson
import PIL.Image
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rpcstream.codec import TAG_KEY, Codec, Shape
from rpcstream.codec.hints import hint_checker

from ..kit.example_count import example_count
from .values import returned, taken

codec = Codec()

HINTS: list[Any] = [
    *(np.ndarray, NDArray[np.float32], Annotated[NDArray[np.uint8], Shape(None, 3)], PIL.Image.Image, bytes),
    *(bytearray, memoryview, complex, np.float32, np.int8, np.bool_, np.complex64, np.datetime64, np.floating),
]
CHECKS = [hint_checker(hint, codec) for hint in HINTS]

#: Each line, and the libraries that it loads.
STEPS: list[tuple[str, list[str]]] = [
    ("codec = Codec(); ImageOptions(); Shape(1)", []),
    ("codec.dumps({'a': [1, 2.5, None, 'x', (1,), {2}]}); codec.decode([{'$type': 'unknown'}])", []),
    ("codec.decode([{'$type': 'complex', 'real': 1, 'imag': 2}]); codec.dumps(1j)", []),
    ("codec.register(type('Own', (), {}), 'own', encode=dict, decode=dict)", []),
    ("codec.decode([{'$type': 'bytes', 'data': ''}]); codec.dumps(b'x')", ["pybase64"]),
    ("codec.dumps({1: 2})", ["msgspec"]),
    ("codec.decode([{'$type': 'ndarray', 'dtype': '<f4', 'shape': [0], 'data': ''}])", ["numpy"]),
]
LIBRARIES = ["numpy", "PIL", "msgspec", "pybase64", "ml_dtypes", "pandas", "polars", "pyarrow", "scipy", "torch"]
PLUGINS = "import PIL.Image; from rpcstream.codec.hints import hint_checker\n"
PLUGINS += "try: hint_checker(PIL.Image.Image, codec)('AAAA')\nexcept ValueError: print(sorted(PIL.Image.OPEN))"


def test_libraries_come_with_the_first_value_of_their_family() -> None:
    code = "import sys\nfrom rpcstream.codec import *\nseen = set()\n"
    for step, _ in STEPS:
        code += f"{step}\nnow = [each for each in {LIBRARIES} if each in sys.modules and each not in seen]\n"
        code += "seen.update(now); print(now)\n"
    command = [sys.executable, "-W", "error", "-c", code + PLUGINS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    wanted = [*(str(loaded) for _, loaded in STEPS), "['GIF', 'JPEG', 'PNG', 'WEBP']"]
    assert (done.stdout.splitlines(), done.stderr) == (wanted, "")


#: Prints the page faults of messages of 8 MiB, after the first ones.
PAGE_FAULTS = """
import resource
from rpcstream import Codec
codec, value = Codec(), bytes(6_000_000)
for turn in range(20):
    if turn == 5:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    codec.dumps({"result": value})
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do not free each large block")
def test_large_messages_use_the_memory_of_those_before() -> None:
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000  # one message has 2,000 pages


names = st.sampled_from(["$type", "dtype", "shape", "data", "format", "mode", "size", "real", "imag", "parts", "a"])
texts = (
    st.sampled_from(["ndarray", "image", "bytes", "complex", "raw", "png", "<f4", "|b1", "RGB", "L", "bfloat16", ""])
    | st.text(max_size=5)
    | st.binary(max_size=12).map(lambda data: base64.b64encode(data).decode())
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.integers(-(10**30), 10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.text(max_size=3), inner, max_size=5),
    max_leaves=10,
)
lengths = st.lists(st.integers(-1, 4) | st.integers() | json_values, max_size=4)
tagged = st.one_of(
    *(
        st.fixed_dictionaries({"$type": st.just(tag), **members})
        for tag, members in (
            ("ndarray", {"dtype": texts, "shape": lengths, "data": texts}),
            ("image", {"format": st.just("raw"), "mode": texts, "size": lengths, "data": texts}),
            ("image", {"format": texts, "data": texts}),
            ("complex", {"real": json_values, "imag": json_values}),
        )
    ),
    st.fixed_dictionaries({"$type": texts}, optional={"data": json_values}),
    json_values,
)


@settings(deadline=None, max_examples=example_count(200))
@given(tagged)
@example({"$type": "bytes"})
def test_any_json_value_is_decoded_or_refused_with_value_error(value: Any) -> None:
    for given_value in (value, [value], {"k": value}):
        for attempt in (codec.decode, *CHECKS):
            try:
                attempt(given_value)
            except ValueError as error:
                too_long = error if len(str(error)) >= 2000 else None
                assert too_long is None


@settings(deadline=None, max_examples=example_count(100))
@given(json_values, st.sampled_from(HINTS))
def test_any_python_value_is_accepted_or_refused_with_value_error(value: Any, hint: Any) -> None:
    try:
        returned(hint, value)
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
        codec.decode(deep)


def test_errors_say_where() -> None:
    wrong = {"$type": "bytes", "data": "x"}
    for value, path in (
        *((wrong, "$"), ([1, wrong], "$[1]"), ({"a": [0, {"b": wrong}]}, "$.a[1].b")),
        *(({"$type": "unknown", "a": wrong}, "$.a"), ({"k" * 1000: wrong}, "$." + "k" * 37 + "...")),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            codec.decode(value)
        assert str(caught.value).endswith(f" - at `{path}`")


@settings(deadline=None, max_examples=example_count(200))
@given(st.lists(st.booleans(), min_size=5), st.text(max_size=20))
def test_every_tagged_object_is_seen_however_it_is_written(escapes: list[bool], text: str) -> None:
    written = "".join(
        f"\\u{ord(letter):04x}" if escape else letter for letter, escape in zip(TAG_KEY, escapes, strict=False)
    )
    line = b'{"a":' + orjson.dumps(text) + b',"' + written.encode() + b'":"bytes"}'
    assert codec.holds_tags(line)
    assert codec.holds_tags(bytearray(line))


def test_the_module_is_not_the_class() -> None:
    with pytest.raises(TypeError, match=r"the hint for an image is PIL\.Image\.Image"):
        taken(PIL.Image, None)
