"""`MaxSide` in hints: images that are reduced when they are decoded, and what that costs of the budget."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rpcstream import Codec, ImageFile, MaxSide, RegistrationError, Server
from rpcstream.codec.hints import hint_checker
from rpcstream.codec.image_files import is_read_in_one_pass

from ..kit.example_count import example_count
from .images import CODEC, MODES, RAW, file_of, sent
from .images import tagged as tagged_file


def tagged(data: bytes, name: str = "jpeg") -> dict[str, Any]:
    return tagged_file(data, name)


RAMP = Image.fromarray(np.linspace(0, 255, 400 * 300).astype("u1").reshape(300, 400))
Small = Annotated[Image.Image, MaxSide(64)]


def decoded(value: Any, side: int = 64, codec: Codec = CODEC) -> Any:
    found: Any = codec.rich_hint(Annotated[Image.Image, MaxSide(side)])
    return found.decode(value)


FORMS: dict[str, Callable[[Image.Image], Any]] = {
    "jpeg": lambda image: tagged(file_of(image, "jpeg", quality=95)),
    "progressive": lambda image: tagged(file_of(image, "jpeg", progressive=True, quality=95)),
    "png": lambda image: tagged(file_of(image, "png"), "png"),
    "webp": lambda image: tagged(file_of(image, "webp", quality=95), "webp"),
    "gif": lambda image: tagged(file_of(image, "gif"), "gif"),
    "raw": lambda image: sent(image, RAW),
    "text": lambda image: tagged(file_of(image, "png"), "png")["data"],
    "data: URL": lambda image: "data:image/jpeg;base64," + str(tagged(file_of(image, "jpeg", quality=95))["data"]),
    "image": lambda image: image,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("side", "size"), [(64, (64, 48)), (100, (100, 75)), (399, (399, 299)), (1, (1, 1))])
def test_every_form_is_reduced(form: str, side: int, size: tuple[int, int]) -> None:
    found = decoded(FORMS[form](RAMP.convert("RGB")), side)
    assert (type(found), found.size, found.mode) == (Image.Image, size, "RGB")
    wanted = RAMP.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    most = 40 if side == 1 else 14  # in the one case the middle of the picture, in the other the mean of it
    assert np.abs(np.asarray(found.convert("L"), int) - np.asarray(wanted, int)).max() < most
    same = decoded(FORMS[form](RAMP.convert("RGB")), 400)
    assert same.size == (400, 300)


def test_an_image_that_is_given_is_not_changed_itself() -> None:
    image = RAMP.copy()
    assert decoded(image).size == (64, 48)
    assert image.size == (400, 300)
    assert decoded(image, 400) is image


@pytest.mark.parametrize("mode", MODES[:-2])
def test_every_mode(mode: str) -> None:
    length = len(Image.new(mode, (100, 80)).tobytes())
    image = Image.frombytes(mode, (100, 80), bytes(length))
    found = decoded(orjson.loads(CODEC.dumps(image)), 50)
    assert found.size == (50, 40)
    assert found.mode == {"1": "L", "P": "RGB", "PA": "RGBA"}.get(mode, mode)


def test_sixteen_bits_are_filtered_too() -> None:
    stripes = Image.fromarray(np.tile(np.array([0, 1000], "<u2"), (80, 50)))
    found = decoded(orjson.loads(CODEC.dumps(stripes)), 50)
    assert np.abs(np.asarray(found, int)[2:-2, 2:-2] - 500).max() < 60


@pytest.mark.parametrize(("mode", "colour", "reduced"), [("P", 2, "RGBA"), ("RGB", (9, 9, 9), "RGBA"), ("L", 3, "LA")])
def test_transparent_colours_are_still_transparent(mode: str, colour: Any, reduced: str) -> None:
    image = Image.new(mode, (100, 80), colour)
    image.info["transparency"] = colour
    found = decoded(orjson.loads(CODEC.dumps(image)), 50)
    assert (found.mode, found.getchannel("A").getextrema()) == (reduced, (0, 0))
    assert "transparency" not in found.info


def test_exif_and_orientation_stay() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("jpeg", "png", "webp"):
        found = decoded(tagged(file_of(RAMP.convert("RGB"), name, exif=exif, icc_profile=b"p" * 50), name))
        assert (found.size, found.getexif()[0x0112]) == ((64, 48), 6)
        assert found.info["icc_profile"] == b"p" * 50


@settings(deadline=None, max_examples=example_count(60))
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 320), st.sampled_from(["jpeg", "png", "raw"]))
def test_any_size(width: int, height: int, side: int, form: str) -> None:
    found = decoded(FORMS[form](Image.new("RGB", (width, height), "teal")), side)
    scale = min(1.0, side / max(width, height))
    assert max(found.size) == min(side, max(width, height))
    for after, before in zip(found.size, (width, height), strict=True):
        assert after == 1 or abs(after - before * scale) <= 0.5
    assert np.abs(np.asarray(found, int) - (0, 128, 128)).max() < 4


class TestWhere:
    """In lists, fields, unions, results."""

    def test_at_any_depth(self) -> None:
        @dataclass
        class Card:
            picture: Small
            others: list[Small]

        value = tagged(file_of(RAMP, "jpeg"))
        for hint, given_value, sizes in (
            (list[Small], [value, value], lambda found: [each.size for each in found]),
            (Small | None, value, lambda found: [found.size]),
            (dict[str, Small], {"a": value}, lambda found: [found["a"].size]),
            (Annotated[Small, "a photo"], value, lambda found: [found.size]),
            (Card, {"picture": value, "others": [value]}, lambda found: [found.picture.size, found.others[0].size]),
        ):
            found = hint_checker(hint, CODEC)(given_value)
            assert set(sizes(found)) == {(64, 48)}
        assert hint_checker(Small | None, CODEC)(None) is None

    def test_results_are_reduced_too(self, tmp_path: Path) -> None:
        check: Any = CODEC.rich_hint(Small).accept  # type: ignore[union-attr]
        (tmp_path / "a.jpg").write_bytes(file_of(RAMP, "jpeg"))
        (tmp_path / "a.txt").touch()
        for value in (RAMP, ImageFile(tmp_path / "a.jpg"), tmp_path / "a.jpg", io.BytesIO(file_of(RAMP, "png"))):
            assert check(value).size == (64, 48)
        for wrong in (tmp_path / "a.txt", tmp_path / "none", 5):
            with pytest.raises(ValueError, match="mage"):
                check(wrong)

    @pytest.mark.parametrize(
        ("hint", "text"),
        [
            (Annotated[Image.Image, MaxSide], r"MaxSide\(1024\)"),
            (Annotated[int, MaxSide(5)], r"MaxSide\(5\) is for images"),
            (Annotated[Image.Image | None, MaxSide(5)], r"MaxSide\(5\) is for images"),
            (Annotated[Image.Image, MaxSide(5), MaxSide(6)], "one MaxSide"),
            (list[Annotated[np.ndarray, MaxSide(5)]], "is for images"),
        ],
    )
    def test_what_is_refused_at_registration(self, hint: Any, text: str) -> None:
        def function(image: Any) -> None: ...

        function.__annotations__["image"] = hint
        with pytest.raises(RegistrationError, match=text):
            Server().add(function)

    @pytest.mark.parametrize("pixels", [0, -1, True, 1.5, "64", None])
    def test_sides_that_are_none(self, pixels: Any) -> None:
        with pytest.raises((ValueError, TypeError), match="a side"):
            MaxSide(pixels)


class TestBudget:
    """What is really decoded counts."""

    def test_a_jpeg_of_more_pixels_than_the_limit_is_decoded_small(self) -> None:
        data = file_of(Image.new("L", (1600, 1200), 100), "jpeg")
        codec = Codec(max_image_pixels=50_000, max_message_pixels=50_000)
        assert decoded(tagged(data), codec=codec).size == (64, 48)
        with pytest.raises(ValueError, match="1600 x 1200 pixels, the limit is 50000"):
            codec.decode(tagged(data))
        with pytest.raises(ValueError, match="800 x 600 pixels, the limit is 50000"):
            decoded(tagged(data), 500, codec)
        for name in ("png", "webp", "gif"):  # which are decoded whole
            with pytest.raises(ValueError, match="1600 x 1200 pixels, the limit is 50000"):
                decoded(tagged(file_of(Image.new("L", (1600, 1200)), name), name), codec=codec)
        with pytest.raises(ValueError, match="1600 x 1200 pixels, the limit is 50000"):
            decoded(sent(Image.new("L", (1600, 1200)), RAW), codec=codec)

    def test_reading_takes_time_however_little_is_decoded(self) -> None:
        codec = Codec(max_image_pixels=40_000, max_message_pixels=40_000)
        data = tagged(file_of(Image.new("L", (1600, 1200), 100), "jpeg"))
        with pytest.raises(ValueError, match="reading the data of 1920000 pixels would take too long"):
            decoded(data, codec=codec)

    def test_a_jpeg_whose_coefficients_are_kept_counts_whole(self) -> None:
        codec = Codec(max_image_pixels=40_000, max_message_pixels=40_000)
        grey = Image.new("RGB", (1600, 1200), "grey")
        for data in (file_of(grey, "jpeg", progressive=True), in_several_scans(file_of(grey, "jpeg"))):
            assert not is_read_in_one_pass(data)
            with pytest.raises(ValueError, match="1600 x 1200 pixels, the limit is 40000"):
                decoded(tagged(data), codec=codec)


def in_several_scans(data: bytes) -> bytes:
    """A JPEG whose first scan has fewer components than the image."""
    at = data.index(b"\xff\xda")
    return data[: at + 4] + b"\1" + data[at + 5 :]


@settings(deadline=None, max_examples=example_count(100))
@given(st.binary(max_size=60), st.integers(0, 700))
def test_any_bytes_are_looked_through_to_an_end(rest: bytes, at: int) -> None:
    whole = file_of(Image.new("RGB", (8, 8)), "jpeg")
    is_read_in_one_pass(whole[:at] + rest + whole[at:])
    is_read_in_one_pass(b"\xff\xd8" + rest)
