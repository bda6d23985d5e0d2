"""Sparse arrays of scipy: exact round trips, hints, and what a hostile peer may send in place of their parts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from scipy import sparse

from rpcstream import EncodeError

from .values import codec, received

HUGE = 10**12


def parts_of(value: Any) -> list[np.ndarray[Any, Any]]:
    others = value.coords if value.format == "coo" else (value.indptr, value.indices)
    return [value.data, *others]


SOME = np.array([[0, 1, 0], [0, 0, 2]])
VALUES = [
    *(getattr(sparse, f"{form}_{kind}")(SOME) for form in ("csr", "csc", "coo") for kind in ("array", "matrix")),
    *(sparse.csr_array(SOME.astype(dtype)) for dtype in ("?", "i1", "u2", "u8", "f4", "f8", "F", "D")),
    sparse.csr_array((5, 0)),
    sparse.csc_array((0, 5)),
    sparse.coo_array((0, 0)),
    sparse.coo_array(([1.5, 2.5, 0.0], ([0, 0, 1], [2, 2, 1])), shape=(2, 3)),  # a duplicate, and a zero
    sparse.csr_array(([1.0, 2.0], [2, 0], [0, 2, 2]), shape=(2, 3)),  # not sorted
    sparse.csr_array(np.array([0, 1, 0, 2])),
    sparse.coo_array(np.arange(8).reshape(2, 2, 2)),
    sparse.coo_array((HUGE, HUGE)),
    sparse.coo_array(([1.0], ([HUGE - 1], [0])), shape=(HUGE, HUGE)),
    sparse.csr_array(([1.0], [HUGE - 1], [0, 1]), shape=(1, HUGE)),
    sparse.random_array((300, 400), density=0.5, format="csc", rng=0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value.dtype}-{value.shape}")
def test_they_come_back_as_they_are(value: Any) -> None:
    for found in (
        received([value])[0],
        codec.rich_hint(type(value)).decode(orjson.loads(codec.dumps(value))),
    ):
        assert (type(found), found.shape, found.dtype) == (type(value), value.shape, value.dtype)
        for mine, sent in zip(parts_of(found), parts_of(value), strict=True):
            assert mine.flags.writeable
            assert mine.tolist() == sent.tolist()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (sparse.lil_array((2, 2)), r"lil_array has no form on the wire: send tocsr\(\)"),
        (sparse.bsr_matrix((2, 2)), r"bsr_matrix has no form on the wire: send tocsr\(\)"),
        (sparse.dia_array((2, 2)), r"send tocsr\(\)"),
        (type("Graph", (sparse.csr_array,), {})((2, 2)), r"Graph has no form on the wire"),
        (sparse.csr_array(np.eye(2, dtype=np.longdouble)), r"dtype (longdouble|float128) has no form"),
    ],
)
def test_what_is_not_sent(value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        codec.dumps([value])


def test_hints() -> None:
    csr = orjson.loads(codec.dumps(sparse.csr_array(SOME)))
    coo = orjson.loads(codec.dumps(sparse.coo_matrix(SOME)))
    for hint, sent in (
        (sparse.csr_array, csr),
        (sparse.sparray, csr),
        (sparse.coo_matrix, coo),
        (sparse.spmatrix, coo),
    ):
        assert isinstance(codec.rich_hint(hint).decode(sent), hint)
        assert codec.rich_hint(hint).schema()
    for hint, sent, reason in (
        (sparse.csc_array, csr, "Expected `scipy.sparse.csc_array`, got `csr_array`"),
        (sparse.csr_matrix, csr, "Expected `scipy.sparse.csr_matrix`, got `csr_array`"),
        (sparse.sparray, coo, "Expected `scipy.sparse.sparray`, got `coo_matrix`"),
        (sparse.csr_array, [1], "Expected `scipy.sparse.csr_array`, got `array`"),
        (sparse.csr_array, {"$type": "ndarray"}, "got `object tagged 'ndarray'`"),
    ):
        with pytest.raises(ValueError, match=reason):
            codec.rich_hint(hint).decode(sent)
    with pytest.raises(ValueError, match="got `csc_array`"):
        codec.rich_hint(sparse.csr_array).accept(sparse.csc_array(SOME))
    for hint in (sparse.lil_array, sparse.dia_matrix):
        with pytest.raises(TypeError, match="never goes over the wire: use csr, csc or coo"):
            codec.rich_hint(hint)


def array(values: list[Any], dtype: str = "i4") -> Any:
    return orjson.loads(codec.dumps(np.array(values, dtype)))


GOOD = {
    "$type": "sparse",
    "format": "csr",
    "kind": "array",
    "shape": [2, 3],
    "indptr": array([0, 1, 2]),
    "indices": array([1, 2]),
    "values": array([1, 2], "f8"),
}
GOOD_COO = {
    "$type": "sparse",
    "format": "coo",
    "kind": "array",
    "shape": [2, 3],
    "coords": [array([0, 1]), array([1, 2])],
    "values": array([1, 2], "f8"),
}


@pytest.mark.parametrize(
    "change",
    [
        *({"format": form} for form in ("coo", "csc", "bsr", "dok", "__class__", None, 1, ["csr"], {})),
        *({"kind": kind} for kind in ("matrices", None, 1, [])),
        *(
            {"shape": shape}
            for shape in (None, 5, [2], [2, 3, 4], [2.0, 3], [True, 3], [-2, 3], [2, 2**63], [], [3, 3])
        ),
        *({"shape": shape} for shape in ([HUGE, HUGE], [2**62, 3], [2, 2], [1, 3])),
        *({"indptr": array(values)} for values in ([0, 1], [0, 1, 2, 2], [1, 1, 2], [0, 1, 1], [0, 3, 2], [0, -1, 2])),
        *({"indptr": array([0, 1, 2], dtype)} for dtype in ("u4", "f8", "i2", "?", "M8[s]")),
        *({"indices": array(values)} for values in ([1], [1, 2, 2], [1, 3], [-1, 2], [1, -(2**31)])),
        *({"indices": array([1, 2], dtype)} for dtype in ("u8", "f4", "i1")),
        {"indptr": array([0, 2, 0]), "values": array([], "f8"), "indices": array([])},
        *({"values": values} for values in (array([[1, 2]]), array(1), None, [1, 2], "AAAA", {}, GOOD_COO["coords"])),
        {"values": {**array([1, 2], "f8"), "shape": [3]}},
        {"coords": []},
        {"more": 1},
        {"indptr": GOOD_COO},
    ],
    ids=repr,
)
def test_what_is_wrong_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sparse"):
        codec.decode([GOOD | change])
    assert codec.decode([GOOD])[0].toarray().tolist() == [[0, 1, 0], [0, 0, 2]]


@pytest.mark.parametrize(
    "coords",
    [None, [], [array([0, 1])], [array([0, 1])] * 3, [array([0]), array([1])], [array([0, 2]), array([1, 2])], 5],
)
def test_wrong_coordinates_are_refused(coords: Any) -> None:
    with pytest.raises(ValueError, match="sparse: "):
        codec.decode(GOOD_COO | {"coords": coords})
    good: Any = codec.decode(GOOD_COO)
    assert good.toarray().tolist() == [[0, 1, 0], [0, 0, 2]]


def test_the_example_of_the_wire_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()
    (example,) = re.findall(r'^\{"\$type": "sparse".*$', page, re.MULTILINE)
    found: Any = codec.decode(orjson.loads(example))
    assert found.toarray().tolist() == [[0, 1, 0], [0, 0, 2]]
    assert orjson.loads(codec.dumps(found)) == orjson.loads(example)


def test_a_receiver_without_scipy_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['scipy'] = sys.modules['scipy.sparse'] = None\n"
        "from rpcstream.codec import Codec\n"
        f"try: Codec().decode({GOOD})\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert "needs the package scipy, which is not installed here: pip install 'rpcstream[sparse]'" in done.stdout


def test_the_arrays_of_a_message_are_counted_together() -> None:
    with pytest.raises(ValueError, match="the tables of the message are too many"):
        codec.decode([GOOD] * 8193)
