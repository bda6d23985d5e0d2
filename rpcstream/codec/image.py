"""Pillow images as `{"$type": "image", "format", "data"}`, both ways.

What is sent for each format that can be chosen; the first that can hold the image without loss of its own, downwards:

    format   modes it takes as they are       not these, which go on to PNG
    jpeg     L, RGB, CMYK                     a transparent colour; a side over 65,500
    webp     RGB, RGBA                        a transparent colour; a side over 16,383; RGBA without transparency
    avif     RGB, RGBA                        as webp; a side over 32,768
    raw      all but P and PA                 a transparent colour
    png      1, L, LA, P, RGB, RGBA, I;16     what is left goes raw; P and PA as RGBA if it must; so do empty images

Palette, transparent colour, colour profile and EXIF go with the file formats. Raw carries pixels only. Pixels are sent
as they are stored: the orientation in the EXIF data is for the receiver (`PIL.ImageOps.exif_transpose`). Of an
animation, the frame at hand is sent, and the first one read. What comes in is a plain `PIL.Image.Image`, loaded, bound
to no file.
"""

from __future__ import annotations

import io
import sys
import typing
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image

from ..errors import EncodeError
from ..limits import DEFAULT_LIMITS
from . import base64
from .binary import TAG as BYTES
from .encoding import Encoding
from .image_budget import (
    COPYING,
    DECODING_BYTES,
    LEAST,
    PIXEL_BYTES,
    DecodeElsewhere,
    ImageBudget,
    ImageLimits,
    TooMuchImage,
    reading,
)
from .image_files import (
    MAX_PASSES,
    given_file,
    header_size,
    is_open_file,
    jpeg_passes,
    metadata_size,
    opened,
    size_in_head,
    unread_file,
    webp_size,
)
from .image_formats import AVIF, FORMATS, HEAD, ImageData, format_of
from .options import ImageFile, ImageOptions, MaxSide
from .payloads import Attachment, Payload
from .rich_hint import TAG_KEY, base64_of, members, mismatch, shortened, tagged_schema

TAG = "image"

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
#: Of these a PNG has rows of differences. Runs in them are all that is worth looking for (zlib's Z_RLE): of photos it
#: makes smaller files than the fastest level does, in three quarters of the time.
_FILTERED = frozenset({"L", "LA", "RGB", "RGBA", "I;16"})
_FASTEST = {"compress_level": 1, "compress_type": 3}
_JPEG_MODES = frozenset({"L", "RGB", "CMYK"})
_JPEG_SIDE = 65_500
_WEBP_MODES = frozenset({"RGB", "RGBA"})
_WEBP_SIDE = 16_383
_AVIF_SIDE = 32_768
#: The most that JPEG can hold in its one segment for it.
_EXIF_SIZE = 65_000

#: Bytes a pixel in the raw form; mode 1 has eight pixels a byte, rows padded. I and F are little-endian.
_RAW_MODES = {
    "1": 0,
    "L": 1,
    "LA": 2,
    "La": 2,
    "RGB": 3,
    "RGBA": 4,
    "RGBa": 4,
    "RGBX": 4,
    "CMYK": 4,
    "YCbCr": 3,
    "LAB": 3,
    "HSV": 3,
    "I": 4,
    "F": 4,
    "I;16": 2,
    "I;16B": 2,
}
#: What raw pixels have no place for.
_METADATA = frozenset({"icc_profile", "exif"})
#: The same memory under another name.
_RAW_NAMES = {"I;16L": "I;16", "I;16N": "I;16" if sys.byteorder == "little" else "I;16B"}

#: What reading the data of a pixel of a JPEG costs, where it is not decoded; decoding it as well costs 1.
_READING = 1 / 3
#: A pixel of AVIF takes as long as some of another format: 20 to 70 ns.
_AVIF_PASSES = 3


def encode_image(value: Image.Image, encoding: Encoding) -> object:
    """The tagged object. EncodeError if Pillow cannot read or write the image."""
    encoding.expect_payload()
    if type(value) is not Image.Image and (file := unread_file(value, encoding.images)) is not None:
        return encode_image_data(file, encoding)
    options = encoding.images.options
    name = _format_for(value, options, is_raw_cheaper=encoding.has_room(4 * value.width * value.height))
    if name != "raw":
        return {TAG_KEY: TAG, "format": name, "data": encoding.payload(_file(value, name, options))}
    image = value.convert("RGBA") if value.mode in ("P", "PA") else value
    mode = _RAW_NAMES.get(image.mode, image.mode)
    if mode not in _RAW_MODES:
        raise EncodeError(f"an image of mode {image.mode} has no form on the wire")
    data = _little_endian(_pixels(image), mode)
    return {TAG_KEY: TAG, "format": "raw", "mode": mode, "size": image.size, "data": encoding.payload(data)}


def encode_image_file(value: Any, encoding: Encoding) -> object:
    """The tagged object for an `ImageFile`, a path or an open binary file. EncodeError if that is no image file."""
    encoding.expect_payload()
    return encode_image_data(given_file(value, encoding.images.max_file), encoding)


def encode_image_data(value: ImageData, encoding: Encoding) -> object:
    """The tagged object for the bytes of an image file."""
    return {TAG_KEY: TAG, "format": value.format, "data": encoding.payload(value.data)}


def _format_for(image: Image.Image, options: ImageOptions, *, is_raw_cheaper: bool) -> str:
    mode, side = image.mode, max(image.size)
    if 0 in image.size:
        return "raw"
    if _transparent_colour(image) is None:
        if options.format == "jpeg" and mode in _JPEG_MODES and side <= _JPEG_SIDE:
            return "jpeg"
        if options.format == "webp" and mode in _WEBP_MODES and side <= _WEBP_SIDE and not _is_opaque(image):
            return "webp"
        if options.format == "avif" and mode in _WEBP_MODES and side <= _AVIF_SIDE and not _is_opaque(image):
            return "avif"
        if options.format == "raw" and mode not in ("P", "PA"):
            return "raw"
        if options.format is None and is_raw_cheaper and mode not in ("P", "PA") and not _METADATA & image.info.keys():
            return "raw"
    return "png" if mode in _PNG_MODES else "raw"


def _is_opaque(image: Image.Image) -> bool:
    """RGBA without transparency: WebP and AVIF would drop the channel."""
    return image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255)


def _transparent_colour(image: Image.Image) -> Any:
    """The transparent colour (tRNS of PNG), or the alpha of each colour of a palette; None if the mode has none."""
    colour = image.info.get("transparency")
    kinds: dict[str, type | tuple[type, ...]] = {"1": int, "L": int, "I;16": int, "RGB": tuple, "P": (int, bytes)}
    return colour if isinstance(colour, kinds.get(image.mode, ())) else None


def _pixels(image: Image.Image) -> bytes:
    """As `image.tobytes()`, which puts it together of pieces of 64 KiB: in one piece, in a half of the time."""
    width, height = image.size
    size = width * height * _RAW_MODES[_RAW_NAMES.get(image.mode, image.mode)]
    if not size:  # or one bit a pixel
        return image.tobytes()
    image.load()
    encoder = Image._getencoder(image.mode, "raw", image.mode)
    try:
        encoder.setimage(image.im, (0, 0, width, height))
        _, is_done, data = encoder.encode(size)
    finally:
        encoder.cleanup()
    return data if is_done == 1 and len(data) == size else image.tobytes()


def _file(image: Image.Image, name: str, options: ImageOptions) -> bytes:
    profile = image.info.get("icc_profile")
    parameters: dict[str, Any] = {"icc_profile": profile if isinstance(profile, bytes) else None}
    if name == "png":
        parameters["transparency"] = _transparent_colour(image)
        if options.compression is not None or options.format is not None:
            parameters["compress_level"] = 3 if options.compression is None else options.compression
        else:
            parameters |= _FASTEST if image.mode in _FILTERED else {"compress_level": 1}
    elif name == "webp":
        parameters |= {"lossless": options.lossless, "exact": options.lossless}
    if options.quality is not None and name == options.format:
        parameters["quality"] = options.quality
    exif = image.info.get("exif")
    if isinstance(exif, bytes) and len(exif) <= _EXIF_SIZE:
        parameters["exif"] = exif
    # A copy: `save` keeps its parameters in the image, and another thread may be sending it too.
    image = image.copy()
    if image.mode == "P":
        _fill_palette(image)
    file = io.BytesIO()
    image.save(file, name, **parameters)
    return file.getvalue()


def _fill_palette(image: Image.Image) -> None:
    """Give each index in use the colour that Pillow shows for it: on saving it would cut those the palette lacks."""
    mode = "RGBA" if image.palette is not None and image.palette.mode == "RGBA" else "RGB"
    known = len(image.getpalette(mode) or []) // len(mode)
    if typing.cast(int, image.getextrema()[1]) >= known:
        every = image.crop((0, 0, 16, 16))
        every.info = {}
        every.frombytes(bytes(range(256)))
        image.putpalette(every.convert(mode).tobytes(), mode)


def _little_endian(data: Any, mode: str) -> Any:
    if sys.byteorder == "little" or mode not in ("I", "F"):
        return data
    import array

    numbers = array.array("I", data)
    numbers.byteswap()
    return numbers.tobytes()


def decode_image(tagged: dict[str, Any], budget: ImageBudget, wanted: MaxSide | None = None) -> Image.Image:
    """The image of a tagged object; what it costs is taken from the budget of its message.

    Args:
        wanted: the image is reduced to this size.

    Raises:
        ValueError: it is not what the wire page says, or too large.
        DecodeElsewhere: it is not to be decoded in this thread.
    """
    name = tagged.get("format")
    if name == "raw":
        _, mode, size, data = members(tagged, "format", "mode", "size", "data")
        return _reduced(_from_raw(mode, size, data, budget), wanted, budget)
    _, data = members(tagged, "format", "data")
    if not isinstance(name, str) or name not in FORMATS:
        shown = repr(shortened(name)) if isinstance(name, str) else type(name).__name__
        raise ValueError(f"image: format {shown} is not one of {', '.join(FORMATS)}, raw")
    return _from_file(data, name, budget, wanted)


def _from_raw(mode: object, size: object, data: object, budget: ImageBudget) -> Image.Image:
    kind, width, height = _raw_form(mode, size, data, budget)
    budget.take_pixels((width, height), COPYING)
    return Image.frombytes(kind, (width, height), _little_endian(base64.readable(data), kind))


def _raw_form(mode: object, size: object, data: object, budget: ImageBudget) -> tuple[str, int, int]:
    """Mode, width and height of raw pixels. ValueError if they are not in order, or are not as many as the data."""
    if not isinstance(mode, str) or mode not in _RAW_MODES:
        raise ValueError(f"image: mode must be one of {', '.join(_RAW_MODES)}")
    if not (isinstance(size, list) and len(size) == 2 and all(type(side) is int and side >= 0 for side in size)):
        raise ValueError("image: size must be [width, height]")
    width, height = size
    budget.check_size(width, height)
    expected = width * height * _RAW_MODES[mode] if mode != "1" else (width + 7) // 8 * height
    if base64.decoded_size(data) != expected:
        raise ValueError(f"image: {base64.decoded_size(data)} bytes of data, mode and size need {expected}")
    return mode, width, height


def _from_file(text: object, name: str | None, budget: ImageBudget, wanted: MaxSide | None) -> Image.Image:
    """The image in a file of the named format, or of any that is read.

    Args:
        text: the file as base64.
        wanted: the image is reduced to this size.
    """
    if budget.here is not None:
        budget.check_file(base64.decoded_size(text))
    data = base64.decode(text)
    return _in_file(data, name, budget, wanted, text)


def _from_bytes(data: bytes, budget: ImageBudget, wanted: MaxSide | None) -> Image.Image:
    """The image in a file whose bytes were decoded already."""
    if budget.here is not None:
        budget.check_file(len(data))
    return _in_file(data, None, budget, wanted)


def _in_file(
    data: bytes, wanted_name: str | None, budget: ImageBudget, wanted: MaxSide | None, text: object = None
) -> Image.Image:
    name = format_of(data[:HEAD])
    if name is None or name != (wanted_name or name):
        known = wanted_name or " or ".join(each for each in FORMATS if each != AVIF or budget.limits.reads_avif)
        raise ValueError(f"image: the file is not {known}{base64.path_advice(text)}")
    if name == AVIF and not budget.limits.reads_avif:
        raise ValueError("image: avif files are read where the codec names them: ImageOptions(format='avif')")
    try:
        if name == "webp":  # opening it takes the memory already
            budget.take_pixels(webp_size(data))
        with opened(data, name) as image:
            header = header_size(image, name)
            budget.take_metadata(header)
            size = image.size if wanted is None else wanted.fitting(*image.size)
            _take(image, name, size, data, budget)
            image.load()
            budget.check_size(*image.size)
            budget.take_metadata(max(0, metadata_size(image) - header))
            # As `image.copy()`, which would take the memory twice: the file's own object is dropped here.
            return _resized(image._new(image.im), size, budget)
    except (TooMuchImage, DecodeElsewhere):
        raise
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise ValueError(f"image: the {name} file is broken: {shortened(str(error), 200)}") from error


def _take(image: Any, name: str, size: tuple[int, int], data: bytes, budget: ImageBudget) -> None:
    """Take what decoding an opened image costs from the budget; have a JPEG decoded to little more than the size."""
    if name == "webp":
        return
    passes = _AVIF_PASSES if name == AVIF else 1
    whole = image.size
    if name == "jpeg":
        passes = jpeg_passes(image, data)
        if passes > MAX_PASSES:
            raise TooMuchImage(f"image: {passes} passes over {whole[0]} x {whole[1]} pixels would take too long")
        if size != whole:
            image.draft(None, size)
            if passes == 1:  # only of such a one libjpeg keeps the smaller size alone
                read = whole[0] * whole[1] * _READING / max(image.size[0] * image.size[1], LEAST)
                budget.take_pixels(image.size, 1 + read)
                return
            budget.reduced(whole, image.size)
    budget.take_pixels(whole, passes)


def _reduced(image: Image.Image, wanted: MaxSide | None, budget: ImageBudget | None = None) -> Image.Image:
    """The image in the wanted size, or itself where it is not larger."""
    return image if wanted is None else _resized(image, wanted.fitting(*image.size), budget)


def _resized(image: Image.Image, size: tuple[int, int], budget: ImageBudget | None) -> Image.Image:
    """The image in a smaller size, or itself if it has that. Palettes become colours, black and white grey."""
    if size == image.size:
        return image
    if budget is not None:
        budget.reduced(image.size, size)
    mode = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(image.mode, image.mode)
    if _transparent_colour(image) is not None and image.mode != "I;16":
        mode = "LA" if mode == "L" else "RGBA"
    if mode != image.mode:
        image = image.convert(mode)
    for gap in (3.0, None):  # quicker in two steps; not of all modes
        with suppress(ValueError):
            return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=gap)
    return image.resize(size, Image.Resampling.NEAREST)


def _from_text(text: str, budget: ImageBudget, wanted: MaxSide | None) -> Image.Image:
    """The image in the base64 of a file, or in a data: URL, whose media type must be that of the file."""
    url = base64.split_data_url(text)
    if url is None:
        return _from_file(text, None, budget, wanted)
    kind, payload = url
    name = kind.removeprefix("image/")
    if kind == name or name not in FORMATS:
        known = ", ".join(f"image/{each}" for each in FORMATS)
        raise ValueError(f"image: the data: URL is of type {shortened(kind)!r}, and must be of one of {known}")
    return _from_file(payload, name, budget, wanted)


class ImageHint:
    """The hint `PIL.Image.Image`.

    Args:
        wanted: larger images are reduced to this size.
    """

    name = TAG

    def __init__(self, limits: ImageLimits, wanted: MaxSide | None = None) -> None:
        self._limits = limits
        self._wanted = wanted

    def decode(self, value: object) -> object:
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG:
            return decode_image(value, reading.get() or ImageBudget(self._limits), self._wanted)
        if isinstance(value, Attachment):
            return _from_file(value, None, reading.get() or ImageBudget(self._limits), self._wanted)
        if isinstance(value, str):
            return _from_text(value, reading.get() or ImageBudget(self._limits), self._wanted)
        if isinstance(value, dict) and value.get(TAG_KEY) == BYTES:
            (data,) = members(value, "data")
            return _from_file(data, None, reading.get() or ImageBudget(self._limits), self._wanted)
        if isinstance(value, bytes):
            return _from_bytes(value, reading.get() or ImageBudget(self._limits), self._wanted)
        if isinstance(value, Image.Image):
            return _reduced(value, self._wanted)
        raise mismatch(self.name, value)

    def check_announced(self, value: object) -> None:
        """Check raw pixels of which only the number of bytes is known. ValueError as of `decode`; other values pass."""
        if isinstance(value, dict) and value.get(TAG_KEY) == TAG and value.get("format") == "raw":
            _, mode, size, data = members(value, "format", "mode", "size", "data")
            _raw_form(mode, size, data, ImageBudget(self._limits))

    def accept(self, value: object) -> object:
        if isinstance(value, Image.Image):
            return _reduced(value, self._wanted)
        if isinstance(value, ImageFile | Path) or is_open_file(value):
            return value if self._wanted is None else self._small(value)
        raise mismatch(self.name, value)

    def _small(self, value: Any) -> object:
        """The image in a file, reduced."""
        try:
            data = given_file(value, DEFAULT_LIMITS.max_message_size).data
        except EncodeError as error:
            raise ValueError(f"Expected `{self.name}`: {error}") from error
        return _in_file(data, None, ImageBudget(self._limits), self._wanted)

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


# -- how much memory images will take ----------------------------------------------------------------------------------

#: Characters of base64 in which the size of an image is looked for.
_LOOKED_AT = 128 * 1024
#: Values in a message that are looked at: some milliseconds.
_MAX_PARTS = 20_000
#: How files begin in base64; how data: URLs of images begin, and the longest part before the comma that is looked for.
_BEGINNINGS = ("iVBORw0KGgo", "/9j/", "UklGR", "R0lGOD", "AAAA")
_DATA_URL = "data:image/"
_LONGEST_HEAD = 64


def image_weight(value: Any, limits: ImageLimits) -> int:
    """About how many bytes of memory the images in plain JSON data take at most while they are decoded.

    From the headers alone, and of those that may be images by their looks. Of a file whose header lies, the limits of
    the message are what counts; they are what is given for data with many parts, too.
    """
    kept = largest = looked_at = 0
    most = limits.message_pixels * DECODING_BYTES
    rest: list[Any] = [value]
    while rest:
        looked_at += 1
        if looked_at + len(rest) > _MAX_PARTS:
            return most
        part = rest.pop()
        if type(part) is list:
            rest += part
        elif type(part) is dict and part.get(TAG_KEY) != TAG:
            rest += part.values()
        elif type(part) is dict or type(part) is str or type(part) is Attachment:
            pixels = min(_pixels_of(part, limits.pixels), limits.pixels)
            kept += pixels * PIXEL_BYTES
            largest = max(largest, pixels)
    return min(kept + largest * (DECODING_BYTES - PIXEL_BYTES), most)


def _pixels_of(part: Any, unknown: int) -> int:
    """Pixels of what may be an image: at least `LEAST` of one, 0 of anything else, `unknown` where that is not seen."""
    if type(part) is dict:
        size: Any = part.get("size")
        if part.get("format") == "raw" and isinstance(size, list) and len(size) == 2 and {*map(type, size)} == {int}:
            return max(LEAST, int(size[0] * size[1]))
        part = part.get("data")
    elif type(part) is str:
        if not part.startswith(_BEGINNINGS) and part[: len(_DATA_URL)].lower() != _DATA_URL:
            return 0
        begin = part.find(",", 0, _LONGEST_HEAD) + 1
        part = part[begin : begin + _LOOKED_AT]
    if not isinstance(part, str | Payload | Attachment):
        return 0
    head = base64.decode_head(part, _LOOKED_AT)
    if format_of(head[:HEAD]) is None:
        return 0
    found = size_in_head(head)
    return unknown if found is None else max(LEAST, found[0] * found[1])
