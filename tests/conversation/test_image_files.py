"""Image files as arguments and results of calls, and images that are reduced. (All sources of images: tests/codec.)"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Client, EncodeError, ImageFile, InternalError, InvalidParams, MaxSide, Server
from rpcstream.testing import serve_in_thread

SIZES = {"a.jpg": (120, 90), "a.png": (120, 90), "large.jpg": (400, 300), "large.png": (400, 300)}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_image_files_of_every_size(tmp_path: Path, *, binary: bool) -> None:
    noise = np.random.default_rng(5).integers(0, 255, (300, 400, 3), "u1")
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, (width, height) in SIZES.items():
        Image.fromarray(noise[:height, :width]).save(tmp_path / name, exif=exif, quality=90)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    server = Server()

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def orientation(photo: Image.Image) -> list[int]:
        return [*photo.size, photo.getexif().get(0x0112, 0)]

    @server
    def stored(name: str) -> Image.Image:
        return tmp_path / name  # type: ignore[return-value]

    @server
    def opened(name: str) -> Image.Image:
        return Image.open(tmp_path / name)

    @server
    def thumbnail(photo: Annotated[Image.Image, MaxSide(40)], others: list[Any] | None = None) -> Any:
        return photo.size

    @server
    async def lines(texts: AsyncIterator[str]) -> list[str]:
        return [text async for text in texts]

    with serve_in_thread(server) as address, Client(address, binary=binary) as client:
        client.echo(np.zeros(5000))  # frames from now on, where they may be
        for name, size in SIZES.items():
            path = tmp_path / name
            with path.open("rb") as file, Image.open(path) as image:
                for value in (ImageFile(path), path, file, image):
                    assert client.orientation(photo=value) == [*size, 6]
                    assert client.echo({"a": [value]})["a"][0].getexif()[0x0112] == 6
                for method in ("stored", "opened"):
                    found = client.call(method, name, returns=Image.Image)
                    assert (found.size, found.tobytes()) == (size, image.tobytes())
            # Beside a parameter that takes anything, all are decoded first.
            assert client.thumbnail(path) == client.thumbnail(path, [path]) == [40, 30]
        assert client.call("stored", "a.png", returns=Annotated[Image.Image, MaxSide(20)]).size == (20, 15)
        with pytest.raises(TypeError, match="returns="):
            client.call("stored", "large.png", returns=int)
        with pytest.raises(InternalError) as caught:
            client.stored("none.png")
        assert "none.png" not in str(caught.value)
        with (tmp_path / "a.txt").open("rb") as file:
            with pytest.raises(EncodeError, match=r"is not an image file .*, or its lines with a generator"):
                client.lines(file)
            assert file.tell() == 0
            with pytest.raises(InvalidParams):  # bytes are no text: but they are sent one by one
                client.lines(line for line in file)
        with (tmp_path / "a.txt").open() as text:
            assert client.lines(text) == ["one\n", "two\n"]
