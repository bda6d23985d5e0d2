"""The result as a file (-o), and as bare bytes (--format raw).

Owns which form a result has outside JSON. A result is plain JSON data with rich values tagged; the file of an image
goes on as it came unless another format is asked for, so nothing is compressed twice.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Any

from ..codec import TAG_KEY, Codec
from .items import UsageError
from .output import for_programs
from .wire import image_as_it_came

#: Endings that promise something else than JSON, for results that are nothing but JSON.
_NOT_JSON = frozenset(
    (".npy", ".png", ".jpg", ".jpeg", ".webp", ".qoi", ".gif", ".bmp", ".tif", ".tiff", ".ico", ".ppm")
)


def check_writable(path: str) -> None:
    """Find out before the call whether its result could be saved.

    Raises:
        UsageError: there is no such folder, it is a folder itself, or writing is not allowed.
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
    """Write the result to a file, `-` for standard output; always, whatever the ending of its name.

    Returns:
        A complaint for people when the form that was written is not what the ending promises.

    Raises:
        OSError: the file cannot be written. The result is then nowhere.
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


def raw_form(value: Any, codec: Codec) -> tuple[bytes, bool]:
    """The result without JSON around it, and whether that is text.

    Text without quotes and with a line end, bytes as they are, an array as a .npy file, an image as its file; JSON
    otherwise.
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace") + b"\n", True
    image = image_as_it_came(value)
    if image is not None:
        return image[0], False
    rich = _decoded(value, codec)
    if isinstance(rich, bytes | bytearray):
        return bytes(rich), False
    if _is_array(rich):
        from .media import npy_file

        return npy_file(rich), False
    if _is_image(rich):
        return _file_of_pixels(rich)[0], False
    return for_programs(value, codec), True


def _form(path: str, value: Any, codec: Codec, *, raw: bool) -> tuple[bytes, str | None]:
    """What to write, and what is wrong with it."""
    ending = os.path.splitext(path)[1].lower() if path != "-" and is_regular(path) else ""
    ending = ".jpeg" if ending == ".jpg" else ending
    image = image_as_it_came(value)
    if image is not None and ending in ("", image[1]):
        return image[0], None
    rich = _decoded(value, codec)
    if isinstance(rich, bytes | bytearray):
        return bytes(rich), None
    if ending == ".json" or not (image or _is_array(rich) or _is_image(rich)):
        data = raw_form(value, codec)[0] if raw and isinstance(value, str) else for_programs(value, codec)
        wrong = ending in _NOT_JSON
        return data, _complaint(path, "no array and no image", "JSON") if wrong else None
    if _is_array(rich):
        from .media import npy_file

        return npy_file(rich), None if ending in ("", ".npy") else _complaint(path, "an array", ".npy data")
    data, own_ending = image or _file_of_pixels(rich)
    if ending in ("", own_ending):
        return data, None
    from .media import image_file

    try:
        if rich is value:
            raise ValueError("it cannot be decoded")
        return image_file(rich, ending), None
    except ValueError as error:
        return data, _complaint(path, "an image", f"{own_ending[1:].upper()} data", str(error))


def _complaint(path: str, kind: str, form: str, reason: str = "") -> str:
    return f"the result is {kind}: {path} holds {form}, whatever its ending says" + (f" ({reason})" if reason else "")


def _decoded(value: Any, codec: Codec) -> Any:
    """The rich value that a result is as a whole; the result itself if it is none, or a broken one."""
    if not isinstance(value, dict) or TAG_KEY not in value:
        return value
    try:
        return codec.decode(value)
    except (ValueError, ImportError):
        return value


def _file_of_pixels(image: Any) -> tuple[bytes, str]:
    """A file for an image that came as bare pixels, and its ending: PNG, or TIFF for what PNG cannot hold."""
    from .media import image_file

    try:
        return image_file(image, ".png"), ".png"
    except ValueError:  # CMYK, F
        return image_file(image, ".tiff"), ".tiff"


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_image(value: Any) -> bool:
    return hasattr(value, "getbands")


def is_regular(path: str) -> bool:
    """Is it a file, or will it be one? Devices and pipes have no endings that promise anything."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
