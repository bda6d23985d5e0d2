"""Long lists that a hub replies with: one task writes a list for all callers, in slices of the loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import orjson

from ..errors import RpcError
from ..wire import envelope

#: Seconds that the loop spends on writing a list before others have their turn.
SLICE = 0.005

#: After a list was written, the next one waits this many times the time that it took. However often a list changes
#: or is asked for, it takes at most a fifth of the loop's time.
PAUSES = 4


class Listing:
    """One long list, kept until it changes.

    Args:
        parts: yields the list as JSON, piece by piece. What it reads may change meanwhile; all that does not change
            must be in it.
        version: returns a number that is higher after each change of the list. None: the list changes all the time.
        max_size: bytes that the list may have.
    """

    def __init__(
        self, parts: Callable[[], Iterator[bytes]], version: Callable[[], int] | None, *, max_size: int
    ) -> None:
        self._parts = parts
        self._version = itertools.count().__next__ if version is None else version
        self._max_size = max_size
        #: The last list that was written, or the error for a list that is too long; and the version when it was begun.
        self._written: bytes | RpcError = b""
        self._written_version = -1
        self._task: asyncio.Task[None] | None = None
        #: Loop time (s) before which no list is written.
        self._not_before = 0.0

    async def text(self) -> bytes:
        """Return the list as JSON, with all changes until now.

        Raises:
            MessageTooLarge: the list is over `max_size`.
        """
        wanted = self._version()
        while self._written_version < wanted:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._write())
            await asyncio.shield(self._task)
        if isinstance(self._written, RpcError):
            raise self._written
        return self._written

    async def fragment(self) -> Any:
        """Return the list as the result of a handler; raises as `text`."""
        return orjson.Fragment(await self.text())

    def close(self) -> None:
        """Stop writing: the hub stops."""
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            await asyncio.sleep(pause)
        version, done, size, seconds = self._version(), [], 0, 0.0
        began = perf_counter()
        for part in self._parts():
            done.append(part)
            size += len(part)
            if size > self._max_size:
                break
            if (spent := perf_counter() - began) > SLICE:
                seconds += spent
                await asyncio.sleep(0)
                began = perf_counter()
        self._not_before = loop.time() + PAUSES * (seconds + perf_counter() - began)
        self._written_version = version
        too_long = size > self._max_size
        self._written = envelope.oversize(size, self._max_size, side="server") if too_long else b"".join(done)
