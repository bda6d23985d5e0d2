"""A server with methods of every kind that the explorer has a form or a view for."""

from __future__ import annotations

import asyncio
import datetime
import enum
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from PIL import Image, ImageOps

from rpcstream import Context, Example, Info, RpcError, Server


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclass
class Box:
    x: Annotated[int, Meta(ge=-100)]
    y: int
    label: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Region:
    x: int
    y: int
    width: int
    height: int
    label: str = "none"


@dataclass
class Tree:
    name: str
    branches: list[Tree] = field(default_factory=list)


def make_server(**options: Any) -> Server:
    """The server; `server.state.cancelled` has the numbers of the items after which streams were cancelled."""
    server = Server(**{"info": Info(title="Pictures & numbers", description="Try them."), "docs": True, **options})
    server.state.cancelled = []

    @server
    def negative(photo: Image.Image, amount: float = 1.0) -> Image.Image:
        """Turn the colours of a picture round."""
        turned = ImageOps.invert(photo.convert("RGB"))
        return Image.blend(photo.convert("RGB"), turned, amount)

    @server
    def bright(photo: Image.Image, least: int = 128) -> NDArray[np.bool_]:
        """A mask of the bright parts of a picture."""
        return np.asarray(photo.convert("L")) >= least

    @server
    def cut(photo: Image.Image, crop_box: tuple[int, int, int, int]) -> str:
        """The size of a part of a picture, in pixels."""
        return "{} by {}".format(*photo.crop(crop_box).size)

    @server
    def label(photo: Image.Image, regions: list[Region]) -> list[Region]:
        """Name the regions of a picture."""
        return regions

    @server
    def area(box: tuple[int, int, int, int]) -> int:
        """The area of a box, which needs no picture."""
        return (box[2] - box[0]) * (box[3] - box[1])

    @server
    def fill(photo: Image.Image, mask: NDArray[np.bool_], alpha_mask: Image.Image | None = None) -> list[int]:
        """How many pixels of each mask are painted, and the size of the mask."""
        second = 0 if alpha_mask is None else int((np.asarray(alpha_mask.convert("L")) == 255).sum())
        return [int(mask.sum()), second, *mask.shape]

    @server
    def collage(photos: list[Image.Image]) -> list[str]:
        """The sizes of pictures, in their order."""
        return [f"{photo.width} by {photo.height}" for photo in photos]

    @server
    def lists(
        words: list[str],
        sizes: list[int] | None = None,
        wait: Annotated[float, Meta(ge=0, extra_json_schema={"x-unit": "s"})] = 1.5,
    ) -> dict[str, Any]:
        """Lists of plain values, and a time."""
        return {"words": words, "sizes": sizes, "wait": wait}

    @server
    def waves(height: int = 48, width: int = 64) -> NDArray[np.float32]:
        """A map with hills, valleys and one hole (NaN)."""
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        heights = np.sin(x / 7) * np.cos(y / 5)
        heights[0, 0] = np.nan
        return heights

    @server
    def gradient(height: int = 32, width: int = 40) -> NDArray[np.uint8]:
        """A picture as an array, (height, width, 3)."""
        y, x = np.mgrid[0:height, 0:width]
        return np.stack([y * 255 // (height - 1), x * 255 // (width - 1), (x * y) % 256], axis=-1).astype(np.uint8)

    @server
    def scale(values: NDArray[np.float64], factor: float = 2.0) -> NDArray[np.float64]:
        """Multiply an array."""
        return values * factor

    @server
    def plan(
        title: Annotated[str, Meta(max_length=20)],
        when: datetime.date,
        boxes: list[Box],
        colour: Colour = Colour.RED,
        size: int | Literal["auto"] | Box = "auto",
        notes: dict[str, int] | None = None,
        *,
        urgent: bool = False,
    ) -> dict[str, Any]:
        """Make a plan of boxes."""
        plan = {"title": title, "when": when, "boxes": boxes, "colour": colour}
        return {**plan, "size": size, "notes": notes, "urgent": urgent}

    @server
    def grow(tree: Tree) -> int:
        """The number of nodes of a tree."""
        return 1 + sum(map(grow, tree.branches))

    @server
    def people(count: int = 3) -> list[dict[str, Any]]:
        """A table."""
        return [{"name": f"person {number}", "age": 20 + number, "tags": ["a", "b"]} for number in range(count)]

    @server
    def huge(number: int) -> int:
        """An integer of any size, plus one."""
        return number + 1

    @server
    async def count(to: int = 1000, pause: float = 0.0) -> AsyncIterator[float]:
        """Count, one item after the other."""
        done = 0
        try:
            for number in range(to):
                yield float(np.sin(number / 20))
                done = number + 1
                await asyncio.sleep(pause)
        finally:
            if done < to:
                server.state.cancelled.append(done)

    @server
    def scores(photo: Image.Image, top: Annotated[int, Meta(ge=1, le=3)] = 3) -> dict[str, float]:
        """Name what is in a picture, **likeliest** first.

        Args:
            photo: in color, any size.
        """
        return dict(list({"cat": 0.7312, "lynx": 0.25, "sofa": 0.0188}.items())[:top])

    @server(idempotent=True)
    async def losses(epochs: int = 60, pause: float = 0.001) -> AsyncIterator[dict[str, float]]:
        """Losses of a training."""
        for epoch in range(epochs):
            yield {"loss": float(np.exp(-epoch / 20)), "validation": float(np.exp(-epoch / 30))}
            await asyncio.sleep(pause)

    @server
    async def work(ctx: Context, steps: int = 4) -> str:
        """Work, and tell how far it is."""
        for step in range(1, steps + 1):
            ctx.progress(step, steps)
            await asyncio.sleep(0.05)
        return "ready"

    @server
    async def erase(name: str, ctx: Context) -> str:
        """Erase something, if you confirm it."""
        return f"{name} is gone" if await ctx.peer.call("confirm", question=f"Erase {name}?") else f"{name} stays"

    @server
    def announce(topic: str, value: Any) -> int:
        """Publish an event."""
        return server.publish(topic, value)

    @server(errors=[RpcError(17, "No good")], examples=[Example({"text": "oh"}, name="simple")], tags=["Trouble"])
    def fail(text: str) -> None:
        """Fail with a text."""
        raise RpcError(17, text, {"html": text})

    @server
    def halt() -> None:
        """Stop the server, after the reply."""
        server.stop()

    @server(name="files.list")
    def names() -> Iterator[str]:
        """Names, one by one."""
        yield from ("one", "two", "three")

    return server


server = make_server()
