"""`.npy` files as base64 strings where a hint asks for an array."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rpcstream.codec import Codec

from ..kit.example_count import example_count

rich: Any = Codec().rich_hint(np.ndarray)


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=version, allow_pickle=True)
    return file.getvalue()


def decode(data: bytes, asked: Any = rich) -> Any:
    return asked.decode(base64.b64encode(data).decode())


dtypes = (
    hnp.scalar_dtypes()
    .filter(lambda dtype: dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.str[1:] not in ("f16", "c32"))
    .filter(lambda dtype: dtype.type not in (np.longdouble, np.clongdouble))
)


@settings(deadline=None, max_examples=example_count(100))
@given(hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)), st.sampled_from("CFT"))
def test_files_that_numpy_wrote(array: np.ndarray[Any, Any], order: str) -> None:
    given = array.T if order == "T" else np.asarray(array, order="F" if order == "F" else "C")
    for version in ((1, 0), (2, 0)):
        found = decode(npy(given, version))
        assert found.dtype == given.dtype
        assert found.shape == given.shape
        assert found.tobytes() == given.tobytes()
        assert found.flags.writeable
        assert found.flags.aligned
        assert found.flags.f_contiguous == given.flags.f_contiguous or array.size == 0


def test_dates_and_hints() -> None:
    dates = np.array(["2020-01-01", "NaT"], "M8[D]")
    assert decode(npy(dates)).tolist() == dates.tolist()
    wanted: Any = Codec().rich_hint(NDArray[np.float32])
    assert decode(npy(np.zeros(2, ">f4")), wanted).dtype == np.dtype("f4")
    with pytest.raises(ValueError, match="Expected `float32 ndarray`, got `float64 ndarray of shape"):
        decode(npy(np.zeros(2)), wanted)


def file(header: str, data: bytes = b"\x00" * 8, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    text = header.encode("latin-1")
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version[0] == 1 else 4, "little") + text + data


OTHER_WRITERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
    '{"descr": "<f4", "fortran_order": False, "shape": (2,)}',
    "{'shape':(2,),'descr':'<f4','fortran_order':False}",
    "{ 'shape' : ( 2 , 1 ) , 'fortran_order' : True , 'descr' : '<f4' }   \n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L), }\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n",
]


@pytest.mark.parametrize("header", OTHER_WRITERS)
def test_headers_of_other_writers(header: str) -> None:
    for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        found = decode(file(header, version=version))
        assert found.nbytes == 8
        assert found.flags.aligned


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff", b"not a file at all, but long enough"),
        *(pickle.dumps([1, 2, 3]), npy(np.array([None])), npy(np.array(["abc"])), npy(np.zeros(2, [("a", "i4")]))),
        *(npy(np.zeros(2, "V4")), npy(np.zeros(4))[:-1], npy(np.zeros(4)) + b"\x00"),
        *(file(HEADER, version=b"\x04\x00"), file(HEADER, version=b"\x01\x01"), file(HEADER, version=b"\x00\x00")),
        *(file(HEADER, length=60_000), file(HEADER, version=b"\x02\x00", length=2**31), file(" " * 10_001 + HEADER)),
        *(file(HEADER.replace("(2,)", "(3,)")), file(HEADER.replace("(2,)", "(-2,)"))),
        *(file(HEADER.replace("(2,)", "(2,,)")), file(HEADER.replace("(2,)", "(2 2)"))),
        *(file(HEADER.replace("(2,)", "[2]")), file(HEADER.replace("(2,)", "(True,)"))),
        file(HEADER.replace("(2,)", f"({'9' * 300},)")),
        file(HEADER.replace("(2,)", f"(0, {2**62}, {2**62})"), b""),
        *(file(HEADER.replace("(2,)", f"({'1, ' * 33}2)")), file(HEADER.replace("False", "0"))),
        *(file(HEADER.replace("'<f4'", "'O'")), file(HEADER.replace("'<f4'", "'10000000f8'"))),
        *(file(HEADER.replace("'<f4'", "'|O'")), file(HEADER.replace("'<f4'", "[('a', '<f4')]"))),
        *(file(HEADER.replace("'<f4'", "__import__('os').abort()")), file(HEADER.replace("'descr'", "'descR'"))),
        *(file(HEADER[:-1] + "'descr': '<f4', }"), file(HEADER[:-1] + "'more': 1, }"), file("{}"), file("{" * 5000)),
        *(file("(" * 9000), file("{'shape': (2,), }")),
        file("{'descr': (2,), 'fortran_order': '<f4', 'shape': False}"),
        file("{'descr': '|b1', 'fortran_order': False, 'shape': (8,), }", b"\x00\x01\x02\x00\x00\x00\x00\x00"),
    ],
)
def test_broken_and_hostile_files(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data)


@settings(deadline=None, max_examples=example_count(200))
@given(st.binary(max_size=200), st.text(max_size=100))
@example(b"", HEADER)
def test_any_header_gives_an_array_or_a_value_error(data: bytes, header: str) -> None:
    for content in (file(header.encode("latin-1", "replace").decode("latin-1"), data), b"\x93NUMPY\x01\x00" + data):
        try:
            assert isinstance(decode(content), np.ndarray)
        except ValueError:
            pass
