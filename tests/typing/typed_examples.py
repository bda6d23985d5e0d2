"""What type checkers must see. Not run: checked by mypy and pyright (see test_typing.py and .ci/run).

Lines that end in `# wrong` must be errors: a checker that is strict about unused ignores holds that.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, Codec, ImageOptions, Limits, RpcError, Server, Shape

server = Server(limits=Limits(max_batch=5), codec=Codec(images=ImageOptions(format="jpeg", quality=90)), debug=True)


@server
def add(a: int, b: int = 2) -> int:
    return a + b


@server(name="vision.vectorize", timeout=1.5, offload="thread")
def vectorize(description: str) -> NDArray[np.float32]:
    return np.zeros(len(description), np.float32)


@server
async def later(a: str) -> str:
    return a


# The decorated function is the function: its signature is kept.
assert_type(add(1, b=2), int)
assert_type(vectorize("x"), NDArray[np.float32])
add("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong

server.add(lambda a: a, name="identity")
server.add(add, offload="fibre")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong
Shape(None, 3)


def sync_calls(client: Client) -> None:
    assert_type(client.call("add", 1, b=2), Any)
    assert_type(client.call("add", a=1, b=2, returns=int), int)
    assert_type(client.call("add", 1, 2, timeout=3.0, returns=list[int]), list[int])
    assert_type(client.request("add", [1, 2], returns=int), int)
    client.vision.vectorize(description="x", timeout=1.0)
    client.notify.add(1, 2)
    client.submit.add(1, 2)
    with client.batch() as batch:
        first = batch.add(1, 2)
    first.result()
    try:
        client.add(1)
    except RpcError as error:
        assert_type(error.code, int)


async def async_calls(client: AsyncClient) -> None:
    assert_type(await client.call("add", 1, 2), Any)
    assert_type(await client.call("add", 1, 2, returns=int), int)
    await client.vision.vectorize(description="x")
    async with client.batch() as batch:
        first = batch.add(1, 2)
    first.result()


async def serving() -> None:
    async with server.listening(port=0) as address:
        assert_type(address, str)
    await server.serve(unix="/tmp/socket")
