"""Shape and dtype against the bytes that are there: the arithmetic of untrusted arrays.

Owns the checks before memory is looked at as an array. Knows neither base64 nor files nor hints.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: numpy 1 had 32, numpy 2 has 64.
MAX_DIMENSIONS = 32
_MAX_BYTES = 2**62


def byte_size(shape: Any, dtype: np.dtype[Any]) -> int:
    """How many bytes an array takes. ValueError for a shape that is none, or that no array can have, even empty."""
    _check_shape(shape)
    sizes: list[int] = shape
    # Without the zeros: numpy refuses (0, 2**62, 2**62) too.
    if math.prod(size for size in sizes if size) * dtype.itemsize > _MAX_BYTES:
        raise ValueError("shape is too large for any memory")
    return math.prod(sizes) * dtype.itemsize


def array_over(
    data: bytearray, dtype: np.dtype[Any], shape: list[int], *, fortran_order: bool = False, offset: int = 0
) -> np.ndarray[Any, Any]:
    """The array whose memory is `data` from `offset` on; the sizes are known to agree.

    ValueError for bool arrays with bytes other than 0 and 1, with which numpy reckons wrongly.
    """
    if offset == len(data):
        return np.empty(shape, dtype, order="F" if fortran_order else "C")
    if dtype.kind == "b" and (np.frombuffer(data, np.uint8, offset=offset) > 1).any():
        raise ValueError("the data of a bool array has bytes other than 0 and 1")
    flat = np.frombuffer(data, dtype, offset=offset)
    if not flat.flags.aligned:
        flat = flat.copy()
    return flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)


def _check_shape(shape: object) -> None:
    if not isinstance(shape, list):
        raise ValueError("shape must be an array of integers")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"shape has {len(shape)} dimensions, at most {MAX_DIMENSIONS} are allowed")
    for size in shape:
        if type(size) is not int or size < 0:
            raise ValueError("shape must be an array of integers that are not negative")
