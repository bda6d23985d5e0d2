"""Images over binary frames: which format costs the least there, and what is checked before their data is there."""

from __future__ import annotations

import io
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from PIL import Image

from rpcstream import Codec, ImageFile, ImageOptions, InvalidParams, MaxSide
from rpcstream.codec import payloads
from rpcstream.codec.image import decode_image
from rpcstream.codec.image_budget import INLINE_PIXELS, DecodeElsewhere, ImageBudget
from rpcstream.codec.image_files import image_weight
from rpcstream.methods.signature import Signature
from rpcstream.wire.buffers import AttachedMessage, is_own

rng = np.random.default_rng(6)
CODEC = Codec()
RAW_MODES = ["L", "LA", "La", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16", "I;16B"]


def noise(mode: str, size: tuple[int, int] = (120, 110)) -> Image.Image:
    return Image.frombytes(mode, size, rng.bytes(len(Image.new(mode, size).tobytes())))


def attached(value: Any, codec: Codec = CODEC) -> tuple[dict[str, Any], list[Any]]:
    """The message as the other end parses it, and the attachments in it, without their memory."""
    message = codec.serialize({"jsonrpc": "2.0", "method": "m", "params": [value]}, binary=True)
    assert isinstance(message, AttachedMessage)
    assert all(is_own(payload) for payload in message.payloads)  # nothing is copied before it is sent
    frame: Any = payloads.read_frame(message.json, tuple(map(len, message.payloads)), None, "server")
    assert frame.refusal is None
    parsed, line = frame.content
    return parsed["params"][0], [*zip(line.attachments, message.payloads, strict=True)]


def arrived(value: Any, codec: Codec = CODEC) -> tuple[dict[str, Any], Any]:
    """The tagged object as the other end has it, and the image that is decoded from it."""
    tagged, parts = attached(value, codec)
    for attachment, payload in parts:
        attachment.memory = np.frombuffer(payload, np.uint8).copy()
    return tagged, CODEC.decode(tagged)


@pytest.mark.parametrize("mode", RAW_MODES)
def test_pixels_go_raw(mode: str) -> None:
    image = noise(mode)
    tagged, found = arrived(image)
    assert tagged["format"] == "raw"
    assert (found.mode, found.size, found.tobytes()) == (mode, image.size, image.tobytes())
    found.putpixel((0, 0), found.getpixel((1, 1)))  # it has memory of its own


def test_one_bit_a_pixel() -> None:
    image = noise("1", (301, 201))
    tagged, found = arrived(image)
    assert (tagged["format"], found.tobytes()) == ("raw", image.tobytes())


@pytest.mark.parametrize("key", ["icc_profile", "exif", "transparency", "palette"])
def test_what_raw_pixels_would_lose_goes_as_png(key: str) -> None:
    image = noise("P" if key == "palette" else "RGB")
    if key == "palette":
        image.putpalette(rng.bytes(768))
    elif key == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6
        image.info["exif"] = exif.tobytes()
    else:
        image.info[key] = (1, 2, 3) if key == "transparency" else b"p" * 50
    tagged, found = arrived(image)
    assert tagged["format"] == "png"
    assert found.tobytes() == image.tobytes()
    assert found.getpalette() == image.getpalette()
    assert key == "palette" or found.info[key] == image.info[key]


def test_raw_pixels_do_not_make_a_message_too_large() -> None:
    image = Image.new("RGB", (100, 100))
    codec = Codec(max_image_file=100_000)
    for count, formats in ((1, ["raw"]), (2, ["raw", "raw"]), (4, ["raw", "raw", "png", "png"])):
        message = codec.serialize([image] * count, binary=True)
        assert [part["format"] for part in orjson.loads(bytes(message))] == formats
    assert b'"png"' in bytes(Codec(max_image_file=50_000).serialize([image], binary=True))


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "raw"])
def test_options_that_are_set_decide(name: Any) -> None:
    tagged, found = arrived(noise("RGB"), Codec(images=ImageOptions(format=name)))
    assert (tagged["format"], found.size) == (name, (120, 110))


def test_files_go_as_they_are(tmp_path: Any) -> None:
    out = io.BytesIO()
    noise("RGB").save(out, "jpeg", quality=95)
    (tmp_path / "a.jpg").write_bytes(out.getvalue())
    wanted = Image.open(io.BytesIO(out.getvalue()))
    for value in (Image.open(io.BytesIO(out.getvalue())), ImageFile(tmp_path / "a.jpg"), tmp_path / "a.jpg", out):
        tagged, found = arrived(value)
        assert (tagged["format"], bytes(tagged["data"].view())) == ("jpeg", out.getvalue())
        assert found.tobytes() == wanted.tobytes()


def test_over_text_png() -> None:
    photo = Image.fromarray(np.add.outer(np.arange(300), np.arange(400)).astype("u1"))
    for image in (photo, photo.convert("RGBA"), photo.convert("P"), photo.convert("1")):
        assert b'"format":"png"' in CODEC.dumps(image)
        assert len(CODEC.dumps(image)) < len(Codec(images=ImageOptions(format="raw")).dumps(image.convert("RGB"))) / 4


class TestBeforeTheDataIsThere:
    def check(self, value: Any, codec: Codec = CODEC) -> None:
        def method(image: Image.Image, other: Annotated[Image.Image | None, "another"] = None) -> None: ...

        Signature(method, method="method", codec=codec).check_announced([value])

    def test_what_is_in_order(self) -> None:
        for value in (noise("RGB"), noise("F"), io.BytesIO(png())):
            self.check(attached(value)[0])

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"size": [120, 111]}, "39600 bytes of data, mode and size need 39960"),
            ({"size": [9000, 9000]}, "9000 x 9000 pixels, the limit is 64000000"),
            ({"mode": "X"}, "mode must be one of"),
            ({"size": [1, True]}, r"size must be \[width, height\]"),
            ({"more": 1}, "unknown members: more"),
        ],
    )
    def test_what_is_not(self, change: dict[str, Any], text: str) -> None:
        tagged = {**attached(noise("RGB"))[0], **change}
        with pytest.raises(InvalidParams, match=rf"image: .*{text}"):
            self.check(tagged)

    def test_the_limits_of_the_codec_count(self) -> None:
        with pytest.raises(InvalidParams, match="120 x 110 pixels, the limit is 100"):
            self.check(attached(noise("RGB"))[0], Codec(max_image_pixels=100))

    def test_other_values_are_left_to_the_decoder(self) -> None:
        for value in (
            "text",
            None,
            5,
            {"$type": "ndarray"},
            {"$type": "image", "format": "x"},
            attached(noise("L"))[0],
        ):
            self.check(value)


def png(size: tuple[int, int] = (120, 110)) -> bytes:
    out = io.BytesIO()
    noise("RGB", size).save(out, "png")
    return out.getvalue()


def test_large_ones_go_to_a_thread() -> None:
    budget = ImageBudget(CODEC.image_limits, here=INLINE_PIXELS)
    for _ in range(3):  # raw pixels are only copied
        assert decode_image(arrived(noise("RGB", (640, 480)))[0], budget).size == (640, 480)
    with pytest.raises(DecodeElsewhere):
        decode_image(arrived(noise("L", (640, 480)))[0], budget)
    with pytest.raises(DecodeElsewhere):
        decode_image(arrived(io.BytesIO(png((400, 300))))[0], ImageBudget(CODEC.image_limits, here=INLINE_PIXELS))


def test_memory_is_reserved_for_them() -> None:
    assert image_weight([arrived(noise("RGB"))[0]], CODEC.image_limits) == 120 * 110 * 8
    tagged, _ = arrived(io.BytesIO(png()))
    for value in (tagged, tagged["data"]):
        assert image_weight([value], CODEC.image_limits) == 120 * 110 * 4
    _, ((attachment, _),) = attached(bytes(9000))
    attachment.memory = np.zeros(9000, np.uint8)
    assert image_weight([attachment], CODEC.image_limits) == 0


def test_a_wanted_size() -> None:
    tagged, _ = arrived(noise("RGB"))
    hint: Any = CODEC.rich_hint(Annotated[Image.Image, MaxSide(60)])
    assert hint.decode(tagged).size == (60, 55)
