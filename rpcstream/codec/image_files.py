"""Image files: their formats, how they are opened and what that may cost, and which are sent as they are.

Pillow opens a file lazily: its size and metadata are known before a pixel is decoded. What Pillow does for that in
Python is bounded here by the number of reads and by the length of the header, since each part of a file takes it some
microseconds. Knows no tagged objects and no limits of messages.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
import weakref
from importlib import import_module
from typing import Any

from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from PIL.ImageFile import ImageFile as OpenedImage

from ..errors import EncodeError
from .image_formats import AVIF, FORMATS, HEAD, ImageData, format_of
from .options import ImageFile, ImageSettings

#: The most that a file may have before its pixels: photos of some phones have a map of depths there.
MAX_HEADER = 16 * 1024 * 1024
#: Reads of a file: so many, and one more for so many bytes. A PNG is read in four for each of its chunks.
_READS, _BYTES_A_READ = 4096, 256
#: Passes over a JPEG, one for each scan; encoders write up to 14.
MAX_PASSES = 100
_SCAN = b"\xff\xda"
#: The header of a JPEG's frame (ITU T.81, B.2.2), with height and width.
_JPEG_FRAME = re.compile(rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]..\x08(....)", re.DOTALL)


class TooManyParts(ValueError):
    """A file has more parts than its length permits."""


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


class _Bounded(io.BytesIO):
    """A file that may be read in so many pieces, and opened by reading so many bytes.

    Attributes:
        is_opened: its header was read.
    """

    def __init__(self, data: bytes, *, is_whole: bool) -> None:
        super().__init__(data)
        self.is_opened = is_whole
        self._left = _READS + len(data) // _BYTES_A_READ

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0 or (not self.is_opened and self.tell() > MAX_HEADER):
            raise TooManyParts("the file has too many parts for its length")
        return super().read(size)


def opened(data: bytes, name: str) -> OpenedImage:
    """The image in a file of a known format, its pixels not decoded yet.

    Opening a WebP takes the memory for its pixels already: look at `webp_size` before.

    Raises:
        Exception: of any kind, if the file is broken.
    """
    is_whole = name in ("webp", AVIF)  # read as a whole by a library in C
    if name == "webp":
        _check_chunks(data)
    opener = avif_opener() if name == AVIF else _OPENERS[name]
    file = _Bounded(data, is_whole=is_whole)
    image = opener(file, "")
    file.is_opened = True
    return image


def avif_opener() -> type[OpenedImage]:
    """What opens AVIF files. ImportError where Pillow has no AVIF: it is there from 11.3 on, as it was built."""
    plugin = import_module("PIL.AvifImagePlugin")
    if not plugin.SUPPORTED:
        raise ImportError("this Pillow was built without AVIF")
    return plugin.AvifImageFile  # type: ignore[no-any-return]


def _check_chunks(data: bytes) -> None:
    """Chunks of a WebP file (RFC 9649, section 2.3): libwebp keeps a record of each."""
    at, left = 12, _READS + len(data) // (4 * _BYTES_A_READ)
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + (size & 1)
        left -= 1
        if left < 0:
            raise TooManyParts("the file has too many parts for its length")


def webp_size(head: bytes) -> tuple[int, int]:
    """Width and height of the canvas, from the first 30 bytes (RFC 9649, sections 2.5 to 2.7)."""
    kind, number = head[12:16], int.from_bytes
    if kind == b"VP8X":
        return number(head[24:27], "little") + 1, number(head[27:30], "little") + 1
    if kind == b"VP8L":
        bits = number(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return number(head[26:28], "little") & 0x3FFF, number(head[28:30], "little") & 0x3FFF


def size_in_head(head: bytes) -> tuple[int, int] | None:
    """Width and height of the image in a file that begins so; None if that is not known.

    Does not open the file, which would parse and decompress its metadata in the event loop.
    """
    name, number = format_of(head), int.from_bytes
    if name == "png":
        return number(head[16:20], "big"), number(head[20:24], "big")
    if name == "gif":
        return number(head[6:8], "little"), number(head[8:10], "little")
    if name == "webp":
        return webp_size(head)
    # A thumbnail in the header may come first, so the largest counts.
    sizes = [(number(each[2:], "big"), number(each[:2], "big")) for each in _JPEG_FRAME.findall(head)]
    return max(sizes, key=math.prod, default=None) if name == "jpeg" else None


def jpeg_passes(image: Any, data: bytes) -> int:
    """Passes over the pixels that decoding an opened JPEG takes: one if libjpeg reads it row by row.

    It does so where the first scan has all components of each block; of any other file it keeps the coefficients of all
    pixels in memory, and goes over them for each scan. No other byte than 0 follows 0xFF in the data of a scan (ITU
    T.81, B.1.1.5).
    """
    begin, count = image.fp.tell(), image.layers  # behind the header of the first scan
    header = data[begin - 8 - 2 * count : begin - 3 - 2 * count]
    if "progressive" not in image.info and header == _SCAN + bytes((0, 6 + 2 * count, count)):
        return 1
    return 2 + data.count(_SCAN, begin)


def header_size(image: Any, name: str) -> int:
    """Bytes of an opened file before its pixels, which Pillow has parsed; 0 for a file that it has read as a whole."""
    return 0 if name in ("webp", AVIF) else int(image.fp.tell())


def metadata_size(image: Any) -> int:
    """Bytes of text, profiles and EXIF that an image keeps, as far as Pillow has read them."""
    return sum(len(value) for value in image.info.values() if isinstance(value, bytes | str))


# -- files that are sent as they are -----------------------------------------------------------------------------------


def given_file(value: Any, most: int) -> ImageData:
    """The image file of an `ImageFile`, a path, or an open binary file.

    Args:
        most: bytes that it may have.

    Raises:
        EncodeError: it cannot be read, or is no image file in a format of the wire; the text says what to do.
    """
    if isinstance(value, ImageFile):
        value = value.path
    is_path = isinstance(value, str | os.PathLike)
    shown = f"the file {os.fspath(value)!r}" if is_path else "the open file"
    try:
        data = _read_path(value, most + 1) if is_path else _read_open(value, most + 1)
    except (OSError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EncodeError(f"{shown} cannot be read: {reason}") from error
    if not isinstance(data, bytes):
        raise EncodeError(f"{shown} gives text: open it with 'rb'")
    if len(data) > most:
        raise EncodeError(f"{shown} has more than {most} bytes, which is the most that one message may have")
    name = format_of(data[:HEAD])
    if name is None:
        others = "its bytes with pathlib.Path.read_bytes" if is_path else "its bytes with read()"
        raise EncodeError(
            f"{shown} is not an image file that is sent as it is ({', '.join(FORMATS)}): "
            f"open it with PIL.Image.open, or send {others}"
        )
    return ImageData(name, data)


def is_open_file(value: object) -> bool:
    """True for an open file that gives bytes, as far as its class tells."""
    kind = type(value)
    return hasattr(kind, "readinto") or (kind.__module__, kind.__name__) == ("tempfile", "_TemporaryFileWrapper")


def _read_path(path: str | os.PathLike[str], most: int) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
        raise ValueError("it is not a regular file")  # a FIFO would have to be waited for
    with open(path, "rb") as file:
        return file.read(most)


def _read_open(file: Any, most: int) -> bytes:
    """Read from the beginning, and leave the position as it is."""
    if not file.seekable():
        raise ValueError("it has no beginning to go back to: read it first, and send the bytes or an image of them")
    place = file.tell()
    file.seek(0)
    try:
        return file.read(most)  # type: ignore[no-any-return]
    finally:
        file.seek(place)


def unread_file(image: Any, settings: ImageSettings) -> ImageData | None:
    """The file that an opened image came from, as it is now, if Pillow has not read the pixels of the image yet.

    What may have been changed without reading them (a size for `draft`, the metadata) is seen by opening it again.

    Args:
        image: any image of Pillow's.

    Returns:
        None where the image has changed or its pixels were read, where there are several frames, and where the format
        is not to be sent so or the file is too long.
    """
    name = (image.format or "").lower()
    file = getattr(image, "fp", None)
    if not _goes_as_file(name, settings) or not isinstance(file, io.BytesIO | io.BufferedReader):
        return None
    if _state(image) is None:
        return None
    try:
        data = _read_open(file, settings.max_file + 1)
        with type(image)(io.BytesIO(data), "") as again:
            if len(data) > settings.max_file or _state(again) != _state(image) or again.tell() != image.tell():
                return None
            if getattr(again, "is_animated", False):
                return None
    except Exception:  # a broken file, or one that was closed: encoding the image says what is wrong
        return None
    if getattr(image, "_exclusive_fp", False) and not hasattr(image, "_closes_file"):
        # Pillow would have closed the file that it opened, had it read the pixels.
        image._closes_file = weakref.finalize(image, file.close)
    return ImageData(name, data)


def _goes_as_file(name: str, settings: ImageSettings) -> bool:
    options = settings.options
    if options.format is None:
        return name in _OPENERS
    return options.format == name and options.quality is None and options.compression is None


def _state(image: Any) -> tuple[Any, ...] | None:
    """What says which pixels an opened image will have; None once they were read."""
    if (image._im if hasattr(image, "_im") else image.im) is not None:  # as named since, and before Pillow 11
        return None
    # 1, 1.0 and True are equal, and mean different things to who saves an image.
    info = {key: (type(value), value) for key, value in image.info.items()}
    return image.mode, image.size, [tuple(tile) for tile in image.tile], image.decoderconfig, info
