"""An embedding service: texts to vectors by a small network, batched, and given one text at a time.

`load --method` says which of the two, and where it runs. In what matters here the network is like a real one: its
weights do not fit into the processor's nearest caches, so that one text costs nearly as much as several together.
"""

from __future__ import annotations

import os
import zlib
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

from _common import HOST, Options, Result, load_with_tasks, main, needs, ready

# The server has one core; more threads in the model would only be in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

with needs("rpcstream", "uvloop"):
    import numpy as np
    import uvloop
    from numpy.typing import NDArray

    from rpcstream import AsyncClient, Server, Shape

Vector = NDArray[np.float32]
Vectors = Annotated[NDArray[np.float32], Shape(None, 256)]

SIZES = (1024, 2048, 2048, 256)
TEXTS = [f"text {number} of {'one two three four five six seven eight'[: number % 40]}" for number in range(64)]


@cache
def weights() -> list[NDArray[np.float32]]:
    """Make the weights of the network: 26 MiB, the same in each process."""
    random = np.random.default_rng(7)
    return [random.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5) for shape in pairwise(SIZES)]


def embed(text: list[str]) -> Vectors:
    """Embed texts as vectors of unit length."""
    values = np.zeros((len(text), SIZES[0]), np.float32)
    for row, each in zip(values, text, strict=True):
        for word in each.split():
            row[zlib.crc32(word.encode()) % SIZES[0]] += 1
    for layer in weights():
        values = np.maximum(values, 0) @ layer
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def embed_alone(text: str) -> Vector:
    """Embed one text, without batching."""
    return embed([text])[0]


def make_server() -> Server:
    server = Server()
    server.add(embed_alone, name="alone")
    server.add(embed_alone, name="alone_in_threads", offload="thread")
    server.batched(max_size=32, max_wait=0.002, name="batched")(embed)
    server.batched(max_size=32, max_wait=0, name="batched_at_once")(embed)
    return server


class EmbeddingTopic:
    """Texts and their vectors, compared with a tolerance: a product of many rows may be rounded otherwise."""

    def __init__(self, options: Options) -> None:
        self._vectors = embed(TEXTS)

    def ask(self, number: int) -> tuple[Any, ...]:
        return (TEXTS[number % len(TEXTS)],)

    def fits(self, number: int, reply: Any) -> bool:
        wanted = self._vectors[number % len(TEXTS)]
        return isinstance(reply, np.ndarray) and bool(abs(reply - wanted).max() < 1e-5)


def serve(options: Options) -> None:
    def on_listening(address: str) -> None:
        ready(int(address.rpartition(":")[2]), "rpcstream", "uvloop", "numpy")

    weights()
    make_server().run(host=HOST, port=0, on_listening=on_listening)


def load(options: Options) -> Result:
    return uvloop.run(load_async(options))


async def load_async(options: Options) -> Result:
    clients = [AsyncClient(f"{HOST}:{options.port}") for _ in range(options.connections)]
    topic = EmbeddingTopic(options)
    calls = [getattr(client, options.method) for client in clients]
    return await load_with_tasks(options, calls, lambda _: topic)


if __name__ == "__main__":
    methods = ["alone", "alone_in_threads", "batched", "batched_at_once"]
    main(serve, load, topics=[], load_options={"--method": {"choices": methods, "default": methods[0]}})
