"""Images as AVIF: in both directions, what they cost, and files that lie or are damaged."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rpcstream.codec import Codec, ImageFile, ImageOptions
from rpcstream.codec import avif as avif_module
from rpcstream.codec.image_budget import ImageBudget, TooMuchImage
from rpcstream.codec.image_files import image_weight, passes

from ..kit.example_count import example_count
from .images import CODEC, sent, tagged

if not avif_module.is_there():
    pytest.skip("this Pillow has no AVIF", allow_module_level=True)


def codec(**options: Any) -> Codec:
    return Codec(images=ImageOptions(format="avif", **options))


def gradient(mode: str, size: tuple[int, int] = (60, 40)) -> Image.Image:
    ramp = np.linspace(0, 255, size[0] * size[1]).astype("u1").reshape(size[1], size[0])
    image = Image.fromarray(ramp).convert("RGB")
    if mode == "RGBA":
        image.putalpha(Image.fromarray(ramp))
    return image if mode == "RGBA" else image.convert(mode)


def file_of(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "avif", speed=10, **options)
    return out.getvalue()


def cost(data: bytes) -> tuple[int, int]:
    budget = ImageBudget(CODEC.image_limits)
    return avif_module.coded_pixels(data, budget), budget.metadata


EXIF = Image.Exif()
EXIF[0x0112] = 6
PLAIN = file_of(gradient("RGB"), exif=EXIF.tobytes(), icc_profile=b"p" * 200)
BOTH = file_of(gradient("RGBA"))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_there_and_back(mode: str) -> None:
    image = gradient(mode)
    image.info["icc_profile"] = b"p" * 99
    value = sent(image, codec(quality=90))
    assert value["format"] == "avif"
    rich: Any = CODEC.rich_hint(Image.Image)
    for found in (CODEC.decode(value), rich.decode(value), rich.decode(value["data"])):
        assert isinstance(found, Image.Image)
        assert (type(found), found.mode, found.size) == (Image.Image, mode, image.size)
        assert found.info["icc_profile"] == b"p" * 99
        assert np.abs(np.asarray(found, int) - np.asarray(image, int)).mean() < 6
    url: Any = rich.decode("data:image/avif;base64," + value["data"])
    assert url.size == image.size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "F", "I;16"])
def test_what_avif_cannot_hold_goes_as_before(mode: str) -> None:
    assert sent(Image.new(mode, (3, 2)), codec())["format"] in ("png", "raw")
    assert sent(Image.new("RGBA", (3, 2), (1, 2, 3, 255)), codec())["format"] == "png"
    assert sent(Image.new("RGB", (32_769, 1)), codec())["format"] == "png"


def test_a_file_goes_as_it_is_where_the_user_says_that_the_other_end_reads_it(tmp_path: Any) -> None:
    (tmp_path / "a.avif").write_bytes(PLAIN)
    assert base64.b64decode(sent(ImageFile(tmp_path / "a.avif"), CODEC)["data"]) == PLAIN
    for codec_, goes in ((CODEC, False), (codec(), True), (codec(quality=20), False)):
        value = sent(Image.open(io.BytesIO(PLAIN)), codec_)
        assert (base64.b64decode(value["data"]) == PLAIN) is goes
        found: Any = CODEC.decode(value)
        assert (found.size, found.getexif()[0x0112]) == ((60, 40), 6)
    wanted = Image.open(io.BytesIO(PLAIN))
    wanted.load()
    found = CODEC.decode(tagged(PLAIN, "avif"))
    assert (found.mode, found.tobytes(), found.info) == (wanted.mode, wanted.tobytes(), wanted.info)


class TestCost:
    def test_what_is_coded_and_what_is_kept(self) -> None:
        pixels, metadata = cost(PLAIN)
        assert pixels == 60 * 40
        assert metadata > 200 + len(EXIF.tobytes()) - 12
        assert cost(BOTH)[0] == 2 * 60 * 40  # the transparency is a picture of its own
        assert passes("avif", 2 * 600 * 400, (600, 400)) == 2 * passes("avif", 600 * 400, (600, 400))

    def test_metadata_counts(self) -> None:
        small = Codec(max_image_metadata=20_000)
        assert small.decode(tagged(PLAIN, "avif"))
        big = file_of(gradient("RGB"), icc_profile=bytes(20_000))
        with pytest.raises(ValueError, match="max_image_metadata"):
            small.decode(tagged(big, "avif"))
        xmp = file_of(gradient("RGB"), xmp=b"x" * 20_000)
        with pytest.raises(ValueError, match="max_image_metadata"):
            small.decode(tagged(xmp, "avif"))

    def test_pixels_count(self) -> None:
        value = tagged(file_of(Image.new("RGB", (100, 100))), "avif")
        assert Codec(max_image_pixels=10_000, max_message_pixels=1).decode(value)
        with pytest.raises(ValueError, match="100 x 100 pixels, the limit is 9999"):
            Codec(max_image_pixels=9999, max_message_pixels=1).decode(value)


def changed(data: bytes, kind: bytes, at: int, value: bytes) -> bytes:
    """With other bytes at a place in the content of a box."""
    start = data.index(kind) + 4 + at
    return data[:start] + value + data[start + len(value) :]


def sequence_header(width_bits: int, width: int, height: int, *, still: bool = True) -> bytes:
    """An AV1 sequence header with these sizes; nothing behind them."""
    bits = "000" + ("11" if still else "00") + ("00000" if still else "0" + "0" + "00000" + "0" * 12 + "00000")
    bits += (
        format(width_bits - 1, "04b") * 2 + format(width - 1, f"0{width_bits}b") + format(height - 1, f"0{width_bits}b")
    )
    bits += "0" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([0x0A, len(body)]) + body


def coded(data: bytes) -> bytes:
    """PLAIN with another coded picture in the place of its own."""
    at = PLAIN.index(b"mdat") + 4
    end = at + int.from_bytes(PLAIN[at - 8 : at - 4], "big") - 8
    start = PLAIN.index(b"\x12\x00\x0a", at, end)
    assert len(data) <= end - start
    return PLAIN[:start] + data + PLAIN[start + len(data) :]


class TestLies:
    def test_a_picture_larger_than_the_file_says(self) -> None:
        huge = coded(b"\x12\x00" + sequence_header(16, 65_536, 65_536))
        with pytest.raises(ValueError, match="65536 x 65536 pixels, the limit is 64000000"):
            CODEC.decode(tagged(huge, "avif"))
        large = coded(b"\x12\x00" + sequence_header(13, 8000, 7000))
        assert cost(large)[0] == 56_000_000
        with pytest.raises(ValueError, match="scans of 60 x 40 pixels would take too long"):
            CODEC.decode(tagged(large, "avif"))

    def test_a_video_may_have_frames_of_any_size(self) -> None:
        with pytest.raises(TooMuchImage, match="65536 x 65536"):
            cost(coded(b"\x12\x00" + sequence_header(16, 60, 40, still=False)))
        assert cost(coded(b"\x12\x00" + sequence_header(6, 60, 40, still=False) + b"\x32\x00"))[0] >= 64 * 64

    def test_each_frame_counts(self) -> None:
        one = sequence_header(6, 60, 40)
        assert cost(coded(one + b"\x32\x00" * 12))[0] >= 12 * 60 * 40

    def test_pieces_that_lie_over_each_other(self) -> None:
        """Each item may be made of as many pieces as its author likes, all of them the same bytes."""
        at = PLAIN.index(b"iloc")
        size = int.from_bytes(PLAIN[at - 4 : at], "big")
        pieces = struct.pack(">II", 0, len(PLAIN)) * 50
        body = b"\0\0\0\0\x44\0" + struct.pack(">HHHH", 1, 1, 0, 50) + pieces
        box = struct.pack(">I", len(body) + 8) + b"iloc" + body
        meta = PLAIN.index(b"meta")
        longer = struct.pack(">I", int.from_bytes(PLAIN[meta - 4 : meta], "big") + len(box) - size)
        data = PLAIN[: meta - 4] + longer + PLAIN[meta : at - 4] + box + PLAIN[at - 4 + size :]
        with pytest.raises(TooMuchImage, match="lie over each other"):
            cost(data)

    def test_many_pieces_of_no_bytes(self) -> None:
        at = PLAIN.index(b"iloc")
        # No bytes for offset and length, and the largest number of pieces.
        data = PLAIN[: at + 8] + b"\0\0" + struct.pack(">HHHH", 9, 1, 0, 65_535) + PLAIN[at + 18 :]
        with pytest.raises(TooMuchImage, match="too many parts"):
            cost(data)

    def test_several_pictures_in_time_are_refused(self) -> None:
        data = file_of(gradient("RGB"), save_all=True, append_images=[gradient("RGB")])
        with pytest.raises(ValueError, match="several pictures in time"):
            CODEC.decode(tagged(data, "avif"))

    @pytest.mark.parametrize(
        "change",
        [
            *(lambda data: data[:100], lambda data: data[:-200]),
            lambda data: changed(data, b"meta", -8, b"\0\0\0\1"),
            lambda data: changed(data, b"meta", -8, b"\0\0\0\4"),
            lambda data: changed(data, b"iprp", -8, b"\xff\xff\xff\xff"),
            *(lambda data: changed(data, b"iloc", 6, b"\xff\xff"), lambda data: data.replace(b"av01", b"av02")),
            lambda data: b"hello" + data,
        ],
    )
    def test_broken_files(self, change: Callable[[bytes], bytes]) -> None:
        with pytest.raises(ValueError, match="image"):
            CODEC.decode(tagged(change(PLAIN), "avif"))


@settings(deadline=None, max_examples=example_count(200))
@given(st.sampled_from([PLAIN, BOTH]), st.integers(0, 1000), st.binary(min_size=1, max_size=24))
def test_damaged_files_are_refused_or_read(data: bytes, at: int, damage: bytes) -> None:
    broken = data[:at] + damage + data[at + len(damage) :]
    with contextlib.suppress(ValueError):
        assert isinstance(CODEC.decode(tagged(broken, "avif")), Image.Image)
    image_weight([tagged(broken, "avif")], CODEC.image_limits)


@settings(deadline=None, max_examples=example_count(100))
@given(st.binary(max_size=300))
def test_any_bytes_are_walked_through_to_an_end(rest: bytes) -> None:
    for data in (PLAIN[:40] + rest, PLAIN[:200] + rest, coded(rest[:200]), rest):
        try:
            cost(data)
        except ValueError:
            continue
