"""Hints for arrays: element types, shapes, and results of handlers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream.codec import Shape

from .values import codec, rich, same, sent

T = TypeVar("T", bound=np.floating[Any])
C = TypeVar("C", np.float32, np.int8)


@pytest.mark.parametrize(
    ("hint", "name", "fits", "misfits"),
    [
        (np.ndarray, "ndarray", "f4 |b1 M8[s]", ""),
        (NDArray, "ndarray", "f4 c8", ""),
        (NDArray[np.generic], "ndarray", "f4 m8[D]", ""),
        (np.ndarray[Any, Any], "ndarray", "f4", ""),
        (NDArray[np.float32], "float32 ndarray", "<f4 >f4", "f8 f2 i4"),
        (np.ndarray[Any, np.dtype[np.float32]], "float32 ndarray", "f4", "f8"),
        (NDArray[np.float64], "float64 ndarray", "f8", "f4"),
        (NDArray[float], "float64 ndarray", "f8", "f4"),
        (NDArray[np.bool_], "bool ndarray", "|b1", "u1"),
        (NDArray[np.uint8], "uint8 ndarray", "u1", "i1 |b1"),
        (NDArray[np.intc], "int32 ndarray", "i4", "i8"),
        (NDArray[np.longlong], "int64 ndarray", "i8", "i4"),
        (NDArray[np.floating], "floating ndarray", "f2 f4 >f8", "c8 i4"),
        (NDArray[np.integer], "integer ndarray", "i1 u8", "f4 |b1 m8[s]"),
        (NDArray[np.signedinteger], "signedinteger ndarray", "i1", "u1 m8[s]"),
        (NDArray[np.unsignedinteger], "unsignedinteger ndarray", "u1", "i1"),
        (NDArray[np.number], "number ndarray", "i1 f4 c8", "|b1 M8[s] m8[s]"),
        (NDArray[np.inexact], "inexact ndarray", "f4 c16", "i4"),
        (NDArray[np.complexfloating], "complexfloating ndarray", "c8", "f4"),
        (NDArray[np.datetime64], "datetime64 ndarray", "M8[s] >M8[ns]", "m8[s] i8"),
        (NDArray[np.timedelta64], "timedelta64 ndarray", "m8[s]", "M8[s] i8"),
        (NDArray[np.float32 | np.float64], "float32 | float64 ndarray", "f4 f8", "f2"),
        (np.ndarray[Any, np.dtype[np.int8] | np.dtype[np.int16]], "int8 | int16 ndarray", "i1 i2", "i4"),
        (NDArray[T], "floating ndarray", "f4", "i4"),
        (NDArray[C], "float32 | int8 ndarray", "f4 i1", "f8"),
    ],
    ids=str,
)
def test_element_types_in_hints(hint: Any, name: str, fits: str, misfits: str) -> None:
    asked = rich(hint)
    assert asked.name == name
    for text in fits.split():
        array = np.zeros((2, 2), text)
        tagged = sent(array)
        for found in (asked.decode(tagged), asked.decode(array), asked.accept(array)):
            assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
            assert found.shape == (2, 2)
            assert found.dtype.isnative or name == "ndarray"
    for text in misfits.split():
        array = np.zeros((2, 2), text)
        tagged = sent(array)
        for attempt, value in ((asked.decode, tagged), (asked.decode, array), (asked.accept, array)):
            with pytest.raises(ValueError, match=r"Expected `.*`, got `.* ndarray of shape \(2, 2\)`"):
                attempt(value)
    assert asked.schema()


@pytest.mark.parametrize(
    "hint",
    [
        NDArray[np.object_],
        NDArray[np.str_],
        NDArray[np.bytes_],
        NDArray[np.void],
        NDArray[np.longdouble],
        NDArray[np.float32 | np.object_],
        NDArray[ml_dtypes.int4],
        NDArray[str],
        np.ndarray[Any, "float32"],  # type: ignore[name-defined]
        Annotated[NDArray[np.float32], Shape],
        Annotated[NDArray[np.float32], Shape(1), Shape(2)],
        Annotated[int, Shape(1)],
        Annotated[NDArray[np.float32] | None, Shape(1)],
    ],
    ids=str,
)
def test_hints_that_can_never_be_met(hint: Any) -> None:
    with pytest.raises(TypeError):
        codec.rich_hint(hint)


@pytest.mark.parametrize(
    ("hint", "text", "fits", "misfits"),
    [
        (Annotated[NDArray[np.float32], Shape(None, 3)], "(*, 3)", [(0, 3), (2, 3)], [(3,), (2, 2), (1, 2, 3)]),
        (Annotated[np.ndarray, Shape(2)], "(2,)", [(2,)], [(), (3,), (2, 2)]),
        (Annotated[np.ndarray, "other", Shape()], "()", [()], [(1,)]),
        (Annotated[np.ndarray, Shape(..., 3)], "(..., 3)", [(3,), (2, 3), (1, 2, 3)], [(), (2,), (3, 2)]),
        (Annotated[np.ndarray, Shape(1, ..., 3)], "(1, ..., 3)", [(1, 3), (1, 2, 3)], [(1,), (3,), (2, 3)]),
        (Annotated[np.ndarray, Shape(2, ...)], "(2, ...)", [(2,), (2, 5)], [(), (3, 2)]),
        (np.ndarray[tuple[int, int], np.dtype[np.float32]], "(*, *)", [(2, 3)], [(2,), (1, 2, 3)]),
        (np.ndarray[tuple[Literal[2], int], np.dtype[np.float32]], "(2, *)", [(2, 3)], [(3, 3)]),
        (np.ndarray[tuple[Any, ...], np.dtype[np.float32]], None, [(), (2,), (2, 3)], []),
        (Annotated[np.ndarray[tuple[int, int], Any], Shape(None, 3)], "(*, 3)", [(2, 3)], [(3,), (2, 2)]),
    ],
    ids=str,
)
def test_shapes_in_hints(hint: Any, text: str | None, fits: Any, misfits: Any) -> None:
    asked = rich(hint)
    assert asked.name.endswith(f" of shape {text}" if text else "ndarray")
    for shape in fits:
        assert asked.decode(sent(np.zeros(shape, "f4"))).shape == shape
    for shape in misfits:
        with pytest.raises(ValueError, match=re.escape(f"got `float32 ndarray of shape {shape}`")):
            asked.decode(sent(np.zeros(shape, "f4")))


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (NDArray[np.float32], [1, 2.5], np.array([1, 2.5], "f4")),
        (NDArray[np.float32], [], np.zeros(0, "f4")),
        (NDArray[np.float32], ((1, 2), (3, 4)), np.array([[1, 2], [3, 4]], "f4")),
        (NDArray[np.float32], [np.float32(1)], np.array([1], "f4")),
        (NDArray[np.uint8], [0, 255], np.array([0, 255], "u1")),
        (NDArray[np.uint64], [2**64 - 1], np.array([2**64 - 1], "u8")),
        (NDArray[np.complex64], [1, 2j], np.array([1, 2j], "c8")),
        (NDArray[np.bool_], [True], np.array([True])),
        (NDArray[np.floating], [1], np.array([1.0])),
        (NDArray[np.integer], [1], np.array([1])),
        (NDArray[np.float16], [float("inf")], np.array([float("inf")], "f2")),
        (NDArray[ml_dtypes.bfloat16], [1, 2.5], np.array([1, 2.5]).astype(ml_dtypes.bfloat16)),
        (NDArray[np.uint8 | np.float64], [1.5], np.array([1.5])),
        (np.ndarray, [1.5], np.array([1.5])),
        (NDArray[np.float32], np.float32(1), np.array(1, "f4")),
    ],
    ids=str,
)
def test_numbers_that_a_handler_returned_become_the_array(hint: Any, value: Any, expected: Any) -> None:
    assert same(rich(hint).accept(value), expected)


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (NDArray[np.uint8], [[256], [-1]]),
        (NDArray[np.uint64], [[-1]]),
        (NDArray[np.int64], [[2**63], [1.5], [True]]),
        (NDArray[np.float32], [[1e300], [1j], [True], [10**400], ["a"], [[1], [2, 3]], [None], "AAAA", 1.0, None]),
        (NDArray[np.float32], [{"a": 1}, np.zeros(1)]),
        (np.ndarray, [np.array([None]), np.array(["a"])]),
        (Annotated[NDArray[np.float32], Shape(2)], [[1.0]]),
    ],
    ids=str,
)
def test_returned_values_that_are_not_the_array(hint: Any, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match="Expected `"):
            rich(hint).accept(value)


def test_schema() -> None:
    schema = rich(Annotated[NDArray[np.float32], Shape(None, 3)]).schema()
    tagged, npy = schema["anyOf"]
    assert tagged["properties"]["$type"] == {"const": "ndarray"}
    assert tagged["properties"]["dtype"] == {"enum": ["<f4", ">f4", "float32"]}
    assert tagged["properties"]["shape"]["prefixItems"] == [{"type": "integer", "minimum": 0}, {"const": 3}]
    assert npy["contentEncoding"] == "base64"
    assert rich(NDArray[np.uint8]).schema()["anyOf"][0]["properties"]["dtype"] == {"enum": ["|u1", "uint8"]}
    assert rich(NDArray[ml_dtypes.bfloat16]).schema()["anyOf"][0]["properties"]["dtype"] == {"enum": ["bfloat16"]}
    assert rich(NDArray[np.floating]).schema()["anyOf"][0]["properties"]["dtype"] == {"type": "string"}
