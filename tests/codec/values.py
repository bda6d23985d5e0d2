"""Values as they are sent and as they arrive: all that these tests know of how the codec is called."""

from __future__ import annotations

import base64
import io
import random
from typing import Any

import numpy as np
import orjson
from PIL import Image

from rpcstream.codec import Codec, ImageOptions
from rpcstream.codec.attachments import FrameLine
from rpcstream.codec.codec import RESULTS
from rpcstream.codec.hints import CompiledHint
from rpcstream.codec.rich_hint import in_words
from rpcstream.wire.binary_frame import parts_of_frame
from rpcstream.wire.buffers import AttachedMessage
from rpcstream.wire.envelope import BinaryFrame
from rpcstream.wire.framing import LineFramer

from ..wire.frame_model import TakesAll

CODEC = codec = Codec()
RAW = Codec(images=ImageOptions(format="raw"))

#: Modes of images.
MODES = [
    *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"),
    *("I;16", "I;16B"),
]
rng = np.random.default_rng(1)


def sent(value: Any, codec: Codec = CODEC) -> Any:
    """The JSON that is sent, without frames."""
    return orjson.loads(codec.dumps(value))


def received(value: Any, codec: Codec = CODEC) -> Any:
    """What arrives where there is no hint; the same where payloads stand beside the JSON."""
    found: Any = codec.decode([sent(value, codec)])
    message = codec.serialize({"value": value}, binary=True)
    if isinstance(message, AttachedMessage):
        beside = codec.decode(read_frame(message)[0]["value"])
        assert type(beside) is type(found[0])
        assert isinstance(beside, Image.Image) or CODEC.dumps(beside) == CODEC.dumps(found[0])
    return found[0]


def taken(hint: Any, value: Any, codec: Codec = CODEC) -> Any:
    """What a value from the wire is where the hint stands; or a ValueError."""
    compiled = CompiledHint(hint, codec)
    try:
        return compiled.read(value, codec.reading())
    except ValueError as error:
        raise ValueError(in_words(str(error), compiled.choices, "result")) from error


def returned(hint: Any, value: Any, codec: Codec = CODEC) -> Any:
    """What goes out for a value that a handler with this hint returned; or a ValueError."""
    try:
        return CompiledHint(hint, codec).check(value, RESULTS)
    except ValueError as error:
        raise ValueError(in_words(str(error), [], "result")) from error


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


def mutated(tagged: Any, some: random.Random) -> Any:
    """The tagged object with a few bytes of its payloads changed, or something else in one place of the JSON."""
    copy = orjson.loads(orjson.dumps(tagged))
    if some.random() < 0.3:
        _change_json(copy, some)
        return copy
    place = some.choice([each for each in (copy, *copy.values()) if isinstance(each, dict) and each.get("data")])
    data = bytearray(base64.b64decode(place["data"]))
    for _ in range(some.choice((1, 1, 2, 5))):
        size = some.choice((1, 1, 4, 8))
        at = some.randrange(len(data)) // size * size
        number = some.choice((0, 1, -1, 16, 127, -128, some.randrange(256), 2**31 - 1, 2**40, 2**62))
        data[at : at + size] = number.to_bytes(9, "little", signed=True)[:size]
    place["data"] = encoded(data[: some.choice((None, None, None, len(data) - 8))])
    return copy


def _change_json(value: Any, some: random.Random) -> None:
    key = some.choice([key for key in (value if isinstance(value, dict) else range(len(value))) if key != "data"])
    if isinstance(value[key], dict | list) and value[key] and some.random() < 0.8:
        _change_json(value[key], some)
    else:
        junk = (None, True, 5, -1, 0.5, 10**12, "x", "<M8[ns]", "Int64", "arrow", "h", [], {}, [0, 10**9, 1])
        value[key] = some.choice((*junk, *(value if isinstance(value, list) else value.values())))
