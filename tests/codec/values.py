"""Values as they are sent and as they arrive: all that these tests know of how the codec is called."""

from __future__ import annotations

import base64
import io
from typing import Any

import msgspec
import numpy as np
import orjson
from PIL import Image

from rpcstream.codec import Codec, ImageOptions
from rpcstream.codec.error_text import in_words
from rpcstream.codec.hints import hint_checker, lower
from rpcstream.codec.markers import converter
from rpcstream.codec.payloads import FrameLine
from rpcstream.wire.binary_frame import parts_of_frame
from rpcstream.wire.buffers import AttachedMessage
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import BinaryFrame

from ..wire.frame_model import TakesAll

CODEC = codec = Codec()
RAW = Codec(images=ImageOptions(format="raw"))

#: Modes of images.
MODES = [
    *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"),
    *("I;16", "I;16B", "I;16L", "I;16N"),
]
HAS_QOI = False
rng = np.random.default_rng(1)


def sent(value: Any, codec: Codec = CODEC) -> Any:
    """The JSON that is sent, without frames."""
    return orjson.loads(codec.dumps(value))


def received(value: Any, codec: Codec = CODEC) -> Any:
    """What arrives where there is no hint; the same where payloads stand beside the JSON."""
    found: Any = CODEC.decode([sent(value, codec)])
    message = codec.serialize({"value": value}, binary=True)
    if isinstance(message, AttachedMessage):
        beside = CODEC.decode(read_frame(message)[0]["value"])
        assert type(beside) is type(found[0])
        assert isinstance(beside, Image.Image) or CODEC.dumps(beside) == CODEC.dumps(found[0])
    return found[0]


def taken(hint: Any, value: Any, codec: Codec = CODEC) -> Any:
    """What a value from the wire is where the hint stands; or a ValueError."""
    return hint_checker(hint, codec)(value)


def returned(hint: Any, value: Any) -> Any:
    """What goes out for a value that a handler with this hint returned; or a ValueError."""
    lowered = lower(hint, CODEC, result=True)
    try:
        return converter(lowered)(value)
    except msgspec.ValidationError as error:
        raise ValueError(in_words(str(error), lowered, "result")) from error


def rich(hint: Any) -> Any:
    found = CODEC.rich_hint(hint)
    assert found is not None
    return found


def read_frame(message: Any) -> tuple[Any, FrameLine]:
    """A message in a frame as the other end parses it, and its line."""
    (frame,) = LineFramer(max_size=10**9, intake=TakesAll()).feed(b"".join(map(bytes, parts_of_frame(message))))
    assert isinstance(frame, BinaryFrame)
    assert frame.refusal is None, frame.refusal.data
    parsed, line = frame.content
    return parsed, line


def same(a: Any, b: Any) -> bool:
    """Arrays: dtype with byte order, shape, and every bit. Images: mode, size, pixels and palette."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes()) and a.getpalette() == b.getpalette()


def noise(mode: str, size: tuple[int, int] = (7, 5)) -> Image.Image:
    """An image of random pixels; those of F are numbers, those of P have a palette."""
    if mode == "F":
        return Image.frombytes("F", size, rng.normal(0, 1e6, size[0] * size[1]).astype("<f4").tobytes())
    image = Image.frombytes(mode, size, rng.bytes(len(Image.new(mode, size).tobytes())))
    if mode in ("P", "PA"):
        image.putpalette(rng.bytes(768))
    return image


def file_of(image: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def tagged(data: bytes, name: str = "png") -> dict[str, Any]:
    """A file of an image, as it is sent."""
    return {"$type": "image", "format": name, "data": encoded(data)}
