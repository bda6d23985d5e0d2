"""Arrays, images and tables as files, and images as pictures on a terminal.

The file of an image is passed on unchanged where its format is one of the wire (wire page, "Rich values"). numpy,
Pillow and pyarrow are imported only by the functions that need them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ..codec import TAG_KEY
from ..codec.image_formats import FORMATS, format_of
from ..limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

#: Tags of tables.
TABLES = ("arrow", "pandas", "polars")

_UPPER_HALF, _LOWER_HALF = "\u2580", "\u2584"
#: Lines of a picture at most, so that the text above it stays on the screen.
_MAX_PICTURE_LINES = 24

#: Names of dtypes of numpy that hold no numbers.
_NOT_NUMBERS = ("object", "str", "bytes", "void")

Pixel = tuple[int, int, int, int]

# -- arrays


def array_from_file(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """The array in a .npy file; a pickle is refused.

    Args:
        data: the bytes of the file.
        dtype: convert to this one, unless empty.

    Raises:
        ValueError: not a whole .npy file, or of a dtype that has no form on the wire.
    """
    from ..codec.ndarray import array_from_npy

    if data.startswith(b"PK"):
        raise ValueError("an .npz file holds several arrays; give the .npy file of one")
    try:
        array = array_from_npy(bytearray(data))
    except ValueError as error:
        raise ValueError(f"not a .npy file that can be sent: {error}") from error
    return _as_dtype(array, dtype)


def array_from_json(nested: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The array of nested lists of numbers, or of one number.

    Args:
        nested: the parsed JSON.
        dtype: convert to this one, unless empty.

    Raises:
        ValueError: rows of different lengths, or values other than numbers and bools.
    """
    import numpy as np

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
    import numpy as np

    from ..codec.dtypes import from_wire

    try:
        wanted = from_wire(dtype)
    except ValueError as error:
        if dtype in _NOT_NUMBERS:
            raise ValueError(f"the dtype {dtype!r} is not one of numbers") from error
        raise ValueError(f"unknown dtype {dtype!r:.60}: {str(error).rpartition(': ')[2]}") from error
    if wanted.kind in "mM":
        raise ValueError(f"the dtype {dtype!r} is not one of numbers")
    with np.errstate(all="ignore"):
        converted = array.astype(wanted)
    if array.dtype.kind in "biu" and wanted.kind in "iu" and not np.array_equal(converted, array):
        raise ValueError(f"a number does not fit into {dtype}")
    return converted


def array_in_one_of(array: np.ndarray[Any, Any], dtypes: list[str]) -> np.ndarray[Any, Any]:
    """The array in the first of these dtypes that can hold its numbers; as it is where none can, or its own is one.

    Args:
        array: of numbers as JSON has them: int64, float64 or bool.
        dtypes: as on the wire.
    """
    from ..codec.dtypes import from_wire

    if array.dtype.str in dtypes or array.dtype.name in dtypes:
        return array
    holding = {"f": "fcV", "b": "biufcV"}.get(array.dtype.kind, "iufcV")  # V: bfloat16 and the like
    for dtype in dtypes:
        try:
            if from_wire(dtype).kind in holding:
                return _as_dtype(array, dtype)
        except (ValueError, ImportError):
            continue
    return array


def npy_file(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of a .npy file with the array."""
    import numpy as np

    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


# -- tables


def table_from_file(data: bytes) -> Any:
    """The table in a Parquet file, or else in a CSV file.

    Raises:
        ValueError: neither of them, or pyarrow is not installed.
    """
    pa = _pyarrow()
    from pyarrow import csv, parquet

    source = pa.BufferReader(data)
    try:
        return parquet.read_table(source) if data.startswith(b"PAR1") else csv.read_csv(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"not a table that can be read: {str(error).splitlines()[0]:.200}") from error


def table_file(table: Any, ending: str) -> bytes:
    """The bytes of a file with a table of pyarrow, pandas or polars: ".csv", or else Parquet.

    Raises:
        ValueError: this kind of file has no form for a column, or pyarrow is not installed.
    """
    pa = _pyarrow()
    from pyarrow import csv, parquet

    out = io.BytesIO()
    try:
        if type(table).__module__.startswith("pandas"):
            table = pa.Table.from_pandas(table, preserve_index=None if ending != ".csv" else False)
        elif not isinstance(table, pa.Table):
            table = table.to_arrow()
        if ending == ".csv":
            csv.write_csv(table, out)
        else:
            parquet.write_table(table, out)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(str(error).splitlines()[0][:200]) from error
    return out.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError("tables need pyarrow, which is not installed") from None
    return pyarrow


# -- images


def image_of_array(array: np.ndarray[Any, Any]) -> Image:
    """The image whose pixels an array holds.

    Raises:
        ValueError: it is not of uint8, or its shape is not (h, w), (h, w, 3) or (h, w, 4).
    """
    import PIL.Image

    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype.name != "uint8" or not is_picture or 0 in array.shape:
        raise ValueError("an image is an array of uint8 with the shape (h, w), (h, w, 3) or (h, w, 4)")
    return PIL.Image.fromarray(array)


def image_file(image: Image, ending: str) -> bytes:
    """The bytes of an image file in the format of a file name ending (".png").

    Raises:
        ValueError: Pillow cannot write this format, or the format cannot hold this kind of image.
    """
    import PIL.Image

    format_name = PIL.Image.registered_extensions().get(ending)
    if format_name is None or format_name not in PIL.Image.SAVE:
        raise ValueError(f"Pillow cannot write {ending} files here")
    out = io.BytesIO()
    try:
        image.save(out, format=format_name)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"an image of mode {image.mode} cannot be saved as {format_name}: {error}") from error
    return out.getvalue()


def open_image(data: bytes) -> Image:
    """Decode an image file of any format that Pillow reads.

    Raises:
        ValueError: not an image, a broken one, or one over the limit of pixels.
    """
    import PIL.Image

    try:
        image = PIL.Image.open(io.BytesIO(data))
        if image.width * image.height > DEFAULT_LIMITS.max_image_pixels:
            raise ValueError(f"an image of {image.width} x {image.height} pixels is too large")
        image.load()
    except PIL.UnidentifiedImageError as error:
        raise ValueError("not an image") from error
    except (OSError, SyntaxError, EOFError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"not an image that can be read: {error}") from error
    return image


def array_of_image(data: bytes) -> np.ndarray[Any, Any]:
    """The pixels of an image file; see `open_image`."""
    import numpy as np

    return np.asarray(open_image(data))


def image_to_send(data: bytes) -> Any:
    """The parameter for an image file: the file as it is where its format is one of the wire, else the decoded image.

    Raises:
        ValueError: not an image, or in a format that Pillow does not know.
    """
    return io.BytesIO(data) if format_of(data) in FORMATS else open_image(data)


def image_as_received(value: Any) -> tuple[bytes, str] | None:
    """The file in a tagged image, and its ending; None for raw pixels and for any other value."""
    if not isinstance(value, dict) or value.get(TAG_KEY) != "image":
        return None
    name, data = value.get("format"), value.get("data")
    if not isinstance(name, str) or name not in FORMATS:
        return None
    from ..codec import base64

    try:
        return bytes(base64.readable(data)), f".{name}"
    except ValueError:
        return None


# -- pictures on a terminal


def half_blocks(image: Image, *, columns: int) -> list[str]:
    """Draw an image as lines of half blocks in 24-bit colour, two pixels to a character; small ones are not enlarged.

    A character cell is taken as twice as high as wide. Where the image is transparent the terminal shows through.

    Args:
        image: in any mode of Pillow.
        columns: the width of the picture in characters, at most.
    """
    width, height = image.size
    if width == 0 or height == 0 or columns < 1:
        return []
    scale = min(1.0, columns / width, 2 * _MAX_PICTURE_LINES / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = _eight_bit(image).convert("RGBA").resize(size)
    raw = small.tobytes()
    pixels = [(raw[at], raw[at + 1], raw[at + 2], raw[at + 3]) for at in range(0, len(raw), 4)]
    lines = []
    for top in range(0, size[1], 2):
        upper = pixels[top * size[0] : (top + 1) * size[0]]
        lower = pixels[(top + 1) * size[0] : (top + 2) * size[0]] or [(0, 0, 0, 0)] * size[0]
        lines.append(_picture_line(upper, lower))
    return lines


def _eight_bit(image: Image) -> Image:
    """The image with eight bits a channel; a larger range of values is mapped to black to white."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    numbers = image.convert("F")
    low, high = numbers.getextrema()
    if not (isinstance(low, float) and isinstance(high, float)) or not high > low:
        return numbers.point(lambda value: value * 0 + 128).convert("L")
    scale = 255 / (high - low)
    return numbers.point(lambda value: value * scale - low * scale).convert("L")


def _picture_line(upper: list[Pixel], lower: list[Pixel]) -> str:
    parts, before = [], ""
    for top, bottom in zip(upper, lower, strict=True):
        if top[3] >= 128:
            block, front, back = _UPPER_HALF, top, bottom
        else:
            block, front, back = _LOWER_HALF, bottom, top
        if front[3] < 128:
            code, block = "\x1b[0m", " "
        else:
            behind = f"48;2;{back[0]};{back[1]};{back[2]}" if back[3] >= 128 else "49"
            code = f"\x1b[38;2;{front[0]};{front[1]};{front[2]};{behind}m"
        parts.append(block if code == before else code + block)
        before = code
    return "".join(parts) + "\x1b[0m"
