"""The parameters of a method as callers see them, the errors for params that do not fit, and the decoding of images."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any
from weakref import WeakKeyDictionary

from ..codec.codec import Reading
from ..codec.hints import CompiledHint
from ..codec.rich_hint import fault_of, shortened
from ..errors import InvalidParams, ServerBusy
from ..peer.ledger import Account
from .threads import DaemonThreads, until_done

#: Positional and keyword arguments for a function.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Gives the arguments for params, a line and the reading of its batch; see `Signature.bind`.
Bind = Callable[..., Arguments]
Line = bytes | bytearray
#: The reading of a whole message, for a part of it such as a call in a batch; None for a call by itself.
Tagged = Reading | None

#: Characters of a name that an error repeats.
NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class RemoteParameter:
    """One parameter as a caller sees it."""

    name: str
    kind: Any
    hint: CompiledHint
    default: Any

    @property
    def required(self) -> bool:
        """True if a caller must give it."""
        return self.default is Parameter.empty and self.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

    @property
    def by_position(self) -> bool:
        """True if a caller may give it by position."""
        return self.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

    def error(self, text: str, place: int | str) -> InvalidParams:
        """The error for a value that does not fit.

        Args:
            text: of msgspec or the codec.
            place: of the value in the params.
        """
        path, reason = fault_of(text, self.hint.choices)
        at = f"[{place}]" if isinstance(place, int) else f".{shortened(place, NAME_MAX)}"
        name = at[1:] if self.kind is Parameter.VAR_KEYWORD else self.name
        data = {"path": f"${at}{path}", "reason": reason, "parameter": name}
        return InvalidParams(f"Invalid params: {name}{path}: {reason}", data)


@dataclass(eq=False)
class ArgumentsWithImages(Exception):  # nothing is wrong
    """Raised in place of arguments that hold images, which must be decoded elsewhere or whose memory must be counted.

    Attributes:
        bind: decodes all images in another thread, within a given number of bytes; see `Signature.bind_elsewhere`.
        size: bytes of memory that the images in the arguments hold, or those not decoded yet need; 0: not known yet.
        arguments: for the function; None if the images must still be decoded.
    """

    bind: Callable[[int], tuple[Arguments | None, int]]
    size: int
    arguments: Arguments | None = None


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
