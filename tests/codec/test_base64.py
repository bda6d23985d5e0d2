"""Payloads that are no base64: what they are taken for, and what their sender is told; data: URLs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Codec, Limits
from rpcstream.codec.hints import hint_checker
from rpcstream.codec.image_files import image_weight

from .values import file_of

codec = Codec()


def png(size: tuple[int, int] = (3, 2), form: str = "png") -> bytes:
    return file_of(Image.new("RGB", size, "red"), form)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


FILE = "it looks like the path of a file; send the bytes of the file as base64"


BYTES = bytes(range(256)) * 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cat.jpg", FILE),
        ("/home/me/cat.png", FILE),
        ("/home/me/my cats/cat", FILE),
        ("~/cat.jpeg", FILE),
        ("./cat", FILE),
        ("..\\cat", FILE),
        ("C:\\Users\\me\\cat", FILE),
        ("\\\\server\\share\\cat", FILE),
        ("my photo (1).webp", FILE),
        ("katze-ä.png", FILE),
        ("https://example.org/cat.png", "it is a URL, and nothing is fetched here; send the bytes"),
        ("file:///home/me/cat.png", "it is a URL, and nothing is fetched here; send the bytes"),
        (base64.urlsafe_b64encode(BYTES).decode(), "it is URL-safe base64; send the standard alphabet"),
        (base64.urlsafe_b64encode(BYTES).decode().rstrip("="), "it is URL-safe base64; send the standard alphabet"),
        (base64.encodebytes(BYTES).decode(), "it has line breaks or blanks; send it as one line without any"),
        (encoded(BYTES) + "\n", "it has line breaks or blanks; send it as one line without any"),
        (" " + encoded(BYTES), "it has line breaks or blanks; send it as one line without any"),
        (encoded(b"a").rstrip("="), "the padding ('=') at its end is missing or wrong"),
        ("A" * 9, "the padding ('=') at its end is missing or wrong"),
        ("AAAA\x1b[31m" + "A" * 9000, r"there is '\x1b' at position 4"),
        ("AAAA{AAA", "there is '{' at position 4"),
        ("AAAAäAAA", r"there is '\xe4' at position 4"),
        ("a" * 10_000 + ".png", "there is '.' at position 10000"),
        ("a" * 1_000_000 + ".png", "there is something else behind position 65536"),
        ("-" + "a" * 1_000_000, "it is URL-safe base64"),
        ("aaaa\n" * 100_000, "it has line breaks or blanks"),
    ],
    ids=lambda text: text[:24],
)
@pytest.mark.parametrize("hint", [Image.Image, bytes, np.ndarray], ids=["image", "bytes", "ndarray"])
def test_what_is_not_base64_is_told_what_to_send(hint: Any, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"the payload is not base64: ") as caught:
        hint_checker(hint, codec)(text)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "gif"])
def test_a_data_url_is_an_image(form: str) -> None:
    for head in (f"data:image/{form};base64,", f"DATA:Image/{form.upper()};Base64,"):
        image = hint_checker(Image.Image, codec)(head + encoded(png(form=form)))
        assert image.size == (3, 2)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/jpeg;base64," + encoded(png()), "the file is not jpeg"),
        ("data:image/bmp;base64," + encoded(png(form="bmp")), "of type 'image/bmp', and must be of one of image/png"),
        ("data:text/plain;base64," + encoded(png()), "of type 'text/plain', and must be"),
        ("data:png;base64," + encoded(png()), "must have the form data:TYPE/SUBTYPE;base64,PAYLOAD"),
        ("data:;base64," + encoded(png()), "of type '', and must be of one of"),
        ("data:image/png," + encoded(png()), "must have the form"),
        ("data:image/png;charset=utf-8;base64," + encoded(png()), "must have the form"),
        ("data:image/png;base64;" + encoded(png()), "must have the form"),
        ("data:", "must have the form"),
        ("data:image/" + "x" * 10_000 + ";base64,AAAA", "must have the form"),
        ("data:image/" + "x" * 100 + ";base64,AAAA", "of type 'image/xxxxxx"),
        ("data:image/png;base64, " + encoded(png()), "line breaks or blanks"),
        ("data:image/png;base64,", "the file is not png"),
    ],
    ids=lambda text: text[:40],
)
def test_data_urls_that_are_no_image(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        hint_checker(Image.Image, codec)(url)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 250


def test_an_image_in_a_data_url_is_under_the_limits() -> None:
    url = "data:image/png;base64," + encoded(png((100, 100)))
    small = Codec.of(Limits(max_image_pixels=9_999))
    with pytest.raises(ValueError, match="the limit is 9999"):
        hint_checker(Image.Image, small)(url)
    for form in ("png", "jpeg", "webp"):
        plain = encoded(png((100, 100), form))
        for head in ("data:", "Data:"):
            in_url = f"{head}image/{form};base64,{plain}"
            assert image_weight([in_url], codec.image_limits) == image_weight([plain], codec.image_limits) > 10_000


def test_a_data_url_is_bytes_of_any_type() -> None:
    check = hint_checker(bytes, codec)
    for kind in ("application/octet-stream", "text/plain", "image/svg+xml", ""):
        assert check(f"data:{kind};base64,{encoded(BYTES)}") == BYTES
    assert hint_checker(bytearray, codec)("data:;base64,eA==") == bytearray(b"x")
    for wrong in ("data:text/plain,hello", "data:;base64,e A==", "data:text/plain;charset=utf-8;base64,eA=="):
        with pytest.raises(ValueError, match=r"data: URL must have|not base64"):
            check(wrong)
    # Where text is asked for as well, it is text.
    assert hint_checker(bytes | str, codec)("data:;base64,eA==") == "data:;base64,eA=="
