"""Decodes the images of calls in threads, within a limit of memory for all calls of a server.

Owns these threads, the queue of messages whose images wait for them, and the sum of the memory that images take. Knows
neither formats nor connections.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from ..errors import ServerBusy
from .arguments import Arguments, ArgumentsWithImages, Line, Tagged
from .threads import DaemonThreads

T = TypeVar("T")

#: Messages whose images are decoded at the same time. Pillow releases the GIL while it decodes, so one for each
#: processor; more than four would leave less memory for each.
MAX_DECODERS = min(4, os.cpu_count() or 1)


class ImageMemory:
    """A share of the memory for images, which is reserved until it is released."""

    __slots__ = ("_decoder", "_loop", "size")

    def __init__(self, decoder: ImageDecoder, size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = decoder
        self.size = size
        decoder.used += size

    def resize(self, size: int) -> None:
        """Change the size; memory that is freed goes to messages that wait."""
        self._decoder.used += size - self.size
        self.size = size
        self._decoder.admit()

    def release(self) -> None:
        """Free the memory. May be called more than once."""
        if self.size:
            self.resize(0)

    def __del__(self) -> None:
        # A call that was cancelled before its first step never calls `release`. This may run in any thread.
        if self.size and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._decoder.give_back, self.size)


class _WaitingMessage:
    """A message whose images wait to be decoded: the memory that they take, and a future for it."""

    __slots__ = ("future", "size")

    def __init__(self, size: int, future: asyncio.Future[ImageMemory]) -> None:
        self.size = size
        self.future = future


class ImageDecoder:
    """Decodes images for one server. For one event loop.

    Args:
        max_memory: bytes for the images of all calls; a message that needs more is admitted only if no other is.
        max_waiting: messages that may wait; one more is answered with -32002.

    Attributes:
        used: bytes that are reserved at the moment.
    """

    def __init__(self, *, max_memory: int, max_waiting: int) -> None:
        self.used = 0
        self._max_memory = max_memory
        self._max_waiting = max_waiting
        self._threads = DaemonThreads(MAX_DECODERS, name="rpcstream-images")
        #: Waiting messages by owner. Owners take turns in this order; of each, one message is decoded at a time.
        self._waiting: dict[Hashable, deque[_WaitingMessage]] = {}
        self._count = 0
        self._decoding: set[Hashable] = set()

    def keep(self, size: int) -> ImageMemory | None:
        """Reserve memory for images that are decoded already; None if there is not enough."""
        return ImageMemory(self, size) if self._has_room(size) and not self._waiting else None

    async def decode(self, owner: Hashable, size: int, function: Callable[[], tuple[T, int]]) -> tuple[T, ImageMemory]:
        """Run a function in a thread that decodes images, once there is memory for it.

        Args:
            owner: several owners that wait take turns.
            size: bytes that the images take at most while they are decoded.
            function: gives a result, and the bytes that the images in it hold.

        Returns:
            The result, and its memory, which the caller must release.

        Raises:
            ServerBusy: too many wait.
            Exception: what the function raises.
        """
        memory = await self._enter(owner, size)
        try:
            future = asyncio.wrap_future(self._threads.submit(function))
        except BaseException:
            self._leave(owner, memory, 0)
            raise
        # Also if the caller is cancelled: a thread cannot be stopped, and takes its memory until it is done.
        future.add_done_callback(lambda done: self._leave(owner, memory, _size_of(done)))
        try:
            result, _ = await asyncio.shield(future)
        except BaseException:
            future.add_done_callback(lambda _: memory.release())
            raise
        return result, memory

    async def arguments(
        self,
        found: ArgumentsWithImages,
        owner: Hashable,
        params: Any,
        line: Line,
        tagged: Tagged = None,
        copies: int = 1,
    ) -> tuple[Arguments, ImageMemory]:
        """The arguments of a call with images, and the memory for the images. Decodes those that are not decoded yet.

        Args:
            found: what `Signature.bind` raised for `params`, `line` and `tagged`.
            owner: as for `decode`.
            params: the member of the request, as parsed.
            line: the message, as it came.
            tagged: see `Tagged`.
            copies: how often each image will be in memory.

        Raises:
            RpcError: the params do not fit, or too many wait.
        """
        arguments, found.arguments = found.arguments, None
        if arguments is not None and (memory := self.keep(found.size * copies)) is not None:
            return arguments, memory
        del arguments
        # Nothing of the first attempt is kept while the message waits.
        found.__traceback__ = found.__context__ = None

        def bind() -> tuple[Arguments, int]:
            arguments, size = found.bind(params, line, tagged)
            return arguments, size * copies

        from ..codec.image import image_weight  # only where there are images, since it imports Pillow

        return await self.decode(owner, image_weight(params, found.limits), bind)

    def give_back(self, size: int) -> None:
        """Free so many bytes."""
        self.used -= size
        self.admit()

    def admit(self) -> None:
        """Start messages that wait, owners in turn, as far as there is memory."""
        while len(self._decoding) < MAX_DECODERS:
            owner = next((each for each in self._waiting if each not in self._decoding), None)
            if owner is None:
                return
            queue = self._waiting[owner]
            if not self._has_room(queue[0].size):
                return  # smaller ones do not overtake it, or it might wait for ever
            waiter = queue[0]
            self._take_out(owner, waiter)
            if owner in self._waiting:
                self._waiting[owner] = self._waiting.pop(owner)  # behind the others
            if not waiter.future.cancelled():
                self._decoding.add(owner)
                waiter.future.set_result(ImageMemory(self, waiter.size))

    def close(self) -> None:
        """End the threads, each after what it does now."""
        self._threads.close()

    def _has_room(self, size: int) -> bool:
        return not self.used or self.used + size <= self._max_memory

    async def _enter(self, owner: Hashable, size: int) -> ImageMemory:
        if self._count >= self._max_waiting:
            raise ServerBusy(data={"limit": self._max_waiting})
        waiter = _WaitingMessage(size, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(owner, deque()).append(waiter)
        self._count += 1
        self.admit()
        try:
            return await waiter.future
        except BaseException:
            if waiter.future.done() and not waiter.future.cancelled():  # let in, and cancelled in the same turn
                self._leave(owner, waiter.future.result(), 0)
            else:
                self._take_out(owner, waiter)
                self.admit()
            raise

    def _leave(self, owner: Hashable, memory: ImageMemory, size: int) -> None:
        """The thread is done; `size` bytes stay reserved for the images in its result."""
        self._decoding.discard(owner)
        memory.resize(size)

    def _take_out(self, owner: Hashable, waiter: _WaitingMessage) -> None:
        queue = self._waiting.get(owner)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            self._count -= 1
            if not queue:
                del self._waiting[owner]


def _size_of(done: asyncio.Future[tuple[Any, int]]) -> int:
    return 0 if done.cancelled() or done.exception() is not None else done.result()[1]


class HandlerRunner(Protocol):
    """Runs the handler of a call: an `Invoker`, a `CallRunner` or an `ImageCallRunner`."""

    def start(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a handler; gives its result, or an awaitable of it."""


class ImageCallRunner:
    """Runs a handler by another runner, and releases the memory of its images when it is done."""

    def __init__(self, runner: HandlerRunner, memory: ImageMemory) -> None:
        self._runner = runner
        self._memory = memory

    async def start(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the handler's result, or raises its exception."""
        try:
            result = self._runner.start(method, args, kwargs)
            return await result if inspect.isawaitable(result) else result
        finally:
            self._memory.release()
