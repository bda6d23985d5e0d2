"""Image files that are sent as they are: of paths, of open files, and of opened images that have not changed.

Owns how such files are read (regular ones only, up to a limit, with the position of an open file left as it is), and
what makes sure that an opened image still is what is in its file. Knows no tagged objects; which format a file has is
told by its first bytes alone.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import EncodeError
from . import avif
from .options import ImageFile, ImageSettings

#: First bytes of a file, by the format's name on the wire. (WebP has its length between them and its name.)
_SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF", "gif": b"GIF8", "qoi": b"qoif"}
FORMATS = (*_SIGNATURES, "avif")
#: The classes of Pillow for files: format -> (name on the wire, module, class).
_CLASSES = {
    "PNG": ("png", "PIL.PngImagePlugin", "PngImageFile"),
    "JPEG": ("jpeg", "PIL.JpegImagePlugin", "JpegImageFile"),
    "WEBP": ("webp", "PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": ("gif", "PIL.GifImagePlugin", "GifImageFile"),
    "QOI": ("qoi", "PIL.QoiImagePlugin", "QoiImageFile"),
    "AVIF": ("avif", "PIL.AvifImagePlugin", "AvifImageFile"),
}
#: Formats that every end reads, so that a file needs not be asked for by the user.
_READ_EVERYWHERE = frozenset({"png", "jpeg", "webp", "gif"})
#: Formats whose files Pillow reads as a whole when it opens them.
_READ_AT_ONCE = frozenset({"webp", "avif"})


@dataclass(frozen=True, slots=True)
class ImageData:
    """The bytes of an image file, and the name of its format on the wire."""

    format: str
    data: bytes


def format_of(head: bytes) -> str | None:
    """The name of the format that a file with these first bytes has; None if it has none of those on the wire."""
    for name, signature in _SIGNATURES.items():
        if head.startswith(signature) and (name != "webp" or head[8:12] == b"WEBP"):
            return name
    return "avif" if avif.is_avif(head) else None


# -- files that the user gives -----------------------------------------------------------------------------------------


def given_file(value: Any, most: int) -> ImageData:
    """The image file of an `ImageFile`, a path, or an open binary file.

    Args:
        most: bytes that it may have.

    Raises:
        EncodeError: it cannot be read, or is no image file in a format of the wire; the text says what to do.
    """
    if isinstance(value, ImageFile):
        value = value.path
    if isinstance(value, str | os.PathLike):
        shown = f"the file {os.fspath(value)!r}"
        data = _reading(lambda: _read_path(value, most), shown, most)
        others = "its bytes with pathlib.Path.read_bytes"
    else:
        shown = "the open file"
        data = _reading(lambda: _read_open(value, most), shown, most)
        others = "its bytes with read(), or its lines with a generator"
    name = format_of(data[: avif.HEAD])
    if name is None:
        known = ", ".join(FORMATS)
        raise EncodeError(
            f"{shown} is not an image file that is sent as it is ({known}): "
            f"open it with PIL.Image.open, or send {others}"
        )
    return ImageData(name, data)


def is_open_file(value: object) -> bool:
    """True for an open file that gives bytes, as far as its class tells."""
    kind = type(value)
    return hasattr(kind, "readinto") or (kind.__module__, kind.__name__) == ("tempfile", "_TemporaryFileWrapper")


def _reading(read: Callable[[], bytes], shown: str, most: int) -> bytes:
    try:
        data = read()
    except _Unfit as error:
        raise EncodeError(f"{shown} {error}") from None
    except (OSError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EncodeError(f"{shown} cannot be read: {reason}") from error
    if not isinstance(data, bytes):
        raise EncodeError(f"{shown} gives text: open it with 'rb'")
    if len(data) > most:
        raise EncodeError(f"{shown} has more than {most} bytes, which is the most that one message may have")
    return data


class _Unfit(Exception):
    """A file that is not read, and why."""


def _read_path(path: str | os.PathLike[str], most: int) -> bytes:
    # Not to wait for the other end of a FIFO.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb", buffering=0) as file:
        return _pieces(_regular_size(file.fileno(), most) + 1, lambda size, _: file.read(size))


def _read_open(file: Any, most: int) -> bytes:
    if type(file) is io.BytesIO:
        return file.getvalue()
    raw = getattr(file, "raw", file)
    if isinstance(raw, io.FileIO):
        size = _regular_size(file.fileno(), most) + 1
        if _reads_plainly(file):
            return _read_in_place(file.fileno(), size)
    if not file.seekable():
        raise _Unfit("cannot be read from its beginning: read it first, and send the bytes or an image of them")
    place = file.tell()
    file.seek(0)
    try:
        data: bytes = file.read(most + 1)
    finally:
        file.seek(place)
    return data


def _regular_size(descriptor: int, most: int) -> int:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise _Unfit("is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise _Unfit("is not a regular file")
    if found.st_size > most:
        raise _Unfit(f"has {found.st_size} bytes, the limit is {most} (max_message_size)")
    return found.st_size


def _reads_plainly(file: Any) -> bool:
    """True for a file opened with 'rb': nothing is written through it, and its descriptor has what it reads."""
    return type(file) is io.BufferedReader and type(file.raw) is io.FileIO and hasattr(os, "pread")


def _read_in_place(descriptor: int, size: int) -> bytes:
    """Read from the beginning, up to so many bytes, and leave the position of the file as it is."""
    return _pieces(size, lambda most, at: os.pread(descriptor, most, at))


def _pieces(size: int, read: Callable[[int, int], bytes | None]) -> bytes:
    """What `read(bytes, position)` gives, up to so many bytes or the end; in one piece for nearly any regular file."""
    pieces: list[bytes] = []
    at = 0
    while at < size and (piece := read(size - at, at)):
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# -- files of opened images --------------------------------------------------------------------------------------------


def unchanged_file(image: Any, settings: ImageSettings) -> ImageData | None:
    """The file that an opened image came from, if the image is what anybody gets who opens that file.

    Only of an image whose pixels Pillow has not read yet: nothing tells whether those of another were drawn on. Its
    file is read and opened once more; all that was read of it (mode, size, palette, metadata, where the pixels stand
    in the file, a draft size) must be equal. WebP and AVIF files were read as a whole when they were opened: their
    pixels are compared, too, which takes two times the time of decoding it.

    Args:
        image: any image of Pillow's.

    Returns:
        None where it is not certain, where there are several frames, and where the format is not to be sent or the file
        is over the limits.
    """
    name, module, kind = _CLASSES.get(image.format or "", ("", "", ""))
    plugin = sys.modules.get(module)
    if plugin is None or type(image) is not getattr(plugin, kind) or not _is_wanted(name, settings):
        return None
    try:
        file = getattr(image, "fp", None)
        data = _bytes_behind(file, settings.max_file)
        if data is None or not _has_end(data, name) or _reads_otherwise():
            return None
        if not _is_permitted(data, name, image.size, settings) or not _is_as_opened(image, data, name):
            return None
    except Exception:  # a broken file, or one that was closed meanwhile: encoding it says what is wrong
        return None
    _close_together(image, file)
    return ImageData(name, data)


def _is_wanted(name: str, settings: ImageSettings) -> bool:
    options = settings.options
    if options.format is None:
        return name in _READ_EVERYWHERE
    return options.format == name and options.quality is None and options.compression is None


def _bytes_behind(file: Any, most: int) -> bytes | None:
    """The whole file; None where that might not be what Pillow would read, or would disturb it."""
    if type(file) is io.BytesIO:
        data = file.getvalue()
        return data if len(data) <= most else None
    if not _reads_plainly(file):
        return None
    descriptor = file.fileno()
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode) or before.st_size > most:
        return None
    data = _read_in_place(descriptor, before.st_size)
    after = os.fstat(descriptor)
    same = (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (len(data), after.st_mtime_ns, after.st_ctime_ns)
    return data if same else None


def _has_end(data: bytes, name: str) -> bool:
    """True if the mark is there by which a file of the format ends: one that was cut is an error here already."""
    mark = {"png": b"IEND\xaeB`\x82", "jpeg": b"\xff\xd9", "gif": b";"}.get(name, b"")
    return data.rfind(mark, len(data) // 2) >= 0


def _reads_otherwise() -> bool:
    """True if this program has told Pillow to read files in another way than the other end does."""
    from PIL import ImageFile as PillowFile

    if PillowFile.LOAD_TRUNCATED_IMAGES:
        return True
    gif = sys.modules.get("PIL.GifImagePlugin")
    return gif is not None and gif.LOADING_STRATEGY != gif.LoadingStrategy.RGB_AFTER_FIRST


def _is_permitted(data: bytes, name: str, size: tuple[int, int], settings: ImageSettings) -> bool:
    """True if our own limits would let the file in; those of the other end are most likely the same."""
    from . import image_files
    from .image_budget import ImageBudget, TooMuchImage

    budget = ImageBudget(settings.limits)
    try:
        cost = image_files.examine(data, name, budget) if name != "qoi" else 1
        budget.take_pixels(*size, image_files.passes(name, cost, size))
    except TooMuchImage:
        return False
    return True


def _is_as_opened(image: Any, data: bytes, name: str) -> bool:
    """True if the image is what opening its file gives, with one frame."""
    with type(image)(io.BytesIO(data), "") as again:
        if _state(image) != _state(again) or getattr(again, "is_animated", False):
            return False
        return name not in _READ_AT_ONCE or _is_same(image, again)


def _state(image: Any) -> tuple[Any, ...]:
    """All of an image whose pixels were not read that says what they will be; another one for each that was read."""
    loaded = getattr(image, "_im", None) if hasattr(image, "_im") else image.im  # as named since, and before Pillow 11
    if loaded is not None:
        return (object(),)
    palette = image.palette
    colours = None if palette is None else (palette.mode, palette.rawmode, bytes(palette.palette), palette.dirty)
    tiles = [tuple(tile) for tile in image.tile]
    return image.mode, image.size, image.tell(), tiles, image.decoderconfig, colours, _typed(image.info)


def _typed(info: dict[Any, Any]) -> dict[Any, Any]:
    """Each value with its type: 1, 1.0 and True are equal, and mean different things to who saves an image."""
    return {key: (type(value), value) for key, value in info.items()}


def _is_same(image: Any, again: Any) -> bool:
    """Decode both, and compare them."""
    image.load()
    again.load()
    return (image.mode, image.size, image.tobytes()) == (again.mode, again.size, again.tobytes())


#: Images that close their file; by id, since they have no hash.
_closing: set[int] = set()


def _close_together(image: Any, file: Any) -> None:
    """Close the file that Pillow has opened for an image when the image is gone, as reading its pixels would have."""
    if getattr(image, "_exclusive_fp", False) and id(image) not in _closing:
        _closing.add(id(image))
        weakref.finalize(image, _close, id(image), file)


def _close(key: int, file: Any) -> None:
    _closing.discard(key)
    file.close()
