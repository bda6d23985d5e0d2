"""Named schemas of one document: what has which name, and that no two classes share one."""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import Annotated, Any, TypeVar

import ml_dtypes
import msgspec
import numpy as np
import pydantic
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Codec, MaxSide, Shape
from rpcstream.codec.hints import CompiledHint
from rpcstream.codec.rich_hint import Components, schema_of

T = TypeVar("T")
codec = Codec()


def components_of(*hints: Any) -> tuple[list[str], Components]:
    """The names that these hints refer to, and the components."""
    components = Components()
    schemas = [schema_of(CompiledHint(hint, codec).described, components) for hint in hints]
    return [schema["$ref"].removeprefix("#/components/schemas/") for schema in schemas], components


def references(schema: Any) -> set[str]:
    return set(re.findall(r"#/components/schemas/([\w.-]+)", str(schema)))


@pytest.mark.parametrize(
    ("hint", "name", "described"),
    [
        (np.ndarray, "NdArray", {"dtype": None, "shape": None}),
        (NDArray[np.bool_], "NdArray_b1", {"dtype": ["|b1"], "shape": None}),
        (NDArray[np.float32 | np.float64], "NdArray_f4_f8", {"dtype": ["<f4", "<f8"], "shape": None}),
        (NDArray[np.floating[Any]], "NdArray_floating", {"dtype": ["<f2", "<f4", "<f8"], "shape": None}),
        (NDArray[ml_dtypes.bfloat16], "NdArray_bfloat16", {"dtype": ["bfloat16"], "shape": None}),
        (Annotated[NDArray[np.float32], Shape(None, 3)], "NdArray_f4_Nx3", {"dtype": ["<f4"], "shape": [None, 3]}),
        (Annotated[np.ndarray, Shape(..., 3)], "NdArray_Etcx3", {"dtype": None, "shape": ["...", 3]}),
        *((hint, name, None) for hint, name in ((Image.Image, "Image"), (bytes, "Bytes"), (complex, "Complex"))),
        *((Annotated[Image.Image, MaxSide(64)], "Image_max64", None), (np.float32, "np_float32", None)),
    ],
)
def test_rich_values_have_names_that_tell_what_they_are(hint: Any, name: str, described: dict[str, Any] | None) -> None:
    names, components = components_of(hint)
    assert names == list(components) == [name]
    assert components[name]["title"] == name
    assert components[name].get("x-ndarray") == described
    texts = str(components[name])
    assert texts.count("contentEncoding") == texts.count("contentMediaType")


def classes_named(name: str) -> list[type]:
    """Classes of this name, each with another field: as msgspec checks them, with rich fields, and of pydantic."""
    plain = [dataclasses.make_dataclass(name, [("a", int)]), msgspec.defstruct(name, [("b", int)])]
    rich = [dataclasses.make_dataclass(name, [("c", each)]) for each in (NDArray[np.uint8], Image.Image, bytes)]
    return [*plain, *rich, pydantic.create_model(name, d=(int, ...)), pydantic.create_model(name, e=(str, ...))]


@pytest.mark.parametrize("name", ["Point", "Image", "NdArray_u1", "Bytes"])
def test_classes_of_one_name_get_numbers(name: str) -> None:
    classes = classes_named(name)
    names, components = components_of(*classes, Image.Image, NDArray[np.uint8], bytes, *classes)
    of_classes = names[: len(classes)]
    assert names[-len(classes) :] == of_classes, "each has the name that it had before"
    assert len(set(of_classes)) == len(classes)
    fields = [list(components[each]["properties"]) for each in of_classes]
    assert fields == [["a"], ["b"], ["c"], ["c"], ["c"], ["d"], ["e"]]
    kinds = [components[components[each]["properties"]["c"]["$ref"].rpartition("/")[2]] for each in of_classes[2:5]]
    assert ["x-ndarray" in kinds[0], "x-image" in kinds[1], "x-bytes" in kinds[2]] == [True] * 3
    for each, schema in components.items():
        assert references(schema) <= set(components)
        assert schema["title"] == each


@dataclasses.dataclass
class Node:
    value: NDArray[np.uint8]
    link: Link | None = None


@dataclasses.dataclass
class Link:
    to: Node
    weight: float = 1.0


class Plain(msgspec.Struct):
    next: Plain | None = None


def test_classes_that_refer_to_each_other() -> None:
    names, components = components_of(Node, Link, Plain)
    assert names == ["Node", "Link", "Plain"]
    assert set(components) == {"Node", "Link", "Plain", "NdArray_u1"}
    assert references(components["Node"]) == {"Link", "NdArray_u1"}
    assert references(components["Plain"]) == {"Plain"}


def test_names_need_no_escapes_and_are_not_long() -> None:
    for name in ("</script>", "a/b~c", "Größe", "#", "x" * 10_000, "$ref"):
        kind = dataclasses.make_dataclass("C", [("a", int), ("b", NDArray[np.uint8])])
        kind.__name__ = name
        (made,), components = components_of(kind)
        assert made in components
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", made)


class Visit(msgspec.Struct, omit_defaults=True):
    at: datetime.datetime
    hours: list[datetime.time] | None = None
    days: dict[str, tuple[int, datetime.datetime]] = {}
    sent: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None


def test_dates_say_that_they_are_and_structs_that_they_leave_defaults_out() -> None:
    _, components = components_of(Visit)
    date = {"type": "string", "x-format": "date-time"}
    members = components["Visit"]["properties"]
    assert members["at"] == date
    assert members["hours"]["anyOf"][0]["items"] == {"type": "string", "x-format": "time"}
    assert members["days"]["additionalProperties"]["prefixItems"] == [{"type": "integer"}, date]
    assert members["sent"]["anyOf"][0] == {**date, "format": "date-time"}
    assert components["Visit"]["x-omit-defaults"] is True
