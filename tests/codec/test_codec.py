"""Behaviour of all rich types and of registered ones: lazy imports, hostile values, encoders and decoders."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import decimal
import enum
import platform
import subprocess
import sys
import uuid
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from rpcstream.codec import TAG_KEY, Codec, Shape
from rpcstream.codec.hints import hint_checker
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .values import returned, taken

codec = Codec()

HINTS: list[Any] = [
    *(np.ndarray, NDArray[np.float32], Annotated[NDArray[np.uint8], Shape(None, 3)], Image.Image, bytes),
    *(bytearray, memoryview, complex, np.float32, np.int8, np.bool_, np.complex64, np.datetime64, np.floating),
]
CHECKS = [hint_checker(hint, codec) for hint in HINTS]

#: Each line, and the libraries that it loads.
STEPS: list[tuple[str, list[str]]] = [
    ("codec = Codec(); ImageOptions(); Shape(1)", []),
    ("codec.dumps({'a': [1, 2.5, 'x', (1,), {2}]}); codec.decode([{'$type': 'unknown'}])", []),
    ("codec.decode([{'$type': 'complex', 'real': 1, 'imag': 2}]); codec.dumps(1j)", []),
    ("codec.register(type('Own', (), {}), 'own', encode=dict, decode=dict)", []),
    ("codec.decode([{'$type': 'bytes', 'data': ''}]); codec.dumps(b'x')", ["pybase64"]),
    ("codec.dumps({'a': None})", ["msgspec"]),
    ("codec.decode([{'$type': 'ndarray', 'dtype': '<f4', 'shape': [0], 'data': ''}])", ["numpy"]),
]
LIBRARIES = ["numpy", "PIL", "msgspec", "pybase64", "ml_dtypes", "pandas", "polars", "pyarrow", "scipy", "torch"]
PLUGINS = "from PIL import Image; from rpcstream.codec.hints import hint_checker\n"
PLUGINS += "try: hint_checker(Image.Image, codec)('AAAA')\nexcept ValueError: print(sorted(Image.OPEN))"


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
    with contextlib.suppress(ValueError):
        returned(hint, value)


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


class Mesh:
    def __init__(self, points: Any, name: str = "") -> None:
        self.points = points
        self.name = name


class Finer(Mesh):
    pass


def mesh_codec() -> Codec:
    codec = Codec()
    codec.register(Mesh, "mesh", encode=vars, decode=lambda parts: Mesh(**parts))
    return codec


def test_a_class_with_rich_parts_comes_back_at_any_depth() -> None:
    codec = mesh_codec()
    inner = Mesh([b"x", {"deep": 1j}], "inner")
    line = codec.dumps({"a": [Mesh(np.zeros((100, 200)), "outer"), Mesh(inner)]})
    found: Any = codec.decode(orjson.loads(line))
    assert found["a"][0].points.shape == (100, 200)
    assert found["a"][1].points.points == [b"x", {"deep": 1j}]
    assert orjson.loads(codec.dumps(Mesh(1)))["$type"] == "mesh"


def test_subclasses_go_as_their_registered_class() -> None:
    codec = mesh_codec()
    assert orjson.loads(codec.dumps(Finer(1)))["$type"] == "mesh"
    codec.register(Finer, "finer", encode=lambda mesh: {}, decode=lambda parts: Finer(0))
    assert orjson.loads(codec.dumps([Finer(1), Mesh(1)]))[0] == {"$type": "finer"}


def test_hints_for_registered_classes() -> None:
    codec = mesh_codec()
    assert taken(Mesh, {"$type": "mesh", "points": [1], "name": "a"}, codec).points == [1]
    mesh = Mesh(1)
    assert taken(Mesh, mesh, codec) is returned(Mesh, mesh, codec) is mesh
    for value in (None, 1, "x", [], {}, {"$type": "bytes", "data": ""}, {"$type": "other"}):
        for attempt in (taken, returned):
            with pytest.raises(ValueError, match=r"expected .*Mesh"):
                attempt(Mesh, value, codec)
    for cls, without in ((Finer, codec), (Mesh, Codec())):
        with pytest.raises(TypeError):
            taken(cls, None, without)


def test_a_decoder_that_fails_says_where() -> None:
    codec = mesh_codec()
    with pytest.raises(ValueError, match=r"mesh: .*unexpected keyword argument 'more'.* - at `\$\.a\[1\]`"):
        codec.decode({"a": [1, {"$type": "mesh", "more": 2}]})
    with pytest.raises(ValueError, match=r"payload.* - at `\$\.a\.points\[0\]`"):
        codec.decode({"a": {"$type": "mesh", "points": [{"$type": "bytes", "data": "x"}]}})
    for error in (KeyError("k"), ZeroDivisionError(), RuntimeError("x"), OSError(2, "gone")):

        def fail(parts: Any, error: Exception = error) -> None:
            raise error

        failing = Codec()
        failing.register(Mesh, "mesh", encode=lambda mesh: {}, decode=fail)
        with pytest.raises(ValueError, match=r"mesh: .+ - at `\$\[0\]`"):
            failing.decode([{"$type": "mesh"}])
        with pytest.raises(ValueError, match=r"mesh: ."):
            taken(Mesh, {"$type": "mesh"}, failing)


def test_an_encoder_that_fails_or_gives_no_parts() -> None:
    for encode, said in (
        *(
            (lambda _, parts=parts: parts, "encoder for|no form")
            for parts in (None, [1], {"$type": "x"}, {"a": object()}, {object(): 1})
        ),
        (lambda _: 1 / 0, "Mesh could not be encoded: division by zero"),
    ):
        codec = Codec()
        codec.register(Mesh, "mesh", encode=encode, decode=lambda parts: parts)
        with pytest.raises(EncodeError, match=said):
            codec.dumps({"a": [Mesh(1)]})


def test_an_encoder_without_an_end() -> None:
    codec = Codec()
    codec.register(Mesh, "mesh", encode=lambda mesh: {"again": mesh}, decode=lambda parts: parts)
    with pytest.raises(EncodeError, match="contains itself"):
        codec.dumps(Mesh(1))


def test_unknown_tags_stay_and_their_insides_are_decoded() -> None:
    value = {"$type": "unknown", "b": [{"$type": "bytes", "data": "YQ=="}], "n": {"$type": 5}, "l": {"$type": None}}
    assert codec.decode(value) == {**value, "b": [b"a"]}


def test_the_data_that_is_decoded_is_not_changed() -> None:
    data = {"a": [{"$type": "bytes", "data": "YQ=="}, [1]], "b": [[2]]}
    before = orjson.dumps(data)
    assert mesh_codec().decode(data) == {"a": [b"a", [1]], "b": [[2]]}
    assert orjson.dumps(data) == before


def subclass_of(base: type, *args: Any) -> Any:
    return type(f"My{base.__name__}", (base,), {})(*args)


VALUES = [
    *(subclass_of(decimal.Decimal, "1"), subclass_of(str, "a"), subclass_of(int, 1), subclass_of(float, 1.5)),
    *(subclass_of(dict, {"a": 1}), subclass_of(list, [1]), subclass_of(tuple, (1,)), subclass_of(Image.Image)),
    np.zeros(2).view(type("Field", (np.ndarray,), {})),
    msgspec.defstruct("Record", [("a", int, 0)])(),
    dataclasses.make_dataclass("Data", [("a", int, 0)])(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_subclasses_of_what_json_has_can_be_registered(value: Any) -> None:
    codec = Codec()
    codec.register(type(value), "mine", encode=lambda _: {}, decode=lambda _: "found")
    for message in ([value], {"a": {"b": value}}, {1: value}):
        assert b'{"$type":"mine"}' in codec.dumps(message)
    # All others go as before.
    others = ["a", collections.OrderedDict(a=1), [1], 2, enum.IntEnum("E", {"A": 3})(3)]
    assert codec.dumps(others) == Codec().dumps(others)


TAKEN: list[Any] = [
    *(object, str, int, bool, float, list, tuple, dict, set, bytes, complex, type(None), decimal.Decimal),
    *(uuid.UUID, np.ndarray, np.float32, np.float64, np.generic, Image.Image, msgspec.Struct, enum.Enum),
]


def test_what_is_taken_or_makes_no_sense() -> None:
    codec = mesh_codec()
    functions: Any = {"encode": lambda _: {}, "decode": lambda _: None}
    for cls in (*TAKEN, enum.Enum("Colour", "RED")):
        with pytest.raises(ValueError, match=r"built in|Enum"):
            codec.register(cls, "mine", **functions)
    for cls, tag in ((Mesh, "other"), (Finer, "mesh"), (Finer, "ndarray"), (Finer, "image"), (Finer, "bytes")):
        with pytest.raises(ValueError, match=r"taken|registered already"):
            codec.register(cls, tag, **functions)
    for cls, tag in (("Mesh", "a"), (Mesh(1), "a"), (Finer, ""), (Finer, None), (list[int], "a")):
        with pytest.raises(TypeError):
            codec.register(cls, tag, **functions)
