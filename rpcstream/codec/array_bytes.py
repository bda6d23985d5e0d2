"""Arrays over received bytes: shape and dtype are checked against the bytes that are there, `.npy` files are read.

Owns the checks before memory is used as an array. numpy's own reader evaluates the header of a `.npy` file (versions 1
to 3, format: numpy.lib.format) as Python and trusts the shape in it; here the header is matched by a pattern, its dtype
by the list of permitted ones, its shape by the size. Knows neither base64 nor hints.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from . import dtypes

#: numpy 1 had 32, numpy 2 has 64.
MAX_DIMENSIONS = 32
_MAX_BYTES = 2**62


def byte_size(shape: Any, dtype: np.dtype[Any]) -> int:
    """The bytes that an array takes. Raises ValueError for a shape that is malformed, or that no array can have."""
    _check_shape(shape)
    sizes: list[int] = shape
    size = math.prod(sizes) * dtype.itemsize
    # Without the zeros: numpy refuses (0, 2**62, 2**62) too.
    if (size or math.prod([size for size in sizes if size]) * dtype.itemsize) > _MAX_BYTES:
        raise ValueError("shape is too large for any memory")
    return size


def array_over(
    data: Any, dtype: np.dtype[Any], shape: list[int], *, fortran_order: bool = False, offset: int = 0
) -> np.ndarray[Any, Any]:
    """The array whose memory is `data` from `offset` on; the sizes must agree.

    Args:
        data: a bytearray, or an array of bytes.

    Raises ValueError for a bool array with bytes other than 0 and 1, with which numpy computes wrong results.
    """
    if offset == len(data):
        return np.empty(shape, dtype, order="F" if fortran_order else "C")
    if dtype.kind == "b" and (np.frombuffer(data, np.uint8, offset=offset) > 1).any():
        raise ValueError("the data of a bool array has bytes other than 0 and 1")
    # A view of an array has that as its base, whatever is done with it: so it is known who holds the memory.
    flat = data[offset:].view(dtype) if isinstance(data, np.ndarray) else np.frombuffer(data, dtype, offset=offset)
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


# -- .npy files -------------------------------------------------------------------------------------------------------

MAGIC = b"\x93NUMPY"
#: What numpy reads too, unless it is told to trust the file.
MAX_HEADER = 10_000

_ITEM = re.compile(
    r"""\s*(?P<quote>['"])(?P<name>descr|fortran_order|shape)(?P=quote)\s*:\s*"""
    r"""(?:(?P<order>True|False)|\((?P<shape>[0-9L,\s]*)\)|(?P<q>['"])(?P<descr>[^'"]*)(?P=q))\s*(?:,|$)"""
)


def array_from_npy(data: Any) -> np.ndarray[Any, Any]:
    """The array, in the order that the file has, over the given memory: a bytearray, or an array of bytes.

    Raises:
        ValueError: the bytes are not a `.npy` file of a permitted dtype, or not a whole one.
    """
    head = bytes(data[:12])
    if head[:6] != MAGIC or len(data) < 10:
        raise ValueError("not the bytes of a .npy file")
    version = head[6]
    if version not in (1, 2, 3) or head[7] != 0:
        raise ValueError(f".npy: version {version}.{head[7]} is not known")
    start = 10 if version == 1 else 12
    end = start + int.from_bytes(head[8:start], "little")
    if end - start > MAX_HEADER or end > len(data):
        raise ValueError(f".npy: the header claims {end - start} bytes")
    descr, fortran_order, shape = _parsed(bytes(data[start:end]).decode("latin-1"))
    dtype = dtypes.from_wire(descr)
    size = byte_size(shape, dtype)
    if len(data) - end != size:
        raise ValueError(f".npy: {len(data) - end} bytes of data, shape and dtype need {size}")
    return array_over(data, dtype, shape, fortran_order=fortran_order, offset=end)


def _parsed(header: str) -> tuple[str, bool, list[int]]:
    text = header.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(".npy: the header is not a dictionary")
    text = text[1:-1].rstrip()
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None or item["name"] in found:
            raise ValueError(".npy: the header is malformed")
        found[item["name"]] = item
        at = item.end()
    values = [found[name][group] for name, group in _GROUPS if name in found]
    if len(values) != 3 or None in values:
        raise ValueError(".npy: the header is malformed")
    descr, order, shape = values
    dims = [dim.strip().removesuffix("L") for dim in shape.split(",")]
    if dims[-1] == "":
        dims.pop()
    if not all(dim.isdecimal() and len(dim) < 20 for dim in dims):
        raise ValueError(".npy: the shape in the header is malformed")
    return descr, order == "True", [int(dim) for dim in dims]


_GROUPS = (("descr", "descr"), ("fortran_order", "order"), ("shape", "shape"))
