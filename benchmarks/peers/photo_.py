"""rpcstream with a JPEG file of 12 megapixels: sent as an image opened from it, as its path, or as its bytes.

The server takes it as an image; or as bytes, which the handler opens with Pillow itself, as one does without images as
arguments, or only counts. All but the last answer with the size and the colour in the middle.
"""

from __future__ import annotations

import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from _common import HOST, Call, Options, Result, load_with_threads, main, needs, ready

with needs("rpcstream", "uvloop", "pillow"):
    import numpy as np
    from PIL import Image

    from rpcstream import Client, Server

WIDTH = 4000
QUALITY = 90


def look(photo: Image.Image) -> list[Any]:
    return [*photo.size, *photo.getpixel((photo.width // 2, photo.height // 2))]  # type: ignore[misc]


def look_at_file(data: bytes) -> list[Any]:
    return look(Image.open(BytesIO(data), formats=["JPEG"]))


def count(data: bytes) -> int:
    return len(data)


def serve(options: Options) -> None:
    server = Server()
    for method in (look, look_at_file, count):
        server.add(method)
    server.run(
        host=HOST,
        port=0,
        on_listening=lambda address: ready(int(address.rpartition(":")[2]), "rpcstream", "uvloop", "Pillow"),
    )


class Photo:
    """A file, and what the server must say of it."""

    def __init__(self, file: Path, way: str) -> None:
        self._file = file
        with Image.open(file) as photo:
            self._expected = file.stat().st_size if way == "counted" else look(photo)

    def ask(self, number: int) -> tuple[Path]:
        return (self._file,)

    def fits(self, number: int, reply: object) -> bool:
        return bool(reply == self._expected)


def save_photo(file: Path, width: int) -> None:
    """Write a picture with slow changes of colour and some noise, as large as a camera's files are."""
    height = width * 3 // 4
    random = np.random.default_rng(7)
    x, y = np.arange(width, dtype=np.uint8) // 2, np.arange(height, dtype=np.uint8)[:, None] // 2
    pixels = random.integers(0, 32, (height, width, 3), dtype=np.uint8)
    for channel, smooth in enumerate((x, y, (x + y) // 2)):
        pixels[..., channel] += smooth
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)


def load(options: Options) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "photo.jpg")
        save_photo(file, options.width)
        calls = [make_call(Client(f"{HOST}:{options.port}"), options.way) for _ in range(options.connections)]
        return load_with_threads(options, calls, lambda options: Photo(file, options.way))


def make_call(client: Client, way: str) -> Call:
    def opened(file: Path) -> Any:
        with Image.open(file) as photo:
            return client.look(photo)

    calls: dict[str, Call] = {
        "open": opened,
        "path": client.look,
        "bytes": lambda file: client.look_at_file(file.read_bytes()),
        "counted": lambda file: client.count(file.read_bytes()),
    }
    return calls[way]


if __name__ == "__main__":
    way = {"choices": ["open", "path", "bytes", "counted"], "default": "open", "help": "how the picture is sent"}
    width = {"type": int, "default": WIDTH, "help": "of the picture, in pixels; the height is three quarters of it"}
    main(serve, load, topics=[], load_options={"--way": way, "--width": width})
