"""Image files that are sent as they are: which opened images qualify, and which files are taken for images."""

from __future__ import annotations

import base64
import gc
import gzip
import io
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps, PngImagePlugin

from rpcstream import Codec, EncodeError, ImageFile, ImageOptions

from ..kit.example_count import example_count
from .images import CODEC, file_of, noise, sent

FORMATS = {"png": "1 L LA P RGB RGBA I;16", "jpeg": "L RGB CMYK", "gif": "L P", "webp": "RGB RGBA"}
KINDS = [(name, mode) for name, modes in FORMATS.items() for mode in modes.split()]


def data_of(tagged: dict[str, Any]) -> bytes:
    return base64.b64decode(tagged["data"])


def assert_equal(found: Any, wanted: Image.Image) -> None:
    """Pixels, mode, size and metadata are equal. (Both are loaded: some formats have text behind the pixels.)"""
    wanted.load()
    assert (found.mode, found.size, found.tobytes()) == (wanted.mode, wanted.size, wanted.tobytes())
    assert found.getpalette() == wanted.getpalette()
    assert found.info == wanted.info
    assert dict(found.getexif()) == dict(wanted.getexif())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a photo with EXIF and a profile."""
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = tmp_path / "a.jpg"
    photo.write_bytes(file_of(noise("RGB", (40, 30)), "jpeg", exif=exif, icc_profile=b"p" * 99, dpi=(300, 300)))
    return photo


metadata = st.fixed_dictionaries(
    {},
    optional={
        "exif": st.binary(min_size=1, max_size=40).map(lambda text: _with_artist(text)),
        "icc_profile": st.binary(min_size=1, max_size=200),
        "dpi": st.tuples(st.integers(1, 900), st.integers(1, 900)),
        "comment": st.binary(min_size=1, max_size=90).filter(lambda text: b"\0" not in text),
        "xmp": st.binary(min_size=1, max_size=90),
        "progressive": st.booleans(),
    },
)


def _with_artist(text: bytes) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = len(text) % 8 + 1
    exif[0x013B] = text.hex()
    return exif.tobytes()


def saved(image: Image.Image, name: str, extra: dict[str, Any]) -> bytes:
    options = dict(extra)
    if name == "png" and "comment" in options:
        text = PngImagePlugin.PngInfo()
        text.add_text("Comment", options.pop("comment").hex(), zip=True)
        options["pnginfo"] = text
    if name == "webp":
        options["lossless"] = options.pop("progressive", False)
    return file_of(image, name, **options)


@settings(deadline=None, max_examples=example_count(120))
@given(st.sampled_from(KINDS), st.integers(1, 30), st.integers(1, 30), metadata, st.booleans())
def test_an_opened_image_arrives_as_opening_its_file_here_gives_it(
    kind: tuple[str, str], width: int, height: int, extra: dict[str, Any], on_disk: bool
) -> None:
    name, mode = kind
    data = saved(noise(mode, (width, height)), name, extra)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with Image.open(file.name if on_disk else io.BytesIO(data)) as opened:
            tagged = sent(opened)
            assert tagged["format"] == name
            assert data_of(tagged) == data
            assert_equal(CODEC.decode(tagged), Image.open(io.BytesIO(data)))
            # What is left is as if it had not been sent.
            assert_equal(opened, Image.open(io.BytesIO(data)))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "putpixel": lambda image: image.putpixel((0, 0), 1),
    "load": lambda image: image.load(),
    "convert": lambda image: image.convert("L"),
    "crop": lambda image: image.crop((0, 0, 2, 2)),
    "transpose": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "exif_transpose": lambda image: ImageOps.exif_transpose(image, in_place=True),
    "draft": lambda image: image.draft("L", (4, 4)),
    "thumbnail": lambda image: image.thumbnail((4, 4), reducing_gap=None),
    "seek": lambda image: image.seek(0),
    "n_frames": lambda image: getattr(image, "n_frames", 1),
    "is_animated": lambda image: getattr(image, "is_animated", False),
    "info": lambda image: image.info.update(dpi=(1, 2)),
    "no info": lambda image: image.info.clear(),
    "getexif": lambda image: image.getexif(),
    "bounds": lambda image: image.getbbox(),
    "paste": lambda image: image.paste(1, (0, 0, 4, 4)) if image.mode == "L" else None,
    "alpha": lambda image: image.putalpha(7) if image.mode in ("L", "RGB") else None,
    "new exif": lambda image: image.info.update(exif=_with_artist(b"me")),
    "copy": lambda image: image.copy(),
    "line": lambda image: ImageDraw.Draw(image).line((0, 0, 3, 3), fill=1),
    "palette": lambda image: image.putpalette(bytes(768)) if image.mode in ("L", "P") else None,
}


@settings(deadline=None, max_examples=example_count(120))
@given(st.sampled_from(KINDS), metadata, st.lists(st.sampled_from(sorted(CHANGES)), max_size=3))
def test_whatever_was_done_to_an_image_its_pixels_arrive(
    kind: tuple[str, str], extra: dict[str, Any], changes: list[str]
) -> None:
    name, mode = kind
    data = saved(noise(mode, (16, 12)), name, extra)

    def changed() -> Image.Image:
        image: Image.Image = Image.open(io.BytesIO(data))
        for change in changes:
            found = CHANGES[change](image)
            image = found if isinstance(found, Image.Image) else image
        return image

    tagged = sent(changed())
    found: Any = CODEC.decode(tagged)
    wanted = changed()
    wanted.load()
    assert (found.mode, found.size, found.tobytes()) == (wanted.mode, wanted.size, wanted.tobytes())
    if tagged["format"] != "raw":  # as CMYK goes once it was touched
        assert found.info.get("icc_profile") == wanted.info.get("icc_profile")
        assert exif_in(found) == exif_in(wanted)


def exif_in(image: Image.Image) -> dict[int, Any]:
    """What the bytes in its `info` say. (`getexif` keeps what they said before.)"""
    exif = Image.Exif()
    exif.load(image.info.get("exif", b""))
    return dict(exif)


class TestOpened:
    @pytest.mark.parametrize("name", ["png", "jpeg", "gif"])
    def test_again_and_again_without_being_read(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "a").write_bytes(data := file_of(noise("L"), name))
        with Image.open(tmp_path / "a") as image:
            before = image.fp.tell()
            for _ in range(3):
                assert data_of(sent(image)) == data
            assert image.fp.tell() == before
            assert image.tile
            assert_equal(image, Image.open(io.BytesIO(data)))

    def test_its_file_is_closed_with_it(self, path: Path) -> None:
        """No ResourceWarning, which is an error in these tests; reading the pixels would have closed it."""
        file = Image.open(path)
        inner = file.fp
        for _ in range(2):
            assert sent(file)["format"] == "jpeg"
        assert not inner.closed
        del file
        gc.collect()
        assert inner.closed

    def test_the_file_that_was_opened_counts_and_not_the_one_of_that_name(self, path: Path) -> None:
        data = path.read_bytes()
        other = path.with_name("b")
        other.write_bytes(file_of(noise("RGB", (40, 30)), "jpeg"))
        with Image.open(path) as image:
            other.rename(path)
            assert data_of(sent(image)) == data
        with Image.open(path) as image:
            path.unlink()
            assert sent(image)["format"] == "jpeg"

    @pytest.mark.parametrize("mode", ["L", "RGB"])
    def test_a_file_that_has_another_picture_now(self, path: Path, mode: str) -> None:
        """Pillow reads the pixels when they are first needed: it gets parts of both, or what it cannot decode."""
        with Image.open(path) as image:
            path.write_bytes(second := file_of(noise(mode, (30, 40)), "jpeg"))
            try:
                data = data_of(sent(image))
            except EncodeError:
                data = b""
        assert data != second

    @pytest.mark.parametrize("size", [(9, 7), (300, 200)])
    def test_a_webp_that_is_written_over_in_place(self, tmp_path: Path, size: tuple[int, int]) -> None:
        """Pillow has read it as a whole: the image is the first one, however alike the second one is."""
        name = tmp_path / "a.webp"
        first, second = (Image.new("RGB", size, colour) for colour in ("#102030", "#102032"))
        name.write_bytes(file_of(first, "webp", lossless=True))
        with Image.open(name) as image:
            name.write_bytes(file_of(second, "webp", lossless=True))
            tagged = sent(image)
        assert tagged["format"] == "png"
        assert CODEC.decode(tagged).tobytes() == first.tobytes()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["gif", "png", "webp"])
def test_animations_are_encoded_whichever_frame_they_show(name: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if name == "webp" else {}
    data = file_of(frames[0], name, save_all=True, append_images=frames[1:], duration=100, **options)
    for frame, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
        image = Image.open(io.BytesIO(data))
        image.seek(frame)
        tagged = sent(image)
        assert data_of(tagged) != data
        found: Any = CODEC.decode(tagged)
        assert found.convert("RGB").getpixel((0, 0)) == colour
    image.seek(0)  # and back again
    assert data_of(sent(image)) != data


def test_formats_that_do_not_go_over_the_wire(tmp_path: Path) -> None:
    for name in ("tiff", "bmp", "ppm"):
        (tmp_path / name).write_bytes(file_of(noise("RGB"), name))
        assert sent(Image.open(tmp_path / name))["format"] == "png"


def test_the_limits_of_this_end_are_taken_for_those_of_the_other_one() -> None:
    data = file_of(noise("RGB", (100, 50)), "jpeg", comment=b"c" * 5000)
    for codec in (Codec(max_image_pixels=4999, max_message_pixels=1), Codec(max_image_metadata=5000)):
        assert sent(Image.open(io.BytesIO(data)), codec)["format"] == "png"
    assert sent(Image.open(io.BytesIO(data)), Codec(max_image_file=len(data)))["format"] == "jpeg"
    assert sent(Image.open(io.BytesIO(data)), Codec(max_image_file=len(data) - 1))["format"] == "png"


def test_options_that_are_set_decide() -> None:
    jpeg, png, webp = (file_of(noise("RGB", (40, 30)), name) for name in ("jpeg", "png", "webp"))

    def passes(data: bytes, **options: Any) -> bool:
        return data_of(sent(Image.open(io.BytesIO(data)), Codec(images=ImageOptions(**options)))) == data

    assert passes(jpeg, format="jpeg")
    assert passes(png, format="png")
    assert passes(webp, format="webp", lossless=True)
    assert not passes(jpeg, format="jpeg", quality=50)
    assert not passes(png, format="png", compression=9)
    assert passes(png, compression=0)  # which is for those that must be encoded
    assert not any(passes(data, format="raw") for data in (jpeg, png, webp))
    assert not passes(jpeg, format="png")


class _Zipped(io.BytesIO):
    """An object that is read in its own way."""


def test_files_that_cannot_be_read_again_for_certain(tmp_path: Path) -> None:
    data = file_of(noise("RGB"), "jpeg")
    (tmp_path / "a.jpg").write_bytes(data)
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    with (
        gzip.open(tmp_path / "a.gz") as zipped,
        (tmp_path / "a.jpg").open("r+b") as both,
        tempfile.TemporaryFile() as other,
        (tmp_path / "a.jpg").open("rb", buffering=0) as unbuffered,
    ):
        other.write(data)
        for file in (zipped, both, other, unbuffered, _Zipped(data)):
            assert sent(Image.open(file))["format"] == "png"  # type: ignore[arg-type]


class TestGiven:
    """An `ImageFile`, a path, an open file."""

    def test_goes_as_it_is(self, path: Path) -> None:
        data = path.read_bytes()
        path.with_suffix(".gz").write_bytes(gzip.compress(data))
        with (
            path.open("rb") as plain,
            path.open("r+b") as both,
            path.open("rb", buffering=0) as unbuffered,
            gzip.open(path.with_suffix(".gz")) as zipped,
            tempfile.SpooledTemporaryFile() as spooled,
            tempfile.NamedTemporaryFile() as named,
        ):
            spooled.write(data)
            named.write(data)
            files: list[Any] = [plain, both, unbuffered, zipped, spooled, named, io.BytesIO(data)]
            for value in (ImageFile(path), ImageFile(str(path)), path, *files):
                if value in files:
                    value.seek(3)
                for codec in (CODEC, Codec(images=ImageOptions(format="jpeg", quality=5))):
                    assert data_of(sent(value, codec)) == data
                assert value not in files or value.tell() == 3
                rich: Any = CODEC.rich_hint(Image.Image)
                assert rich.accept(value) is value

    @pytest.mark.parametrize(("name", "mode"), [("png", "I;16"), ("gif", "P"), ("webp", "RGBA")])
    def test_in_each_format(self, tmp_path: Path, name: str, mode: str) -> None:
        (tmp_path / "a").write_bytes(data := file_of(noise(mode), name))
        tagged = sent(tmp_path / "a")
        assert (tagged["format"], data_of(tagged)) == (name, data)
        assert_equal(CODEC.decode(tagged), Image.open(io.BytesIO(data)))

    def test_what_is_no_image_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("hello")
        (tmp_path / "a.tiff").write_bytes(file_of(noise("L"), "tiff"))
        (tmp_path / "empty").touch()
        for name in ("a.txt", "a.tiff", "empty"):
            with pytest.raises(
                EncodeError, match=rf"{name}' is not an image file .*png, jpeg.*open it with PIL.Image.open"
            ):
                sent(tmp_path / name)
            with (
                (tmp_path / name).open("rb") as file,
                pytest.raises(EncodeError, match=r"the open file is not .*read\(\)"),
            ):
                sent(file)
        with (tmp_path / "a.txt").open() as text, pytest.raises(EncodeError, match="no form on the wire"):
            sent(text)
        with tempfile.NamedTemporaryFile("w+") as file, pytest.raises(EncodeError, match="open it with 'rb'"):
            sent(file)

    def test_what_is_no_regular_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(EncodeError, match="is not a regular file"):  # and does not wait for a writer
            sent(tmp_path / "fifo")
        with pytest.raises(EncodeError, match="is not a regular file"):
            sent(Path("/dev/zero"))
        with open("/dev/zero", "rb") as zeros, pytest.raises(EncodeError, match="is not a regular file"):
            sent(zeros)
        with pytest.raises(EncodeError, match=r"(is a|Is a) directory"):
            sent(tmp_path)
        with pytest.raises(EncodeError, match="No such file"):
            sent(ImageFile(tmp_path / "none.png"))
        here, there = socket.socketpair()
        with here, there, here.makefile("rb") as stream, pytest.raises(EncodeError, match="from its beginning"):
            sent(stream)
        read, write = os.pipe()
        os.close(write)
        with open(read, "rb") as pipe, pytest.raises(EncodeError, match="is not a regular file"):
            sent(pipe)
        closed = io.BytesIO(b"")
        closed.close()
        with pytest.raises(EncodeError, match="closed"):
            sent(closed)

    def test_files_over_the_limit_are_not_read(self, path: Path) -> None:
        size = path.stat().st_size
        codec = Codec(max_image_file=size - 1)
        zipped = io.BytesIO(gzip.compress(path.read_bytes()))
        with path.open("rb") as file, gzip.open(zipped) as inflated:
            for value in (path, ImageFile(path), file, io.BytesIO(path.read_bytes()), inflated):
                with pytest.raises(EncodeError, match=r"limit is|more than"):
                    sent(value, codec)
                assert sent(value, Codec(max_image_file=size))["format"] == "jpeg"
