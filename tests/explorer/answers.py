"""A server whose results are made to be looked at: pictures, masks, arrays, tables, trees, files."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from rpcstream import Info, Server


@dataclass
class Segmented:
    mask: NDArray[np.uint8]
    areas: dict[str, int]
    seconds: float


def sound() -> bytes:
    """A tone of a tenth of a second, as a file."""
    samples = (20_000 * np.sin(np.arange(800) / 8000 * 2 * np.pi * 440)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def make_server() -> Server:
    server = Server(info=Info(title="Vision lab", version="2.1", description="Look at **answers**."), docs=True)

    @server
    def soften(photo: Image.Image, radius: float = 4.0) -> Image.Image:
        """Blur a picture."""
        return photo.convert("RGB").filter(ImageFilter.GaussianBlur(radius))

    @server
    def segment(photo: Image.Image, parts: int = 4) -> Segmented:
        """Number the parts of a picture by their brightness."""
        gray = np.asarray(photo.convert("L"))
        mask = (gray.astype(int) * parts // 256).astype(np.uint8)
        names = ["background", "shadow", "surface", "light", "glow", "sun"]
        areas = {names[part % 6]: int((mask == part).sum()) for part in range(parts)}
        return Segmented(mask, areas, 0.0123456789)

    @server
    def labels() -> dict[str, float]:
        """Names with probabilities, in an order of their own."""
        return {"lynx": 0.251234, "cat": 0.731, "sofa": 0.0177}

    @server
    def numbers() -> NDArray[np.float64]:
        """Eight values."""
        return np.array([1, 2, 2, 3, 3, 3, 4, 9.123456789])

    @server
    def embed(count: int = 200) -> NDArray[np.float32]:
        """Points in a plane."""
        random = np.random.default_rng(7)
        centres = random.normal(size=(4, 2)) * 4
        return (centres[np.arange(count) % 4] + random.normal(size=(count, 2))).astype(np.float32)

    @server
    def depth(height: int = 300, width: int = 400) -> NDArray[np.float32]:
        """A map with a hill in it."""
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        return np.exp(-(((x - width / 2) / width * 4) ** 2) - ((y - height / 2) / height * 4) ** 2)

    @server
    def rows(count: int = 120) -> list[dict[str, Any]]:
        """A table, as a list of objects."""
        cities = ["Oslo", "Bern", "Lima", 'Say "a, b"']
        return [
            {"city": cities[at % 4], "degrees": at * 1.23456789 - 20, "visits": at * 7 % 50, "open": at % 3 == 0}
            for at in range(count)
        ]

    @server
    def tree() -> dict[str, Any]:
        """An object in objects."""
        parts = [{"id": at, "name": f"part {at}", "at": [at, 2 * at]} for at in range(250)]
        return {
            "version": "2.1",
            "model": {"name": "tiny", "layers": {"first": {"units": 64}}},
            "log": [parts[:2], parts],
        }

    @server
    def text(lines: int = 40) -> str:
        """Lines of a text."""
        return "\n".join(f"line {at} " + "word " * 30 for at in range(lines))

    @server
    def film(frames: int = 12) -> Iterator[Image.Image]:
        """A stream of pictures, from dark to bright."""
        for frame in range(frames):
            yield Image.new("RGB", (80, 60), (20 * frame, 10, 30))

    @server
    def tone() -> bytes:
        """A sound, as a WAV file."""
        return sound()

    @server
    def data(size: int = 300) -> bytes:
        """Bytes."""
        return bytes(at % 256 for at in range(size))

    return server


server = make_server()
