"""Write a result, or each item of a stream, to a file (-o), or as plain bytes (--format raw).

Owns the form that a result has in a file, by the ending of its name. A result is plain JSON data with rich values
tagged; the file of an image is written as received unless another format is asked for, so nothing is compressed twice.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Any

from ..codec import TAG_KEY, Codec
from ..text import visible
from .items import UsageError
from .media import image_as_received, image_file, npy_file
from .output import format_json

#: Endings for which a result that is neither an array nor an image causes a complaint.
_NOT_JSON = frozenset((".npy", ".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ico", ".ppm"))


def check_writable(path: str) -> None:
    """Check before the call that its result can be saved.

    Raises:
        UsageError: the folder does not exist, the path is a folder itself, or writing is not allowed.
    """
    if path == "-":
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not path or os.path.isdir(path):
        reason = "it is a folder" if path else "the name is empty"
    elif not os.path.isdir(folder):
        reason = f"there is no folder {folder!r}"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise UsageError(f"cannot write {path!r}: {reason}")


def save(path: str, value: Any, codec: Codec, *, raw: bool = False) -> str | None:
    """Write the result to a file; `-` is standard output. A result that does not fit the ending is written, too.

    Returns:
        A complaint for the user where the written form is not the one of the ending, else None.

    Raises:
        OSError: the file cannot be written; the result is not saved.
    """
    data, complaint = _form(path, value, codec, raw=raw)
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        with open(path, "wb") as file:
            file.write(data)
    return complaint


def complaint_of_redirection(value: dict[str, Any], descriptor: int) -> str | None:
    """A complaint where a rich value went as JSON into a file for images or arrays; None for any other file.

    Args:
        value: a tagged object.
        descriptor: of standard output.
    """
    path = _path_of(descriptor)
    if path is None or os.path.splitext(path)[1].lower() not in _NOT_JSON:
        return None
    name, kind = os.path.basename(path), visible(str(value[TAG_KEY]))
    return (
        f"{name} holds the JSON form of the result ({kind}); its data is saved by -o {name}, or --format raw > {name}"
    )


def _path_of(descriptor: int) -> str | None:
    """The path of a regular file that is open; None for pipes and devices, and where the system does not tell."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        if sys.platform == "darwin":
            import fcntl

            return fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode(errors="replace")
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except (OSError, ValueError):
        return None


def item_path(path: str, number: int) -> str:
    """The file for an item of a stream: `out-0001.png` for `out.png`; standard output and devices take all items."""
    if path == "-" or not is_regular(path):
        return path
    root, ending = os.path.splitext(path)
    return f"{root}-{number:04d}{ending}"


def raw_form(value: Any, codec: Codec) -> tuple[bytes, bool]:
    """The result as plain bytes, and whether these are text.

    A string without quotes and with a line end, bytes as they are, an array as a .npy file, an image as its file; any
    other result as JSON.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace") + b"\n", True
    image = image_as_received(value)
    if image is not None:
        return image[0], False
    rich = _decoded(value, codec)
    if isinstance(rich, bytes | bytearray):
        return bytes(rich), False
    if _is_array(rich):
        return npy_file(rich), False
    if _is_image(rich):
        return _file_of_pixels(rich)[0], False
    return format_json(value, codec), True


def _form(path: str, value: Any, codec: Codec, *, raw: bool) -> tuple[bytes, str | None]:
    """The bytes to write, and the complaint if they do not fit the ending of the path."""
    ending = os.path.splitext(path)[1].lower() if path != "-" and is_regular(path) else ""
    ending = ".jpeg" if ending == ".jpg" else ending
    image = image_as_received(value)
    if image is not None and ending in ("", image[1]):
        return image[0], None
    rich = _decoded(value, codec)
    if isinstance(rich, bytes | bytearray):
        return bytes(rich), None
    if ending == ".json" or not (image or _is_array(rich) or _is_image(rich)):
        data = raw_form(value, codec)[0] if raw and isinstance(value, str) else format_json(value, codec)
        wrong = ending in _NOT_JSON
        return data, _complaint(path, "no array and no image", "JSON") if wrong else None
    if _is_array(rich):
        return npy_file(rich), None if ending in ("", ".npy") else _complaint(path, "an array", ".npy data")
    data, own_ending = image or _file_of_pixels(rich)
    if ending in ("", own_ending):
        return data, None
    try:
        if rich is value:
            raise ValueError("it cannot be decoded")
        return image_file(rich, ending), None
    except ValueError as error:
        return data, _complaint(path, "an image", f"{own_ending[1:].upper()} data", str(error))


def _complaint(path: str, kind: str, form: str, reason: str = "") -> str:
    return f"the result is {kind}: {path} holds {form}, whatever its ending says" + (f" ({reason})" if reason else "")


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


def is_regular(path: str) -> bool:
    """Tell whether a path is a regular file or will be one; the ending of a device or a pipe means nothing."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
