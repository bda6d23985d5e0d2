"""Errors of arguments say what to write in Python, and image bytes and open files are taken for images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import AsyncClient, Client, ImageFile, InvalidParams, Limits, MaxSide, Server
from rpcstream.testing import serve_in_thread

from .conftest import MakeClient

IMAGE = Image.new("RGB", (4, 3), "red")


def file_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    server = Server(limits=Limits(max_image_pixels=10_000))

    @server
    def size(image: Image.Image) -> list[int]:
        return list(image.size)

    @server
    def size_later(image: Image.Image, tag: Any = None) -> list[int]:
        return list(image.size)

    @server
    def sizes(images: list[Image.Image]) -> list[int]:
        return [each.width for each in images]

    @server
    def small(image: Annotated[Image.Image, MaxSide(2)] | None) -> list[int]:
        return [] if image is None else list(image.size)

    @server
    def kind(value: Image.Image | bytes) -> str:
        return type(value).__name__

    @server
    def array(x: NDArray[np.float32]) -> int:
        return x.size

    @server
    def numbers(x: list[float]) -> float:
        return sum(x)

    @server
    def number(x: float) -> float:
        return x

    @server
    def items(image: Image.Image) -> Iterator[int]:
        yield image.width

    with serve_in_thread(server) as address:
        yield address


@pytest.mark.parametrize(
    ("method", "argument", "advice"),
    [
        ("size", np.zeros((2, 2, 3), np.uint8), "Image.fromarray(image)"),
        ("size", "cat.jpg", "ImageFile(image) for an image, pathlib.Path(image).read_bytes() for bytes"),
        ("sizes", [IMAGE, np.zeros((2, 2), np.uint8)], "Image.fromarray(images[1])"),
        ("sizes", IMAGE, "[images]"),
        ("array", np.zeros(3), "np.asarray(x, np.float32)"),
        ("array", [1, 2.5], "np.asarray(x, np.float32)"),
        ("array", IMAGE, "np.asarray(x, np.float32)"),
        ("numbers", np.zeros(3), "x.tolist()"),
        ("numbers", iter([1.0]), "list(x), since an iterator is sent item by item"),
        ("number", np.zeros(1), "x.item()"),
        ("number", np.zeros(2), None),
        ("number", "x", None),
        ("size", 5, None),
    ],
)
def test_errors_of_arguments_speak_python(
    make_client: MakeClient, served: str, method: str, argument: Any, advice: str | None
) -> None:
    client = make_client(served)
    with pytest.raises(InvalidParams) as caught:
        client.call(method, argument)
    assert caught.value.advice == (None if advice is None else f"in Python: {advice}")
    assert advice is None or f"; in Python: {advice} (method" in str(caught.value)


def test_named_arguments_batches_and_streams_have_advice_too(served: str) -> None:
    with Client(served) as client:
        with pytest.raises(InvalidParams, match=r"in Python: np.asarray\(x, np.float32\)"):
            client.array(x=[1])
        with client.batch() as batch:
            call = batch.array(x=[1])
        with pytest.raises(InvalidParams, match=r"in Python: np.asarray\(x, np.float32\)"):
            call.result()
        with pytest.raises(InvalidParams, match=r"in Python: Image.fromarray\(image\)"):
            list(client.stream.items(np.zeros((2, 2))))


@pytest.mark.parametrize("scheme", ["", "http://"])
async def test_the_bytes_of_an_image_file_are_an_image(served: str, tmp_path: Path, scheme: str) -> None:
    """They count against the limits of images."""
    path = tmp_path / "a.png"
    for size in (4, 400):
        rng = np.random.default_rng(1)
        data = file_of(Image.fromarray(rng.integers(0, 255, (3, size, 3), np.uint8)))
        path.write_bytes(data)
        async with AsyncClient(scheme + served) as client:
            for _ in range(2):  # the second time in a binary frame, where it is large
                assert await client.size(data) == await client.size(bytearray(data)) == [size, 3]
                assert await client.size_later(memoryview(data), 5) == [size, 3]
                assert await client.size_later(data, {"tagged": b"x"}) == [size, 3]
                assert await client.sizes([data, ImageFile(path), io.BytesIO(data)]) == [size] * 3
                assert max(await client.small(data)) == 2
                assert await client.kind(data) == "bytes"
                assert await client.kind(ImageFile(path)) == "Image"
    with Client(scheme + served) as blocking, path.open("rb") as file:
        assert blocking.size(file) == blocking.size(path) == blocking.size(data) == [400, 3]
        for bad, said in ((b"no image", "not png or jpeg"), (file_of(Image.new("RGB", (101, 100))), "pixels")):
            with pytest.raises(InvalidParams, match=said):
                blocking.size(bad)
