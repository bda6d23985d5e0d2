"""The formats of image files on the wire, told by their first bytes. Does not import Pillow."""

from __future__ import annotations

from typing import NamedTuple

AVIF = "avif"
#: First bytes of a file, by the format's name. (WebP has its length between them and its name, AVIF behind it.)
_SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF", "gif": b"GIF8"}
#: Those that every end reads, and the one that only an end reads whose codec names it.
FORMATS = (*_SIGNATURES, AVIF)
#: Bytes at the beginning of a file that tell its format.
HEAD = 48


def format_of(head: bytes) -> str | None:
    """The name of the format that a file with these first bytes has; None if it has none of those on the wire."""
    for name, signature in _SIGNATURES.items():
        if head.startswith(signature) and (name != "webp" or head[8:12] == b"WEBP"):
            return name
    if head[4:8] == b"ftyp" and b"avif" in head[8:HEAD]:
        return AVIF
    return None


class ImageData(NamedTuple):
    """The bytes of an image file, and the name of its format on the wire."""

    format: str
    data: bytes
