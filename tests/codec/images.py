"""Images of every mode, their files, and how they come back."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import orjson
from PIL import Image

from rpcstream.codec import Codec, ImageOptions

rng = np.random.default_rng(1)
CODEC = Codec()
RAW = Codec(images=ImageOptions(format="raw"))
MODES = [
    *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"),
    *("I;16", "I;16B", "I;16L", "I;16N"),
]


def noise(mode: str, size: tuple[int, int] = (7, 5)) -> Image.Image:
    """An image of random pixels; those of F are numbers, those of P have a palette."""
    if mode == "F":
        return Image.frombytes("F", size, rng.normal(0, 1e6, size[0] * size[1]).astype("<f4").tobytes())
    image = Image.frombytes(mode, size, rng.bytes(len(Image.new(mode, size).tobytes())))
    if mode in ("P", "PA"):
        image.putpalette(rng.bytes(768))
    return image


def sent(value: Any, codec: Codec = CODEC) -> dict[str, Any]:
    """The tagged object."""
    return dict(orjson.loads(codec.dumps([value]))[0])


def received(image: Image.Image, codec: Codec = CODEC) -> Any:
    """The image as the other end has it, with a hint and without."""
    tagged = sent(image, codec)
    found: Any = codec.decode({"a": [tagged]})
    assert same(rich(codec).decode(tagged), found["a"][0])
    assert type(found["a"][0]) is Image.Image
    return found["a"][0]


def rich(codec: Codec = CODEC) -> Any:
    return codec.rich_hint(Image.Image)


def same(a: Image.Image, b: Image.Image) -> bool:
    return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes()) and a.getpalette() == b.getpalette()


def file_of(image: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def text_of(image: Image.Image, name: str, **options: Any) -> str:
    return base64.b64encode(file_of(image, name, **options)).decode()


def tagged(data: bytes, name: str = "png") -> dict[str, Any]:
    return {"$type": "image", "format": name, "data": base64.b64encode(data).decode()}
