"""A worker on a machine that nobody can connect to: it connects out to a hub, and offers what its GPU is good at.

    rpcstream-server --hub                       # at an address that everybody reaches
    python examples/gpu_worker.py [HUB [NAME]]   # on as many machines as there are
    python examples/gpu_watch.py [HUB]           # how much each of them has to do
    python examples/gpu_caller.py [HUB]          # calls them

HUB is 127.0.0.1:8545 or what RPCSTREAM_HUB says, NAME the name of the machine and a number. CuPy computes where it is
installed and finds a GPU, then PyTorch, and numpy on any other machine. The worker prints

    gpu-1 offers blur, multiply, sharpen at 127.0.0.1:8545, with numpy

and stays: when the connection is lost it makes another one, and its methods are there again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from rpcstream import AsyncClient, InvalidParams, RpcError, Shape

EVERY = 1.0  # seconds between two events that tell the load
RADIUS_MAX = 100.0  # pixels

Matrix = Annotated[NDArray[np.float32], Shape(None, None)]
P = ParamSpec("P")
R = TypeVar("R")


# -- what computes -----------------------------------------------------------------------------------------------------


class Library(NamedTuple):
    """What computes: arrays are put where it works, and fetched from there. In between they act like numpy's."""

    name: str
    put: Callable[[NDArray[np.float32]], Any]
    get: Callable[[Any], NDArray[np.float32]]


def find_library() -> Library:
    """CuPy with a GPU, PyTorch with or without one, or numpy."""
    with contextlib.suppress(ImportError):
        import cupy

        if cupy.cuda.is_available():
            return Library("CuPy", cupy.asarray, cupy.asnumpy)
    with contextlib.suppress(ImportError):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        put = functools.partial(torch.tensor, device=device)
        return Library(f"PyTorch on {device}", put, lambda tensor: tensor.cpu().numpy())
    return Library("numpy", np.asarray, np.asarray)


library = find_library()


# -- what is offered ---------------------------------------------------------------------------------------------------


def multiply(left: Matrix, right: Matrix) -> Matrix:
    """The product of two matrices."""
    if left.shape[1] != right.shape[0]:
        raise InvalidParams(f"left has {left.shape[1]} columns, right has {right.shape[0]} rows")
    return library.get(library.put(left) @ library.put(right))


def blur(picture: PIL.Image.Image, radius: float = 2.0) -> PIL.Image.Image:
    """Blurred by a Gaussian; the radius is its standard deviation in pixels."""
    pixels = pixels_of(picture)
    return picture_of(blurred(pixels, radius))


def sharpen(picture: PIL.Image.Image, radius: float = 2.0, amount: float = 1.0) -> PIL.Image.Image:
    """Sharpened by an unsharp mask: what a blur takes away is added instead, `amount` times."""
    pixels = pixels_of(picture)
    return picture_of(library.put(pixels) * (1 + amount) - blurred(pixels, radius) * amount)


def pixels_of(picture: PIL.Image.Image) -> NDArray[np.float32]:
    """Height x width x channels, 0 to 255; in grey or in colour."""
    return np.asarray(picture.convert("L" if picture.mode in ("1", "L") else "RGB"), np.float32).reshape(
        picture.height, picture.width, -1
    )


def picture_of(pixels: Any) -> PIL.Image.Image:
    """The other way round, from where it was computed."""
    array = np.rint(library.get(pixels.clip(0, 255))).astype(np.uint8)
    return PIL.Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def blurred(pixels: NDArray[np.float32], radius: float) -> Any:
    """By a Gaussian, first from top to bottom, then from left to right. The edges go on as they are."""
    if not 0 < radius <= RADIUS_MAX:
        raise InvalidParams(f"the radius is {radius}; it must be above 0, and {RADIUS_MAX} at most")
    reach = max(1, round(3 * radius))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / radius) ** 2)
    weights /= weights.sum()
    height, width, _ = pixels.shape
    rows = library.put(np.pad(pixels, [(reach, reach), (reach, reach), (0, 0)], mode="edge"))
    columns = sum(float(weight) * rows[place : place + height] for place, weight in enumerate(weights))
    return sum(float(weight) * columns[:, place : place + width] for place, weight in enumerate(weights))


# -- at the hub --------------------------------------------------------------------------------------------------------


class Load:
    """How much this worker has to do."""

    def __init__(self) -> None:
        self.running = self.done = 0

    def counting(self, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, with its calls counted. They run in threads: the numbers are near enough."""

        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            self.running += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.running -= 1
                self.done += 1

        return counted


async def tell_load(client: AsyncClient, topic: str, load: Load) -> None:
    """Publish it again and again. The hub keeps the last value for those who ask later; None makes it forget."""
    try:
        while True:
            # Without a connection there is nobody to tell: the client makes a new one meanwhile.
            with contextlib.suppress(OSError):
                value = {"running": load.running, "done": load.done, "library": library.name}
                await client.publish(topic, value, retain=True, timeout=10 * EVERY)
            await asyncio.sleep(EVERY)
    finally:
        with contextlib.suppress(OSError, RpcError):
            await client.publish(topic, None, retain=True, timeout=EVERY)


async def work(hub: str, name: str) -> None:
    load = Load()
    # A silent hub is given up after half a minute, whatever a firewall on the way does with idle connections.
    async with AsyncClient(hub, name=name, reconnect=True, keepalive=30.0) as client:
        offer = client(shared=True, offload="thread")
        for function in (multiply, blur, sharpen):
            offer(load.counting(function))
        offered = await client.offer()
        print(f"{name} offers {', '.join(sorted(offered))} at {hub}, with {library.name}", flush=True)
        await tell_load(client, f"workers.{name}.load", load)


def own_name() -> str:
    """The machine's name as a client of a hub may have it, and the number of this process."""
    return f"{re.sub('[^A-Za-z0-9_-]', '-', socket.gethostname())[:100]}-{os.getpid()}"


def main(hub: str = os.environ.get("RPCSTREAM_HUB", "127.0.0.1:8545"), name: str = "") -> None:
    try:
        asyncio.run(work(hub, name or own_name()))
    except KeyboardInterrupt:
        pass
    except (OSError, RpcError) as error:  # no hub at the beginning, or the hub does not take this worker
        sys.exit(f"gpu_worker: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
