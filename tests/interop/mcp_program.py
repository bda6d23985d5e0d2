"""A server with tools for clients of the Model Context Protocol and its conformance scenarios; prints its address.

python -m tests.interop.mcp_program
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import PIL.Image

from rpcstream import Context, Info, RpcError, Server

server = Server(mcp=True, info=Info(title="conformance"))


@server
def test_simple_text() -> str:
    """Gives a text."""
    return "This is a simple text response for testing."


@server
def test_image_content() -> PIL.Image.Image:
    """Gives an image."""
    return PIL.Image.new("RGB", (1, 1), "red")


@server
def test_embedded_resource() -> bytes:
    """Gives a file."""
    return b"This is an embedded resource content."


@server
def test_multiple_content_types() -> dict[str, object]:
    """Gives a text, an image and a file."""
    return {
        "text": "Multiple content types test:",
        "image": PIL.Image.new("RGB", (1, 1), "red"),
        "data": b'{"test":"data","value":123}',
    }


@server
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports its progress."""
    for done in (0, 50, 100):
        ctx.progress([done, 100])
        await asyncio.sleep(0.05)
    return "done"


@server
def test_error_handling() -> None:
    """Fails."""
    raise RpcError(1, "This tool intentionally returns an error for testing")


@dataclass
class address:
    street: str = ""
    city: str = ""


@server
def json_schema_2020_12_tool(name: str = "", address: address | None = None) -> str:
    """Takes an object with a definition of its own."""
    return name


@server
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server
def double(values: np.ndarray) -> np.ndarray:
    """Gives an array."""
    return values * 2


@server
async def ask(ctx: Context) -> object:
    """Asks its caller."""
    return await ctx.peer.call("confirm")


_waiting: set[object] = set()


@server
async def wait() -> None:
    """Does not end."""
    key = object()
    _waiting.add(key)
    try:
        await asyncio.Event().wait()
    finally:
        _waiting.discard(key)


@server
def waiting() -> int:
    """Gives how many wait."""
    return len(_waiting)


if __name__ == "__main__":
    server.run(port=0, on_listening=lambda where: print(where, flush=True))
