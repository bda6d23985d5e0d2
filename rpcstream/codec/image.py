"""Pillow images as `{"$type": "image", "format", "data"}`, both ways.

What is sent for each format that can be chosen; the first that can hold the image without loss of its own, downwards:

    format   modes it takes as they are       not these, which go on to PNG
    jpeg     L, RGB, CMYK                     a transparent colour
    webp     RGB, RGBA                        a transparent colour; RGBA without transparency
    avif     RGB, RGBA                        as webp
    raw      all but 1, P and PA              a transparent colour
    png      1, L, LA, P, RGB, RGBA, I;16     what is left goes raw, PA as RGBA; so do empty images

Palette, transparent colour, colour profile and EXIF go with the file formats. Raw carries pixels only. Pixels are sent
as they are stored: the orientation in the EXIF data is for the receiver (`PIL.ImageOps.exif_transpose`). Of an
animation, the frame at hand is sent, and the first one read. What comes in is a plain `PIL.Image.Image`, loaded, bound
to no file.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from .attachments import Attachment
from .binary import payload_size, readable_bytes, without_data_url
from .codec import COPYING, DecodeElsewhere, Encoding, Reading, TooMuchImage
from .image_files import given_file, opened, unread_file
from .options import AVIF, FORMATS, ImageFile, ImageOptions, MaxSide, format_of
from .rich_hint import TAG_KEY, base64_of, members, mismatch, shortened, tagged_schema

TAG = "image"

#: The modes that each format holds.
_FILE_MODES = {"jpeg": ("L", "RGB", "CMYK"), "webp": ("RGB", "RGBA"), AVIF: ("RGB", "RGBA")}
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
#: The fastest level of compression. Where rows are sent as differences, runs in them are all that is worth looking for
#: (zlib's Z_RLE): of photos it makes smaller files than that level does alone, in three quarters of the time.
_FASTEST = {"compress_level": 1, "compress_type": 3}

#: Bytes a pixel in the raw form. I and F are little-endian.
_RAW_MODES = {
    **{"L": 1, "LA": 2, "La": 2, "RGB": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "YCbCr": 3, "LAB": 3},
    **{"HSV": 3, "I": 4, "F": 4, "I;16": 2, "I;16B": 2},
}
if sys.byteorder == "big":
    del _RAW_MODES["I"], _RAW_MODES["F"]

#: What opening a file costs in pixels, for each of its bytes: the text in a PNG may be a thousand times larger.
_OPENING = 3
#: What keeping its parts takes for each of its bytes: libwebp has a record for each of 8.
_PART_BYTES = 8
#: A pixel of AVIF takes as long as several of another format: 20 to 70 ns.
_AVIF_PASSES = 3
#: What begins each pass over the pixels of a JPEG.
_SCAN = b"\xff\xda"


# -- to the wire ------------------------------------------------------------------------------------------------------


def encode_image(value: Image.Image, encoding: Encoding) -> object:
    """The tagged object. EncodeError if Pillow cannot read or write the image."""
    if type(value) is not Image.Image and (file := unread_file(value, encoding.images, encoding.max_file)) is not None:
        return _tagged_file(*file, encoding)
    name = _format_for(value, encoding)
    if name != "raw":
        return _tagged_file(name, _file(value, name, encoding.images), encoding)
    image = value if value.mode in _RAW_MODES else value.convert("RGBA")
    data = encoding.payload(_pixels(image))
    return {TAG_KEY: TAG, "format": "raw", "mode": image.mode, "size": image.size, "data": data}


def encode_image_file(value: Any, encoding: Encoding) -> object:
    """The tagged object for an `ImageFile`, a path or an open binary file. EncodeError if that is no image file."""
    return _tagged_file(*given_file(value, encoding.max_file), encoding)


def _tagged_file(name: str, data: bytes, encoding: Encoding) -> object:
    return {TAG_KEY: TAG, "format": name, "data": encoding.payload(data)}


def _format_for(image: Image.Image, encoding: Encoding) -> str:
    mode, wanted = image.mode, encoding.images.format
    if 0 in image.size:
        return "raw"
    has_colour = "transparency" in image.info
    # WebP and AVIF would drop a channel for transparency that has none.
    if mode in _FILE_MODES.get(wanted or "", ()) and not has_colour and not (mode == "RGBA" and _is_opaque(image)):
        return wanted or ""
    is_cheapest = wanted is None and not {"icc_profile", "exif"} & image.info.keys()
    is_raw = wanted == "raw" or (is_cheapest and encoding.has_room(4 * image.width * image.height))
    return "png" if mode in _PNG_MODES and (has_colour or not is_raw or mode not in _RAW_MODES) else "raw"


def _is_opaque(image: Image.Image) -> bool:
    return image.getchannel("A").getextrema() == (255, 255)


def _pixels(image: Image.Image) -> bytes:
    """As `image.tobytes()`, which puts it together of pieces of 64 KiB: in one piece, in a half of the time."""
    size = image.width * image.height * _RAW_MODES[image.mode]
    if not size:
        return b""
    image.load()
    encoder = Image._getencoder(image.mode, "raw", image.mode)
    encoder.setimage(image.im, (0, 0, *image.size))
    _, is_done, data = encoder.encode(size)
    return data if is_done == 1 and len(data) == size else image.tobytes()


def _file(image: Image.Image, name: str, options: ImageOptions) -> bytes:
    image = image.copy()  # `save` keeps its parameters in the image, and another thread may be sending it too
    parameters: dict[str, Any] = {
        key: value for key in ("icc_profile", "exif") if isinstance(value := image.info.get(key), bytes)
    }
    if name == "png":  # at level 3 files are nearly as small as at 6, zlib's default, in half the time
        parameters |= _FASTEST if options.format is None else {"compress_level": 3}
    elif name == "webp":
        parameters |= {"lossless": options.lossless, "exact": options.lossless}
    if options.quality is not None and name == options.format:
        parameters["quality"] = options.quality
    file = io.BytesIO()
    image.save(file, name, **parameters)
    return file.getvalue()


# -- from the wire ----------------------------------------------------------------------------------------------------


def decode_image(tagged: dict[str, Any], reading: Reading, wanted: MaxSide | None = None) -> Image.Image:
    """The image of a tagged object; what it costs is taken from the reading of its message.

    Args:
        wanted: the image is reduced to this size.

    Raises:
        ValueError: it is not what the wire page says, or too large.
        DecodeElsewhere: it is not to be decoded in this thread.
    """
    name = tagged.get("format")
    if name == "raw":
        _, mode, size, data = members(tagged, "format", "mode", "size", "data")
        return _reduced(_from_raw(mode, size, data, reading), wanted)
    _, data = members(tagged, "format", "data")
    if name not in reading.formats:
        raise ValueError(f"image: format {shortened(repr(name))} is not one of {', '.join(reading.formats)}, raw")
    return _from_file(data, name, reading, wanted)


def _from_raw(mode: object, size: object, data: object, reading: Reading) -> Image.Image:
    if not isinstance(mode, str) or mode not in _RAW_MODES:
        raise ValueError(f"image: mode must be one of {', '.join(_RAW_MODES)}")
    if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int and side >= 0 for side in size)):
        raise ValueError("image: size must be [width, height]")
    width, height = size
    reading.take_pixels((width, height), COPYING)
    pixels, expected = readable_bytes(data), width * height * _RAW_MODES[mode]
    if len(pixels) != expected:
        raise ValueError(f"image: {len(pixels)} bytes of data, mode and size need {expected}")
    image = Image.new(mode, (width, height), None)  # not filled first, as `Image.frombytes` does
    if expected:
        image.frombytes(pixels)
    return image


def _from_file(content: object, name: str | None, reading: Reading, wanted: MaxSide | None) -> Image.Image:
    """The image in a file.

    Args:
        content: bytes, or a payload.
        name: the format that it must have; None: any.
    """
    size = len(content) if isinstance(content, bytes) else payload_size(content)
    reading.spend(_OPENING * size, _PART_BYTES * size)
    data = content if isinstance(content, bytes) else bytes(readable_bytes(content))
    found = format_of(data)
    if found not in reading.formats or found != (name or found):
        raise ValueError(f"image: the file is not {name or ' or '.join(reading.formats)}")
    try:
        with opened(data, found) as image:
            # In any JPEG of several scans libjpeg goes over all pixels for each.
            passes = data.count(_SCAN) if found == "jpeg" else _AVIF_PASSES if found == AVIF else 1
            reading.take_pixels(image.size, passes)
            if wanted is not None:
                image.draft(None, (wanted.pixels, wanted.pixels))
            image.load()
            reading.take_metadata(sum(len(each) for each in image.info.values() if isinstance(each, bytes | str)))
            # As `image.copy()`, which would take the memory twice: the file's own object is dropped here.
            return _reduced(image._new(image.im), wanted)
    except (TooMuchImage, DecodeElsewhere):
        raise
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise ValueError(f"image: the {found} file is broken: {shortened(str(error), 200)}") from error


def _reduced(image: Image.Image, wanted: MaxSide | None) -> Image.Image:
    """The image in the wanted size, or itself where it is not larger."""
    if wanted is None or max(image.size) <= wanted.pixels:
        return image
    image = image.copy()  # a handler may keep its own
    image.thumbnail((wanted.pixels, wanted.pixels), reducing_gap=None)
    return image


class ImageHint:
    """The hint `PIL.Image.Image`.

    Args:
        wanted: larger images are reduced to this size.
    """

    name = TAG

    def __init__(self, _: object, wanted: MaxSide | None = None) -> None:
        self._wanted = wanted

    def decode(self, value: object, reading: Reading) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            return decode_image(value, reading, self._wanted)
        if isinstance(value, str | bytes | Attachment):
            content = without_data_url(value) if isinstance(value, str) else value
            return _from_file(content, None, reading, self._wanted)
        if isinstance(value, Image.Image):
            return _reduced(value, self._wanted)
        raise mismatch(self.name, value, "an image is a string: its file in base64")

    def accept(self, value: Any) -> object:
        if isinstance(value, Image.Image):
            return _reduced(value, self._wanted)
        if isinstance(value, ImageFile | Path) or hasattr(value, "read"):
            return value
        raise mismatch(self.name, value)

    @property
    def component(self) -> str:
        return "Image" if self._wanted is None else f"Image_max{self._wanted.pixels}"

    def schema(self) -> dict[str, Any]:
        side = {"type": "integer", "minimum": 0}
        size = {"type": "array", "items": side, "minItems": 2, "maxItems": 2}
        file = tagged_schema(TAG, {"format": {"enum": list(FORMATS)}, "data": base64_of("image/*")})
        data = base64_of("application/octet-stream")
        pixels = {"format": {"const": "raw"}, "mode": {"enum": list(_RAW_MODES)}, "size": size, "data": data}
        plain = base64_of("image/*", f"an image file ({', '.join(FORMATS)}), or a data: URL of one")
        schema: dict[str, Any] = {
            "x-image": {"formats": list(FORMATS), "modes": list(_RAW_MODES)},
            "anyOf": [file, tagged_schema(TAG, pixels), plain],
        }
        if self._wanted is not None:
            schema["x-maxSide"] = self._wanted.pixels
            schema["description"] = f"reduced to at most {self._wanted.pixels} pixels on its larger side"
        return schema
