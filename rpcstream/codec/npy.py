"""Arrays out of the bytes of a `.npy` file, versions 1 to 3, without evaluating anything in it.

numpy's own reader evaluates the header as Python and believes the shape in it. Here the header is matched by a pattern,
its dtype by the white list, and its shape by the bytes that are there. Format: numpy.lib.format.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from . import dtypes
from .layout import array_over, byte_size

MAGIC = b"\x93NUMPY"
#: What numpy reads too, unless it is told to trust the file.
MAX_HEADER = 10_000

_ITEM = re.compile(
    r"""\s*(?P<quote>['"])(?P<name>descr|fortran_order|shape)(?P=quote)\s*:\s*"""
    r"""(?:(?P<order>True|False)|\((?P<shape>[0-9L,\s]*)\)|(?P<q>['"])(?P<descr>[^'"]*)(?P=q))\s*(?:,|$)"""
)


def array_from_npy(data: bytearray) -> np.ndarray[Any, Any]:
    """The array, in the order that the file has, over the given memory.

    Raises:
        ValueError: the bytes are not a `.npy` file of a permitted dtype, or not a whole one.
    """
    if data[:6] != MAGIC or len(data) < 10:
        raise ValueError("not the bytes of a .npy file")
    version = data[6]
    if version not in (1, 2, 3) or data[7] != 0:
        raise ValueError(f".npy: version {version}.{data[7]} is not known")
    start = 10 if version == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    if end - start > MAX_HEADER or end > len(data):
        raise ValueError(f".npy: the header claims {end - start} bytes")
    descr, fortran_order, shape = _parsed(data[start:end].decode("latin-1"))
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
