"""Images as AVIF: in both directions, what they cost, and files that lie or are damaged."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from rpcstream.codec import Codec, ImageFile, ImageOptions

from ..kit.example_count import example_count
from .values import CODEC, encoded, file_of, sent, tagged, taken

if not features.check("avif"):
    pytest.skip("this Pillow has no AVIF", allow_module_level=True)


def codec(**options: Any) -> Codec:
    return Codec(images=ImageOptions(format="avif", **options))


def gradient(mode: str) -> Image.Image:
    ramp = Image.fromarray(np.linspace(0, 255, 2400).astype("u1").reshape(40, 60))
    image = ramp.convert("RGB")
    if mode == "RGBA":
        image.putalpha(ramp)
    return image


EXIF = Image.Exif()
EXIF[0x0112] = 6
PLAIN = file_of(gradient("RGB"), "avif", speed=10, exif=EXIF.tobytes(), icc_profile=b"p" * 200)
BOTH = file_of(gradient("RGBA"), "avif", speed=10)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_there_and_back(mode: str) -> None:
    image = gradient(mode)
    image.info["icc_profile"] = b"p" * 99
    value = sent(image, codec(quality=90))
    assert value["format"] == "avif"
    data = value["data"]
    for found in (
        CODEC.decode(value),
        *(taken(Image.Image, each) for each in (data, "data:image/avif;base64," + data)),
    ):
        assert isinstance(found, Image.Image)
        assert (type(found), found.mode, found.size) == (Image.Image, mode, image.size)
        assert found.info["icc_profile"] == b"p" * 99
        assert np.abs(np.asarray(found, int) - np.asarray(image, int)).mean() < 6


def test_what_avif_cannot_hold_goes_as_before() -> None:
    for mode in ("1", "L", "LA", "P", "CMYK", "F", "I;16"):
        assert sent(Image.new(mode, (3, 2)), codec())["format"] in ("png", "raw")
    for image in (Image.new("RGBA", (3, 2), (1, 2, 3, 255)), Image.new("RGB", (32_769, 1))):
        assert sent(image, codec())["format"] == "png"


def test_a_file_goes_as_it_is_where_the_user_says_that_the_other_end_reads_it(tmp_path: Any) -> None:
    (tmp_path / "a.avif").write_bytes(PLAIN)
    assert base64.b64decode(sent(ImageFile(tmp_path / "a.avif"))["data"]) == PLAIN
    for each, goes in ((CODEC, False), (codec(), True), (codec(quality=20), False)):
        value = sent(Image.open(io.BytesIO(PLAIN)), each)
        assert (base64.b64decode(value["data"]) == PLAIN) is goes
        found: Any = CODEC.decode(value)
        assert (found.size, found.getexif()[0x0112]) == ((60, 40), 6)
    wanted = Image.open(io.BytesIO(PLAIN))
    wanted.load()
    found = CODEC.decode(tagged(PLAIN, "avif"))
    assert (found.mode, found.tobytes(), found.info) == (wanted.mode, wanted.tobytes(), wanted.info)


def changed(data: bytes, kind: bytes, at: int, value: bytes) -> bytes:
    """With other bytes at a place in the content of a box."""
    start = data.index(kind) + 4 + at
    return data[:start] + value + data[start + len(value) :]


def sequence_header(width_bits: int, width: int, height: int, *, still: bool = True) -> bytes:
    """An AV1 sequence header with these sizes; nothing behind them."""
    bits = "000" + ("11" if still else "00") + ("00000" if still else "0" + "0" + "00000" + "0" * 12 + "00000")
    bits += format(width_bits - 1, "04b") * 2
    bits += format(width - 1, f"0{width_bits}b") + format(height - 1, f"0{width_bits}b")
    bits += "0" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([0x0A, len(body)]) + body


def coded(data: bytes) -> bytes:
    """PLAIN with another coded picture in the place of its own."""
    at = PLAIN.index(b"mdat") + 4
    start = PLAIN.index(b"\x12\x00\x0a", at)
    return PLAIN[:start] + data + PLAIN[start + len(data) :]


def of_pieces(box_head: bytes, pieces: bytes) -> bytes:
    """PLAIN whose picture is made of these pieces."""
    at = PLAIN.index(b"iloc")
    size = int.from_bytes(PLAIN[at - 4 : at], "big")
    body = b"\0\0\0\0" + box_head + pieces
    box = struct.pack(">I", len(body) + 8) + b"iloc" + body
    meta = PLAIN.index(b"meta")
    longer = struct.pack(">I", int.from_bytes(PLAIN[meta - 4 : meta], "big") + len(box) - size)
    return PLAIN[: meta - 4] + longer + PLAIN[meta : at - 4] + box + PLAIN[at - 4 + size :]


@pytest.mark.parametrize(
    ("data", "limits", "reason"),
    [
        (PLAIN, {"max_image_pixels": 2399, "max_message_pixels": 1}, "60 x 40 pixels, the limit is 2399"),
        (file_of(gradient("RGB"), "avif", icc_profile=bytes(20_000)), {"max_image_metadata": 20_000}, "max_image_meta"),
        (file_of(gradient("RGB"), "avif", xmp=b"x" * 20_000), {"max_image_metadata": 20_000}, "max_image_metadata"),
        # A picture that is larger than the file says; a video may have frames of any size.
        (coded(b"\x12\x00" + sequence_header(16, 65_536, 65_536)), {}, "65536 x 65536 pixels, the limit is 64000000"),
        (coded(b"\x12\x00" + sequence_header(13, 8000, 7000)), {}, "scans of 60 x 40 pixels would take too long"),
        (coded(b"\x12\x00" + sequence_header(16, 60, 40, still=False)), {}, "65536 x 65536 pixels"),
        # Each item may be made of as many pieces as its author likes, all of them the same bytes, or of none.
        (
            of_pieces(b"\x44\0" + struct.pack(">HHHH", 1, 1, 0, 50), struct.pack(">II", 0, len(PLAIN)) * 50),
            {},
            "lie over each other",
        ),
        (changed(PLAIN, b"iloc", 4, b"\0\0" + struct.pack(">HHHH", 9, 1, 0, 65_535)), {}, "too many parts"),
        (
            file_of(gradient("RGB"), "avif", save_all=True, append_images=[gradient("RGB")]),
            {},
            "several pictures in time",
        ),
        *(
            (data, {}, "image")
            for data in (PLAIN[:100], PLAIN[:-200], b"hello" + PLAIN, PLAIN.replace(b"av01", b"av02"))
        ),
        (changed(PLAIN, b"meta", -8, b"\0\0\0\1"), {}, "image"),
        (changed(PLAIN, b"meta", -8, b"\0\0\0\4"), {}, "image"),
        (changed(PLAIN, b"iprp", -8, b"\xff\xff\xff\xff"), {}, "image"),
        (changed(PLAIN, b"iloc", 6, b"\xff\xff"), {}, "image"),
    ],
    ids=range(17),
)
def test_what_is_refused(data: bytes, limits: dict[str, int], reason: str) -> None:
    for attempt in (Codec(**limits).decode, lambda value: taken(Image.Image, value, Codec(**limits))):
        with pytest.raises(ValueError, match=reason):
            attempt(tagged(data, "avif"))
    if limits:  # which are not so small for a smaller one
        assert Codec(**limits | {"max_image_pixels": 10_000}).decode(tagged(PLAIN, "avif"))


@settings(deadline=None, max_examples=example_count(200))
@given(st.sampled_from([PLAIN, BOTH]), st.integers(0, 1000), st.binary(min_size=1, max_size=200), st.booleans())
def test_damaged_files_are_refused_or_read(data: bytes, at: int, damage: bytes, ends: bool) -> None:
    for broken in (data[:at] + damage + (b"" if ends else data[at + len(damage) :]), coded(damage)):
        CODEC.image_weight([tagged(broken, "avif"), encoded(broken)])
        with contextlib.suppress(ValueError):
            assert isinstance(CODEC.decode(tagged(broken, "avif")), Image.Image)
