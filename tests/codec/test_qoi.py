"""Images as QOI: in both directions, unsupported modes, damaged files, and a missing package."""

from __future__ import annotations

import base64
import io
import struct
import sys
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

from rpcstream.codec import Codec, ImageOptions
from rpcstream.codec import qoi as qoi_module

pytest.importorskip("qoi")
rng = np.random.default_rng(1)


def codec(**options: Any) -> Codec:
    return Codec(images=ImageOptions(format="qoi"), **options)


def noise(mode: str, size: tuple[int, int] = (7, 5)) -> Image.Image:
    return Image.frombytes(mode, size, rng.bytes(size[0] * size[1] * len(mode)))


def sent(image: Image.Image) -> dict[str, Any]:
    return dict(orjson.loads(codec().dumps(image)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (640, 480)])
def test_there_and_back(mode: str, size: tuple[int, int]) -> None:
    image = noise(mode, size)
    tagged = sent(image)
    assert tagged["format"] == "qoi"
    rich: Any = codec().rich_hint(Image.Image)
    for found in (codec().decode(tagged), rich.decode(tagged), rich.decode(tagged["data"]), Codec().decode(tagged)):
        assert isinstance(found, Image.Image)
        assert (found.mode, found.size, found.tobytes()) == (mode, size, image.tobytes())


def test_pillow_reads_what_we_write_and_we_what_it_writes() -> None:
    image = noise("RGB", (20, 10))
    data = base64.b64decode(sent(image)["data"])
    assert Image.open(io.BytesIO(data)).tobytes() == image.tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "F", "I;16"])
def test_what_qoi_cannot_hold_goes_as_before(mode: str) -> None:
    assert sent(Image.new(mode, (3, 2)))["format"] in ("png", "raw")


def test_profile_and_transparent_colour_are_not_lost() -> None:
    image = noise("RGB")
    image.info["icc_profile"] = b"profile"
    assert sent(image)["format"] == "png"
    image.info = {"transparency": (1, 2, 3)}
    assert sent(image)["format"] == "png"


def tagged(data: bytes) -> dict[str, Any]:
    return {"$type": "image", "format": "qoi", "data": base64.b64encode(data).decode()}


WHOLE = base64.b64decode(sent(noise("RGB", (20, 10)))["data"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"qoif",
        WHOLE[:14],
        WHOLE[:100],
        WHOLE[:-8],
        b"qoig" + WHOLE[4:],
        WHOLE[:12] + b"\x09" + WHOLE[13:],
        b"qoif" + struct.pack(">IIBB", 0, 0, 3, 0) + b"\0" * 7 + b"\1",
        b"qoif" + struct.pack(">IIBB", 2**31, 2**31, 3, 0) + b"\xfd" * 100,
        b"qoif" + struct.pack(">IIBB", 9000, 9000, 4, 0) + b"\xfd" * 100,
    ],
)
def test_broken_files_and_bombs(data: bytes) -> None:
    with pytest.raises(ValueError, match="image"):
        codec().decode(tagged(data))


def test_the_pixel_limit_counts() -> None:
    data = tagged(WHOLE)
    assert isinstance(codec(max_image_pixels=200).decode(data), Image.Image)
    with pytest.raises(ValueError, match="20 x 10 pixels, the limit is 199"):
        codec(max_image_pixels=199).decode(data)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qoi", None)
    monkeypatch.setattr(qoi_module, "is_there", lambda: False)
    monkeypatch.setattr("rpcstream.codec.registry.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"rpcstream\[qoi\]"):
        codec()
    with pytest.raises(ValueError, match="where the package qoi is installed"):
        Codec().decode(tagged(WHOLE))
