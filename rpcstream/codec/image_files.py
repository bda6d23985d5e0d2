"""Image files: how they are opened, and which are sent as they are.

Pillow opens a file lazily: its size is known before a pixel is decoded. What Pillow does for that in Python is bounded
here by the number of reads, since each part of a file takes it some microseconds.
"""

from __future__ import annotations

import io
import os
import stat
import weakref
from importlib import import_module
from typing import Any

from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from PIL.ImageFile import ImageFile as OpenedImage

from ..errors import EncodeError
from .options import AVIF, FORMATS, ImageFile, ImageOptions, format_of

#: Reads of a file: so many, and one more for so many bytes. A PNG is read in four for each of its chunks, of 8 KiB.
_READS, _BYTES_A_READ = 4096, 1024


class _Jpeg(JpegImagePlugin.JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Pillow reads all values of the EXIF data for this, each of which may be as long as all of the data."""


#: What opens a file. Few: each is attack surface, and the others are slow (in Python) or rare.
_OPENERS: dict[str, type[OpenedImage]] = {
    "png": PngImagePlugin.PngImageFile,
    "jpeg": _Jpeg,
    "webp": WebPImagePlugin.WebPImageFile,
    "gif": GifImagePlugin.GifImageFile,
}


def avif_opener() -> type[OpenedImage]:
    """What opens AVIF files. ImportError where Pillow has no AVIF: before 11.3, or as it was built."""
    plugin = import_module("PIL.AvifImagePlugin")
    if not plugin.SUPPORTED:
        raise ImportError("this Pillow was built without AVIF")
    return plugin.AvifImageFile  # type: ignore[no-any-return]


class _Bounded(io.BytesIO):
    """A file that may be read in a limited number of pieces."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._left = _READS + len(data) // _BYTES_A_READ

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError("it has too many parts for its length")
        return super().read(size)


def opened(data: bytes, name: str) -> OpenedImage:
    """The image in a file of a known format, its pixels not decoded yet. Raises exceptions of any kind if broken."""
    return (avif_opener() if name == AVIF else _OPENERS[name])(_Bounded(data), "")


# -- files that are sent as they are -----------------------------------------------------------------------------------


def given_file(value: Any, most: int) -> tuple[str, bytes]:
    """The format and the bytes of an `ImageFile`, a path, or an open binary file.

    Args:
        most: bytes that it may have.

    Raises:
        EncodeError: it cannot be read, or is no image file in a format of the wire; the text says what to do.
    """
    path = value.path if isinstance(value, ImageFile) else value if isinstance(value, os.PathLike) else None
    shown = "the open file" if path is None else f"the file {os.fspath(path)!r}"
    try:
        data = _read_open(value, most) if path is None else _read_path(path, most)
    except (OSError, ValueError, AttributeError) as error:
        raise EncodeError(f"{shown} cannot be read: {error}") from error
    name = format_of(data) if isinstance(data, bytes) else None
    if name is None:
        raise EncodeError(
            f"{shown} is not an image file that is sent as it is ({', '.join(FORMATS)}), opened with 'rb': "
            "open it with PIL.Image.open, or send its bytes"
        )
    return name, data


def _read_path(path: str | os.PathLike[str], most: int) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a regular file")  # a FIFO would have to be waited for
    with open(path, "rb") as file:
        return _read_open(file, most)


def _read_open(file: Any, most: int) -> bytes:
    """Read from the beginning, and leave the position as it is."""
    place = file.tell()
    file.seek(0)
    try:
        data: bytes = file.read(most + 1)
    finally:
        file.seek(place)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes, which is the most that one message may have")
    return data


def unread_file(image: Any, options: ImageOptions, most: int) -> tuple[str, bytes] | None:
    """The file that an opened image came from, as it is now, if Pillow has not read the pixels of the image yet.

    What may have been changed without reading them (a size for `draft`, the metadata) is seen by opening it again.

    Args:
        image: any image of Pillow's.

    Returns:
        The format and the bytes; None where the image has changed or its pixels were read, where there are several
        frames, and where the format is not to be sent so or the file is too long.
    """
    name, file = (image.format or "").lower(), getattr(image, "fp", None)
    is_wanted = name == options.format and options.quality is None if options.format else name in FORMATS
    if not is_wanted or not isinstance(file, io.BytesIO | io.BufferedReader) or _state(image) is None:
        return None
    try:
        data = _read_open(file, most)
        with type(image)(io.BytesIO(data), "") as again:
            is_same = _state(again) == _state(image) and again.tell() == image.tell()
            if not is_same or getattr(again, "is_animated", False):
                return None
    except Exception:  # a broken file, or one that was closed: encoding the image says what is wrong
        return None
    if getattr(image, "_exclusive_fp", False) and not hasattr(image, "_closes_file"):
        # Pillow would have closed the file that it opened, had it read the pixels.
        image._closes_file = weakref.finalize(image, file.close)
    return name, data


def _state(image: Any) -> tuple[Any, ...] | None:
    """What says which pixels an opened image will have; None once they were read."""
    if (image._im if hasattr(image, "_im") else image.im) is not None:  # as named since, and before Pillow 11
        return None
    # 1, 1.0 and True are equal, and mean different things to who saves an image.
    info = {key: (type(value), value) for key, value in image.info.items()}
    return image.mode, image.size, [tuple(tile) for tile in image.tile], image.decoderconfig, info
