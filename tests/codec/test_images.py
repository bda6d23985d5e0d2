"""Images in both directions: every mode and format, what goes along, images beside the JSON, and `MaxSide`."""

from __future__ import annotations

import functools
import io
import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from rpcstream import Codec, MaxSide, Server
from rpcstream.codec import ImageOptions
from rpcstream.errors import RegistrationError
from rpcstream.wire.buffers import AttachedMessage, is_own

from ..kit.example_count import example_count
from .values import CODEC, MODES, file_of, noise, read_frame, received, returned, same, sent, tagged, taken

NAMES = ["jpeg", "webp", *(["avif"] if features.check("avif") else [])]
CODECS = {"png": CODEC, **{name: Codec(images=ImageOptions(format=name)) for name in ["raw", *NAMES]}}  # type: ignore[arg-type]
LOSSLESS = Codec(images=ImageOptions(format="webp", lossless=True))
EXACT = {"png": CODEC, "raw": CODECS["raw"], "webp lossless": LOSSLESS}
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
                assert same(found, image.convert("RGBA") if mode == "PA" else image)  # no format holds PA


HOLDS = {"jpeg": "L RGB CMYK", "webp": "RGB RGBA", "avif": "RGB", "png": "1 L LA P RGB RGBA I;16"}


@pytest.mark.parametrize("name", ["png", *NAMES])
def test_what_a_format_cannot_hold_goes_losslessly(name: str) -> None:
    for mode in MODES:
        wanted = [name] if mode in HOLDS[name].split() else ["png", "raw", *(["avif"] if mode == "RGBA" else [])]
        assert sent(noise(mode), CODECS[name])["format"] in wanted, mode
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
    for found in (received(image, codec), taken(Image.Image, f"data:image/{name};base64," + value["data"], codec)):
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


@pytest.mark.parametrize("name", CODECS)
def test_orientation_and_profile_go_along(name: str) -> None:
    photo = Image.open(io.BytesIO(file_of(Image.new("RGB", (4, 2)), "jpeg", exif=ROTATED, icc_profile=b"p" * 99)))
    found = received(photo, CODECS[name])
    assert (found.size, found.mode) == ((4, 2), "RGB")
    if name != "raw":
        assert found.getexif()[0x0112] == 6
        assert found.info["icc_profile"] == b"p" * 99


@pytest.mark.parametrize("name", ["gif", "webp", "png"])
def test_the_first_image_of_an_animation(name: str) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "lime", "blue")]
    data = file_of(frames[0], name, save_all=True, append_images=frames[1:])
    found = taken(Image.Image, tagged(data, name), Codec(max_image_pixels=4096))
    assert found.convert("RGB").getpixel((0, 0))[0] > 250
    assert type(found) is Image.Image
    assert same(pickle.loads(pickle.dumps(found)), found)


def test_options_are_checked() -> None:
    options: Any
    for options in (
        *({"format": "gif"}, {"format": "PNG"}, {"quality": 50}, {"format": "jpeg", "lossless": True}),
        *({"format": "jpeg", "quality": quality} for quality in (0, 101, 50.5)),
        *({"format": "webp", "quality": 50, "lossless": True},),
    ):
        with pytest.raises(ValueError, match=r"must be|is for"):
            ImageOptions(**options)


def arrived(value: Any) -> tuple[dict[str, Any], Any]:
    """The tagged object as the other end has it, from a frame, and the image."""
    message = CODEC.serialize({"value": value}, binary=True)
    assert isinstance(message, AttachedMessage)
    assert all(is_own(payload) for payload in message.payloads)  # nothing is copied before it is sent
    found = read_frame(message)[0]["value"]
    return found, CODEC.decode(found)


@pytest.mark.parametrize("mode", [each for each in MODES if each not in ("1", "P", "PA")])
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


RAMP = Image.fromarray(np.linspace(0, 255, 400 * 300).astype("u1").reshape(300, 400))
Small = Annotated[Image.Image, MaxSide(64)]


def reduced(value: Any, side: int = 64, codec: Codec = CODEC) -> Any:
    return taken(Annotated[Image.Image, MaxSide(side)], value, codec)


def as_jpeg(image: Image.Image, **options: Any) -> dict[str, Any]:
    return tagged(file_of(image, "jpeg", quality=95, **options), "jpeg")


FORMS: dict[str, Any] = {
    "jpeg": as_jpeg,
    "progressive": lambda image: as_jpeg(image, progressive=True),
    **{name: lambda image, name=name: tagged(file_of(image, name), name) for name in ("png", "webp", "gif")},
    "raw": lambda image: sent(image, CODECS["raw"]),
    "text": lambda image: tagged(file_of(image, "png"))["data"],
    "data: URL": lambda image: "data:image/jpeg;base64," + as_jpeg(image)["data"],
    "image": lambda image: image,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_reduced(form: str) -> None:
    image = RAMP.convert("RGB")
    for side, size in ((64, (64, 48)), (399, (399, 299)), (400, (400, 300)), (1, (1, 1))):
        found = reduced(FORMS[form](image), side)
        assert (type(found), found.size) == (Image.Image, size)
        assert found.mode == ("P" if form == "gif" else "RGB")
        wanted = RAMP.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        most = 40 if side == 1 else 14  # in the one case the middle of the picture, in the other the mean of it
        assert np.abs(np.asarray(found.convert("L"), int) - np.asarray(wanted, int)).max() < most
    assert image.size == (400, 300)  # one that is given is not changed itself


def test_every_mode_is_reduced() -> None:
    for mode in MODES:
        found = reduced(sent(Image.new(mode, (100, 80))), 50)
        assert (found.size, found.mode) == ((50, 40), {"PA": "RGBA"}.get(mode, mode))
    stripes = Image.fromarray(np.tile(np.array([0, 1000], "<u2"), (80, 50)))  # 16 bits are filtered too
    assert np.abs(np.asarray(reduced(sent(stripes), 50), int)[2:-2, 2:-2] - 500).max() < 60


def test_exif_and_orientation_stay() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("jpeg", "png", "webp"):
        found = reduced(tagged(file_of(RAMP, name, exif=exif), name))
        assert (found.size, found.getexif()[0x0112]) == ((64, 48), 6)


@settings(deadline=None, max_examples=example_count(60))
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 320), st.sampled_from(["jpeg", "png", "raw"]))
def test_any_size(width: int, height: int, side: int, form: str) -> None:
    found = reduced(FORMS[form](Image.new("RGB", (width, height), "teal")), side)
    scale = min(1.0, side / max(width, height))
    assert max(found.size) == min(side, max(width, height))
    for after, before in zip(found.size, (width, height), strict=True):
        assert after == 1 or abs(after - before * scale) <= 1
    assert np.abs(np.asarray(found, int) - (0, 128, 128)).max() < 4


@dataclass
class Card:
    picture: Small
    others: list[Small]


def test_at_any_depth_and_in_results() -> None:
    value = as_jpeg(RAMP)
    assert taken(dict[str, Small | None], {"a": value})["a"].size == (64, 48)
    card = taken(Card, {"picture": value, "others": [value]})
    assert card.picture.size == card.others[0].size == (64, 48)
    assert returned(Small, RAMP).size == (64, 48)
    with pytest.raises(ValueError, match="mage"):
        returned(Small, 5)


def test_sides_that_are_none_or_stand_elsewhere() -> None:
    def function(image: Any) -> None: ...

    for hint, text in (
        (Annotated[Image.Image, MaxSide], r"MaxSide\(1024\)"),
        (Annotated[Image.Image | None, MaxSide(5)], "is for images"),
        (Annotated[Image.Image, MaxSide(5), MaxSide(6)], "with its size"),
        (list[Annotated[np.ndarray, MaxSide(5)]], "is for images"),
    ):
        function.__annotations__["image"] = hint
        with pytest.raises(RegistrationError, match=text):
            Server().add(function)
    for pixels in (0, -1, True, 1.5, "64", None):
        with pytest.raises((ValueError, TypeError), match="a side"):
            MaxSide(pixels)  # type: ignore[arg-type]


def test_the_pixels_of_the_file_count() -> None:
    codec = Codec(max_image_pixels=50_000)
    for name in ("jpeg", "progressive", "png", "webp", "gif", "raw"):
        with pytest.raises(ValueError, match="400 x 300 pixels, the limit is 50000"):
            reduced(FORMS[name](RAMP), 64, codec)
