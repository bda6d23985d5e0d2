"""Payloads that are no base64: what their sender is told; data: URLs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Codec, Limits

from .values import CODEC, encoded, file_of, taken

FILE = "it looks like the path of a file; send the bytes of the file as base64"
BYTES = bytes(range(256)) * 3
PNG = encoded(file_of(Image.new("RGB", (3, 2), "red"), "png"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((path, FILE) for path in ("cat.jpg", "/home/me/my cats/cat", "./cat", "C:\\me\\cat", "katze-ä.png")),
        *((f"{kind}://example.org/cat.png", "it is a URL, and nothing is fetched here") for kind in ("https", "file")),
        (base64.urlsafe_b64encode(BYTES).decode(), "it is URL-safe base64; send the standard alphabet"),
        *(
            (text, "it has line breaks or blanks")
            for text in (base64.encodebytes(BYTES).decode(), " " + encoded(BYTES))
        ),
        *((text, "the padding ('=') at its end is missing or wrong") for text in ("YQ", "A" * 9)),
        ("AAAA\x1b[31m" + "A" * 9000, r"there is '\x1b' at position 4"),
        ("a" * 1_000_000 + ".png", "there is something else behind position 65536"),
        *(("-" + "a" * 1_000_000, "it is URL-safe base64"), ("aaaa\n" * 100_000, "it has line breaks or blanks")),
    ],
    ids=lambda text: text[:24],
)
def test_what_is_not_base64_is_told_what_to_send(text: str, reason: str) -> None:
    for hint in (Image.Image, bytes, np.ndarray):
        with pytest.raises(ValueError, match=r"the payload is not base64: ") as caught:
            taken(hint, text)
        assert reason in str(caught.value)
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", ["YW I=", "YWI=\n", "\nYWI=", "YWJ=", "YR==", "Y===", "====", "YQ==YQ==", "Y\0Q=", "="]
)
def test_base64_is_strict(text: str) -> None:
    for value in (
        {"$type": "bytes", "data": text},
        {"$type": "ndarray", "dtype": "|u1", "shape": [2], "data": text},
        {"$type": "image", "format": "png", "data": text},
        {"$type": "image", "format": "raw", "mode": "L", "size": [2, 1], "data": text},
    ):
        with pytest.raises(ValueError, match=r"- at `\$`"):
            CODEC.decode(value)


@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "gif"])
def test_a_data_url_is_an_image_under_the_limits(form: str) -> None:
    plain = encoded(file_of(Image.new("RGB", (100, 100)), form))
    for head in (f"data:image/{form};base64,", f"DATA:Image/{form.upper()};Base64,"):
        assert taken(Image.Image, head + plain).size == (100, 100)
        assert CODEC.image_weight([head + plain]) == CODEC.image_weight([plain]) > 10_000
        with pytest.raises(ValueError, match="the limit is 9999"):
            taken(Image.Image, head + plain, Codec.of(Limits(max_image_pixels=9_999)))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/jpeg;base64," + PNG, "the file is not jpeg"),
        ("data:image/bmp;base64," + PNG, "of type 'image/bmp', and must be of one of image/png"),
        ("data:;base64," + PNG, "of type '', and must be of one of"),
        *((f"data:{head}{PNG}", "must have the form") for head in ("png;base64,", "image/png,", "image/png;base64;")),
        *((url, "must have the form") for url in ("data:", "data:image/" + "x" * 10_000 + ";base64,AAAA")),
        ("data:image/png;base64, " + PNG, "line breaks or blanks"),
        ("data:image/png;base64,", "the file is not png"),
    ],
    ids=lambda text: text[:40],
)
def test_data_urls_that_are_no_image(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        taken(Image.Image, url)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_data_url_is_bytes_of_any_type() -> None:
    for kind in ("application/octet-stream", "text/plain", "image/svg+xml", ""):
        assert taken(bytes, f"data:{kind};base64,{encoded(BYTES)}") == BYTES
    for wrong in ("data:text/plain,hello", "data:;base64,e A==", "data:text/plain;charset=utf-8;base64,eA=="):
        with pytest.raises(ValueError, match=r"data: URL must have|not base64"):
            taken(bytes, wrong)
    value: Any = "data:;base64,eA=="
    assert taken(bytes | str, value) == value  # where text is asked for as well, it is text
