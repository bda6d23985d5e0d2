"""Hostile images: decompression bombs, damaged files, wrong headers; and images in several threads."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rpcstream.codec import Codec, ImageOptions
from rpcstream.codec.hints import hint_checker
from rpcstream.codec.image_files import image_weight
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .images import CODEC, RAW, file_of, received, rich, rng, sent, tagged, text_of


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(width: int, height: int) -> bytes:
    """A few KB that claim to be an image of many pixels, all black."""
    row = zlib.compress(bytes(1_000_000))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", row) + chunk(b"IEND", b"")


def webp_header(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    data = b"\x2f" + bits.to_bytes(4, "little") + b"\x07\x10\x11\xfd\x0f\x44\x44\xff\x03"
    return b"RIFF" + (12 + len(data)).to_bytes(4, "little") + b"WEBPVP8L" + len(data).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", png_bomb(12_000, 12_000)),
        ("png", png_bomb(2**31 - 1, 2**31 - 1)),
        ("webp", webp_header(16_383, 16_383)),
        ("webp", b"RIFF\x1e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"),
        (
            "gif",
            b"GIF89a\xff\xff\xff\xff\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;",
        ),
        ("jpeg", file_of(Image.new("L", (8, 8)), "jpeg").replace(b"\x08\x00\x08\x00\x08", b"\x08\xff\xff\xff\xff")),
    ],
)
def test_bombs_are_refused_before_they_take_memory(name: str, data: bytes) -> None:
    before = vm_size()
    for attempt in (lambda: CODEC.decode(tagged(data, name)), lambda: rich().decode(tagged(data)["data"])):
        with pytest.raises(ValueError, match="pixels, the limit is 64000000"):
            attempt()
    assert vm_size() - before < 64 * 1024 * 1024


def vm_size() -> int:
    """Address space of this process, in bytes; 0 where there is no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * 4096
    except OSError:
        return 0


def test_the_limit_is_the_codecs() -> None:
    small = Codec(max_image_pixels=12)
    for codec in (small, Codec(images=ImageOptions(format="raw"), max_image_pixels=12)):
        assert received(Image.new("L", (4, 3)), codec).size == (4, 3)
        big = sent(Image.new("L", (13, 1)), codec)
        with pytest.raises(ValueError, match="13 x 1 pixels, the limit is 12"):
            codec.decode(big)
        with pytest.raises(ValueError, match="the limit is 12"):
            rich(codec).decode(big)


GOOD = Image.fromarray(rng.integers(0, 255, (40, 40, 3), "u1"))


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "gif"])
def test_cut_and_damaged_files(name: str) -> None:
    data = file_of(GOOD, name)
    for length in {0, 1, 4, 8, 12, 16, 30, 33, 60, len(data) // 2, len(data) - 60}:
        with pytest.raises(ValueError, match="image"):
            CODEC.decode(tagged(data[:length], name))
    damage = np.random.default_rng(3)
    for _ in range(150):
        broken = bytearray(data)
        for _ in range(damage.integers(1, 6)):
            broken[damage.integers(0, min(len(broken), 200))] = damage.integers(0, 256)
        check_only_value_errors(tagged(bytes(broken), name))


def check_only_value_errors(value: Any) -> None:
    for attempt in (lambda: CODEC.decode(value), lambda: rich().decode(value)):
        try:
            assert isinstance(attempt(), Image.Image)
        except ValueError:
            pass


@settings(deadline=None, max_examples=example_count(150))
@given(
    st.sampled_from(
        [
            *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\x40\x00\x00\x00WEBPVP8X"),
            *(b"RIFF\x40\0\0\0WEBPVP8 ", b""),
        ]
    ),
    st.binary(max_size=120),
)
def test_any_bytes_give_an_image_or_a_value_error(magic: bytes, rest: bytes) -> None:
    text = base64.b64encode(magic + rest).decode()
    for name in ("png", "jpeg", "webp", "gif"):
        check_only_value_errors({"$type": "image", "format": name, "data": text})
    try:
        rich().decode(text)
    except ValueError:
        pass


def test_other_formats_are_not_opened() -> None:
    for name in ("bmp", "tiff", "ppm", "eps", "ico"):
        text = text_of(Image.new("RGB", (4, 4)), name)
        with pytest.raises(ValueError, match="not png or jpeg or webp or gif"):
            rich().decode(text)
        for claimed in (name, "png", "jpeg", "webp", "gif"):
            with pytest.raises(ValueError, match=r"not one of|is not \w+ - at"):
                CODEC.decode({"$type": "image", "format": claimed, "data": text})
    png = text_of(Image.new("RGB", (4, 4)), "png")
    with pytest.raises(ValueError, match="the file is not jpeg"):
        CODEC.decode({"$type": "image", "format": "jpeg", "data": png})


RAW_GOOD = {"$type": "image", "format": "raw", "mode": "RGB", "size": [2, 1], "data": "AAECAwQF"}


def test_raw_as_on_the_wire_page() -> None:
    image = Image.frombytes("RGB", (2, 1), bytes(range(6)))
    assert sent(image, RAW) == RAW_GOOD
    numbers = Image.frombytes("I", (1, 1), struct.pack("<i", -2))
    assert base64.b64decode(sent(numbers)["data"]) == struct.pack("<i", -2)


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"mode": mode}
            for mode in (None, 1, "", "rgb", "P", "PA", "BGR;15", "I;16N", ["RGB"], "L", "RGBA", "1", "F")
        ),
        *({"size": size} for size in (None, 2, "2", [2], [2, 1, 1], [2.0, 1], [True, 1], [-2, -1], [2, 2], [1, 1])),
        *({"size": size} for size in ([2**40, 2**40], [0, 1], [10**400, 1], [0, 10**400], {"0": 2, "1": 1})),
        *({"data": data} for data in (None, 5, "", "AAECAwQ", "AAECAwQ=", "AAECAw-F", "AAECAwQFAAEC")),
        *({"format": name} for name in (None, 1, "", "RAW", "png", "bmp", ["raw"], "x" * 100_000)),
        {"more": 1},
    ],
    ids=lambda change: repr(change)[:60],
)
def test_hostile_raw_images(change: dict[str, Any]) -> None:
    wrong = {**RAW_GOOD, **change}
    for attempt in (lambda: CODEC.decode(wrong), lambda: rich().decode(wrong)):
        with pytest.raises(ValueError, match=r".") as caught:
            attempt()
        assert len(str(caught.value)) < 500


def test_images_that_cannot_be_read_cannot_be_sent() -> None:
    cut = Image.open(io.BytesIO(file_of(GOOD, "png")[:-2000]))
    with pytest.raises(EncodeError, match=r"could not be encoded.* - at `\$\[0\]`"):
        CODEC.dumps([cut])


def png(*chunks: bytes, size: int = 1) -> bytes:
    """A PNG of so many grey pixels in a row, with these chunks before its pixels."""
    head = struct.pack(">IIBBBBB", size, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1 + size))
    return b"\x89PNG\r\n\x1a\n" + b"".join((chunk(b"IHDR", head), *chunks, chunk(b"IDAT", pixels), chunk(b"IEND", b"")))


def refusal(value: Any, codec: Codec) -> str:
    with pytest.raises(ValueError, match="image") as caught:
        codec.decode(value)
    return str(caught.value)


def test_the_pixels_of_a_message_are_counted_together() -> None:
    codec = Codec(max_image_pixels=10_000, max_message_pixels=25_000)
    image = sent(Image.new("L", (100, 100)))
    found: Any = codec.decode({"a": [image, {"b": image}]})
    assert found["a"][1]["b"].size == (100, 100)
    assert "more than 25000 pixels together (max_message_pixels)" in refusal([image, [image], {"c": image}], codec)
    codec.decode([image, image])  # each message has its own


def test_raw_and_qoi_and_bare_files_count_too() -> None:
    codec = Codec(max_image_pixels=10_000, max_message_pixels=15_000)
    raw = sent(Image.new("L", (100, 100)), RAW)
    assert "together" in refusal([raw, raw], codec)
    check = hint_checker(list[Image.Image], codec)
    text = text_of(Image.new("L", (100, 100)), "png")
    assert len(check([text])) == 1
    with pytest.raises(ValueError, match="pixels together"):
        check([text, text])


def test_small_images_count_as_what_opening_them_costs() -> None:
    codec = Codec(max_message_pixels=40_960, max_image_pixels=40_960)
    tiny = sent(Image.new("L", (1, 1)))
    assert len(codec.decode([tiny] * 10)) == 10  # type: ignore[arg-type]
    assert "together" in refusal([tiny] * 11, codec)


def test_one_image_may_be_as_large_as_the_limit_for_images_says() -> None:
    codec = Codec(max_image_pixels=10_000, max_message_pixels=5000)
    assert codec.decode(sent(Image.new("L", (100, 100))))


def test_parts_of_a_registered_type_count() -> None:
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    codec = Codec(max_image_pixels=10_000, max_message_pixels=15_000)
    codec.register(Pair, "pair", encode=vars, decode=lambda parts: Pair(**parts))
    image = sent(Image.new("L", (100, 100)))
    pair = {"$type": "pair", "left": image, "right": None}
    assert codec.rich_hint(Pair).decode(pair).left.size == (100, 100)  # type: ignore[union-attr]
    assert "together" in refusal({**pair, "right": image}, codec)


def test_inflated_text_counts_for_all_images_of_a_message() -> None:
    codec = Codec(max_image_metadata=290_000)
    packed = zlib.compress(bytes(100_000))
    for kind, body in [
        (b"zTXt", b"key\0\0" + packed),
        (b"iTXt", b"key\0\1\0en\0Key\0" + packed),
        (b"iCCP", b"name\0\0" + packed),
        (b"iTXt", b"key\0\0\0en\0Key\0" + bytes(100_000)),
        (b"tEXt", b"key\0" + b"a" * 100_000),
        (b"eXIf", bytes(100_000)),
        (b"teSt", bytes(100_000)),
    ]:
        image = tagged(png(chunk(kind, body)))
        assert len(codec.decode([image, image])) == 2  # type: ignore[arg-type]
        assert "more than 290000 bytes (max_image_metadata)" in refusal([image] * 3, codec)


def test_broken_compressed_text_counts_as_what_it_may_have_been() -> None:
    codec = Codec(max_image_metadata=300_000)
    packed = bytearray(zlib.compress(bytes(2_000_000)))
    packed[-6:] = b"broken"
    assert "max_image_metadata" in refusal(tagged(png(chunk(b"zTXt", b"key\0\0" + bytes(packed)))), codec)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("jpeg", file_of(Image.new("RGB", (9, 9)), "jpeg", comment=bytes(60_000))),
        ("jpeg", file_of(Image.new("RGB", (9, 9)), "jpeg", exif=b"Exif\0\0" + bytes(60_000))),
        ("jpeg", file_of(Image.new("RGB", (9, 9)), "jpeg", icc_profile=bytes(60_000))),
        ("webp", file_of(Image.new("RGB", (9, 9)), "webp", icc_profile=bytes(60_000))),
        ("webp", file_of(Image.new("RGB", (9, 9)), "webp", exif=bytes(60_000))),
        ("gif", file_of(Image.new("L", (9, 9)), "gif", comment=bytes(60_000))),
    ],
)
def test_metadata_of_every_format_counts(name: str, data: bytes) -> None:
    assert Codec(max_image_metadata=200_000).decode(tagged(data, name))
    assert "max_image_metadata" in refusal([tagged(data, name)] * 4, Codec(max_image_metadata=200_000))


def with_exif_directory(entries: int, count: int) -> bytes:
    """A JPEG whose EXIF has so many values, each of `count` bytes, which all are the same ones."""
    body = b"MM\0\x2a\0\0\0\x08" + struct.pack(">H", entries)
    body += b"".join(struct.pack(">HHLL", 0x8000 + n, 7, count, 8) for n in range(entries)) + bytes(4)
    plain = file_of(Image.new("L", (9, 9)), "jpeg").replace(b"\x01\x01\x00\x01\x00\x01", b"\x01\x01\x03\x00\x01\x00")
    exif = b"Exif\0\0" + body
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif + plain[2:]


def test_exif_values_that_lie_over_each_other_count_each() -> None:
    assert Codec(max_image_metadata=100_000).decode(tagged(with_exif_directory(1, 10), "jpeg"))
    assert "max_image_metadata" in refusal(
        tagged(with_exif_directory(5000, 50_000), "jpeg"), Codec(max_image_metadata=10_000_000)
    )


def test_scans_of_a_progressive_jpeg_cost_passes() -> None:
    plain = file_of(GOOD, "jpeg", progressive=True)
    scan = plain[plain.rindex(b"\xff\xda") : -2]
    assert CODEC.decode(tagged(plain[:-2] + scan * 30 + b"\xff\xd9", "jpeg"))
    assert "scans of 40 x 40 pixels" in refusal(tagged(plain[:-2] + scan * 100 + b"\xff\xd9", "jpeg"), CODEC)
    # What stands behind the end of the image, as in the pictures of some phones, is no scan.
    assert CODEC.decode(tagged(plain + scan * 100, "jpeg"))
    # A large one may have as many as encoders write, and no more.
    large = Codec(max_image_pixels=100_000, max_message_pixels=100_000)
    image = file_of(Image.effect_noise((310, 310), 50), "jpeg", progressive=True)
    scan = image[image.rindex(b"\xff\xda") : -2]
    assert large.decode(tagged(image, "jpeg"))
    assert "scans of 310 x 310" in refusal(tagged(image[:-2] + scan * 20 + b"\xff\xd9", "jpeg"), large)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", png(*[chunk(b"teSt", b"")] * 20_000)),
        ("png", png(*[chunk(b"IDAT", b"")] * 20_000)),
        ("jpeg", b"\xff\xd8" + b"\xff\xfe\0\x02" * 50_000 + file_of(GOOD, "jpeg")[2:]),
        ("jpeg", b"\xff\xd8\xff" + b"\0\xff" * 50_000 + file_of(GOOD, "jpeg")[2:]),
        ("gif", b"GIF89a\1\0\1\0\0\0\0" + b"!\xfe\1a\0" * 50_000 + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"),
        ("gif", b"GIF89a\1\0\1\0\0\0\0" + b"!\xfe" + b"\1a" * 50_000 + b"\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"),
        ("gif", b"GIF89a\1\0\1\0\0\0\0" + b"x" * 50_000 + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"),
        ("webp", file_of(GOOD, "webp") + b"XXXX\0\0\0\0" * 20_000),
    ],
)
def test_files_of_many_tiny_parts_are_refused(name: str, data: bytes) -> None:
    assert "too many parts for its length" in refusal(tagged(data, name), CODEC)


def test_only_the_first_picture_of_many_is_decoded() -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "green", "blue")] * 20
    codec = Codec(max_image_pixels=4096, max_message_pixels=4096)
    for name in ("png", "webp", "gif", "mpo"):
        data = file_of(frames[0], name, save_all=True, append_images=frames[1:])
        assert codec.decode(tagged(data, "jpeg" if name == "mpo" else name))


@settings(deadline=None, max_examples=example_count(200))
@given(st.sampled_from(["png", "jpeg", "gif", "webp"]), st.binary(max_size=200), st.data())
def test_files_of_any_structure_are_walked_through_to_an_end(name: str, rest: bytes, draw: Any) -> None:
    whole = file_of(Image.new("L", (8, 8)), name)
    at = draw.draw(st.integers(0, len(whole)))
    check_only_value_errors(tagged(whole[:at] + rest + whole[at:], name))
    image_weight([tagged(whole[:at] + rest, name), {"$type": "image", "data": 5}], CODEC.image_limits)
