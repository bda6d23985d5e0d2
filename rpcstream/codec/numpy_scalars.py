"""numpy's scalars: plain JSON numbers and bools on the way out, and what hints such as `np.float32` ask for.

A float32 goes out as the float64 of the same value, NaN and the infinities as tagged objects. Complex ones go as
complex numbers, datetime64 and timedelta64 as arrays without dimensions, so that unit and NaT stay. A longdouble is
refused: JSON's numbers cannot hold it.
"""

from __future__ import annotations

import math
import typing
from typing import Any

import numpy as np

from ..errors import EncodeError
from . import dtypes
from .encoding import Encoding
from .ndarray import TAG as ARRAY_TAG
from .ndarray import ArrayHint, decode_array, encode_array
from .rich_hint import TAG_KEY, mismatch, type_name
from .scalars import COMPLEX_SCHEMA, COMPLEX_TAG, decode_complex, encode_complex, encode_float


def encode_scalar(value: np.generic, encoding: Encoding) -> object:
    """A JSON value, or a tagged object. EncodeError for a longdouble, and for void and the like."""
    dtype, number = value.dtype, typing.cast(Any, value)
    if dtype.kind in "mM":
        return encode_array(np.asarray(value), encoding)
    if dtypes.is_extension(dtype):
        return int(number) if "int" in dtype.name else encode_float(float(number))
    if dtype.kind in "biu":
        return value.item()
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return encode_float(float(number))
    if dtype.kind == "c" and dtype.itemsize <= 16:
        return encode_complex(complex(number), encoding)
    raise EncodeError(f"{type_name(type(value))} has no form on the wire")


class NumpyScalarHint:
    """A hint for one of numpy's scalar types, or an abstract one such as `np.floating`, which takes any of its kind.

    Raises:
        TypeError: the hint asks for what never goes over the wire.
    """

    def __init__(self, hint: Any) -> None:
        self._wanted = dtypes.Wanted(hint)
        self.name = self._wanted.name

    def decode(self, value: object) -> object:
        if isinstance(value, np.generic):
            return self._fitting(value)
        if isinstance(value, dict):
            if value.get(TAG_KEY) == COMPLEX_TAG:
                return self._number(decode_complex(value))
            if value.get(TAG_KEY) == ARRAY_TAG:
                array = decode_array(value)
                if array.ndim:
                    raise ValueError(f"Expected `{self.name}`, got `ndarray of shape {array.shape}`")
                return self._fitting(array.astype(array.dtype.newbyteorder("="))[()])
        if isinstance(value, bool | int | float | complex):
            return self._number(value)
        raise mismatch(self.name, value)

    def accept(self, value: object) -> object:
        return self.decode(value if not isinstance(value, dict) else None)

    @property
    def component(self) -> str | None:
        kind = self._wanted.dtype.kind if self._wanted.dtype is not None else ""
        return None if kind and kind in "biu" else f"np_{self.name}"

    def schema(self) -> dict[str, Any]:
        dtype = self._wanted.dtype
        kind = dtype.kind if dtype is not None else ""
        if dtype is not None and kind in "iu":
            lowest, highest = _limits(dtype)
            return {"type": "integer", "minimum": lowest, "maximum": highest}
        if kind == "b":
            return {"type": "boolean"}
        plain = [{"type": "integer" if "int" in self.name else "number"}] if "time" not in self.name else []
        others = [COMPLEX_SCHEMA] if self._may_be_complex() else []
        return {"anyOf": [*plain, *others, *ArrayHint(np.ndarray).schema()["anyOf"][:1]]}

    def _may_be_complex(self) -> bool:
        return self._wanted.matches(np.dtype(complex)) or self._wanted.matches(np.dtype(np.complex64))

    def _fitting(self, value: Any) -> object:
        if not self._wanted.matches(value.dtype):
            raise mismatch(self.name, value)
        return value

    def _number(self, value: complex) -> object:
        """A plain number as the wanted scalar, unless it is of another kind or does not fit."""
        dtype = self._wanted.dtype or self._natural(value)
        if dtype is None or not _is_kind(value, dtype):
            raise mismatch(self.name, value)
        try:
            with np.errstate(all="ignore"):
                # Not `dtype.type(value)`: for a Python int out of range that only warns in numpy 1.
                scalar: Any = np.array([value]).astype(dtype)[0]
        except (OverflowError, TypeError, ValueError):
            scalar = None
        if scalar is None or (dtype.kind in "iu" and int(scalar) != value) or not _both_finite(scalar, value):
            raise ValueError(f"Expected `{self.name}`, got a number that does not fit in it")
        return scalar

    def _natural(self, value: complex) -> np.dtype[Any] | None:
        """The dtype for a plain number where the hint allows several."""
        for dtype in map(np.dtype, (bool, np.int64, np.uint64, np.float64, np.complex128)):
            if self._wanted.matches(dtype) and _is_kind(value, dtype):
                lowest, highest = _limits(dtype)
                if lowest <= value.real <= highest or dtype.kind not in "iu":
                    return dtype
        return None


def _limits(dtype: Any) -> tuple[int, int]:
    """The least and the greatest number of an integer dtype; zeros for others."""
    return (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if dtype.kind in "iu" else (0, 0)


def _is_kind(value: object, dtype: np.dtype[Any]) -> bool:
    """True if a plain number of this type may stand for the dtype."""
    if dtype.kind == "b":
        return isinstance(value, bool)
    if isinstance(value, bool) or dtype.kind in "mM":
        return False
    if dtype.kind in "iu":
        return isinstance(value, int)
    if dtype.kind == "c":
        return isinstance(value, int | float | complex)
    return isinstance(value, int | float)


def _both_finite(scalar: Any, value: complex) -> bool:
    """A number that became infinite did not fit."""
    made = complex(scalar)
    pairs = ((made.real, value.real), (made.imag, value.imag))
    return all(math.isfinite(new) == math.isfinite(old) for new, old in pairs)
