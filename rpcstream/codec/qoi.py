"""QOI images (the format of https://qoiformat.org, version 1.0) by the package `qoi`, which is compiled.

Pillow reads and writes QOI, too, but in Python: about a second for each megapixel, too long for a server. Knows neither
tagged objects nor pixel limits.
"""

from __future__ import annotations

import struct
from importlib.util import find_spec
from typing import Any, cast

from PIL import Image

MAGIC = b"qoif"
#: Mode -> channels in the file.
MODES = {"RGB": 3, "RGBA": 4}


def is_there() -> bool:
    """True if the package is installed (extra `qoi`)."""
    return find_spec("qoi") is not None


def encode(image: Image.Image) -> bytes:
    """The file for an image of one of `MODES`. It holds pixels only: no profile, no EXIF."""
    import numpy as np
    import qoi

    encoded: bytes = qoi.encode(np.asarray(image))
    return encoded


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height, from the header. ValueError if it is none."""
    if len(data) < 14 or data[:4] != MAGIC:
        raise ValueError("the header is not that of a QOI file")
    return cast(tuple[int, int], struct.unpack_from(">II", data, 4))


def decode(data: bytes) -> Image.Image:
    """The image in a file, RGB or RGBA. Some exception or other if the file is broken; look at its size before."""
    import qoi

    pixels: Any = qoi.decode(data)
    return Image.fromarray(pixels)
