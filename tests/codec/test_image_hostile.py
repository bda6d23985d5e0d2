"""Hostile images: what one may cost, and all of a message; damaged files, and wrong headers."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import types
import zlib
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rpcstream import Codec, Limits, MaxSide
from rpcstream.codec.codec import DecodeElsewhere, Reading
from rpcstream.codec.hints import CompiledHint
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .values import CODEC, RAW, encoded, file_of, rng, sent, tagged, taken

GOOD = Image.fromarray(rng.integers(0, 255, (40, 40, 3), "u1"))
#: Of 16,383 x 16,383 pixels.
WEBP_HEADER = b"RIFF\x1a\0\0\0WEBPVP8L\x0e\0\0\0\x2f\xfe\xbf\xff\x0f\x07\x10\x11\xfd\x0f\x44\x44\xff\x03"
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*chunks: bytes, width: int = 1, height: int = 1, pixels: bytes = b"\0\0") -> bytes:
    """A PNG of grey pixels, with these chunks before them."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return SIGNATURE + b"".join(
        (chunk(b"IHDR", head), *chunks, chunk(b"IDAT", zlib.compress(pixels)), chunk(b"IEND", b""))
    )


def refusals(value: Any, codec: Codec = CODEC) -> list[str]:
    """What is said of an image where there is no hint, and where there is one."""
    said = []
    for attempt in (codec.decode, lambda value: taken(Image.Image, value, codec)):
        with pytest.raises(ValueError, match=r".") as caught:
            attempt(value)
        said.append(str(caught.value))
        assert len(said[-1]) < 500
    return said


def refusal(value: Any, codec: Codec) -> str:
    with pytest.raises(ValueError, match="image") as caught:
        codec.decode(value)
    return str(caught.value)


def vm_size() -> int:
    """Address space of this process, in bytes; 0 where there is no /proc."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[0]) * 4096 if path.exists() else 0


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", png(width=12_000, height=12_000, pixels=bytes(1_000_000))),
        ("png", png(width=2**31 - 1, height=2**31 - 1)),
        ("webp", WEBP_HEADER),
        ("webp", b"RIFF\x1e\x00\x00\x00WEBPVP8X\x0a" + bytes(7) + b"\xff\xff\xff\xff\xff\xff"),
        ("gif", b"GIF89a\xff\xff\xff\xff\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"),
        ("jpeg", file_of(Image.new("L", (8, 8)), "jpeg").replace(b"\x08\x00\x08\x00\x08", b"\x08\xff\xff\xff\xff")),
    ],
)
def test_bombs_are_refused_before_they_take_memory(name: str, data: bytes) -> None:
    before = vm_size()
    for said in refusals(tagged(data, name)):
        assert re.search("pixels, the limit is 64000000|exceeds limit", said)
    assert vm_size() - before < 64 * 1024 * 1024


PHOTO = Image.new("L", (100, 100))
FORMS = {
    **{name: tagged(file_of(PHOTO.convert("RGB"), name), name) for name in ("png", "jpeg", "webp", "gif")},
    "raw": sent(PHOTO, RAW),
    "text": encoded(file_of(PHOTO, "png")),
    "data: URL": "data:image/png;base64," + encoded(file_of(PHOTO, "png")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("limit", "takes"), [(20_000, 2), (19_999, 1), (10_000, 1), (9999, 0)])
def test_pixels_are_counted_for_an_image_and_for_its_message(form: str, limit: int, takes: int) -> None:
    value, codec = FORMS[form], Codec.of(Limits(max_image_pixels=limit))
    attempts: list[Any] = [lambda images: taken(list[Image.Image], images, codec)]
    attempts += [codec.decode] if type(value) is dict else []
    for attempt in attempts:
        for _ in range(2):  # each message has its own budget
            assert len(attempt([value] * takes)) == takes
        with pytest.raises(ValueError, match="together" if takes else "the limit is 9999"):
            attempt([value] * (takes + 1))


@pytest.mark.parametrize("form", FORMS)
def test_memory_is_known_before_an_image_is_decoded(form: str) -> None:
    hint = CompiledHint(list[Image.Image] if type(FORMS[form]) is str else Any, CODEC)
    for count, needed in ((1, 10_000 * 16), (2, 10_000 * 20)):  # one is decoded at a time
        hint.read([FORMS[form]] * count, Reading(CODEC.max_image_pixels, room=needed))
        with pytest.raises(DecodeElsewhere) as caught:
            hint.read([FORMS[form]] * count, Reading(CODEC.max_image_pixels, room=needed - 1))
        assert caught.value.size == needed


def test_small_images_count_as_what_opening_them_costs() -> None:
    codec = Codec(max_image_pixels=40_960)
    tiny = sent(Image.new("L", (1, 1)))
    assert len(codec.decode([tiny] * 10)) == 10  # type: ignore[arg-type]
    assert "together" in refusal([tiny] * 11, codec)


def test_parts_of_a_registered_type_count() -> None:
    codec = Codec(max_image_pixels=15_000)
    codec.register(types.SimpleNamespace, "pair", encode=vars, decode=lambda parts: types.SimpleNamespace(**parts))
    pair = {"$type": "pair", "left": FORMS["png"], "right": None}
    assert codec.decode(pair).left.size == (100, 100)  # type: ignore[attr-defined]
    assert "together" in refusal({**pair, "right": FORMS["png"]}, codec)


PACKED = zlib.compress(bytes(2**20))
BLACK = Image.new("RGB", (9, 9))


def with_segments(*segments: bytes) -> bytes:
    """A JPEG with these contents of APP1 in its header."""
    data = file_of(BLACK, "jpeg")
    return data[:2] + b"".join(b"\xff\xe1" + struct.pack(">H", 2 + len(each)) + each for each in segments) + data[2:]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", png(*[chunk(b"zTXt", b"key%d\0\0" % number + PACKED) for number in range(6)])),
        ("png", png(chunk(b"tEXt", b"key\0" + b"a" * 6 * 2**20))),
        ("jpeg", with_segments(*[b"Exif\0\0" + bytes(60_000)] * 100)),
        ("webp", file_of(BLACK, "webp", exif=bytes(6 * 2**20))),
    ],
)
def test_text_counts_inflated_for_all_images_of_a_message(name: str, data: bytes) -> None:
    assert len(CODEC.decode([tagged(data, name)] * 2)) == 2  # type: ignore[arg-type]
    assert "profiles and EXIF" in refusal([tagged(data, name)] * 3, CODEC)
    with pytest.raises(ValueError, match="text, profiles and EXIF"):
        taken(list[Image.Image], [encoded(data)] * 3)


def test_the_header_of_a_file_is_bounded() -> None:
    assert "broken" in refusal(tagged(png(chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(2 * 2**20)))), "png"), CODEC)
    # All values of this EXIF directory are the same bytes, 250 MB of them if each was read.
    body = b"MM\0\x2a\0\0\0\x08" + struct.pack(">H", 5000)
    body += b"".join(struct.pack(">HHLL", 0x8000 + n, 7, 50_000, 8) for n in range(5000)) + bytes(4)
    data = with_segments(b"Exif\0\0" + body).replace(b"\x01\x01\x00\x01\x00\x01", b"\x01\x01\x03\x00\x01\x00")
    before = vm_size()
    assert CODEC.decode(tagged(data, "jpeg"))
    assert vm_size() - before < 64 * 1024 * 1024


def test_scans_of_a_progressive_jpeg_cost_passes() -> None:
    small, large = GOOD, Image.effect_noise((310, 310), 50)
    limits = Codec(max_image_pixels=100_000)
    for image, codec, few, many in ((small, limits, 30, 500), (large, limits, 0, 20)):
        data = file_of(image, "jpeg", progressive=True)
        scan = data[data.rindex(b"\xff\xda") : -2]
        assert codec.decode(tagged(data[:-2] + scan * few + b"\xff\xd9", "jpeg"))
        said = refusal(tagged(data[:-2] + scan * many + b"\xff\xd9", "jpeg"), codec)
        assert "scans, text" in said


def test_files_of_many_tiny_parts_are_refused() -> None:
    for name, data in (
        *(("png", png(*[chunk(kind, b"")] * 20_000)) for kind in (b"teSt", b"IDAT")),
        ("gif", b"GIF89a\1\0\1\0\0\0\0" + b"!\xfe\1a\0" * 50_000 + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"),
    ):
        assert "too many parts for its length" in refusal(tagged(data, name), CODEC)


RAW_GOOD = {"$type": "image", "format": "raw", "mode": "RGB", "size": [2, 1], "data": "AAECAwQF"}


def test_raw_pixels_as_on_the_wire_page() -> None:
    assert sent(Image.frombytes("RGB", (2, 1), bytes(range(6))), RAW) == RAW_GOOD
    assert sent(Image.frombytes("I", (1, 1), struct.pack("<i", -2)))["data"] == encoded(struct.pack("<i", -2))


@pytest.mark.parametrize(
    "change",
    [
        *({"mode": mode} for mode in (None, 1, "", "rgb", "P", "I;16N", ["RGB"], "L", "RGBA", "F")),
        *({"size": size} for size in (None, 2, "2", [2], [2, 1, 1], [2.0, 1], [True, 1], [-2, -1], [2, 2], [1, 1])),
        *({"size": size} for size in ([2**40, 2**40], [0, 1], [10**400, 1], [0, 10**400], {"0": 2, "1": 1})),
        *({"data": data} for data in (None, 5, "", "AAECAwQ=", "AAECAw-F", "AAECAwQFAAEC")),
        *({"format": name} for name in (None, "", "RAW", "png", ["raw"], "x" * 100_000)),
        {"more": 1},
    ],
    ids=lambda change: repr(change)[:60],
)
def test_hostile_raw_images(change: dict[str, Any]) -> None:
    refusals({**RAW_GOOD, **change})


def test_images_that_cannot_be_read_cannot_be_sent() -> None:
    cut = Image.open(io.BytesIO(file_of(GOOD, "png")[:-2000]))
    with pytest.raises(EncodeError, match="could not be encoded"):
        RAW.dumps([cut])


def test_other_formats_are_not_opened() -> None:
    for name in ("bmp", "tiff", "ppm", "eps", "ico"):
        data = file_of(Image.new("RGB", (4, 4)), name)
        with pytest.raises(ValueError, match="not png or jpeg or webp or gif"):
            taken(Image.Image, encoded(data))
        for claimed in (name, "png", "gif"):
            assert "not one of" in (said := refusal(tagged(data, claimed), CODEC)) or "is not" in said


FORMATS = ["png", "jpeg", "webp", "gif"]
Small = Annotated[Image.Image, MaxSide(4)]


def check_only_value_errors(value: Any) -> None:
    for attempt in (CODEC.decode, lambda value: taken(Small, value)):
        with contextlib.suppress(ValueError):
            assert isinstance(attempt(value), Image.Image | int | str)


FILES = {name: file_of(GOOD, name) for name in FORMATS}
MAGIC = [SIGNATURE, b"\xff\xd8\xff", b"GIF89a", b"RIFF\x40\x00\x00\x00WEBPVP8X", b"RIFF\x40\0\0\0WEBPVP8 ", b""]


@pytest.mark.parametrize("name", FORMATS)
def test_files_that_are_cut_are_refused(name: str) -> None:
    data = FILES[name]
    for length in {0, 1, 4, 8, 12, 16, 30, 33, 60, len(data) // 2, len(data) - 60}:
        refusals(tagged(data[:length], name), CODEC)


@settings(deadline=None, max_examples=example_count(250))
@given(st.sampled_from(FORMATS), st.sampled_from(MAGIC), st.binary(max_size=200), st.integers(0, 400))
def test_files_of_any_structure_are_walked_through_to_an_end(name: str, magic: bytes, rest: bytes, at: int) -> None:
    whole = FILES[name]
    for broken in (whole[:at] + rest + whole[at:], whole[:at] + rest + whole[at + len(rest) :], whole[:at] + rest):
        check_only_value_errors(tagged(broken, name))
    check_only_value_errors(tagged(magic + rest, name))
    check_only_value_errors(encoded(magic + rest))
