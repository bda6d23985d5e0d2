"""A long computation in a thread, which tells how far it is and stops when nobody waits for it any more.

    python examples/long_computation.py         # serves
    python examples/long_computation.py call    # in a second terminal

The second command shows how far the computation is, cancels a longer one soon, and prints at last

    100%  9592 primes below 100000
    the second one was cancelled at 1% or a little later
"""

from __future__ import annotations

import asyncio
import math
import sys

from rpcstream import AsyncClient, Context, Server
from rpcstream.errors import CallCancelled

server = Server()


@server(offload="thread")
def count_primes(below: int, ctx: Context) -> int:
    """How many primes there are below a number, by trial division."""
    found = 0
    for number in range(2, below):
        found += all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
        if number % 1000 == 0:
            try:
                ctx.check()
            except CallCancelled:
                print(f"nobody waits for the primes below {below}", flush=True)
                raise
            ctx.progress(number / below)
    ctx.progress(1.0)
    return found


async def call(address: str = "127.0.0.1:8545") -> None:
    def show(part: float) -> None:
        print(f"\r{part:4.0%}", end="", flush=True)

    def cancel_soon(part: float) -> None:
        if part >= 0.01:
            second.cancel()

    async with AsyncClient(address) as client:
        print(f"  {await client.count_primes(100_000, on_progress=show)} primes below 100000")
        second = client.submit.count_primes(5_000_000, on_progress=cancel_soon)
        try:
            print(await second)
        except asyncio.CancelledError:
            print("the second one was cancelled at 1% or a little later")


if __name__ == "__main__":
    asyncio.run(call(*sys.argv[2:])) if sys.argv[1:2] == ["call"] else server.run()
