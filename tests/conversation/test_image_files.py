"""Image files as arguments and results of calls. (All sources of images, and how they are reduced: tests/codec.)"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Client, ImageFile, MaxSide, Server
from rpcstream.errors import InternalError
from rpcstream.testing import serve_in_thread

SIZES = {"a.jpg": (12, 9), "a.png": (12, 9), "large.jpg": (200, 150), "large.png": (200, 150)}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_image_files_of_every_size(tmp_path: Path, *, binary: bool) -> None:
    noise = np.random.default_rng(5).integers(0, 255, (150, 200, 3), "u1")
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, (width, height) in SIZES.items():
        Image.fromarray(noise[:height, :width]).save(tmp_path / name, exif=exif, quality=90)
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
        assert client.call("stored", "a.png", returns=Annotated[Image.Image, MaxSide(4)]).size == (4, 3)
        with pytest.raises(InternalError) as caught:
            client.stored("none.png")
        assert "none.png" not in str(caught.value)
