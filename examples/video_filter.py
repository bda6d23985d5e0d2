"""A video through a filter: frames stream to the server and back, one by one, on one connection.

    python examples/video_filter.py         # serves
    python examples/video_filter.py call    # in a second terminal

The second command prints

    100 frames came back, never more than 31 were under way
    noise: 20.0 before, 6.7 after

Whoever reads a stream permits 16 items at a time: the camera waits for the filter, and the filter for whoever looks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

from rpcstream import AsyncClient, Server

Frame = NDArray[np.uint8]

server = Server()


@server
async def denoise(frames: AsyncIterator[Frame], keep: float = 0.8) -> AsyncIterator[Frame]:
    """A running average: in each frame, most of what the frames before it have shown."""
    picture = None
    async for frame in frames:
        picture = frame if picture is None else keep * picture + (1 - keep) * frame
        yield picture.astype(np.uint8)


async def call(address: str = "127.0.0.1:8545") -> None:
    random, under_way, most = np.random.default_rng(7), 0, 0

    async def camera(frames: int) -> AsyncIterator[Frame]:
        """A grey wall in bad light."""
        nonlocal under_way, most
        for _ in range(frames):
            under_way += 1
            most = max(most, under_way)
            yield random.normal(128, 20, (240, 320)).astype(np.uint8)

    async with AsyncClient(address) as client:
        async for frame in client.stream.denoise(camera(100)):
            under_way, noise = under_way - 1, frame.std()
            await asyncio.sleep(0.005)  # whoever looks at it takes more time than the camera
    print(f"100 frames came back, never more than {most} were under way")
    print(f"noise: {(await anext(camera(1))).std():.1f} before, {noise:.1f} after")


if __name__ == "__main__":
    asyncio.run(call(*sys.argv[2:])) if sys.argv[1:2] == ["call"] else server.run()
