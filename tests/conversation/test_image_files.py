"""Image files as arguments and results of calls, and images that are reduced, through both clients."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import AsyncClient, Client, EncodeError, ImageFile, InternalError, InvalidParams, MaxSide, Server
from rpcstream.testing import serve_in_thread

rng = np.random.default_rng(5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    noise = Image.fromarray(rng.integers(0, 255, (90, 120, 3), "u1"))
    exif = Image.Exif()
    exif[0x0112] = 6
    noise.save(folder / "a.jpg", exif=exif, quality=90)
    noise.save(folder / "a.png")
    for name in ("large.jpg", "large.png"):
        noise.resize((1000, 700)).save(folder / name)
    (folder / "a.txt").write_text("one\ntwo\n")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    server = Server()

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def orientation(photo: Image.Image) -> list[int]:
        return [*photo.size, photo.getexif().get(0x0112, 0)]

    @server
    def stored(name: str) -> Image.Image:
        return folder / name  # type: ignore[return-value]

    @server
    def opened(name: str) -> Image.Image:
        return Image.open(folder / name)

    @server
    def thumbnail(photo: Annotated[Image.Image, MaxSide(40)], others: list[Any] | None = None) -> Any:
        return [photo.size, photo.getexif().get(0x0112, 0)]

    @server
    def preview(name: str) -> Annotated[Image.Image, MaxSide(32)]:
        return Image.open(folder / name)

    @server
    async def lines(texts: AsyncIterator[str]) -> list[str]:
        return [text async for text in texts]

    with serve_in_thread(server) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def test_arguments(client: Client, folder: Path) -> None:
    path = folder / "a.jpg"
    with path.open("rb") as file, Image.open(path) as image:
        for value in (ImageFile(path), ImageFile(str(path)), path, file, image, io.BytesIO(path.read_bytes())):
            assert client.orientation(photo=value) == [120, 90, 6]
            assert client.orientation(value) == [120, 90, 6]
        found = client.echo({"a": [path, file, image]})
        assert [each.getexif()[0x0112] for each in found["a"]] == [6, 6, 6]


async def test_arguments_of_the_async_client(address: str, folder: Path) -> None:
    path = folder / "a.jpg"
    async with AsyncClient(address) as client:
        with path.open("rb") as file, Image.open(path) as image:
            for value in (ImageFile(path), path, file, image):
                assert await client.orientation(photo=value) == [120, 90, 6]


@pytest.mark.parametrize("binary", [True, False])
async def test_small_and_large_images_of_replies(address: str, *, binary: bool) -> None:
    async with AsyncClient(address, binary=binary) as client:
        await client.echo(np.zeros(5000))  # frames from now on
        for name in ("a.jpg", "large.jpg", "a.png", "large.png"):
            size = (1000, 700) if name.startswith("large") else (120, 90)
            assert (await client.stored(name)).size == size
            assert (await client.call("stored", name, returns=Image.Image)).size == size
        with pytest.raises(TypeError, match="returns="):
            await client.call("stored", "large.png", returns=int)


def test_an_open_file_that_is_no_image(client: Client, folder: Path) -> None:
    with (folder / "a.txt").open("rb") as file:
        with pytest.raises(EncodeError, match=r"is not an image file .*, or its lines with a generator"):
            client.lines(file)
        assert file.tell() == 0
        with pytest.raises(InvalidParams):  # bytes are no text: but they are sent one by one
            client.lines(line for line in file)
    with (folder / "a.txt").open() as text:
        assert client.lines(text) == ["one\n", "two\n"]


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_results(client: Client, folder: Path, name: str) -> None:
    with Image.open(folder / name) as wanted:
        wanted.load()
        for method in ("stored", "opened"):
            found = client.call(method, name, returns=Image.Image)
            assert (found.mode, found.size, found.tobytes()) == ("RGB", (120, 90), wanted.tobytes())
            assert found.info == wanted.info


def test_a_file_that_cannot_be_read_is_the_handlers_fault(client: Client) -> None:
    with pytest.raises(InternalError) as caught:
        client.stored("none.png")
    assert "none.png" not in str(caught.value)


def test_images_are_reduced_where_the_hint_says_so(client: Client, folder: Path) -> None:
    for name, orientation in (("a.jpg", 6), ("a.png", 0)):
        assert client.thumbnail(folder / name) == [[40, 30], orientation]
        # Beside a parameter that takes anything, all are decoded first.
        assert client.thumbnail(folder / name, [folder / name]) == [[40, 30], orientation]
        assert client.preview(name).size == (32, 24)
    assert client.call("stored", "a.png", returns=Annotated[Image.Image, MaxSide(20)]).size == (20, 15)


def test_discovery_shows_the_side(client: Client) -> None:
    described = json.dumps(client.discover())
    assert '"x-maxSide": 40' in described
    assert "at most 40 pixels" in described
