"""Arrays in both directions: every dtype and layout, what is refused, and hints."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .values import codec, received, rich, same, sent

dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | hnp.datetime64_dtypes(endianness="?")
    | hnp.timedelta64_dtypes(endianness="?")
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def laid_out_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    array = draw(hnp.arrays(draw(dtypes), draw(shapes)))
    layout = draw(st.sampled_from(["C", "F", "strided", "reversed", "transposed", "read-only", "broadcast"]))
    if layout == "F":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "strided" and array.ndim:
        return array[::2]
    if layout == "reversed" and array.ndim:
        return array[..., ::-1]
    if layout == "transposed":
        return array.T
    if layout == "read-only":
        array.flags.writeable = False
    if layout == "broadcast":
        return np.broadcast_to(array, (2, *array.shape))
    return array


@settings(deadline=None, max_examples=example_count(300))
@given(laid_out_arrays())
def test_every_dtype_and_layout_comes_back_bit_by_bit(array: np.ndarray[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tagged = sent({"in": [array]})["in"][0]
    assert tagged["dtype"] == array.dtype.str
    for found in (codec.decode(tagged), rich(np.ndarray).decode(tagged)):
        assert same(found, array)
        assert found.flags.c_contiguous
        assert found.flags.writeable
        assert found.flags.aligned
    exact = rich(NDArray[array.dtype.type]).decode(tagged)  # type: ignore[name-defined]
    assert exact.dtype.isnative
    assert exact.dtype == array.dtype.newbyteorder("=")


def test_the_wire_page() -> None:
    assert sent(np.arange(6, dtype="<f4").reshape(2, 3)) == {
        "$type": "ndarray",
        "dtype": "<f4",
        "shape": [2, 3],
        "data": "AAAAAAAAgD8AAABAAABAQAAAgEAAAKBA",
    }
    assert list(sent(np.array(1, "i1"))) == ["$type", "dtype", "shape", "data"]


@pytest.mark.parametrize(
    "name",
    [
        *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    ],
)
def test_types_of_ml_dtypes_go_by_name(name: str) -> None:
    kind = getattr(ml_dtypes, name)
    for values in ([1.0, 2.0, 0.5], [[1.0], [2.0]], 1.0, []):
        array = np.array(values).astype(kind)
        tagged = sent(array)
        assert tagged["dtype"] == name
        assert same(received(array), array)
        assert same(rich(NDArray[kind]).decode(tagged), array)
    big = np.ones((300, 400), kind).T
    assert same(received(big), big)
    with pytest.raises(ValueError, match=f"Expected `{name} ndarray`, got `float32"):
        rich(NDArray[kind]).decode(sent(np.zeros(1, "f4")))


@pytest.mark.parametrize(
    "array",
    [
        *(np.array([None]), np.array(["a"]), np.array([b"a"]), np.zeros(2, [("a", "i4")]), np.zeros(2, "V3")),
        *(np.zeros(2, np.longdouble), np.zeros(2, np.clongdouble), np.zeros(2, ml_dtypes.int4)),
        *(np.zeros(2, ml_dtypes.uint2), np.zeros(2, ml_dtypes.float4_e2m1fn), np.zeros(2, ml_dtypes.float6_e2m3fn)),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_that_have_no_form(array: Any) -> None:
    for value in (array, {"a": [array]}, array.reshape(-1, 1)):
        with pytest.raises(EncodeError, match=r"has no form on the wire"):
            codec.dumps(value)


class WithArray:
    """A tensor of another library, as far as numpy sees it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


class WithDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        if options:
            raise TypeError("the old protocol only")
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnDevice(WithDlpack):
    """CuPy refuses `__array__`, and copies to the host for `__dlpack__`."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")


@pytest.mark.parametrize("kind", [WithArray, WithDlpack, OnDevice])
def test_objects_of_other_libraries_go_out_as_arrays(kind: Any) -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert same(received({"a": kind(array)})["a"], array)
    assert same(rich(NDArray[np.float64]).accept(kind(array)), array)
    with pytest.raises(ValueError, match="Expected `float32 ndarray`, got `float64"):
        rich(NDArray[np.float32]).accept(kind(array))


GOOD = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AACAPw=="}


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": text} for text in ("f4", "=f4", "float", "<f4 ", "<f4\n", "<f3", "<f16", "<c32", "<g", "")),
        *({"dtype": text} for text in ("O", "|O", "<U2", "|S4", "|V4", "<V2", "10000000f8", "(2,)f4", "f4,f4")),
        *({"dtype": text} for text in ("<M8[0s]", "<M8[s", "<M8[foo]", "<M8[1000000000s]", "<M8[٣s]", "|b2", "?")),
        *({"dtype": value} for value in (None, 1, ["<f4"], [["a", "<f4"]], {"names": ["a"], "formats": ["<f4"]})),
        *({"dtype": name} for name in ("int4", "float4_e2m1fn", "float6_e2m3fn", "bfloat17", "int1")),
        *({"shape": shape} for shape in (None, 1, "1", [-1], [True], [1.0], ["1"], [None], [[1]], {"0": 1}, [2])),
        *({"shape": shape} for shape in ([1] * 33, [0], [1, 0], [2**63], [2**31, 2**33], [0, 2**62, 2**62])),
        *({"shape": [10**400], "data": data} for data in ("", "AACAPw==")),
        *({"data": data} for data in (None, 1, [], "", "AACAPw", "AACAPw=", "AACAPx==", "AAC Pw==", "AACAPw==\n")),
        *({"data": data} for data in ("AACAP-==", "ÄACAPw==", "AACAPw==AACA", "====", "AACA\x00w==")),
        {"more": 1},
        {"dtype": "|b1", "data": "Ag=="},
    ],
    ids=repr,
)
def test_hostile_arrays_are_refused(change: dict[str, Any]) -> None:
    wrong = {**GOOD, **change}
    with pytest.raises(ValueError, match=r"."):
        codec.decode(wrong)
    with pytest.raises(ValueError, match=r"."):
        rich(np.ndarray).decode(wrong)


def test_nothing_is_allocated_for_a_lie() -> None:
    for shape in ([2**40], [2**20, 2**20], [0, 2**61], [2**61, 0]):
        with pytest.raises(ValueError, match=r"bytes of data|too large"):
            codec.decode({**GOOD, "shape": shape})
    empty: Any = codec.decode({**GOOD, "shape": [0, 2**58], "data": ""})
    assert empty.shape == (0, 2**58)
