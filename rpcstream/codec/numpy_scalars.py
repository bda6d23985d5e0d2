"""numpy's scalars: plain JSON numbers and bools on the way out, and what hints such as `np.float32` ask for.

A float32 goes out as the float64 of the same value, NaN and the infinities as tagged objects. Complex ones go as
complex numbers, datetime64 and timedelta64 as arrays without dimensions, so that unit and NaT stay. A longdouble is
refused: JSON's numbers cannot hold it.
"""

from __future__ import annotations

import cmath
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import EncodeError
from . import dtypes
from .codec import Encoding
from .ndarray import TAG, ArrayHint, decode_array, encode_array
from .rich_hint import TAG_KEY, mismatch, type_name
from .scalars import COMPLEX_SCHEMA, encode_complex, encode_float

#: The plain numbers that may stand for a scalar, by the kind of its dtype.
_NUMBERS: dict[str, tuple[type, ...]] = {
    **{"b": (bool,), "i": (int,), "u": (int,), "f": (int, float), "V": (int, float), "c": (int, float, complex)},
    "?": (bool, int, float, complex),
}


def encode_scalar(value: np.generic, encoding: Encoding) -> object:
    """A JSON value, or a tagged object. EncodeError for a longdouble, and for void and the like."""
    if value.dtype.kind in "mM":
        return encode_array(np.asarray(value), encoding)
    plain = value.item()
    if isinstance(plain, bool | int):
        return plain
    if isinstance(plain, float):
        return encode_float(plain)
    if isinstance(plain, complex):
        return encode_complex(plain, encoding)
    raise EncodeError(f"{type_name(type(value))} has no form on the wire")


class NumpyScalarHint:
    """A hint for one of numpy's scalar types, or an abstract one such as `np.floating`, which takes any of its kind.

    Raises:
        TypeError: the hint asks for what never goes over the wire.
    """

    def __init__(self, hint: Any) -> None:
        self._kind = dtypes.scalar_type(hint)
        self._dtype: Any = None if self._kind in dtypes.ABSTRACT else np.dtype(self._kind)
        #: The kind of the dtype; "?" for an abstract type.
        self._code = "?" if self._dtype is None else self._dtype.kind
        self.name = dtypes.name_of(self._kind)
        self.component = None if self._code in "biu" else f"np_{self.name}"

    def decode(self, value: object, _: object = None) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:  # a date, where arrays are wanted as well
            value = decode_array(value)
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value.astype(value.dtype.newbyteorder("="))[()]
        scalar: Any = value if isinstance(value, np.generic) else self._of_number(value)
        if not isinstance(scalar, np.generic) or not dtypes.fits(scalar.dtype, (self._kind,)):
            raise mismatch(self.name, value)
        return scalar

    accept = decode

    def _of_number(self, value: Any) -> Any:
        """A plain number as the wanted scalar, or as numpy's own for an abstract type; None if it does not fit."""
        if type(value) not in _NUMBERS.get(self._code, ()):
            return None
        with np.errstate(all="ignore"), suppress(OverflowError):
            array = np.asarray(value)
            scalar: Any = (array if self._dtype is None else array.astype(self._dtype))[()]
            # Floats are rounded, but do not become infinite.
            if scalar == value if self._code in "iu" else cmath.isfinite(scalar) == cmath.isfinite(value):
                return scalar
        return None

    def schema(self) -> dict[str, Any]:
        if self._code in "iu":
            limits = np.iinfo(self._dtype)
            return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
        if self._code == "b":
            return {"type": "boolean"}
        plain = [] if self._code in "mM" else [{"type": "number"}]
        others = [COMPLEX_SCHEMA] if self._code in "?c" else []
        return {"anyOf": [*plain, *others, *ArrayHint(np.ndarray).schema()["anyOf"][:1]]}
