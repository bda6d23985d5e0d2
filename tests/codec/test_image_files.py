"""Image files that are sent as they are: which opened images qualify, and which files are taken for images."""

from __future__ import annotations

import base64
import gc
import gzip
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps, PngImagePlugin

from rpcstream import Codec, ImageFile, ImageOptions
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .values import CODEC, file_of, noise, returned, same, sent

FORMATS = {"png": "1 L LA P RGB RGBA I;16", "jpeg": "L RGB CMYK", "gif": "L P", "webp": "RGB RGBA"}
KINDS = [(name, mode) for name, modes in FORMATS.items() for mode in modes.split()]


def data_of(tagged: dict[str, Any]) -> bytes:
    return base64.b64decode(tagged["data"])


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def assert_equal(found: Any, wanted: Image.Image) -> None:
    """Pixels, mode, size and metadata are equal. (Both are loaded: some formats have text behind the pixels.)"""
    wanted.load()
    assert (found.mode, found.size, found.tobytes()) == (wanted.mode, wanted.size, wanted.tobytes())
    assert found.getpalette() == wanted.getpalette()
    # Where a JPEG says its resolution in EXIF only, that is not looked up.
    assert found.info | {"dpi": 0} == wanted.info | {"dpi": 0}
    assert dict(found.getexif()) == dict(wanted.getexif())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a photo with EXIF and a profile."""
    (tmp_path / "a.jpg").write_bytes(
        file_of(noise("RGB", (40, 30)), "jpeg", exif=_with_artist(b"me"), icc_profile=b"p" * 99, dpi=(300, 300))
    )
    return tmp_path / "a.jpg"


metadata = st.fixed_dictionaries(
    {},
    optional={
        "exif": st.binary(min_size=1, max_size=40).map(lambda text: _with_artist(text)),
        "icc_profile": st.binary(min_size=1, max_size=200),
        "dpi": st.tuples(st.integers(1, 900), st.integers(1, 900)),
        "comment": st.binary(min_size=1, max_size=90).filter(lambda text: b"\0" not in text),
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
        with Image.open(file.name if on_disk else io.BytesIO(data)) as image:
            for _ in range(1 if name == "webp" else 2):
                tagged = sent(image)
                assert tagged["format"] == name
                assert data_of(tagged) == data
            assert_equal(CODEC.decode(tagged), opened(data))
            assert_equal(image, opened(data))  # as if it had not been sent


CHANGES: dict[str, Callable[[Any], Any]] = {
    "putpixel": lambda image: image.putpixel((0, 0), 1),
    "load": lambda image: image.load(),
    "convert": lambda image: image.convert("L"),
    "crop": lambda image: image.crop((0, 0, 2, 2)),
    "exif_transpose": lambda image: ImageOps.exif_transpose(image, in_place=True),
    "draft": lambda image: image.draft("L", (4, 4)),
    "thumbnail": lambda image: image.thumbnail((4, 4), reducing_gap=None),
    "seek": lambda image: image.seek(0),
    "n_frames": lambda image: getattr(image, "n_frames", 1),
    "info": lambda image: image.info.update(dpi=(1, 2), exif=_with_artist(b"me")),
    "no info": lambda image: image.info.clear(),
    "getexif": lambda image: image.getexif(),
    "alpha": lambda image: image.putalpha(7) if image.mode in ("L", "RGB") else None,
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
        image = opened(data)
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


def test_an_opened_file_is_neither_read_nor_closed_nor_left_open(path: Path) -> None:
    """No ResourceWarning, which is an error in these tests; reading the pixels would have closed it."""
    data = path.read_bytes()
    image = Image.open(path)
    file, before = image.fp, image.fp.tell()
    path.unlink()  # what was opened counts, and not the one of that name
    path.write_bytes(file_of(noise("RGB", (40, 30)), "jpeg"))
    for _ in range(3):
        assert data_of(sent(image)) == data
    assert (file.tell(), file.closed) == (before, False)
    assert image.tile
    del image
    gc.collect()
    assert file.closed


@pytest.mark.parametrize("name", ["gif", "png", "webp"])
def test_of_an_animation_goes_the_frame_at_hand(name: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if name == "webp" else {}
    image = opened(file_of(frames[0], name, save_all=True, append_images=frames[1:], duration=100, **options))
    for frame, colour in ((0, (255, 0, 0)), (1, (0, 255, 0)), (2, (0, 0, 255)), (0, (255, 0, 0))):
        image.seek(frame)
        found: Any = CODEC.decode(sent(image))
        assert found.convert("RGB").getpixel((0, 0)) == colour


PHOTO = file_of(noise("RGB", (100, 50)), "jpeg", comment=b"c" * 5000)


@pytest.mark.parametrize(
    ("data", "options", "goes"),
    [
        *((PHOTO, {"max_image_file": len(PHOTO) - less}, not less) for less in (0, 1)),
        *((PHOTO, {"images": ImageOptions(format=name)}, name == "jpeg") for name in ("raw", "jpeg", "png")),
        (PHOTO, {"images": ImageOptions(format="jpeg", quality=50)}, False),
        (file_of(noise("RGB"), "webp"), {"images": ImageOptions(format="webp", lossless=True)}, True),
        (file_of(noise("RGB"), "bmp"), {}, False),
    ],
)
def test_limits_and_options_decide_whether_a_file_goes(data: bytes, options: dict[str, Any], goes: bool) -> None:
    tagged = sent(opened(data), Codec(**options))
    assert (data_of(tagged) == data) is goes
    assert Codec().decode(tagged).size == opened(data).size  # type: ignore[attr-defined]


def test_paths_and_open_files_go_as_they_are(path: Path) -> None:
    data = path.read_bytes()
    path.with_suffix(".gz").write_bytes(gzip.compress(data))
    with (
        path.open("rb") as plain,
        gzip.open(path.with_suffix(".gz")) as zipped,
        path.open("rb", buffering=0) as unbuffered,
        tempfile.SpooledTemporaryFile() as spooled,
    ):
        spooled.write(data)
        for value in (
            path,
            ImageFile(path),
            ImageFile(str(path)),
            io.BytesIO(data),
            plain,
            zipped,
            unbuffered,
            spooled,
        ):
            if hasattr(value, "seek"):
                value.seek(3)
            assert data_of(sent(value, Codec(images=ImageOptions(format="jpeg", quality=5)))) == data
            assert not hasattr(value, "tell") or value.tell() == 3
            assert returned(Image.Image, value) is value
            assert data_of(sent(value, Codec(max_image_file=len(data)))) == data
            with pytest.raises(EncodeError, match=r"limit is|more than"):  # and it is not read
                sent(value, Codec(max_image_file=len(data) - 1))
        for file in (zipped, unbuffered, spooled):  # which cannot be read again for certain
            file.seek(0)
            assert same(CODEC.decode(sent(Image.open(file))), opened(data))


def test_what_is_no_image_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    os.mkfifo(tmp_path / "fifo")
    closed = io.BytesIO()
    closed.close()
    with (
        open("/dev/zero", "rb") as zeros,
        (tmp_path / "a.txt").open("rb") as file,
        (tmp_path / "a.txt").open() as text,
        tempfile.NamedTemporaryFile("w+") as written,
    ):
        for value, reason in (
            (tmp_path / "a.txt", "a.txt' is not an image file .*png, jpeg"),
            *(
                (file, "the open file is not .*or send its bytes"),
                (text, "opened with 'rb'"),
                (written, "opened with 'rb'"),
            ),
            (tmp_path / "fifo", "is not a regular file"),  # and does not wait for a writer
            *((Path("/dev/zero"), "is not a regular file"), (zeros, "more than")),
            *((tmp_path, "is not a regular file"), (ImageFile(tmp_path / "none.png"), "No such file")),
            (closed, "closed"),
        ):
            with pytest.raises(EncodeError, match=reason):
                sent(value)
