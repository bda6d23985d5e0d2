"""Sparse arrays and matrices of scipy as `{"$type": "sparse", "format", "kind", "shape", ...}`: csr, csc and coo.

Their parts are arrays by themselves. Those that come in are checked before anything is made of them: their lengths,
that `indptr` never decreases, that each index is inside the shape. The shape itself may be of any size and takes no
memory; a dense array of it would, so handlers have to look at the shape before `toarray`. Imports scipy with the first
value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import EncodeError
from .array_bytes import MAX_DIMENSIONS
from .encoding import Encoding
from .image_budget import ImageBudget, reading
from .ndarray import TAG as ARRAY_TAG
from .ndarray import Array, ArrayHint, decode_array
from .rich_hint import TAG_KEY, members, mismatch, optional_module, tagged_schema, type_name

TAG = "sparse"

#: What each counts for, in columns of a table (`image_budget.MAX_TABLE_WORK`).
_WORK = 8

#: What scipy computes with.
_VALUES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"})
_LARGEST = 2**63 - 1
_FORMATS = ("csr", "csc", "coo")
_KINDS = ("array", "matrix")


def encode_sparse(value: Any, encoding: Encoding) -> object:
    """The tagged object, with the parts as they are: indices in their order, duplicates and zeros kept.

    Raises:
        EncodeError: it has another format, is of a subclass, or of a dtype that does not go.
    """
    sparse = optional_module("scipy.sparse", "sparse")
    kind = "array" if isinstance(value, sparse.sparray) else "matrix"
    if value.format not in _FORMATS or type(value) is not getattr(sparse, f"{value.format}_{kind}"):
        raise EncodeError(f"a {type_name(type(value))} has no form on the wire: send tocsr() of it, or tocoo()")
    if value.dtype.str[1:] not in _VALUES:
        raise EncodeError(f"a sparse array of dtype {value.dtype} has no form on the wire: use one that scipy supports")
    encoding.expect_payload()
    tagged = {TAG_KEY: TAG, "format": value.format, "kind": kind, "shape": [int(size) for size in value.shape]}
    if value.format == "coo":
        return {**tagged, "coords": list(value.coords), "values": value.data}
    return {**tagged, "indptr": value.indptr, "indices": value.indices, "values": value.data}


def decode_sparse(tagged: dict[str, Any], budget: ImageBudget | None = None) -> Any:
    """The sparse array or matrix of a tagged object. ValueError if it is not what the wire page says."""
    form, kind = tagged.get("format"), tagged.get("kind")
    if form not in _FORMATS or kind not in _KINDS:
        raise ValueError(f"sparse: format must be one of {', '.join(_FORMATS)}, kind 'array' or 'matrix'")
    names = ("coords",) if form == "coo" else ("indptr", "indices")
    _, _, shape, *parts, values = members(tagged, "format", "kind", "shape", *names, "values")
    if (budget := budget or reading.get()) is not None:
        budget.take_table(_WORK)
    _check_shape(shape, form, kind)
    values = _values(values)
    if form == "coo":
        content: Any = (values, _coords(parts[0], shape, len(values)))
    else:
        content = (values, *_compressed(parts[0], parts[1], shape, form, len(values)))
    sparse = optional_module("scipy.sparse", "sparse")
    result = getattr(sparse, f"{form}_{kind}")(content, shape=tuple(shape))
    if result.dtype != values.dtype or tuple(result.shape) != tuple(shape):
        raise ValueError(f"sparse: the scipy installed here makes {result.dtype} {result.shape} of it")
    return result


class SparseHint:
    """A hint such as `csr_array`; `sparray` and `spmatrix` take each of the three formats."""

    takes_budget = True

    def __init__(self, cls: type) -> None:
        form, _, kind = cls.__name__.partition("_")
        if cls.__name__ not in ("sparray", "spmatrix") and (form not in _FORMATS or kind not in _KINDS):
            raise TypeError(f"a {type_name(cls)} never goes over the wire: use csr, csc or coo")
        self._cls = cls
        self._formats = [form] if form in _FORMATS else list(_FORMATS)
        self._kind = "array" if cls.__name__.endswith("array") else "matrix"
        self.name = f"scipy.sparse.{cls.__name__}"
        self.component = cls.__name__

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            form, kind = value.get("format"), value.get("kind")
            if form in _FORMATS and kind in _KINDS and (form not in self._formats or kind != self._kind):
                raise ValueError(f"Expected `{self.name}`, got `{form}_{kind}`")
            value = decode_sparse(value)
        return self.accept(value)

    def accept(self, value: object) -> object:
        if not isinstance(value, self._cls):
            raise mismatch(self.name, value)
        return value

    def schema(self) -> dict[str, Any]:
        array = ArrayHint(np.ndarray).schema()["anyOf"][0]
        shape = {"type": "array", "items": {"type": "integer", "minimum": 0}}
        either = []
        for form in self._formats:
            coords = {"coords": {"type": "array", "items": array}}
            parts = coords if form == "coo" else {"indptr": array, "indices": array}
            head = {"format": {"const": form}, "kind": {"const": self._kind}, "shape": shape}
            either.append(tagged_schema(TAG, {**head, **parts, "values": array}))
        return either[0] if len(either) == 1 else {"anyOf": either}


def _check_shape(shape: Any, form: str, kind: str) -> None:
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= _LARGEST for size in shape):
        raise ValueError("sparse: shape must be an array of integers that are not negative, of at most 63 bits")
    # Arrays alone may have another number of dimensions than two: csr one, coo any.
    least, most = {"coo": (1, MAX_DIMENSIONS), "csr": (1, 2)}.get(form, (2, 2)) if kind == "array" else (2, 2)
    if not least <= len(shape) <= most:
        raise ValueError(f"sparse: a {form}_{kind} cannot have {len(shape)} dimensions")


def _values(tagged: Any) -> Array:
    values = _vector(tagged, "values")
    if values.dtype.str[1:] not in _VALUES:
        raise ValueError(f"sparse: there are no sparse arrays of dtype {values.dtype}")
    return values


def _vector(tagged: Any, name: str) -> Array:
    """One part, in native byte order."""
    try:
        if not isinstance(tagged, dict) or tagged.get(TAG_KEY) != ARRAY_TAG:
            raise mismatch("ndarray", tagged)
        array = decode_array(tagged)
    except ValueError as error:
        raise ValueError(f"sparse: {name}: {error}") from error
    if array.ndim != 1:
        raise ValueError(f"sparse: {name} must have one dimension, it has {array.ndim}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _indices(tagged: Any, name: str, below: int, count: int) -> Array:
    """So many integers from 0 up to, but without, `below`."""
    array = _vector(tagged, name)
    if array.dtype.str[1:] not in ("i4", "i8"):
        raise ValueError(f"sparse: {name} must be int32 or int64, not {array.dtype}")
    if len(array) != count:
        raise ValueError(f"sparse: {name} has {len(array)} items, {count} are needed")
    if count and (array.min() < 0 or array.max() >= below):
        raise ValueError(f"sparse: {name} must be from 0 to {below - 1}")
    return array


def _coords(coords: Any, shape: list[int], count: int) -> tuple[Array, ...]:
    if not isinstance(coords, list) or len(coords) != len(shape):
        raise ValueError(f"sparse: coords must be an array of {len(shape)} arrays, one for each axis")
    return tuple(_indices(each, f"coords[{axis}]", shape[axis], count) for axis, each in enumerate(coords))


def _compressed(indptr: Any, indices: Any, shape: list[int], form: str, count: int) -> tuple[Array, Array]:
    """`indices` and `indptr`."""
    lines, below = (1, shape[0]) if len(shape) == 1 else shape if form == "csr" else reversed(shape)
    checked = _indices(indptr, "indptr", count + 1, lines + 1)
    if checked[0] != 0 or checked[-1] != count or (checked[1:] < checked[:-1]).any():
        raise ValueError(f"sparse: indptr must go from 0 to {count}, the number of values, and never decrease")
    return _indices(indices, "indices", below, count), checked
