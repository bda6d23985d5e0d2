"""Sparse arrays and matrices of scipy as `{"$type": "sparse", "format", "kind", "shape", ...}`: csr, csc and coo.

Their parts are arrays by themselves. What comes in is checked: by scipy, that each index is inside the shape, and here
that `indptr` never decreases, which scipy does not look at where its end is 0. The shape itself may be of any size and
takes no memory; a dense array of it would, so handlers have to look at the shape before `toarray`. Imports scipy with
the first value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import EncodeError
from ..codec import Encoding, Reading
from ..ndarray import ArrayHint
from ..rich_hint import TAG_KEY, members, mismatch, optional_module, shortened, tagged_schema, type_name

TAG = "sparse"

#: How many values each counts for (`reading.MAX_CHECKED`): it takes 0.1 to 0.2 ms.
_WORK = 20
_KINDS = ("array", "matrix")
#: The parts of each format, besides the values, as scipy names them.
_PARTS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("coords",)}


def encode_sparse(value: Any, encoding: Encoding) -> object:
    """The tagged object, with the parts as they are: indices in their order, duplicates and zeros kept.

    Raises:
        EncodeError: it has another format, or is of a subclass.
    """
    sparse = optional_module("scipy.sparse", "sparse")
    kind = "array" if isinstance(value, sparse.sparray) else "matrix"
    if value.format not in _PARTS or type(value) is not getattr(sparse, f"{value.format}_{kind}"):
        raise EncodeError(f"a {type_name(type(value))} has no form on the wire: convert it with tocsr() or tocoo()")
    parts = {name: getattr(value, name) for name in _PARTS[value.format]}
    if "coords" in parts:
        parts["coords"] = list(parts["coords"])
    shape = [int(size) for size in value.shape]
    return {TAG_KEY: TAG, "format": value.format, "kind": kind, "shape": shape, **parts, "values": value.data}


def decode_sparse(parts: dict[str, Any], reading: Reading) -> Any:
    """The sparse array or matrix of a tagged object, whose arrays were decoded. ValueError if it is none."""
    form, kind, shape = parts.get("format"), parts.get("kind"), parts.get("shape")
    if not isinstance(form, str) or form not in _PARTS or kind not in _KINDS:
        raise ValueError(f"sparse: format must be one of {', '.join(_PARTS)}, kind 'array' or 'matrix'")
    _, _, _, *places, values = members({TAG_KEY: TAG, **parts}, "format", "kind", "shape", *_PARTS[form], "values")
    reading.take_values(_WORK)
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError("sparse: shape must be an array of integers that are not negative, of at most 63 bits")
    make = getattr(optional_module("scipy.sparse", "sparse"), f"{form}_{kind}")
    try:
        data = _vector(values, "values")
        if form == "coo":
            coords = places[0] if isinstance(places[0], list) else []
            result = make((data, tuple(_vector(each, "coords") for each in coords)), shape=tuple(shape))
            result._check()
        else:
            indptr, indices = map(_vector, places, _PARTS[form])
            if not len(indptr) or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
                raise ValueError(f"indptr must end with {len(data)}, the number of values, and never decrease")
            result = make((data, indices, indptr), shape=tuple(shape))
            result.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"sparse: {shortened(str(error), 200)}") from error
    return result


def _vector(array: Any, name: str) -> Any:
    """One part, in native byte order."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name}: {mismatch('ndarray', array)}")
    if array.ndim != 1 or (name != "values" and array.dtype.str[1:] not in ("i4", "i8")):
        raise ValueError(f"{name} must have one dimension, and indices be int32 or int64")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class SparseHint:
    """A hint such as `csr_array`; `sparray` and `spmatrix` take each of the three formats."""

    def __init__(self, cls: type) -> None:
        form, _, kind = cls.__name__.partition("_")
        if cls.__name__ not in ("sparray", "spmatrix") and (form not in _PARTS or kind not in _KINDS):
            raise TypeError(f"a {type_name(cls)} never goes over the wire: use csr, csc or coo")
        self._cls = cls
        self._formats = [form] if form in _PARTS else list(_PARTS)
        self._kind = "array" if cls.__name__.endswith("array") else "matrix"
        self.name = f"scipy.sparse.{cls.__name__}"
        self.component = cls.__name__

    def decode(self, value: object, _: object = None) -> object:
        if not isinstance(value, self._cls):
            raise mismatch(self.name, value)
        return value

    accept = decode

    def schema(self) -> dict[str, Any]:
        array = ArrayHint(np.ndarray).schema()["anyOf"][0]
        shape = {"type": "array", "items": {"type": "integer", "minimum": 0}}
        either = []
        for form in self._formats:
            parts = {name: {"type": "array", "items": array} if name == "coords" else array for name in _PARTS[form]}
            head = {"format": {"const": form}, "kind": {"const": self._kind}, "shape": shape}
            either.append(tagged_schema(TAG, {**head, **parts, "values": array}))
        return either[0] if len(either) == 1 else {"anyOf": either}
