"""The formats of image files on the wire, told by their first bytes. Does not import Pillow."""

from __future__ import annotations

import re

#: The formats that every codec reads; AVIF is read by those that send it.
FORMATS = ("png", "jpeg", "webp", "gif")
AVIF = "avif"

#: How a file begins, by the format's name.
_BEGINNINGS = {
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "gif": re.compile(rb"GIF8"),
    AVIF: re.compile(rb"....ftypavi[fs]", re.DOTALL),
}


def format_of(data: bytes) -> str | None:
    """The name of the format that a file has, by its first bytes; None if it has none of those on the wire."""
    return next((name for name, begin in _BEGINNINGS.items() if begin.match(data)), None)
