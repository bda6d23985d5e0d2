"""Rich values between the wire and the command line, without numpy or Pillow where files can go through as they are.

Owns the two shortcuts: a client codec that leaves tagged objects alone, and image files that become tagged objects, and
back, byte by byte (wire page, "Rich values").
"""

from __future__ import annotations

from typing import Any

import orjson

from ..codec import TAG_KEY, Codec

#: How the files of the formats on the wire begin. WebP has its length in between.
_BEGINNINGS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF", "gif": b"GIF8", "qoi": b"qoif"}


class AsReceived(Codec):
    """Decodes nothing: results keep their tagged objects, so that a pipe gets what the server sent."""

    def parse(self, line: bytes, max_values: int | None = None) -> tuple[Any, bytes]:
        return orjson.loads(line), line

    def holds_tags(self, line: bytes | bytearray) -> bool:
        return False


def image_to_send(data: bytes) -> Any:
    """What goes out for an image file: the file itself if its format is one of the wire, else the image in it.

    Raises:
        ValueError: not an image, or in a format that Pillow does not know.
    """
    for name, beginning in _BEGINNINGS.items():
        if data.startswith(beginning) and (name != "webp" or data[8:12] == b"WEBP"):
            from ..codec import base64

            return {TAG_KEY: "image", "format": name, "data": base64.encode_text(data)}
    from .media import opened_image

    return opened_image(data)


def image_as_it_came(value: Any) -> tuple[bytes, str] | None:
    """The file in a tagged image, and the ending for it; None for raw pixels and for anything else."""
    if not isinstance(value, dict) or value.get(TAG_KEY) != "image":
        return None
    name, data = value.get("format"), value.get("data")
    if not isinstance(name, str) or name not in _BEGINNINGS:
        return None
    from ..codec import base64

    try:
        return base64.decode(data), f".{name}"
    except ValueError:
        return None
