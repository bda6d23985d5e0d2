"""Images in both directions: every mode and format."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageSequence

from rpcstream.codec import Codec, ImageOptions

from ..kit.example_count import example_count
from .images import CODEC, MODES, RAW, file_of, noise, received, rich, rng, same, sent

JPEG = Codec(images=ImageOptions(format="jpeg", quality=95))
WEBP = Codec(images=ImageOptions(format="webp"))
LOSSLESS = Codec(images=ImageOptions(format="webp", lossless=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", [CODEC, RAW, LOSSLESS], ids=["png", "raw", "webp lossless"])
def test_every_mode_comes_back_pixel_by_pixel(mode: str, codec: Codec) -> None:
    image = noise(mode)
    found = received(image, codec)
    if mode == "PA":  # no format holds it
        assert same(found, image.convert("RGBA"))
    elif mode in ("I;16L", "I;16N"):  # the same memory
        assert (found.mode, found.tobytes()) == ("I;16", image.tobytes())
    else:
        assert same(found, image)


@pytest.mark.parametrize(
    ("codec", "formats"),
    [
        (CODEC, {"png": "1 L LA P RGB RGBA I;16", "raw": "La PA RGBa RGBX CMYK YCbCr LAB HSV I F I;16B I;16L I;16N"}),
        (RAW, {"png": "P", "raw": "1 L LA La PA RGB RGBA RGBa RGBX CMYK YCbCr LAB HSV I F I;16 I;16B I;16L I;16N"}),
        (JPEG, {"jpeg": "L RGB CMYK", "png": "1 LA P RGBA I;16", "raw": "La PA RGBa RGBX YCbCr LAB HSV I F I;16B"}),
        (WEBP, {"webp": "RGB RGBA", "png": "1 L LA P I;16", "raw": "La PA RGBa RGBX CMYK YCbCr LAB HSV I F I;16B"}),
    ],
    ids=["png", "raw", "jpeg", "webp"],
)
def test_what_a_format_cannot_hold_goes_on(codec: Codec, formats: dict[str, str]) -> None:
    for name, modes in formats.items():
        for mode in modes.split():
            assert sent(noise(mode), codec)["format"] == name, mode


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_is_near(mode: str) -> None:
    ramp = np.linspace(0, 255, 64 * 48).astype("u1").reshape(48, 64)
    image = Image.fromarray(ramp).convert(mode)
    found = received(image, JPEG)
    assert (found.mode, found.size) == (mode, (64, 48))
    assert np.abs(np.asarray(found).astype(int) - np.asarray(image)).max() < 12


def test_a_transparent_colour_is_kept_whatever_the_format() -> None:
    for codec in (CODEC, RAW, JPEG, WEBP, LOSSLESS):
        for mode, colour in (("L", 3), ("RGB", (1, 2, 3)), ("P", 2), ("P", bytes(range(256))), ("1", 0), ("I;16", 300)):
            image = noise(mode)
            image.info["transparency"] = colour
            assert sent(image, codec)["format"] == "png"
            found = received(image, codec)
            assert same(found, image)
            if mode != "I;16":
                assert found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_a_transparency_that_does_not_fit_the_mode_is_no_transparency() -> None:
    for mode, colour in (("L", b"abc"), ("RGB", 5), ("RGBA", 5), ("P", (1, 2, 3)), ("F", 1)):
        image = noise(mode)
        image.info["transparency"] = colour
        assert same(received(image), image)


def test_palettes_are_kept_whole() -> None:
    for colours in (0, 1, 2, 3, 16, 17, 256):
        for mode in ("RGB", "RGBA"):
            image = Image.frombytes("P", (16, 16), bytes(range(256)))
            if colours:
                image.putpalette(rng.bytes(len(mode) * colours), mode)
            found = received(image)
            assert found.tobytes() == image.tobytes()
            assert found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    quantized = noise("RGB", (20, 20)).quantize(9)
    assert received(quantized).convert("RGB").tobytes() == quantized.convert("RGB").tobytes()


def test_webp_keeps_the_mode_of_opaque_images_and_hidden_colours() -> None:
    opaque = noise("RGB").convert("RGBA")
    for codec in (WEBP, LOSSLESS):
        assert same(received(opaque, codec), opaque)
    hidden = noise("RGBA")
    hidden.putalpha(Image.new("L", hidden.size, 0))
    assert same(received(hidden, LOSSLESS), hidden)


def test_sides_that_a_format_cannot_hold() -> None:
    for codec, side in ((JPEG, 65_501), (WEBP, 16_384)):
        for size in ((side, 1), (1, side)):
            assert sent(Image.new("RGB", size), codec)["format"] == "png"


@pytest.mark.parametrize("size", [(0, 0), (0, 3), (3, 0)])
def test_empty_images_go_raw(size: tuple[int, int]) -> None:
    for mode in ("1", "L", "RGB", "F"):
        for codec in (CODEC, JPEG, WEBP, RAW):
            assert sent(Image.new(mode, size), codec)["format"] == "raw"
            assert same(received(Image.new(mode, size), codec), Image.new(mode, size))
    assert received(Image.new("P", size)).mode == "RGBA"


def test_orientation_is_left_to_the_receiver() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Image.open(io.BytesIO(file_of(Image.new("RGB", (4, 2)), "jpeg", exif=exif)))
    for codec in (CODEC, JPEG, WEBP):
        found = received(photo, codec)
        assert found.size == (4, 2)
        assert found.getexif()[0x0112] == 6
    photo.info["exif"] = b"Exif\x00\x00" + bytes(70_000)
    assert received(photo, JPEG).size == (4, 2)


def test_colour_profiles_go_along() -> None:
    image = Image.new("RGB", (2, 2))
    image.info["icc_profile"] = b"profile" * 20
    for codec in (CODEC, JPEG, WEBP):
        assert received(image, codec).info["icc_profile"] == b"profile" * 20


@pytest.mark.parametrize("name", ["gif", "webp", "png"])
def test_the_first_image_of_an_animation(name: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if name == "webp" else {}
    data = file_of(frames[0], name, save_all=True, append_images=frames[1:], duration=100, **options)
    found: Any = rich().decode(base64.b64encode(data).decode())
    assert found.convert("RGB").getpixel((0, 0)) == (255, 0, 0)
    assert type(found) is Image.Image
    assert same(pickle.loads(pickle.dumps(found)), found)
    # The frame at hand is what goes out.
    animation = Image.open(io.BytesIO(data))
    for frame, colour in zip(ImageSequence.Iterator(animation), ((255, 0, 0), (0, 255, 0), (0, 0, 255)), strict=True):
        assert received(frame).convert("RGB").getpixel((1, 1)) == colour


@settings(deadline=None, max_examples=example_count(60))
@given(st.sampled_from(MODES[:-3]), st.integers(1, 40), st.integers(1, 40), st.sampled_from([CODEC, RAW, LOSSLESS]))
def test_any_size_of_any_mode(mode: str, width: int, height: int, codec: Codec) -> None:
    image = noise(mode, (width, height))
    assert same(received(image, codec), image.convert("RGBA") if mode == "PA" else image)
