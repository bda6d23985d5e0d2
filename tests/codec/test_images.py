"""Images in both directions: every mode and format, what goes along, and images beside the JSON."""

from __future__ import annotations

import functools
import io
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from rpcstream.codec import Codec, ImageOptions
from rpcstream.wire.buffers import AttachedMessage, is_own

from .values import CODEC, HAS_QOI, MODES, RAW, file_of, noise, read_frame, received, rng, same, sent, tagged, taken

HAS_AVIF = features.check("avif")
NAMES = ["jpeg", "webp", *(["avif"] if HAS_AVIF else []), *(["qoi"] if HAS_QOI else [])]
CODECS = {"png": CODEC, "raw": RAW, **{name: Codec(images=ImageOptions(format=name)) for name in NAMES}}  # type: ignore[arg-type]
LOSSLESS = Codec(images=ImageOptions(format="webp", lossless=True))
EXACT = {"png": CODEC, "raw": RAW, "webp lossless": LOSSLESS, **({"qoi": CODECS["qoi"]} if HAS_QOI else {})}
ROTATED = Image.Exif()
ROTATED[0x0112] = 6

large = functools.partial(noise, size=(120, 110))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_comes_back_pixel_by_pixel(mode: str) -> None:
    for codec in EXACT.values():
        for size in ((7, 5), (1, 1), (40, 1)):
            image = noise(mode, size)
            for found in (received(image, codec), taken(Image.Image, sent(image, codec))):
                assert type(found) is Image.Image
                if mode in ("I;16L", "I;16N"):  # the same memory
                    assert (found.mode, found.tobytes()) == ("I;16", image.tobytes())
                else:  # no format holds PA
                    assert same(found, image.convert("RGBA") if mode == "PA" else image)


HOLDS = {"jpeg": "L RGB CMYK", "webp": "RGB RGBA", "avif": "RGB", "qoi": "RGB RGBA", "png": "1 L LA P RGB RGBA I;16"}


@pytest.mark.parametrize("name", ["png", *NAMES])
def test_what_a_format_cannot_hold_goes_losslessly(name: str) -> None:
    for mode in MODES:
        wanted = [name] if mode in HOLDS[name].split() else ["png", "raw", *(["avif"] if mode == "RGBA" else [])]
        assert sent(noise(mode), CODECS[name])["format"] in wanted, mode
    side = {"jpeg": 65_501, "webp": 16_384, "avif": 32_769}.get(name)
    for size in ((side, 1), (1, side)) if side else ():
        assert sent(Image.new("RGB", size), CODECS[name])["format"] == "png"
    for size in ((0, 0), (0, 3), (3, 0)):
        assert same(received(Image.new("RGB", size), CODECS[name]), Image.new("RGB", size))


@pytest.mark.parametrize(
    ("name", "mode"),
    [("jpeg", "L"), ("jpeg", "RGB"), ("jpeg", "CMYK"), ("webp", "RGB"), ("avif", "RGB"), ("avif", "RGBA")],
)
def test_lossy_formats_are_near(name: str, mode: str) -> None:
    if name not in NAMES:
        pytest.skip("this Pillow has no AVIF")
    ramp = Image.fromarray(np.linspace(0, 255, 64 * 48).astype("u1").reshape(48, 64))
    image = ramp.convert(mode)
    if mode == "RGBA":
        image.putalpha(ramp)
    codec = Codec(images=ImageOptions(format=name, quality=95))  # type: ignore[arg-type]
    value = sent(image, codec)
    for found in (received(image, codec), taken(Image.Image, f"data:image/{name};base64," + value["data"])):
        assert (value["format"], found.mode, found.size) == (name, mode, (64, 48))
        assert np.abs(np.asarray(found).astype(int) - np.asarray(image)).mean() < 5


@pytest.mark.parametrize("name", CODECS)
def test_a_transparent_colour_is_kept_whatever_the_format(name: str) -> None:
    for mode, colour in (("L", 3), ("RGB", (1, 2, 3)), ("P", 2), ("P", bytes(range(256))), ("1", 0), ("I;16", 300)):
        image = noise(mode)
        image.info["transparency"] = colour
        assert sent(image, CODECS[name])["format"] == "png"
        found = received(image, CODECS[name])
        assert same(found, image)
        assert mode == "I;16" or found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    for mode, no_colour in (("L", b"abc"), ("RGB", 5), ("RGBA", 5), ("P", (1, 2, 3)), ("F", 1)):
        image = noise(mode)
        image.info["transparency"] = no_colour
        assert same(received(image), image)


def test_palettes_are_kept_whole() -> None:
    for colours in (0, 1, 2, 16, 17, 256):
        for mode in ("RGB", "RGBA"):
            image = Image.frombytes("P", (16, 16), bytes(range(256)))
            if colours:
                image.putpalette(rng.bytes(len(mode) * colours), mode)
            found = received(image)
            assert found.tobytes() == image.tobytes()
            assert found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_orientation_and_profile_go_along(name: str) -> None:
    photo = Image.open(io.BytesIO(file_of(Image.new("RGB", (4, 2)), "jpeg", exif=ROTATED, icc_profile=b"p" * 99)))
    found = received(photo, CODECS[name])
    assert (found.size, found.mode) == ((4, 2), "RGB")
    if name != "raw":
        assert found.getexif()[0x0112] == 6
        assert found.info["icc_profile"] == b"p" * 99
    photo.info["exif"] = b"Exif\x00\x00" + bytes(70_000)  # more than a JPEG holds
    assert received(photo, CODECS[name]).size == (4, 2)


@pytest.mark.parametrize("name", ["gif", "webp", "png"])
def test_the_first_image_of_an_animation(name: str) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "lime", "blue")]
    data = file_of(frames[0], name, save_all=True, append_images=frames[1:])
    found = taken(Image.Image, tagged(data, name), Codec(max_image_pixels=4096, max_message_pixels=4096))
    assert found.convert("RGB").getpixel((0, 0))[0] > 250
    assert type(found) is Image.Image
    assert same(pickle.loads(pickle.dumps(found)), found)


@pytest.mark.parametrize(
    "options",
    [
        *({"format": "gif"}, {"format": "PNG"}, {"quality": 50}, {"format": "jpeg", "lossless": True}),
        *({"format": "jpeg", "quality": quality} for quality in (0, 101, 50.5)),
        *({"format": "webp", "quality": 50, "lossless": True}, *({"compression": each} for each in (10, -1, True))),
    ],
    ids=str,
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|is for"):
        ImageOptions(**options)


def arrived(value: Any) -> tuple[dict[str, Any], Any]:
    """The tagged object as the other end has it, from a frame, and the image."""
    message = CODEC.serialize({"value": value}, binary=True)
    assert isinstance(message, AttachedMessage)
    assert all(is_own(payload) for payload in message.payloads)  # nothing is copied before it is sent
    found = read_frame(message)[0]["value"]
    return found, CODEC.decode(found)


@pytest.mark.parametrize("mode", [each for each in MODES[1:-2] if each not in ("P", "PA")])
def test_beside_the_json_pixels_go_raw(mode: str) -> None:
    image = large(mode)
    wire, found = arrived(image)
    assert wire["format"] == "raw"
    assert same(found, image)
    found.putpixel((0, 0), found.getpixel((1, 1)))  # it has memory of its own


@pytest.mark.parametrize(
    "info", [{"icc_profile": b"p" * 50}, {"exif": ROTATED.tobytes()}, {"transparency": (1, 2, 3)}], ids=str
)
def test_what_raw_pixels_would_lose_goes_as_png(info: dict[str, Any]) -> None:
    image = large("RGB")
    image.info.update(info)
    wire, found = arrived(image)
    assert wire["format"] == "png"
    assert same(found, image)
    assert info.items() <= found.info.items()


def test_raw_pixels_do_not_make_a_message_too_large() -> None:
    codec = Codec(max_image_file=100_000)
    for count, formats in ((1, ["raw"]), (2, ["raw", "raw"]), (4, ["raw", "raw", "png", "png"])):
        message = codec.serialize({"value": [Image.new("RGB", (100, 100))] * count}, binary=True)
        assert [part["format"] for part in read_frame(message)[0]["value"]] == formats
