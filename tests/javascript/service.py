"""The server that the JavaScript client is tested with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Codec, Context, ImageOptions, RpcError, Server

EXTENSIONS = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
#: Every dtype that goes over the wire, but for further units of dates.
DTYPES = [
    *("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"),
    *(">i2", ">u4", ">i8", ">f2", ">f4", ">f8", ">c8", ">c16", ">M8[us]"),
    *("<M8[ns]", "<M8[D]", "<M8[10ms]", "<m8[ns]", "<m8[W]", "<m8"),
    *EXTENSIONS,
]
MODES = ("1", "L", "LA", "RGB", "RGBA", "I;16", "CMYK", "F", "I", "YCbCr")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name in EXTENSIONS else name)


def sample(name: str, shape: list[int]) -> NDArray[Any]:
    """An array of random bytes, the same for each call: with NaNs, infinities, subnormal numbers and NaT."""
    dtype = dtype_of(name)
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(len(name) + size).integers(0, 2 if name == "|b1" else 256, size, np.uint8)
    if dtype.itemsize == 1:
        data[: min(256, size)] = np.arange(min(256, size)) % (2 if name == "|b1" else 256)
    return data.view(dtype).reshape(shape)


def numbers(array: NDArray[Any]) -> list[Any]:
    """The items of an array as texts that say exactly what they are."""
    flat = array.reshape(-1)
    if array.dtype.kind in "mM":
        return [
            str(item) for item in flat.view(array.dtype.str.replace("M8", "i8").replace("m8", "i8").partition("[")[0])
        ]
    if array.dtype.kind == "c":
        return [[float(item.real).hex(), float(item.imag).hex()] for item in flat]
    if array.dtype.kind in "biu":
        return [str(int(item)) for item in flat]
    return [float(item).hex() for item in flat]


class Count:
    """What handlers have done."""

    def __init__(self) -> None:
        self.yielded = self.cancelled = self.runs = 0


def make_server(**options: Any) -> Server:
    server = Server(codec=Codec(images=ImageOptions(format="raw")), javascript=True, **options)
    count = Count()

    @server
    def seen() -> dict[str, int]:
        return vars(count)

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def half(x: float) -> float:
        return x / 2

    @server
    def refuse() -> None:
        raise RpcError(7, "no", {"why": 1})

    @server
    def make(dtype: str, shape: list[int]) -> np.ndarray:
        return sample(dtype, shape)

    @server
    def numbers_of(dtype: str, shape: list[int]) -> list[Any]:
        return numbers(sample(dtype, shape))

    @server
    def is_same(dtype: str, shape: list[int], array: np.ndarray) -> bool:
        """Whether an array has come back as `make` has sent it: in its own order of bytes, or little-endian."""
        wanted = sample(dtype, shape)
        little = wanted.astype(wanted.dtype.newbyteorder("<")) if dtype.startswith(">") else wanted
        return array.dtype == little.dtype and array.shape == wanted.shape and array.tobytes() == little.tobytes()

    @server
    def picture(mode: str) -> Image.Image:
        return picture_of(mode)

    @server
    def is_picture(mode: str, image: Image.Image) -> bool:
        wanted = picture_of(mode)
        return image.mode == mode and image.size == wanted.size and image.tobytes() == wanted.tobytes()

    @server
    def image_numbers(image: Image.Image) -> dict[str, Any]:
        return {"mode": image.mode, "size": list(image.size), "sum": int(np.asarray(image).astype(np.int64).sum())}

    @server
    async def count_to(to: int, pause: float = 0) -> AsyncIterator[int]:
        try:
            for i in range(to):
                count.yielded += 1
                yield i
                await asyncio.sleep(pause)
        except (asyncio.CancelledError, GeneratorExit):
            count.cancelled += 1
            raise

    @server
    async def fail_after(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i
        raise RpcError(7, "no more")

    @server
    async def wait(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            count.cancelled += 1
            raise

    @server
    async def total(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    @server
    async def first(items: AsyncIterator[int]) -> int:
        async for item in items:
            return item
        return -1

    @server
    async def double(items: AsyncIterator[np.ndarray]) -> AsyncIterator[np.ndarray]:
        async for item in items:
            yield item * 2

    @server
    async def work(steps: int, ctx: Context) -> str:
        for step in range(steps):
            ctx.progress({"done": step + 1})
            await asyncio.sleep(0.01)
        return "ready"

    @server
    async def ask(method: str, params: list[Any], ctx: Context) -> Any:
        try:
            return await ctx.peer.call(method, *params)
        except RpcError as error:
            return {"code": error.code, "message": error.message, "data": error.data}

    @server
    async def ask_stream(method: str, n: int, ctx: Context) -> list[Any]:
        return [item async for item in getattr(ctx.peer.stream, method)(n)]

    @server
    async def ask_and_give_up(method: str, ctx: Context) -> str:
        try:
            return str(await ctx.peer.call(method, timeout=0.05))
        except TimeoutError:
            return "given up"

    @server
    async def send_items(n: int, ctx: Context) -> Any:
        async def items() -> AsyncIterator[int]:
            for i in range(n):
                yield i

        return await ctx.peer.take(items())

    @server
    def say(topic: str, value: Any, retain: bool = False) -> int:
        return server.publish(topic, value, retain=retain)

    @server(idempotent=True)
    def get_run() -> int:
        count.runs += 1
        return count.runs

    return server


def picture_of(mode: str) -> Image.Image:
    """33 x 17 pixels of noise, of any mode."""
    pixels = np.random.default_rng(3).integers(0, 256, (17, 33, 4), np.uint8)
    if mode in ("I;16", "F", "I"):
        kind: Any = {"I;16": np.uint16, "F": np.float32, "I": np.int32}[mode]
        return Image.fromarray(pixels[..., 0].astype(kind) * 250)
    return Image.fromarray(pixels).convert("RGB" if mode not in ("RGBA", "LA") else "RGBA").convert(mode)
