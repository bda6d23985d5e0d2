"""Files of arrays, images and tables: what the content of a file means, and the content of a file with a result.

An image file is passed on unchanged where its format is one of the wire (wire page, "Rich values"). numpy, Pillow and
pyarrow are imported only by the functions that need them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..codec import TAG_KEY, Codec
from ..codec.options import FORMATS, format_of
from ..text import visible
from .output import format_json, kind_of, title_of

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    Array = np.ndarray[Any, Any]

#: Tags of tables.
TABLES = ("arrow", "pandas", "polars")

#: Endings that decide the form of a file, and the package that writes it.
PACKAGES = {
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ico", ".ppm", ".avif"), "PIL"
    ),
    **dict.fromkeys((".csv", ".parquet"), "pyarrow"),
    ".npy": "numpy",
}

#: The ending of a file with a result in its own form, by the kind of the result.
_OWN_ENDINGS = {"ndarray": ".npy", "image": ".png", "table": ".parquet"}

# -- reading


def _read_array(data: bytes) -> Array:
    """The array in a .npy file (a pickle is refused), or the pixels of an image."""
    import numpy as np

    from ..codec.ndarray import array_from_npy

    if format_of(data):
        return np.asarray(_open_image(data))
    if data.startswith(b"PK"):
        raise ValueError("an .npz file contains several arrays; pass the .npy file of one")
    try:
        return array_from_npy(bytearray(data))
    except ValueError as error:
        raise ValueError(f"not a .npy file that can be sent: {error}") from error


def _read_image(data: bytes) -> Any:
    """The image as its file if the wire has its format, else decoded."""
    return io.BytesIO(data) if format_of(data) in FORMATS else _open_image(data)


def _open_image(data: bytes) -> Image:
    import PIL.Image

    try:
        image = PIL.Image.open(io.BytesIO(data))
        image.load()
    except PIL.UnidentifiedImageError as error:
        raise ValueError("not an image") from error
    except (OSError, SyntaxError, EOFError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"not an image that can be read: {error}") from error
    return image


def _read_table(data: bytes) -> Any:
    """The table in a Parquet file or a CSV file."""
    pa = _pyarrow()
    from pyarrow import csv, parquet

    source = pa.BufferReader(data)
    try:
        return parquet.read_table(source) if data.startswith(b"PAR1") else csv.read_csv(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"not a table that can be read: {str(error).splitlines()[0]:.200}") from error


#: Makes the value of a file's content, by the kind of the parameter. Raises ValueError if it is not of this kind.
READERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "image": _read_image,
    "ndarray": _read_array,
    **dict.fromkeys(TABLES, _read_table),
}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError("tables need pyarrow, which is not installed") from None
    return pyarrow


# -- arrays from the command line


def array_from_json(nested: Any) -> Array:
    """The array of nested lists of numbers, or of one number.

    Raises:
        ValueError: the rows have different lengths, or contain values other than numbers and bools.
    """
    from ..codec.ndarray import array_from_lists

    try:
        return array_from_lists(nested) if isinstance(nested, list) else array_from_lists([nested]).reshape(())
    except ValueError as error:
        raise ValueError(f"not an array: {error}") from error


def as_dtype(array: Array, dtype: str) -> Array:
    """The array converted to a dtype of the wire page.

    Raises:
        ValueError: the dtype is unknown or not one of numbers, or a number does not fit into it.
    """
    import numpy as np

    from ..codec.dtypes import from_wire

    wanted = from_wire(dtype)
    if wanted.kind in "mM":
        raise ValueError(f"the dtype {dtype!r} is not one of numbers")
    with np.errstate(all="ignore"):
        converted = array.astype(wanted)
    if array.dtype.kind in "biu" and wanted.kind in "iu" and not np.array_equal(converted, array):
        raise ValueError(f"a number does not fit into {dtype}")
    return converted


def array_in_one_of(array: Array, dtypes: list[str]) -> Array:
    """The array in the first of these dtypes that can hold its numbers; unchanged if none can, or its own is one.

    Args:
        array: of numbers as JSON has them: int64, float64 or bool.
        dtypes: as on the wire.
    """
    from ..codec.dtypes import from_wire

    if array.dtype.str in dtypes or array.dtype.name in dtypes:
        return array
    holding = {"f": "fcV", "b": "biufcV"}.get(array.dtype.kind, "iufcV")  # V: bfloat16 and the like
    for dtype in dtypes:
        with suppress(ValueError, ImportError):
            if from_wire(dtype).kind in holding:
                return as_dtype(array, dtype)
    return array


# -- writing


def file_of(value: Any, codec: Codec, ending: str = "") -> tuple[bytes, str]:
    """The content of a file with a result, and the ending that says its form.

    Without an ending: text with a line end, bytes as they are, an array as a .npy file, an image as its file, a table
    as a Parquet file, and any other result as JSON.

    Args:
        value: plain JSON data with rich values tagged.
        ending: one of `PACKAGES`, or "".

    Raises:
        ValueError: a file with this ending cannot hold the result.
    """
    ending = ".jpeg" if ending == ".jpg" else ending
    received = image_as_received(value)
    if received is not None and ending in ("", received[1]):
        return received
    rich = _decoded(value, codec)
    kind = kind_of(rich)
    if kind == "bytes":
        return bytes(rich), ".bin"
    if ending:
        try:
            return _encoded(rich, kind, ending), ending
        except ValueError as error:
            raise ValueError(f"the result is {_name_of(value, rich)}: {error}") from error
    if isinstance(value, str):
        return value.encode(errors="backslashreplace") + b"\n", ".txt"
    if own := _OWN_ENDINGS.get(kind):
        with suppress(ValueError):
            return _encoded(rich, kind, own), own
    return format_json(value, codec), ".json"


def image_as_received(value: Any) -> tuple[bytes, str] | None:
    """The file in a tagged image, and its ending; None for raw pixels and for any other value."""
    if not isinstance(value, dict) or value.get(TAG_KEY) != "image":
        return None
    name, data = value.get("format"), value.get("data")
    if not isinstance(name, str) or name not in FORMATS:
        return None
    from ..codec.binary import readable_bytes

    try:
        return bytes(readable_bytes(data)), f".{name}"
    except ValueError:
        return None


def _decoded(value: Any, codec: Codec) -> Any:
    """The rich value, if the result as a whole is one; the result itself if not, or if it is broken."""
    with suppress(ValueError, ImportError):
        if isinstance(value, dict) and TAG_KEY in value:
            return codec.decode(value)
    return value


def _name_of(value: Any, rich: Any) -> str:
    if rich is not value:
        return visible(title_of(rich, value))
    return "an image that cannot be decoded" if image_as_received(value) else f"JSON ({type(value).__name__})"


def _encoded(rich: Any, kind: str, ending: str) -> bytes:
    """The content of a file with this ending. Raises ValueError if it cannot hold the value."""
    package = PACKAGES[ending]
    out = io.BytesIO()
    if package == "numpy" and kind == "ndarray":
        from ..codec.ndarray import npy_file

        return npy_file(rich)
    if package == "pyarrow" and kind == "table":
        _write_table(rich, ending, out)
    elif package == "PIL" and kind in ("image", "ndarray"):
        _write_image(rich if kind == "image" else _image_of_array(rich), ending, out)
    else:
        raise ValueError(f"a {ending} file cannot contain it")
    return out.getvalue()


def _write_table(value: Any, ending: str, out: io.BytesIO) -> None:
    pa = _pyarrow()
    from pyarrow import csv, parquet

    from ..codec.ext.tables import TableHint

    try:
        table: Any = TableHint(pa.Table).accept(value)
        csv.write_csv(table, out) if ending == ".csv" else parquet.write_table(table, out)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(str(error).splitlines()[0][:200]) from error


def _image_of_array(array: Array) -> Image:
    import PIL.Image

    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype.name != "uint8" or not is_picture or 0 in array.shape:
        raise ValueError("an image is an array of uint8 with the shape (h, w), (h, w, 3) or (h, w, 4)")
    return PIL.Image.fromarray(array)


def _write_image(image: Image, ending: str, out: io.BytesIO) -> None:
    import PIL.Image

    format_name = PIL.Image.registered_extensions().get(ending)
    if format_name is None or format_name not in PIL.Image.SAVE:
        raise ValueError(f"Pillow cannot write {ending} files here")
    try:
        image.save(out, format=format_name)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"an image of mode {image.mode} cannot be saved as {format_name}: {error}") from error
