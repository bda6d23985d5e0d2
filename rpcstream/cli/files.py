"""Files of parameters and results: what the content of a file means, and the files that hold a result (-o).

An image file is passed on unchanged where its format is one of the wire (wire page, "Rich values"). numpy, Pillow and
pyarrow are imported only by the functions that need them.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..codec import TAG_KEY, Codec
from ..codec.options import FORMATS, format_of
from ..text import visible
from .options import UsageError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    Array = np.ndarray[Any, Any]

#: Tags of tables.
TABLES = ("arrow", "pandas", "polars")

#: Endings that decide the form of a file, and the package that writes it.
_PACKAGES = {
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ico", ".ppm", ".avif"), "PIL"
    ),
    **dict.fromkeys((".csv", ".parquet"), "pyarrow"),
    ".npy": "numpy",
}
#: The ending of a file with a result in its own form, by the kind of the result.
_OWN_ENDINGS = {"ndarray": ".npy", "image": ".png", "table": ".parquet"}

#: Files that one result may make: a server decides how many members it has.
_MAX_MEMBERS = 10_000
#: Characters of the name of a member in the name of its file.
_MAX_NAME = 100

#: Members that are tried if a file cannot contain the whole result, and that an error describes one by one.
_MAX_TRIED, _MAX_DESCRIBED = 20, 4
#: What errors call a member, by the kind of a rich value or the class of plain JSON.
_NOUNS = {
    **{"image": "an image", "ndarray": "an array", "bytes": "bytes", "str": "text", "dict": "an object"},
    **{"int": "a number", "float": "a number", "NoneType": "null"},
}

# -- from files to values


def _read_array(data: bytes) -> Array:
    """The array in a .npy file (a pickle is refused), or the pixels of an image."""
    import numpy as np

    from ..codec.ndarray import array_from_npy

    if format_of(data):
        return np.asarray(_open_image(data))
    if data.startswith(b"PK"):
        raise ValueError("an .npz file contains several arrays: pass the .npy file of one")
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
        table = parquet.read_table(source) if data.startswith(b"PAR1") else csv.read_csv(source)
        table.column_names  # noqa: B018 - ValueError where they are no text, as of an image
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"not a table that can be read: {str(error).splitlines()[0]:.200}") from error
    return table


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


def array_in_one_of(array: Array, dtypes: list[str]) -> Array:
    """The array in the first of these dtypes that can hold its numbers; unchanged if none can, or its own is one.

    Args:
        array: of numbers as JSON has them: int64, float64 or bool.
        dtypes: as on the wire.
    """
    import numpy as np

    from ..codec.dtypes import from_wire

    if array.dtype.str in dtypes or array.dtype.name in dtypes:
        return array
    holding = {"f": "fcV", "b": "biufcV"}.get(array.dtype.kind, "iufcV")  # V: bfloat16 and the like
    for name in dtypes:
        with suppress(ValueError, ImportError), np.errstate(all="ignore"):
            dtype = from_wire(name)
            if dtype.kind in holding:
                converted = array.astype(dtype)
                if dtype.kind not in "iu" or np.array_equal(converted, array):
                    return converted
    return array


# -- from values to the content of files


def kind_of(value: Any) -> str:
    """What a decoded result is: "bytes", "ndarray", "image", "table", or "" for any other value."""
    if isinstance(value, bytes | bytearray):
        return "bytes"
    package = type(value).__module__.partition(".")[0]
    if package == "numpy":
        return "ndarray"
    if package in ("pyarrow", "pandas", "polars"):
        return "table"
    return "image" if hasattr(value, "getbands") else ""


def title_of(value: Any, tagged: dict[str, Any]) -> str:
    """The description of a rich value in a few words: `ndarray float32 (3, 4)`; text from the server is not escaped."""
    kind = kind_of(value)
    if kind == "bytes":
        return f"bytes ({len(value):,})"
    if kind == "ndarray":
        return f"ndarray {value.dtype} {value.shape}"
    if kind == "image":
        return f"image {str(tagged.get('format', '')).upper()} {value.width} x {value.height} {value.mode}"
    if hasattr(value, "shape"):  # a table, a sparse array
        return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__} {tuple(value.shape)}"
    return str(value)


def file_of(value: Any, codec: Codec, ending: str = "") -> tuple[bytes, str]:
    """The content of a file with a result, and the ending that says its form.

    Without an ending: text with a line end, bytes as they are, an array as a .npy file, an image as its file, a table
    as a Parquet file, and any other result as JSON.

    Args:
        value: plain JSON data with rich values tagged.
        ending: one of those that decide the form of a file, or "".

    Raises:
        ValueError: a file with this ending cannot hold the result.
    """
    ending = ".jpeg" if ending == ".jpg" else ending
    received = _image_as_received(value)
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
            raise ValueError(f"the result is {_name_of(value, rich, codec)}: {error}") from error
    if isinstance(value, str):
        return value.encode(errors="backslashreplace") + b"\n", ".txt"
    if own := _OWN_ENDINGS.get(kind):
        with suppress(ValueError):
            return _encoded(rich, kind, own), own
    return codec.dumps(value) + b"\n", ".json"


def _image_as_received(value: Any) -> tuple[bytes, str] | None:
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


def _name_of(value: Any, rich: Any, codec: Codec) -> str:
    if rich is not value:
        return visible(title_of(rich, value))
    return "an image that cannot be decoded" if _image_as_received(value) else _described(value, codec)


def _described(value: Any, codec: Codec) -> str:
    """What a result is, in words: `a list of an image and an object`; with the number of members if there are many."""
    name = _with_article(value, codec)
    if not isinstance(value, list | dict):
        return name
    members = list(value if isinstance(value, list) else value.values())
    if len(members) > _MAX_DESCRIBED:
        return f"{name} of {len(members):,} members"
    *others, last = [_with_article(member, codec) for member in members] or ["no members"]
    return f"{name} of {', '.join(others)}{' and ' if others else ''}{last}"


def _with_article(value: Any, codec: Codec) -> str:
    kind = kind_of(_decoded(value, codec)) or type(value).__name__
    return _NOUNS.get(kind, f"a {kind}")


def fitting_member(path: str, value: Any, codec: Codec) -> tuple[str, str] | None:
    """The name and the noun of the first member that a file can contain, for the error about the whole result."""
    ending, members = _ending(path), enumerate(value) if isinstance(value, list) else value.items()
    for name, member in islice(members, _MAX_TRIED) if ending in _PACKAGES else ():
        # Other names would need quotes in a shell, and --select splits at dots.
        if re.fullmatch(r"\w[\w-]*", str(name), re.ASCII) is not None:
            with suppress(ValueError):
                file_of(member, codec, ending)
                return str(name), _with_article(member, codec).rpartition(" ")[2]
    return None


def _encoded(rich: Any, kind: str, ending: str) -> bytes:
    """The content of a file with this ending. Raises ValueError if it cannot hold the value."""
    package = _PACKAGES[ending]
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
    if array.dtype.name not in ("uint8", "bool") or not is_picture or 0 in array.shape:
        raise ValueError("an image is an array of uint8 or bool with the shape (h, w), (h, w, 3) or (h, w, 4)")
    return PIL.Image.fromarray(array if array.dtype.name == "uint8" else array.astype("uint8") * 255)


def _write_image(image: Image, ending: str, out: io.BytesIO) -> None:
    import PIL.Image

    format_name = PIL.Image.registered_extensions().get(ending)
    if format_name is None or format_name not in PIL.Image.SAVE:
        raise ValueError(f"Pillow cannot write {ending} files here")
    try:
        image.save(out, format=format_name)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"an image of mode {image.mode} cannot be saved as {format_name}: {error}") from error


# -- from results to files


def is_folder(path: str) -> bool:
    """Tell whether `-o` names a folder, which gets a file for each member of the result."""
    return path.endswith(("/", os.sep))


def check_writable(path: str) -> None:
    """Check before the call that its result can be saved.

    Raises:
        UsageError: the folder does not exist, the path is a folder itself or one with files, writing is not allowed, or
            a package that writes this kind of file is not installed.
    """
    if path == "-":
        return
    whole = os.path.abspath(path)
    folder = os.path.dirname(whole)
    package = _PACKAGES.get(_ending(path))
    if not path:
        reason = "the name is empty"
    elif os.path.isdir(path) and not is_folder(path):
        reason = f"it is a folder (-o {path}/ writes a file for each member of the result)"
    elif is_folder(path) and os.path.isdir(path) and os.listdir(path):
        reason = "the folder is not empty, and the server chooses the names of the files"
    elif not os.path.isdir(folder):
        reason = f"there is no folder {folder!r}"
    elif not os.access(whole if os.path.exists(whole) else folder, os.W_OK):
        reason = "permission denied"
    elif package is not None and find_spec(package) is None:
        reason = f"{package} is not installed"
    else:
        return
    raise UsageError(f"cannot write {path!r}: {reason}")


def item_path(path: str, number: int | None) -> str:
    """The file for an item of a stream: `out-0001.png` for `out.png`; standard output, devices and folders take all.

    Args:
        path: given with `-o`.
        number: of the item; None for a result that is not one of a stream.
    """
    if number is None or path == "-" or is_folder(path) or not _is_regular(path):
        return path
    root, ending = os.path.splitext(path)
    return f"{root}-{number:04d}{ending}"


def save(path: str, value: Any, codec: Codec, *, raw: bool = False, number: int | None = None) -> None:
    """Write the result to a file, or its members, or the item with this number, to files in a folder.

    Raises:
        ValueError: this kind of file cannot contain the result, and nothing was written.
        OSError: a file cannot be written.
    """
    if not is_folder(path):
        _write(path, content_for(path, value, codec, raw=raw))
        return
    files = _files_of(value if number is None else {f"{number:04d}": value}, codec)
    os.makedirs(path, exist_ok=True)
    for name, data in files.items():
        _write(os.path.join(path, name), data)


def content_for(path: str, value: Any, codec: Codec, *, raw: bool = False) -> bytes:
    """The content of the file with a result; `-` is standard output.

    Raises:
        ValueError: a file with this ending cannot contain the result.
    """
    ending = "" if path == "-" else _ending(path)
    data, form = file_of(value, codec, ending if ending in _PACKAGES else "")
    is_json = form != ".bin" and (ending == ".json" or (form == ".txt" and not raw))
    return codec.dumps(value) + b"\n" if is_json else data


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _files_of(value: Any, codec: Codec) -> dict[str, bytes]:
    """The names and the content of a file for each member of an object or an array; one file for another result."""
    if isinstance(value, list):
        members = {f"{number:04d}": member for number, member in enumerate(value, 1)}
    elif isinstance(value, dict) and TAG_KEY not in value:
        members = value
    else:
        members = {"result": value}
    if len(members) > _MAX_MEMBERS:
        raise ValueError(f"the result has more than {_MAX_MEMBERS:,} members")
    files: dict[str, bytes] = {}
    taken: set[str] = set()
    for key, member in members.items():
        data, ending = file_of(member, codec)
        # The server chose the name: it must stay in the folder, and hide nothing.
        name = re.sub(r"[^\w.+-]|^\.", "_", str(key) or "_")[:_MAX_NAME] + ending
        if name.lower() in taken:
            raise ValueError(f"two members would have the file {name!r}")
        taken.add(name.lower())
        files[name] = data
    return files


def _ending(path: str) -> str:
    """The ending of a regular file in small letters; the name of a device or a pipe has none."""
    return os.path.splitext(path)[1].lower() if _is_regular(path) else ""


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
