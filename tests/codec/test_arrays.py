"""Arrays: every dtype and layout, `.npy` files, hints, names of element types, and what is refused."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Annotated, Any, TypeVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rpcstream.codec import Shape
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .values import CODEC, encoded, received, returned, same, sent, taken

WIRE_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"
EIGHTS = [
    f"float8_{name}" for name in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
]

T = TypeVar("T", bound=np.floating[Any])
C = TypeVar("C", np.float32, np.int8)

kinds = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | hnp.datetime64_dtypes(endianness="?")
    | hnp.timedelta64_dtypes(endianness="?")
)
arrays = hnp.arrays(kinds, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
LAYOUTS = ["C", "F", "strided", "reversed", "transposed", "read-only", "broadcast"]


def laid_out(array: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
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
    return np.broadcast_to(array, (2, *array.shape)) if layout == "broadcast" else array


@settings(deadline=None, max_examples=example_count(200))
@given(arrays, st.sampled_from(LAYOUTS), st.booleans())
def test_every_dtype_and_layout_comes_back_bit_by_bit(array: np.ndarray[Any, Any], layout: str, is_large: bool) -> None:
    if is_large:  # so that it stands beside the JSON where it may
        array = np.repeat(array[None], 10_000 // max(1, array.nbytes), axis=0)
    array = laid_out(array, layout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wire = sent({"in": [array]})["in"][0]
        assert same(received(array), array)
    assert wire["dtype"] == array.dtype.str
    for found in (CODEC.decode(wire), taken(np.ndarray, wire)):
        assert same(found, array)
        assert found.flags.c_contiguous
        assert found.flags.writeable
        assert found.flags.aligned
    exact = taken(NDArray[array.dtype.type], wire)  # type: ignore[name-defined]
    assert exact.dtype.isnative
    assert exact.dtype == array.dtype.newbyteorder("=")


def test_the_example_of_the_wire_page() -> None:
    wire = sent(np.arange(6, dtype="<f4").reshape(2, 3))
    assert wire == {"$type": "ndarray", "dtype": "<f4", "shape": [2, 3], "data": "AAAAAAAAgD8AAABAAABAQAAAgEAAAKBA"}
    assert list(wire) == ["$type", "dtype", "shape", "data"]
    assert taken(np.ndarray, {**wire, "shape": [0, 2**58], "data": ""}).shape == (0, 2**58)


@pytest.mark.parametrize("name", ["bfloat16", *EIGHTS])
def test_types_of_ml_dtypes_go_by_name(name: str) -> None:
    kind = getattr(ml_dtypes, name)
    for array in (np.array([[1.0], [2.0]]), np.array(1.0), np.zeros(0), np.ones((300, 400)).T):
        array = array.astype(kind)
        assert sent(array)["dtype"] == name
        assert same(received(array), array)
        assert same(taken(NDArray[kind], sent(array)), array)
    with pytest.raises(ValueError, match=f"expected an array of {name}, got an array of float32"):
        taken(NDArray[kind], sent(np.zeros(1, "f4")))


def test_arrays_that_have_no_form() -> None:
    small = [getattr(ml_dtypes, name) for name in ("int4", "uint2", "float4_e2m1fn", "float6_e2m3fn")]
    for array in (
        *(np.array([None]), np.array(["a"]), np.array([b"a"]), np.zeros(2, [("a", "i4")]), np.zeros(2, "V3")),
        *(np.zeros(2, kind) for kind in (np.longdouble, np.clongdouble, *small)),
        np.ma.masked_array([1, 2], [True, False]),
    ):
        for value in (array, {"a": [array]}, array.reshape(-1, 1)):
            with pytest.raises(EncodeError, match=r"has no form on the wire"):
                CODEC.dumps(value)


class WithArray:
    """A tensor of another library, as far as numpy sees it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


class OnDevice(WithArray):
    """CuPy refuses `__array__`, and copies to the host for `get`."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __dlpack__(self, **_: Any) -> Any: ...

    def get(self) -> Any:
        return self.array


@pytest.mark.parametrize("kind", [WithArray, OnDevice])
def test_objects_of_other_libraries_go_out_as_arrays(kind: Any) -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert same(received({"a": kind(array)})["a"], array)
    assert same(returned(NDArray[np.float64], kind(array)), array)
    with pytest.raises(ValueError, match="expected an array of float32, got an array of float64"):
        returned(NDArray[np.float32], kind(array))


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
        *({"shape": shape} for shape in ([2**40], [2**20, 2**20], [0, 2**61], [2**61, 0])),
        *({"shape": [10**400], "data": data} for data in ("", "AACAPw==")),
        *({"data": data} for data in (None, 1, [], "", "AACAPw", "AACAPw=", "AAC Pw==", "AACAPw==\n")),
        *({"data": data} for data in ("AACAP-==", "ÄACAPw==", "AACAPw==AACA", "====", "AACA\x00w==")),
        *({"more": 1}, {"dtype": "|b1", "data": "Ag=="}),
    ],
    ids=repr,
)
def test_hostile_arrays_are_refused(change: dict[str, Any]) -> None:
    for decode in (CODEC.decode, lambda value: taken(np.ndarray, value)):
        with pytest.raises(ValueError, match=r".") as caught:
            decode({**GOOD, **change})
        assert len(str(caught.value)) < 1000


def rows_of_the_wire_page() -> list[list[str]]:
    section = WIRE_PAGE.read_text().partition("### dtypes\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in rows]


@pytest.mark.parametrize("row", rows_of_the_wire_page(), ids=lambda row: row[1])
def test_names_of_the_wire_page_are_little_endian(row: list[str]) -> None:
    text, name, size, _, _ = row
    array = np.array([0, 1]).astype(np.dtype(name or text).newbyteorder("<"))
    assert (sent(array)["dtype"], str(array.itemsize)) == (text, size)
    for each in (text, name or text):
        assert same(CODEC.decode({**sent(array), "dtype": each}), array)


def test_who_names_an_unknown_type_is_told_what_to_write() -> None:
    for text in ("float", "f4", "=f4", "flaot32", "<U5", "x" * 100_000):
        with pytest.raises(
            ValueError, match="is not one that goes over the wire: use a name such as 'float32'"
        ) as caught:
            CODEC.decode({**GOOD, "dtype": text})
        assert len(str(caught.value)) < 200


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=version, allow_pickle=True)
    return file.getvalue()


def of_file(data: bytes, hint: Any = np.ndarray) -> Any:
    return taken(hint, encoded(data))


@settings(deadline=None, max_examples=example_count(100))
@given(arrays, st.sampled_from("CFT"), st.sampled_from([(1, 0), (2, 0)]))
def test_npy_files_that_numpy_wrote(array: np.ndarray[Any, Any], order: str, version: tuple[int, int]) -> None:
    array = array.T if order == "T" else np.asarray(array, order="F" if order == "F" else "C")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = of_file(npy(array, version))
    assert same(found, array)
    assert found.flags.writeable
    assert found.flags.aligned
    assert found.flags.f_contiguous == array.flags.f_contiguous or array.size == 0


def file(header: str, data: bytes = b"\x00" * 8, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    text = header.encode("latin-1")
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version[0] == 1 else 4, "little") + text + data


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"not a file at all, but long enough"),
        *(pickle.dumps([1, 2, 3]), npy(np.array([None])), npy(np.array(["abc"])), npy(np.zeros(2, [("a", "i4")]))),
        *(npy(np.zeros(4))[:-1], file(HEADER, version=b"\x04\x00")),
        *(file(HEADER, length=60_000), file(HEADER, version=b"\x02\x00", length=2**31), file(" " * 10_001 + HEADER)),
        *(file(HEADER.replace("2,", shape)) for shape in ("3,", "-2,", "2,,", "True,", "9" * 300)),
        *(file(HEADER.replace("(2,)", "[2]")), file(HEADER.replace("2,", f"0, {2**62}, {2**62}"), b"")),
        *(file(HEADER.replace("'<f4'", descr)) for descr in ("'10000000f8'", "'|O'", "[('a', '<f4')]")),
        *(file(HEADER.replace("'<f4'", "__import__('os').abort()")), file(HEADER.replace("False", "0"))),
        *(file(HEADER[:-1] + "'more': 1, }"), file("{}"), file("{" * 5000), file("(" * 9000)),
    ],
    ids=lambda data: repr(data)[:60],
)
def test_broken_and_hostile_npy_files(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        of_file(data)


@settings(deadline=None, max_examples=example_count(200))
@given(st.binary(max_size=200), st.text(max_size=100))
@example(b"", HEADER)
def test_any_npy_header_gives_an_array_or_a_value_error(data: bytes, header: str) -> None:
    for content in (file(header.encode("latin-1", "replace").decode("latin-1"), data), b"\x93NUMPY\x01\x00" + data):
        with contextlib.suppress(ValueError):
            assert isinstance(of_file(content), np.ndarray)


@pytest.mark.parametrize(
    ("hint", "words", "fits", "misfits"),
    [
        *((hint, "", "f4 |b1 M8[s]", "") for hint in (np.ndarray, NDArray, NDArray[np.generic], np.ndarray[Any, Any])),
        (NDArray[np.float32], "float32", "<f4 >f4", "f8 f2 i4"),
        (NDArray[np.bool_], "bool", "|b1", "u1"),
        (NDArray[np.floating], "floating", "f2 f4 >f8", "c8 i4"),
        (NDArray[np.integer], "integer", "i1 u8", "f4 |b1 m8[s]"),
        (NDArray[np.number], "number", "i1 f4 c8", "|b1 M8[s] m8[s]"),
        (NDArray[np.float32 | np.float64], "float32 or float64", "f4 f8", "f2"),
        (np.ndarray[Any, np.dtype[np.int8] | np.dtype[np.int16]], "int8 or int16", "i1 i2", "i4"),
        (NDArray[T], "floating", "f4", "i4"),
        (NDArray[C], "float32 or int8", "f4 i1", "f8"),
    ],
    ids=str,
)
def test_element_types_in_hints(hint: Any, words: str, fits: str, misfits: str) -> None:
    for text in fits.split():
        array = np.zeros((2, 2), text)
        for found in (taken(hint, sent(array)), taken(hint, array), returned(hint, array)):
            assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
            assert found.shape == (2, 2)
            assert found.dtype.isnative or not words
    for text in misfits.split():
        array = np.zeros((2, 2), text)
        for attempt, value in ((taken, sent(array)), (taken, array), (returned, array)):
            with pytest.raises(ValueError, match=rf"expected an array of {words}, got an array of .* \(2, 2\)"):
                attempt(hint, value)


@settings(max_examples=example_count(50))
@example(np.array([2**64 - 1024, 0], "<u8"))
@given(hnp.arrays(st.sampled_from(["?", "<i8", "<u8", "<f8"]), hnp.array_shapes(min_dims=1, max_dims=5, min_side=1)))
def test_nested_lists_of_numbers_are_an_array(array: np.ndarray[Any, Any]) -> None:
    found = taken(NDArray[array.dtype.type], [array.tolist()])  # type: ignore[name-defined]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array[None])


def test_numbers_in_lists_get_the_dtype_of_the_hint_if_it_keeps_them() -> None:
    for hint, lists, dtype in [
        (np.ndarray, [], "f8"),
        (np.ndarray, [[], []], "f8"),
        (NDArray[np.float32], [[1, 2.5], [True, 0]], "f4"),
        (NDArray[np.floating], [1], "f8"),
        (NDArray[np.uint8 | np.int16], [300], "i2"),
        (NDArray[np.complex64], [1], "c8"),
        (list[NDArray[np.uint8]] | NDArray[np.float32], [1.5], "f4"),
    ]:
        found = taken(hint, lists)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, lists)
    assert [each.dtype for each in taken(NDArray[np.float32] | list[NDArray[np.uint8]], [[1], [2, 3]])] == ["u1", "u1"]
    misfits: list[Any] = [["1"], [None], [1, [2]], [[1], 2], [{}], [2**64], [[[]], [[1]]], [[1.5]] * 2 + [[]]]
    for lists in (*misfits, [256], [-1], [1.5]):
        with pytest.raises(ValueError, match=r"nested lists must|expected an array of uint8, got an array of"):
            taken(NDArray[np.uint8], lists)


def test_hints_that_can_never_be_met() -> None:
    for hint in (
        *(NDArray[np.str_], NDArray[np.void], NDArray[np.longdouble], NDArray[np.float32 | np.object_], NDArray[str]),
        *(NDArray[ml_dtypes.int4], Annotated[NDArray[np.float32], Shape], Annotated[np.ndarray | None, Shape(1)]),
        Annotated[NDArray[np.float32], Shape(1), Shape(2)],
    ):
        with pytest.raises(TypeError):
            taken(hint, None)


@pytest.mark.parametrize(
    ("hint", "text", "fits", "misfits"),
    [
        (Annotated[NDArray[np.float32], Shape(None, 3)], "(*, 3)", [(0, 3), (2, 3)], [(3,), (2, 2), (1, 2, 3)]),
        (Annotated[np.ndarray, Shape(2)], "(2,)", [(2,)], [(), (3,), (2, 2)]),
        (Annotated[np.ndarray, Shape(..., 3)], "(..., 3)", [(3,), (2, 3), (1, 2, 3)], [(), (2,), (3, 2)]),
        (Annotated[np.ndarray, Shape(1, ..., 3)], "(1, ..., 3)", [(1, 3), (1, 2, 3)], [(1,), (3,), (2, 3)]),
        (np.ndarray[tuple[int, int], np.dtype[np.float32]], "(*, *)", [(2, 3)], [(2,), (1, 2, 3)]),
        (Annotated[np.ndarray[tuple[int, int], Any], Shape(None, 3)], "(*, 3)", [(2, 3)], [(3,), (2, 2)]),
    ],
    ids=str,
)
def test_shapes_in_hints(hint: Any, text: str, fits: Any, misfits: Any) -> None:
    for shape in fits:
        assert taken(hint, sent(np.zeros(shape, "f4"))).shape == shape
    for shape in misfits:
        said = re.escape(f" of shape {text}, got an array of float32 of shape {shape}")
        with pytest.raises(ValueError, match=said):
            taken(hint, sent(np.zeros(shape, "f4")))


def test_shapes_are_values() -> None:
    shape = Shape(None, 3, ...)
    assert eval(repr(shape)) == shape == pickle.loads(pickle.dumps(shape))
    assert len({shape, Shape(None, 3, ...), Shape(3)}) == 2
    for dims in ((-1,), (..., ...), (1.5,), ("n",), (True,), ((1, 2),)):
        with pytest.raises((ValueError, TypeError), match=r"negative|at most one|a dimension is"):
            Shape(*dims)


def test_returned_values_that_are_not_the_array() -> None:
    floats = [[1e300], [1j], [True], [10**400], ["a"], [[1], [2, 3]], [None], "AAAA", 1.0, None, {"a": 1}, np.zeros(1)]
    for hint, values in (
        *((NDArray[np.uint8], [[1]]), (NDArray[np.float32], floats)),
        *((np.ndarray, [np.array([None]), np.array(["a"])]), (Annotated[NDArray[np.float32], Shape(2)], [[1.0]])),
    ):
        for value in values:
            with pytest.raises(ValueError, match="expected an array"):
                returned(hint, value)
