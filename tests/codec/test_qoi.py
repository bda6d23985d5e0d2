"""Images as QOI: in both directions, unsupported modes, damaged files, and a missing package."""

from __future__ import annotations

import base64
import struct
import subprocess
import sys
from typing import Any

import orjson
import pytest
from PIL import Image

from rpcstream.codec import Codec, ImageOptions

from .images import noise, tagged

pytest.importorskip("qoi")


def codec(**options: Any) -> Codec:
    return Codec(images=ImageOptions(format="qoi"), **options)


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


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "F", "I;16"])
def test_what_qoi_cannot_hold_goes_as_before(mode: str) -> None:
    assert sent(Image.new(mode, (3, 2)))["format"] in ("png", "raw")


def test_profile_and_transparent_colour_are_not_lost() -> None:
    image = noise("RGB")
    image.info["icc_profile"] = b"profile"
    assert sent(image)["format"] == "png"
    image.info = {"transparency": (1, 2, 3)}
    assert sent(image)["format"] == "png"


WHOLE = base64.b64decode(sent(noise("RGB", (20, 10)))["data"])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"qoif", WHOLE[:14], WHOLE[:100], WHOLE[:-8], b"qoig" + WHOLE[4:], WHOLE[:12] + b"\x09" + WHOLE[13:]),
        b"qoif" + struct.pack(">IIBB", 0, 0, 3, 0) + b"\0" * 7 + b"\1",
        b"qoif" + struct.pack(">IIBB", 2**31, 2**31, 3, 0) + b"\xfd" * 100,
        b"qoif" + struct.pack(">IIBB", 9000, 9000, 4, 0) + b"\xfd" * 100,
    ],
    ids=range(10),
)
def test_broken_files_and_bombs(data: bytes) -> None:
    with pytest.raises(ValueError, match="image"):
        codec().decode(tagged(data, "qoi"))


def test_the_pixel_limit_counts() -> None:
    data = tagged(WHOLE, "qoi")
    assert isinstance(codec(max_image_pixels=200).decode(data), Image.Image)
    with pytest.raises(ValueError, match="20 x 10 pixels, the limit is 199"):
        codec(max_image_pixels=199).decode(data)


def test_without_the_package() -> None:
    code = (
        "import sys; sys.path = [each for each in sys.path]; sys.modules['qoi'] = None\n"
        "from rpcstream.codec import Codec\n"
        f"try: Codec().decode({tagged(WHOLE, 'qoi')})\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert "qoi" in done.stdout, done.stderr
