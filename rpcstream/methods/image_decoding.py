"""Decodes the images of calls in threads, within a limit of memory for all calls of a server."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ServerBusy
from ..peer.ledger import Account
from .arguments import Arguments, ArgumentsWithImages
from .threads import DaemonThreads, until_done

#: Messages whose images are decoded at the same time. Pillow releases the GIL while it decodes, so one for each
#: processor; more than four would leave less memory for each.
MAX_DECODERS = min(4, os.cpu_count() or 1)

#: Bytes reserved for a message until its images are opened. Most messages need less.
_FIRST = 16 * 1024 * 1024


class ImageDecoder:
    """Decodes images for one server. For one event loop.

    Args:
        max_memory: bytes for the images of all calls; a message that needs more is admitted only if no other is.
        max_waiting: messages that may wait while another one is decoded; one more is answered with -32002.
    """

    def __init__(self, *, max_memory: int, max_waiting: int) -> None:
        self._memory = Account(max_memory)
        self._max_waiting = max_waiting
        #: Messages that wait or are decoded.
        self._messages = 0
        self._threads = DaemonThreads(MAX_DECODERS, name="rpcstream-images")
        #: One message of each owner is decoded at a time, so that the owners take turns.
        self._turns: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
        #: One message waits for memory; smaller ones do not overtake it, or it might wait for ever.
        self._entrance = asyncio.Lock()
        self._freed = asyncio.Event()

    async def decode(self, found: ArgumentsWithImages, owner: object) -> tuple[Arguments, int]:
        """The arguments of a call with all images decoded, in a thread unless `bind` has decoded them.

        Args:
            found: as `Signature.bind` raised it.
            owner: several owners that wait take turns.

        Returns:
            The arguments, and the bytes that their images take: the caller must give them back.

        Raises:
            RpcError: the params do not fit, or too many messages wait.
        """
        if found.arguments is not None and not self._entrance.locked() and self._memory.take(found.size):
            return found.arguments, found.size
        # Nothing of the first attempt is kept while the message waits.
        found.arguments = found.__traceback__ = found.__context__ = None
        work = asyncio.ensure_future(self._decode(found, owner))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # If a thread has begun, this takes its memory and the owner's turn until that is done.
            if not work.cancel() and not work.cancelled() and work.exception() is None:
                self.give_back(work.result()[1])
            raise

    async def _decode(self, found: ArgumentsWithImages, owner: object) -> tuple[Arguments, int]:
        if self._messages > self._max_waiting:
            raise ServerBusy(data={"limit": self._max_waiting})
        self._messages += 1
        size = found.size or _FIRST
        try:
            async with self._turns.setdefault(owner, asyncio.Lock()):
                while True:
                    await self._reserve(size)
                    try:
                        arguments, held = await until_done(self._threads.submit(found.bind, size))
                    except BaseException:
                        self.give_back(size)
                        raise
                    if arguments is not None:
                        self.give_back(size - held)
                        return arguments, held
                    self.give_back(size)
                    size = max(held, 2 * size)  # how much it takes is known once an image is opened
        finally:
            self._messages -= 1

    async def _reserve(self, size: int) -> None:
        async with self._entrance:
            while not self._memory.take(size):
                self._freed.clear()
                await self._freed.wait()

    def give_back(self, size: int) -> None:
        """Free so many bytes; they go to messages that wait."""
        self._memory.give_back(size)
        self._freed.set()

    def close(self) -> None:
        """End the threads, each after what it does now."""
        self._threads.close()
