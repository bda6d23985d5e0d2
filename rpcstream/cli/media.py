"""Arrays and images as files: what items name, and what results are saved as.

The one module of the command line that imports numpy and Pillow for parameters and files; imported only when one of
them is there. Knows no command line and no wire.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codec.npy import array_from_npy
from ..limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from PIL.Image import Image


def array_from_file(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """The array in the bytes of a .npy file, never a pickle.

    Args:
        dtype: convert to this one, unless empty.

    Raises:
        ValueError: not a whole .npy file, or of a dtype that has no form on the wire.
    """
    if data.startswith(b"PK"):
        raise ValueError("an .npz file holds several arrays; give the .npy file of one")
    try:
        array = array_from_npy(bytearray(data))
    except ValueError as error:
        raise ValueError(f"not a .npy file that can be sent: {error}") from error
    return _as_dtype(array, dtype)


def array_from_json(nested: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The array of nested lists of numbers, or of one number.

    Raises:
        ValueError: rows of different lengths, or anything but numbers and bools.
    """
    try:
        array = np.asarray(nested) if nested != [] else np.empty(0)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError("not an array of numbers")
    return _as_dtype(array, dtype)


def _as_dtype(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if not dtype:
        return array
    try:
        wanted = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"unknown dtype {dtype!r}") from error
    if wanted.kind not in "biufc":
        raise ValueError(f"the dtype {dtype!r} is not one of numbers")
    with np.errstate(all="ignore"):
        converted = array.astype(wanted)
    if array.dtype.kind in "biu" and wanted.kind in "iu" and not np.array_equal(converted, array):
        raise ValueError(f"a number does not fit into {dtype}")
    return converted


def npy_file(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of a .npy file."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def image_file(image: Image, ending: str) -> bytes:
    """The bytes of an image file in the format that the ending (".png") means.

    Raises:
        ValueError: no such format, or it cannot hold this kind of image.
    """
    from PIL import Image as images

    format_name = images.registered_extensions().get(ending)
    if format_name is None or format_name not in images.SAVE:
        raise ValueError(f"{ending!r} is not the ending of an image format")
    out = io.BytesIO()
    try:
        image.save(out, format=format_name)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"an image of mode {image.mode} cannot be saved as {format_name}: {error}") from error
    return out.getvalue()


def opened_image(data: bytes) -> Image:
    """The image in the bytes of a file of any format that Pillow reads, as one from which PNG can be made.

    Raises:
        ValueError: not an image, a broken one, or one over the limit of pixels.
    """
    from PIL import Image as images
    from PIL import UnidentifiedImageError

    try:
        image = images.open(io.BytesIO(data))
        if image.width * image.height > DEFAULT_LIMITS.max_image_pixels:
            raise ValueError(f"an image of {image.width} x {image.height} pixels is too large")
        image.load()
    except UnidentifiedImageError as error:
        raise ValueError("not an image") from error
    except (OSError, SyntaxError, EOFError, images.DecompressionBombError) as error:
        raise ValueError(f"not an image that can be read: {error}") from error
    return image
