"""Write a result, or each item of a stream, to a file or a folder (-o), or as plain bytes (--format raw).

The ending of the file's name decides its form. A result is plain JSON data with rich values tagged; the file of an
image is written as received unless another format is asked for, so that nothing is compressed twice.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from importlib.util import find_spec
from typing import Any

from ..codec import TAG_KEY, Codec
from ..text import visible
from .items import UsageError
from .media import image_as_received, image_file, image_of_array, npy_file, table_file
from .output import format_json, title_of

#: Endings that decide the form of a file, and the package that writes it. Under any other ending a result has its own.
_PACKAGES = {
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ico", ".ppm", ".avif"), "PIL"
    ),
    **dict.fromkeys((".csv", ".parquet"), "pyarrow"),
    **dict.fromkeys((".npy",), "numpy"),
}

#: Files that one result may make: a server decides how many members it has.
_MAX_MEMBERS = 10_000
#: Characters of the name of a member in the name of its file.
_MAX_NAME = 100


def is_folder(path: str) -> bool:
    """Tell whether `-o` names a folder, which gets a file for each member of the result."""
    return path.endswith(("/", os.sep))


def check_writable(path: str) -> None:
    """Check before the call that its result can be saved.

    Raises:
        UsageError: the folder does not exist, the path is a folder itself, writing is not allowed, or a package that
            writes this kind of file is not installed.
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
    elif not os.path.isdir(folder):
        reason = f"there is no folder {folder!r}"
    elif not os.access(whole if os.path.exists(whole) else folder, os.W_OK):
        reason = "permission denied"
    elif package is not None and find_spec(package) is None:
        reason = f"{package} is not installed"
    else:
        return
    raise UsageError(f"cannot write {path!r}: {reason}")


def item_path(path: str, number: int) -> str:
    """The file for an item of a stream: `out-0001.png` for `out.png`; standard output, devices and folders take all."""
    if path == "-" or is_folder(path) or not _is_regular(path):
        return path
    root, ending = os.path.splitext(path)
    return f"{root}-{number:04d}{ending}"


def save(path: str, value: Any, codec: Codec, *, raw: bool = False) -> None:
    """Write the result to a file, or its members to files in a folder; `-` is standard output.

    Raises:
        ValueError: this kind of file cannot hold the result, and nothing was written.
        OSError: a file cannot be written.
    """
    if path != "-" and is_folder(path):
        files = _files_of(value, codec)
        os.makedirs(path, exist_ok=True)
        for name, data in files.items():
            _write(os.path.join(path, name), data)
        return
    data = _form(path, value, codec, raw=raw)
    if path != "-":
        _write(path, data)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


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
        data, ending = own_form(member, codec)
        # The server chose the name: it must stay in the folder, and hide nothing.
        name = re.sub(r"[^\w.+-]|^\.", "_", str(key) or "_")[:_MAX_NAME] + ending
        if name.lower() in taken:
            raise ValueError(f"two members would have the file {name!r}")
        taken.add(name.lower())
        files[name] = data
    return files


def own_form(value: Any, codec: Codec) -> tuple[bytes, str]:
    """The result as plain bytes, and the ending of a file with these.

    A string without quotes and with a line end, bytes as they are, an array as a .npy file, an image as its file, a
    table as a Parquet file; any other result as JSON.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace") + b"\n", ".txt"
    image = image_as_received(value)
    if image is not None:
        return image
    rich = _decoded(value, codec)
    try:
        if isinstance(rich, bytes | bytearray):
            return bytes(rich), ".bin"
        if _is_array(rich):
            return npy_file(rich), ".npy"
        if _is_image(rich):
            return _file_of_pixels(rich)
        if _is_table(rich):
            return table_file(rich, ".parquet"), ".parquet"
    except ValueError:
        pass
    return format_json(value, codec), ".json"


def _form(path: str, value: Any, codec: Codec, *, raw: bool) -> bytes:
    """The bytes to write. Raises ValueError if a file with this ending cannot hold the result."""
    ending = "" if path == "-" else _ending(path)
    ending = ".jpeg" if ending == ".jpg" else ending
    if ending not in _PACKAGES:
        is_json = ending == ".json" or (isinstance(value, str) and not raw)
        data, kind = own_form(value, codec)
        return format_json(value, codec) if is_json and kind != ".bin" else data
    image = image_as_received(value)
    if image is not None and ending == image[1]:
        return image[0]
    rich = _decoded(value, codec)
    if isinstance(rich, bytes | bytearray):
        return bytes(rich)
    package = _PACKAGES[ending]
    try:
        if package == "numpy" and _is_array(rich):
            return npy_file(rich)
        if package == "pyarrow" and _is_table(rich):
            return table_file(rich, ending)
        if package == "PIL" and (_is_array(rich) or _is_image(rich)):
            return image_file(image_of_array(rich) if _is_array(rich) else rich, ending)
    except ValueError as error:
        raise ValueError(f"the result is {_name_of(value, rich)}: {error}") from error
    raise ValueError(f"the result is {_name_of(value, rich)}")


def _name_of(value: Any, rich: Any) -> str:
    if rich is not value:
        return visible(title_of(rich, value))
    return "an image that cannot be decoded" if image_as_received(value) else f"JSON ({type(value).__name__})"


def _decoded(value: Any, codec: Codec) -> Any:
    """The rich value, if the result as a whole is one; else, or where it is broken, the result itself."""
    if not isinstance(value, dict) or TAG_KEY not in value:
        return value
    try:
        return codec.decode(value)
    except (ValueError, ImportError):
        return value


def _file_of_pixels(image: Any) -> tuple[bytes, str]:
    """The file for an image that was received as raw pixels, and its ending: PNG, or TIFF where PNG cannot hold it."""
    try:
        return image_file(image, ".png"), ".png"
    except ValueError:  # modes CMYK and F
        return image_file(image, ".tiff"), ".tiff"


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy"


def _is_image(value: Any) -> bool:
    return hasattr(value, "getbands")


def _is_table(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("pyarrow", "pandas", "polars")


def _ending(path: str) -> str:
    """The ending of a regular file in small letters; the name of a device or a pipe has none."""
    return os.path.splitext(path)[1].lower() if _is_regular(path) else ""


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
