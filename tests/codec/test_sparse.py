"""Sparse arrays of scipy: exact round trips, hints, and what a hostile peer may send in place of their parts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from scipy import sparse

from rpcstream.errors import EncodeError

from .values import codec, received, returned, sent, taken

HUGE = 10**12
SOME = np.array([[0, 1, 0], [0, 0, 2]])
VALUES = [
    *(getattr(sparse, f"{form}_{kind}")(SOME) for form in ("csr", "csc", "coo") for kind in ("array", "matrix")),
    *(sparse.csr_array(SOME.astype(dtype)) for dtype in ("?", "i1", "u8", "f4", "D")),
    *(sparse.csr_array((5, 0)), sparse.csc_array((0, 5)), sparse.coo_array((0, 0))),
    sparse.coo_array(([1.5, 2.5, 0.0], ([0, 0, 1], [2, 2, 1])), shape=(2, 3)),  # a duplicate, and a zero
    sparse.csr_array(([1.0, 2.0], [2, 0], [0, 2, 2]), shape=(2, 3)),  # not sorted
    *(sparse.csr_array(np.array([0, 1, 0, 2])), sparse.coo_array(np.arange(8).reshape(2, 2, 2))),
    sparse.coo_array(([1.0], ([HUGE - 1], [0])), shape=(HUGE, HUGE)),
    sparse.csr_array(([1.0], [HUGE - 1], [0, 1]), shape=(1, HUGE)),
    sparse.random_array((300, 400), density=0.5, format="csc", rng=0),
]


def parts_of(value: Any) -> list[np.ndarray[Any, Any]]:
    return [value.data, *(value.coords if value.format == "coo" else (value.indptr, value.indices))]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value.dtype}-{value.shape}")
def test_they_come_back_as_they_are(value: Any) -> None:
    for found in (received([value])[0], taken(type(value), sent(value))):
        assert (type(found), found.shape, found.dtype) == (type(value), value.shape, value.dtype)
        for mine, theirs in zip(parts_of(found), parts_of(value), strict=True):
            assert mine.flags.writeable
            assert mine.tolist() == theirs.tolist()


def test_what_is_not_sent() -> None:
    for value, reason in (
        *(
            (make((2, 2)), r"has no form on the wire: convert it with tocsr\(\)")
            for make in (sparse.lil_array, sparse.bsr_matrix)
        ),
        (type("Graph", (sparse.csr_array,), {})((2, 2)), r"Graph has no form on the wire"),
        (sparse.csr_array(np.eye(2, dtype=np.longdouble)), r"dtype (longdouble|float128) has no form"),
    ):
        with pytest.raises(EncodeError, match=reason):
            codec.dumps([value])


def test_hints() -> None:
    csr, coo = sent(sparse.csr_array(SOME)), sent(sparse.coo_matrix(SOME))
    for hint, value in ((sparse.sparray, csr), (sparse.spmatrix, coo)):
        assert isinstance(taken(hint, value), hint)
    for hint, value in ((sparse.csr_matrix, csr), (sparse.sparray, coo), (sparse.csr_array, sent(np.ones(1)))):
        with pytest.raises(ValueError, match=rf"expected scipy\.sparse\.{hint.__name__}, got"):
            taken(hint, value)
    with pytest.raises(ValueError, match=r"expected scipy\.sparse\.csr_array"):
        returned(sparse.csr_array, sparse.csc_array(SOME))
    with pytest.raises(TypeError, match="never goes over the wire: use csr, csc or coo"):
        taken(sparse.lil_array, csr)


def array(values: list[Any], dtype: str = "i4") -> Any:
    return sent(np.array(values, dtype))


ENDS = {"$type": "sparse", "kind": "array", "shape": [2, 3], "values": array([1, 2], "f8")}
GOOD = ENDS | {"format": "csr", "indptr": array([0, 1, 2]), "indices": array([1, 2])}
GOOD_COO = ENDS | {"format": "coo", "coords": [array([0, 1]), array([1, 2])]}
NO_COORDS = [None, [], [array([0, 1])], [array([0, 1])] * 3, [array([0]), array([1])], [array([0, 2]), array([1, 2])]]


@pytest.mark.parametrize(
    "change",
    [
        *({"format": form} for form in ("coo", "csc", "bsr", "__class__", None, 1, ["csr"], {})),
        *({"kind": kind} for kind in ("matrices", None, 1, [])),
        *({"shape": shape} for shape in (None, 5, [2], [2, 3, 4], [2.0, 3], [True, 3], [-2, 3], [2, 2**63], [])),
        *({"shape": shape} for shape in ([HUGE, HUGE], [2**62, 3], [2, 2], [1, 3], [3, 3])),
        *({"indptr": array(values)} for values in ([0, 1], [0, 1, 2, 2], [1, 1, 2], [0, 1, 1], [0, 3, 2], [0, -1, 2])),
        *({"indptr": array([0, 1, 2], dtype)} for dtype in ("u4", "f8", "i2", "?", "M8[s]")),
        *({"indices": array(values)} for values in ([1], [1, 2, 2], [1, 3], [-1, 2], [1, -(2**31)])),
        *({"indices": array([1, 2], dtype)} for dtype in ("u8", "f4", "i1")),
        {"indptr": array([0, 2, 0]), "values": array([], "f8"), "indices": array([])},
        *({"values": values} for values in (array([[1, 2]]), array(1), None, [1, 2], "AAAA", {}, GOOD_COO["coords"])),
        *({"values": {**array([1, 2], "f8"), "shape": [3]}}, {"coords": []}, {"more": 1}, {"indptr": GOOD_COO}),
        *(GOOD_COO | {"coords": coords} for coords in NO_COORDS),
    ],
    ids=lambda change: repr(change)[:80],
)
def test_what_is_wrong_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sparse|ndarray"):
        codec.decode([change if "$type" in change else GOOD | change])


def test_the_example_of_the_wire_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text()
    (example,) = re.findall(r'^\{"\$type": "sparse".*$', page, re.MULTILINE)
    for line in (orjson.loads(example), GOOD, GOOD_COO):
        assert codec.decode(line).toarray().tolist() == [[0, 1, 0], [0, 0, 2]]  # type: ignore[attr-defined]
    assert sent(codec.decode(orjson.loads(example))) == orjson.loads(example)


def test_a_receiver_without_scipy_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "scipy.sparse"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"needs the package scipy.sparse, which is not installed here: pip install"):
        codec.decode(GOOD)
