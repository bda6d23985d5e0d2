"""The cost of an image file, found in its structure before Pillow opens it; and the memory that images will take.

Pillow keeps and inflates whatever metadata a file has, and walks through its parts in Python; what that takes is a
matter of the file's author alone. Owns one walk for each format that Pillow reads here: the number of parts (chunks,
segments, blocks) is bounded by the length of the file, metadata is taken from the budget of the message as large as it
becomes in memory, and the scans of a JPEG are counted. Files that are broken are left for Pillow to refuse.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

from . import avif, base64, qoi
from .image_budget import LEAST, PIXEL_BYTES, ImageBudget, ImageLimits, TooMuchImage
from .payloads import Attachment, Payload
from .rich_hint import TAG_KEY

#: Parts of a file that are looked at: so many, and one more for so many bytes. Each takes Pillow some microseconds.
_PARTS, _BYTES_A_PART = 4096, 1024
#: A pixel of AVIF takes as long as some passes over one of another format: 20 to 70 ns.
_AVIF_COST = 3
#: Bytes that Pillow inflates of one compressed text (PIL.PngImagePlugin.MAX_TEXT_CHUNK).
_TEXT_CHUNK = 1024 * 1024
#: How many times larger inflated data is at most than before (zlib, "Maximum Compression Factor").
_INFLATION = 1032

#: Chunks of a PNG that leave nothing behind but pixels and a palette.
_PNG_PIXELS = frozenset({b"IHDR", b"PLTE", b"IDAT", b"fdAT", b"fcTL", b"acTL", b"tRNS"})
_PNG_CHUNK = struct.Struct(">I4s").unpack_from
_PNG_INFLATED = frozenset({b"zTXt", b"iTXt", b"iCCP"})
_SOF0, _SOF15, _SEQUENTIAL, _NO_FRAMES = 0xC0, 0xCF, (0xC0, 0xC1), (0xC4, 0xC8, 0xCC)
_SOS, _EOI, _APP0, _APP15, _COM, _TEM = 0xDA, 0xD9, 0xE0, 0xEF, 0xFE, 0x01
#: A marker in the data of a scan: neither a stuffed byte, a restart nor a fill byte (ITU T.81, B.1.1). The
#: pattern begins with exactly one byte: `\xff+`, for the fill bytes before it, makes the search 14 times as long.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
#: Bytes of a value of each TIFF type (TIFF 6.0, section 2).
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


def examine(data: bytes, name: str, budget: ImageBudget) -> int:
    """Take what a file keeps besides pixels from the budget.

    Args:
        name: "png", "jpeg", "webp", "gif" or "avif"; the file begins as such a one.

    Returns:
        Passes over the pixels that decoding takes; of AVIF the pixels of all its coded pictures. See `passes`.

    Raises:
        TooMuchImage: the file has too many parts, or too much metadata.
    """
    return _WALKS[name](data, budget)


def passes(name: str, cost: int, size: tuple[int, int]) -> int:
    """Passes over the pixels of an image of this size, from what `examine` gave for its file."""
    if name != "avif":
        return cost
    return _AVIF_COST * max(1, -(-cost // max(size[0] * size[1], LEAST)))


class _Parts:
    """Counts the parts of a file."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = _PARTS + size // _BYTES_A_PART

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _too_many_parts()


def _too_many_parts() -> TooMuchImage:
    return TooMuchImage("image: the file has too many parts for its length")


def _png(data: bytes, budget: ImageBudget) -> int:
    """Chunks (PNG 3rd edition, section 5)."""
    at, length = 8, len(data)
    left = _PARTS + length // _BYTES_A_PART
    while at + 8 <= length:
        size, kind = _PNG_CHUNK(data, at)
        at += 8
        if kind not in _PNG_PIXELS:
            if kind == b"IEND":
                break
            if kind in _PNG_INFLATED:
                budget.take_metadata(_inflated(kind, data[at : at + size], budget.metadata_left))
            else:
                budget.take_metadata(min(size, length - at))
        at += size + 4
        left -= 1
        if left < 0:
            raise _too_many_parts()
    return 1


def _inflated(kind: bytes, body: bytes, most: int) -> int:
    """Bytes that a chunk with compressed text takes in memory, as far as there are not more than `most`."""
    start = body.find(b"\0") + 2
    if kind == b"iTXt":
        if body[start - 1 : start] == b"\0":  # not compressed
            return len(body)
        start = body.find(b"\0", body.find(b"\0", start + 1) + 1) + 1
    rest = body[start:]
    most = min(most, _TEXT_CHUNK) + 1
    try:
        return len(body) + len(zlib.decompressobj().decompress(rest, most))
    except zlib.error:  # Pillow has inflated what stands before the error by then
        return len(body) + min(most, len(rest) * _INFLATION)


def _jpeg(data: bytes, budget: ImageBudget) -> int:
    """Segments up to the first scan (ITU T.81, annex B), then the scans."""
    parts, at, exif = _Parts(len(data)), 2, 0
    while at + 4 <= len(data):
        parts.count()
        if data[at] != 0xFF:
            at += 1
            continue
        kind = data[at + 1]
        if kind in (0x00, 0xFF) or 0xD0 <= kind <= _EOI:
            at += 1 if kind == 0xFF else 2
            continue
        if kind == _SOS:
            return 1 if is_read_in_one_pass(data) else _scans(data, at, parts)
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if _APP0 <= kind <= _APP15 or kind == _COM:
            body = data[at + 4 : end]
            if body[:6] == b"Exif\0\0":
                # Those that follow are put behind the first, by copying all of them each time.
                exif += len(body)
                budget.take_metadata(exif + _directory_size(body[6:]))
            else:
                # Twice: in the list of segments, and as what it is.
                budget.take_metadata(2 * len(body) + (_directory_size(body[4:]) if body[:4] == b"MPF\0" else 0))
        at = max(end, at + 2)
    return 1


def is_read_in_one_pass(data: bytes) -> bool:
    """True for a JPEG whose first scan has all of each block: libjpeg decodes that scan row by row, and no other.

    Of every other one it has the coefficients of all pixels in memory, and goes over them for each scan.
    """
    at, frame, components = 2, 0, 0
    for _ in range(_PARTS + len(data) // _BYTES_A_PART):
        if at + 10 > len(data):
            break
        kind = data[at + 1]
        if data[at] != 0xFF or kind == 0xFF:
            at += 1
        elif kind in (0x00, _TEM) or 0xD0 <= kind <= _EOI:
            at += 2
        elif kind == _SOS:
            return frame in _SEQUENTIAL and data[at + 4] == components
        else:
            if _SOF0 <= kind <= _SOF15 and kind not in _NO_FRAMES:
                frame, components = kind, data[at + 9]
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


def _scans(data: bytes, at: int, parts: _Parts) -> int:
    """The number of scans, from the first one on, up to the end of the image."""
    count = 0
    while at + 4 <= len(data):
        parts.count()
        kind = data[at + 1]
        if kind == _EOI:
            break
        count += kind == _SOS
        if kind != _TEM:
            at += int.from_bytes(data[at + 2 : at + 4], "big")
        found = _JPEG_MARKER.search(data, at + 2)
        if found is None:
            break
        at = found.end() - 2
    return max(count, 1)


def _directory_size(data: bytes) -> int:
    """Bytes that the values of the first directory of a TIFF file take, each of which may be all of the file."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 8:
        return 0
    (at,) = struct.unpack_from(order + "L", data, 4)
    if at + 2 > len(data):
        return 0
    (count,) = struct.unpack_from(order + "H", data, at)
    total = 0
    for place in range(at + 2, min(at + 2 + 12 * count, len(data) - 11), 12):
        _, kind, number = struct.unpack_from(order + "HHL", data, place)
        total += min(_TIFF_SIZES.get(kind, 0) * number, len(data))
    return total


def _gif(data: bytes, budget: ImageBudget) -> int:
    """Blocks up to the first image (GIF89a, appendix A); only that one is read."""
    parts, at = _Parts(len(data)), 13
    if len(data) > 10 and data[10] & 0x80:
        at += 3 << ((data[10] & 7) + 1)
    while at < len(data) and data[at] not in b",;":
        parts.count()
        if data[at] != 0x21:
            at += 1
            continue
        at, start = at + 2, at
        while at < len(data) and data[at]:
            parts.count()
            at += 1 + data[at]
        at += 1
        budget.take_metadata(at - start)
    return 1


def _webp(data: bytes, budget: ImageBudget) -> int:
    """Chunks (RFC 9649, section 2.3)."""
    parts, at = _Parts(len(data)), 12
    while at + 8 <= len(data):
        parts.count()
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] in (b"ICCP", b"EXIF", b"XMP "):
            budget.take_metadata(min(size, len(data) - at))
        at += 8 + size + (size & 1)
    return 1


_WALKS: dict[str, Callable[[bytes, ImageBudget], int]] = {
    "png": _png,
    "jpeg": _jpeg,
    "gif": _gif,
    "webp": _webp,
    "avif": avif.coded_pixels,
}


def webp_size(data: bytes) -> tuple[int, int]:
    """From the header (RFC 9649, sections 2.5 to 2.7): libwebp takes memory for the whole canvas when it is opened."""
    kind, number = data[12:16], int.from_bytes
    if kind == b"VP8X":
        return number(data[24:27], "little") + 1, number(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = number(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return number(data[26:28], "little") & 0x3FFF, number(data[28:30], "little") & 0x3FFF


# -- how much memory images will take ----------------------------------------------------------------------------------

#: Bytes a pixel while a file is decoded. libwebp has two canvases, the pixels of the frame, and what it gives is copied
#: twice; a progressive JPEG has its coefficients; QOI an array, its bytes and the image; raw pixels their bytes. AVIF
#: has up to three planes of two bytes and one for alpha, and what libavif makes of them is copied twice.
_WEBP, _JPEG, _QOI, _RAW, _AVIF = 16, 12, 12, 8, 20
#: Characters of base64 that have the size of any file but a JPEG or AVIF; of these so many are looked at.
_HEAD, _JPEG_HEAD, _AVIF_HEAD = 64, 128 * 1024, 8 * 1024
#: Values in a message that are looked at: some milliseconds.
_MAX_PARTS = 20_000
#: What files begin with, in base64.
_BEGINNINGS = ("iVBORw0KGgo", "/9j/", "UklGR", "R0lGOD", "cW9pZg")
_AVIF_BEGINNING = re.compile("AAAA[A-Za-z0-9+/]{2}Z0eXB")
#: Characters that a data: URL of an image may have before its comma; those that are read have fewer.
_LONGEST_HEAD = 64
_AVIF_SIZE = re.compile(rb"ispe\0\0\0\0(.{8})", re.DOTALL)
_JPEG_FRAME = re.compile(rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]..\x08(....)", re.DOTALL)


def image_weight(value: Any, limits: ImageLimits) -> int:
    """About how many bytes of memory the images in plain JSON data take at most while they are decoded.

    From the headers alone, and of those that may be images by their looks. Of a file whose header lies, the limits of
    the message are what counts; they are what is given for data with many parts, too.
    """
    kept = peak = looked_at = 0
    most, max_pixels = limits.message_pixels * _AVIF, limits.pixels
    rest = [value]
    while rest:
        looked_at += 1
        if looked_at + len(rest) > _MAX_PARTS:
            return most
        part = rest.pop()
        if type(part) is list:
            rest += part
            continue
        if type(part) is dict:
            if part.get(TAG_KEY) != "image":
                rest += part.values()
                continue
            pixels, each = _raw_size(part) if part.get("format") == "raw" else _file_size(part.get("data"), max_pixels)
        elif type(part) is Attachment:
            pixels, each = _file_size(part, max_pixels)
            if not pixels:  # of an array, say
                continue
        elif type(part) is str and (part.startswith(_BEGINNINGS) or _AVIF_BEGINNING.match(part)):
            pixels, each = _file_size(part, max_pixels)
        elif type(part) is str and part[:_LONGEST_HEAD].lower().startswith("data:image/"):
            begin = part.find(",", 0, _LONGEST_HEAD) + 1
            pixels, each = _file_size(part[begin : begin + _JPEG_HEAD], max_pixels)
        else:
            continue
        pixels = min(max(pixels, LEAST), max_pixels)
        kept += pixels * PIXEL_BYTES
        peak = max(peak, pixels * (each - PIXEL_BYTES))
    return min(kept + peak, most)


def _raw_size(tagged: dict[str, Any]) -> tuple[int, int]:
    size = tagged.get("size")
    if type(size) is list and len(size) == 2 and all(type(side) is int and side >= 0 for side in size):
        return size[0] * size[1], _RAW
    return 0, _RAW


def _file_size(text: Any, max_pixels: int) -> tuple[int, int]:
    """Pixels, and bytes a pixel at the peak."""
    if not isinstance(text, str | Payload | Attachment):
        return 0, PIXEL_BYTES
    head = base64.decode_head(text, _HEAD)
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return int.from_bytes(head[16:20], "big") * int.from_bytes(head[20:24], "big"), PIXEL_BYTES
    if head[:4] == b"RIFF":
        width, height = webp_size(head)
        return width * height, _WEBP
    if head[:3] == b"GIF":
        return int.from_bytes(head[6:8], "little") * int.from_bytes(head[8:10], "little"), PIXEL_BYTES
    if head[:4] == qoi.MAGIC and len(head) >= 14:
        width, height = qoi.size_of(head)
        return width * height, _QOI
    if avif.is_avif(head):
        found = _AVIF_SIZE.findall(base64.decode_head(text, _AVIF_HEAD))
        sizes = [struct.unpack(">LL", each) for each in found]
        return max((width * height for width, height in sizes), default=max_pixels), _AVIF
    if head[:2] != b"\xff\xd8":
        return 0, PIXEL_BYTES
    sizes = [struct.unpack(">HH", found) for found in _JPEG_FRAME.findall(base64.decode_head(text, _JPEG_HEAD))]
    return max((height * width for height, width in sizes), default=max_pixels), _JPEG
