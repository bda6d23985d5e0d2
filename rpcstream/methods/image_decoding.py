"""Room for the images of calls: which message's images are decoded when, in which thread, in how much memory.

Owns the threads that decode, the line of those that wait for them, and the sum of the memory that images take at one
server. Knows neither formats nor connections.
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

#: Messages whose images are decoded at the same time. Pillow lets go of the interpreter while it decodes, so one for
#: each processor; more than four would leave less memory for each.
MAX_DECODERS = min(4, os.cpu_count() or 1)


class ImageMemory:
    """Bytes of the memory for images, until they are given back."""

    __slots__ = ("_loop", "_room", "size")

    def __init__(self, room: ImageDecoder, size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = room
        self.size = size
        room.used += size

    def resize(self, size: int) -> None:
        """It is so much now; what is free then goes to those that wait."""
        self._room.used += size - self.size
        self.size = size
        self._room.admit()

    def release(self) -> None:
        """Harmless at any time."""
        if self.size:
            self.resize(0)

    def __del__(self) -> None:
        # Of a call that was cancelled before its first step, of which nothing ever runs. In any thread.
        if self.size and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room.give_back, self.size)


class _WaitingMessage:
    """A message whose images wait: how much memory they take, and what is told when there is room."""

    __slots__ = ("future", "size")

    def __init__(self, size: int, future: asyncio.Future[ImageMemory]) -> None:
        self.size = size
        self.future = future


class ImageDecoder:
    """The memory and the threads for images at one server. For one event loop.

    Args:
        max_memory: bytes. Those that wait are let in while there is so much; one is always let in where there is none.
        max_waiting: messages that may wait; one more is answered with -32002.

    Attributes:
        used: bytes at the moment.
    """

    def __init__(self, *, max_memory: int, max_waiting: int) -> None:
        self.used = 0
        self._max_memory = max_memory
        self._max_waiting = max_waiting
        self._threads = DaemonThreads(MAX_DECODERS, name="rpcstream-images")
        #: By who sent them, whose turn comes in this order; of each one message at a time is decoded.
        self._waiting: dict[Hashable, deque[_WaitingMessage]] = {}
        self._count = 0
        self._decoding: set[Hashable] = set()

    def keep(self, size: int) -> ImageMemory | None:
        """Memory for images that are decoded already; None where there is no room for them."""
        return ImageMemory(self, size) if self._has_room(size) and not self._waiting else None

    async def decode(self, owner: Hashable, size: int, function: Callable[[], tuple[T, int]]) -> tuple[T, ImageMemory]:
        """Run a function in a thread that decodes images, when there is room.

        Args:
            owner: of several that wait, each has its turn.
            size: bytes that it takes at most.
            function: gives a result, and the bytes that the images in it hold.

        Returns:
            The result, and the memory that is to be given back once it is dropped.

        Raises:
            ServerBusy: too many wait.
            Exception: what the function raises.
        """
        lease = await self._enter(owner, size)
        try:
            future = asyncio.wrap_future(self._threads.submit(function))
        except BaseException:
            self._leave(owner, lease, 0)
            raise
        # Also when nobody waits any more: a thread cannot be stopped, and takes its memory until it is done.
        future.add_done_callback(lambda done: self._leave(owner, lease, _size_of(done)))
        try:
            result, _ = await asyncio.shield(future)
        except BaseException:
            future.add_done_callback(lambda _: lease.release())
            raise
        return result, lease

    async def arguments(
        self,
        found: ArgumentsWithImages,
        owner: Hashable,
        params: Any,
        line: Line,
        tagged: Tagged = None,
        copies: int = 1,
    ) -> tuple[Arguments, ImageMemory]:
        """The arguments of a call with images, decoded here if they are not yet, and the memory for the images.

        Args:
            copies: how often each image will be in memory.

        Raises:
            RpcError: the params do not fit, or too many wait.
        """
        arguments, found.arguments = found.arguments, None
        if arguments is not None and (lease := self.keep(found.size * copies)) is not None:
            return arguments, lease
        del arguments
        # Nothing of the first attempt is kept while the message waits.
        found.__traceback__ = found.__context__ = None

        def bind() -> tuple[Arguments, int]:
            arguments, size = found.bind(params, line, tagged)
            return arguments, size * copies

        from ..codec.image_files import image_weight  # only where there are images, since it imports Pillow

        return await self.decode(owner, image_weight(params, found.limits), bind)

    def give_back(self, size: int) -> None:
        """So much is free now."""
        self.used -= size
        self.admit()

    def admit(self) -> None:
        """Let in those that wait, each in its turn, as far as there is room."""
        while len(self._decoding) < MAX_DECODERS:
            owner = next((each for each in self._waiting if each not in self._decoding), None)
            if owner is None:
                return
            line = self._waiting[owner]
            if not self._has_room(line[0].size):
                return  # no smaller one goes before it: it would wait for ever
            waiter = line[0]
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

    def _leave(self, owner: Hashable, lease: ImageMemory, size: int) -> None:
        """The thread is done; the images in what it gave hold so much."""
        self._decoding.discard(owner)
        lease.resize(size)

    def _take_out(self, owner: Hashable, waiter: _WaitingMessage) -> None:
        line = self._waiting.get(owner)
        if line is not None and waiter in line:
            line.remove(waiter)
            self._count -= 1
            if not line:
                del self._waiting[owner]


def _size_of(done: asyncio.Future[tuple[Any, int]]) -> int:
    return 0 if done.cancelled() or done.exception() is not None else done.result()[1]


class HandlerRunner(Protocol):
    """What starts a handler, as an `Invoker` does."""

    def start(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class ImageCallRunner:
    """Starts a handler as another one does, and gives the memory for its images back when it is done."""

    def __init__(self, starter: HandlerRunner, lease: ImageMemory) -> None:
        self._starter = starter
        self._lease = lease

    async def start(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the handler's result, or raises its exception."""
        try:
            result = self._starter.start(method, args, kwargs)
            return await result if inspect.isawaitable(result) else result
        finally:
            self._lease.release()
