"""One server with the methods that most tests call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rpcstream import Context, RpcError, Server


class UsualServer(Server):
    """A server with `add`, `echo`, `wait`, `count` and others; what they saw is kept.

    Attributes:
        noted: the values of all calls of `note`, in order.
        begun: one entry for each `wait` that has begun: its token.
        ended: for each `wait` that has ended: its token, and the name of what ended it ("whole" for a result).
        peers: the peers that have called `hello`.
        address: where it listens; for those who start it to set.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.noted: list[Any] = []
        self.begun: list[Any] = []
        self.ended: list[tuple[Any, str]] = []
        self.peers: list[Any] = []
        self.address = ""
        self._released = asyncio.Event()
        for name, more in _METHODS.items():
            self.add(getattr(self, f"call_{name}"), name=name, **more)

    def release(self) -> None:
        """Let every `wait` return, now and later."""
        self._released.set()

    def call_add(self, a: int, b: int) -> int:
        return a + b

    def call_echo(self, value: Any) -> Any:
        return value

    def call_echo_in_thread(self, value: Any) -> Any:
        return value

    async def call_echo_after(self, value: Any, seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return value

    async def call_wait(self, token: Any = None) -> Any:
        """Wait until `release` is called, or the call is cancelled."""
        self.begun.append(token)
        try:
            await self._released.wait()
        except BaseException as error:
            self.ended.append((token, type(error).__name__))
            raise
        self.ended.append((token, "whole"))
        return token

    def call_count(self, n: int) -> Iterator[int]:
        """A stream of the numbers below n."""
        yield from range(n)

    async def call_total(self, values: AsyncIterator[int]) -> int:
        """The sum of a stream that is an argument."""
        return sum([each async for each in values])

    async def call_ask(self, ctx: Context, method: str, *params: Any) -> Any:
        """Call the caller back."""
        return await ctx.peer.call(method, *params)

    async def call_hello(self, ctx: Context) -> None:
        self.peers.append(ctx.peer)

    async def call_progress(self, ctx: Context, n: int) -> int:
        """Report the numbers below n as progress."""
        for each in range(n):
            ctx.progress(each)
            await asyncio.sleep(0)
        return n

    def call_fail(self, code: int = 1, message: str = "as asked", data: Any = None) -> None:
        raise RpcError(code, message, data)

    def call_crash(self) -> None:
        raise ValueError("crashed as asked")

    def call_note(self, value: Any) -> None:
        self.noted.append(value)

    def call_image(self, image: Image.Image) -> Image.Image:
        """The image, turned upside down."""
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)

    def call_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array, doubled."""
        doubled: NDArray[Any] = np.asarray(array * 2)
        return doubled

    def call_size(self, value: bytes) -> int:
        return len(value)


_METHODS: dict[str, dict[str, Any]] = {
    name.removeprefix("call_"): {} for name in vars(UsualServer) if name.startswith("call_")
}
_METHODS["echo_in_thread"] = {"offload": "thread"}
