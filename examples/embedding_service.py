"""A model behind micro-batching: callers send one text each, the model gets as many as came together.

    python examples/embedding_service.py         # serves
    python examples/embedding_service.py call    # in a second terminal

The second command prints (the last number is another one each time)

    "a red cup of tea" is nearest to "tea in a cup"
    512 texts, 64 in flight: 31.3 in a run on average
"""

from __future__ import annotations

import asyncio
import re
import sys
import zlib
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from rpcstream import AsyncClient, Server, Shape

TEXTS = ["a cat on a sofa", "two dogs in the park", "tea in a cup", "the last train home"] * 128
WORDS, SIZE = 4096, 256
WEIGHTS = np.random.default_rng(1).standard_normal((WORDS, SIZE), np.float32)

server = Server()


@server.batched(max_size=32, max_wait=0.002)
def embed(text: list[str]) -> Annotated[NDArray[np.float32], Shape(None, SIZE)]:
    """256 numbers of unit length; the dot product of two is the similarity of the texts."""
    counts = np.zeros((len(text), WORDS), np.float32)
    for row, each in zip(counts, text, strict=True):
        for word in re.findall(r"\w+", each.casefold()):
            row[zlib.crc32(word.encode()) % WORDS] += 1
    vectors = np.sqrt(counts) @ WEIGHTS  # one product for all: this is what batching saves
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


async def call(address: str = "127.0.0.1:8545") -> None:
    async with AsyncClient(address) as client:
        rest, vectors = iter(TEXTS), {}

        async def work() -> None:
            for text in rest:  # the same for all: each takes the next one
                vectors[text] = await client.embed(text)

        await asyncio.gather(*(work() for _ in range(64)))
        asked = await client.embed("a red cup of tea")
        print(f'"a red cup of tea" is nearest to "{max(vectors, key=lambda text: vectors[text] @ asked)}"')
        size = (await client.call("rpc.stats"))["batched"]["embed"]["mean_size"]
        print(f"{len(TEXTS)} texts, 64 in flight: {size:.1f} in a run on average")


if __name__ == "__main__":
    asyncio.run(call(*sys.argv[2:])) if sys.argv[1:2] == ["call"] else server.run()
