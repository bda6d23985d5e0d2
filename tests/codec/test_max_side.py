"""`MaxSide` in hints: images that are reduced when they are decoded, and what that costs of the budget."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rpcstream import Codec, ImageFile, MaxSide, RegistrationError, Server

from ..kit.example_count import example_count
from .values import CODEC, MODES, RAW, encoded, file_of, returned, sent, tagged, taken

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
    "raw": lambda image: sent(image, RAW),
    "text": lambda image: encoded(file_of(image, "png")),
    "data: URL": lambda image: "data:image/jpeg;base64," + as_jpeg(image)["data"],
    "image": lambda image: image,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_reduced(form: str) -> None:
    image = RAMP.convert("RGB")
    for side, size in ((64, (64, 48)), (399, (399, 299)), (400, (400, 300)), (1, (1, 1))):
        found = reduced(FORMS[form](image), side)
        assert (type(found), found.size) == (Image.Image, size)
        assert found.mode == ("P" if (form, side) == ("gif", 400) else "RGB")
        wanted = RAMP.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        most = 40 if side == 1 else 14  # in the one case the middle of the picture, in the other the mean of it
        assert np.abs(np.asarray(found.convert("L"), int) - np.asarray(wanted, int)).max() < most
    assert image.size == (400, 300)  # one that is given is not changed itself


def test_every_mode_is_reduced() -> None:
    for mode in MODES[:-2]:
        found = reduced(sent(Image.new(mode, (100, 80))), 50)
        assert (found.size, found.mode) == ((50, 40), {"1": "L", "P": "RGB", "PA": "RGBA"}.get(mode, mode))
    stripes = Image.fromarray(np.tile(np.array([0, 1000], "<u2"), (80, 50)))  # 16 bits are filtered too
    assert np.abs(np.asarray(reduced(sent(stripes), 50), int)[2:-2, 2:-2] - 500).max() < 60
    for mode, colour, result in (("P", 3, "RGBA"), ("RGB", (9, 9, 9), "RGBA"), ("L", 3, "LA")):
        image = Image.new(mode, (100, 80), colour)
        image.info["transparency"] = colour
        found = reduced(sent(image), 50)
        assert (found.mode, found.getchannel("A").getextrema()) == (result, (0, 0))
        assert "transparency" not in found.info


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
        assert after == 1 or abs(after - before * scale) <= 0.5
    assert np.abs(np.asarray(found, int) - (0, 128, 128)).max() < 4


@dataclass
class Card:
    picture: Small
    others: list[Small]


def test_at_any_depth_and_in_results(tmp_path: Path) -> None:
    value = as_jpeg(RAMP)
    assert taken(dict[str, Small | None], {"a": value})["a"].size == (64, 48)
    card = taken(Card, {"picture": value, "others": [value]})
    assert card.picture.size == card.others[0].size == (64, 48)
    (tmp_path / "a.jpg").write_bytes(file_of(RAMP, "jpeg"))
    for given_back in (RAMP, ImageFile(tmp_path / "a.jpg"), tmp_path / "a.jpg", io.BytesIO(file_of(RAMP, "png"))):
        assert returned(Small, given_back).size == (64, 48)
    for wrong in (tmp_path / "none", 5):
        with pytest.raises(ValueError, match="mage"):
            returned(Small, wrong)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Annotated[Image.Image, MaxSide], r"MaxSide\(1024\)"),
        (Annotated[Image.Image | None, MaxSide(5)], r"MaxSide\(5\) is for images"),
        (Annotated[Image.Image, MaxSide(5), MaxSide(6)], "one MaxSide"),
        (list[Annotated[np.ndarray, MaxSide(5)]], "is for images"),
    ],
)
def test_what_is_refused_at_registration(hint: Any, text: str) -> None:
    def function(image: Any) -> None: ...

    function.__annotations__["image"] = hint
    with pytest.raises(RegistrationError, match=text):
        Server().add(function)
    for pixels in (0, -1, True, 1.5, "64", None):
        with pytest.raises((ValueError, TypeError), match="a side"):
            MaxSide(pixels)  # type: ignore[arg-type]


def in_several_scans(data: bytes) -> bytes:
    """A JPEG whose first scan has fewer components than the image."""
    at = data.index(b"\xff\xda")
    return data[: at + 4] + b"\1" + data[at + 5 :]


LARGE = Image.new("RGB", (1600, 1200), "grey")


@pytest.mark.parametrize(
    ("value", "side", "limit", "reason"),
    [
        (as_jpeg(LARGE), 500, 50_000, "800 x 600 pixels, the limit is 50000"),
        # Reading takes time, however little is decoded.
        (as_jpeg(LARGE), 64, 40_000, "reading the data of 1920000 pixels would take too long"),
        # Of these all coefficients are kept.
        (as_jpeg(LARGE, progressive=True), 64, 50_000, "1600 x 1200 pixels, the limit is 50000"),
        (tagged(in_several_scans(file_of(LARGE, "jpeg")), "jpeg"), 64, 50_000, "1600 x 1200 pixels"),
        *((FORMS[name](LARGE), 64, 50_000, "1600 x 1200 pixels") for name in ("png", "webp", "gif", "raw")),
    ],
    ids=range(8),
)
def test_what_is_really_decoded_counts(value: Any, side: int, limit: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reduced(value, side, Codec(max_image_pixels=limit, max_message_pixels=limit))


def test_a_large_jpeg_is_decoded_small() -> None:
    codec = Codec(max_image_pixels=50_000, max_message_pixels=50_000)
    assert reduced(as_jpeg(LARGE), 64, codec).size == (64, 48)
    with pytest.raises(ValueError, match="1600 x 1200 pixels, the limit is 50000"):
        codec.decode(as_jpeg(LARGE))
