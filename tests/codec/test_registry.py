"""User-defined types: tags, encoders, decoders."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import uuid
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest
from PIL import Image

from rpcstream.codec import Codec
from rpcstream.errors import EncodeError

from .values import taken


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
    assert taken(Mesh, mesh, codec) is mesh
    for value in (None, 1, "x", [], {}, {"$type": "bytes", "data": ""}, {"$type": "other"}):
        with pytest.raises(ValueError, match=r"expected .*Mesh"):
            taken(Mesh, value, codec)
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


@pytest.mark.parametrize(
    ("encode", "said"),
    [
        *((lambda _, parts=parts: parts, "") for parts in (None, [1], {"$type": "x"}, {"a": object()}, {object(): 1})),
        (lambda _: 1 / 0, "Mesh could not be encoded: division by zero"),
    ],
)
def test_an_encoder_that_fails_or_gives_no_parts(encode: Any, said: str) -> None:
    codec = Codec()
    codec.register(Mesh, "mesh", encode=encode, decode=lambda parts: parts)
    with pytest.raises(EncodeError, match=said + r".*\$\.a\[0\]"):
        codec.dumps({"a": [Mesh(1)]})


def test_an_encoder_without_an_end() -> None:
    codec = Codec()
    codec.register(Mesh, "mesh", encode=lambda mesh: {"again": mesh}, decode=lambda parts: parts)
    with pytest.raises(EncodeError, match="contains itself"):
        codec.dumps(Mesh(1))


def test_unknown_tags_stay_and_their_insides_are_decoded() -> None:
    codec = mesh_codec()
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
        with pytest.raises(ValueError, match=r"taken|registered already, as 'mesh'"):
            codec.register(cls, tag, **functions)
    for cls, tag in (("Mesh", "a"), (Mesh(1), "a"), (Finer, ""), (Finer, None), (list[int], "a")):
        with pytest.raises(TypeError):
            codec.register(cls, tag, **functions)
