"""Long lists that a hub replies with: written in slices, once for all callers that wait, and kept until they change.

Owns when such a list is written again, and how much of the loop's time that may take. Does not know what is in it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from ..errors import InvalidParams, RpcError
from ..wire import envelope
from ..wire.buffers import Encoded, MessageParts

#: Seconds that the loop spends on writing a list before others have their turn.
SLICE = 0.005

#: After a list was written, the next one begins after so many times the time that it took: however often it changes
#: or is asked for, it takes a fifth of the loop's time at most.
PAUSES = 4

#: Seconds; after a list that is written in less, there is no pause.
SHORT = 0.0005

#: Bytes; a list up to this length is copied into its reply, a longer one is sent behind the head of the reply.
JOINED = 64 * 1024


class Listing:
    """One long list.

    Args:
        parts: yields the list as JSON, piece by piece. What it reads may change meanwhile; all that does not change
            must be in it.
        version: returns a number that is higher after each change of the list. None: it changes all the time, and is
            written for each caller, or once for all that asked while the one before was written.
        max_size: bytes that it may have; a longer one is an error.
        variants: other forms of the list, by the value of the parameter `compat` that asks for them.
    """

    def __init__(
        self,
        parts: Callable[[], Iterator[bytes]],
        version: Callable[[], int] | None,
        *,
        max_size: int,
        variants: Mapping[str, Listing] | None = None,
    ) -> None:
        self._variants = variants or {}
        self._parts = parts
        self._version = itertools.count().__next__ if version is None else version
        self._keeps = version is not None
        self._max_size = max_size
        #: The last list that was written, or the error for it; and the version at which it was begun.
        self._found: bytes | RpcError | None = None
        self._found_version = -1
        self._writing: _Writing | None = None
        self._not_before = 0.0
        self._waiters: list[asyncio.Future[tuple[int, bytes | RpcError]]] = []
        self._timer: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def asked_for(self, params: Any) -> Listing:
        """The form of the list that a call asks for by its params.

        Raises:
            InvalidParams: the list takes no parameters, or has no such form.
        """
        if not params:
            return self
        if not self._variants:
            raise InvalidParams(data={"reason": "it has no parameters"})
        compat = params.get("compat") if isinstance(params, dict) else params[0]
        if len(params) > 1 or (isinstance(params, dict) and "compat" not in params):
            raise InvalidParams(data={"reason": "it has one parameter: compat"})
        if compat is None:
            return self
        variant = self._variants.get(compat) if isinstance(compat, str) else None
        if variant is None:
            known = " or ".join(self._variants)
            raise InvalidParams(data={"parameter": "compat", "path": "$.compat", "reason": f"it can be {known}"})
        return variant

    def ask(self) -> int:
        """Return the version for `now` and `soon`: the list they return has all changes until now."""
        return self._version()

    def now(self, version: int) -> bytes | RpcError | None:
        """Return the list, or the error for one that is too long; None if it must be waited for."""
        if self._found is not None and self._found_version >= version:
            return self._found
        self._enter(asyncio.get_running_loop())
        if self._writing is None and self._timer is None and not self._is_early():
            self._begin(version)
            return self._write()
        return None

    async def soon(self, version: int) -> bytes | RpcError:
        """Wait for the list, or the error for one that is too long."""
        while True:
            loop = asyncio.get_running_loop()
            self._enter(loop)
            waiter: asyncio.Future[tuple[int, bytes | RpcError]] = loop.create_future()
            self._waiters.append(waiter)
            self._plan()
            written, found = await waiter
            if written >= version:
                return found

    def forget(self) -> None:
        """Drop the list that was kept, since it has changed."""
        self._found = None
        for variant in self._variants.values():
            variant.forget()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew if this is another event loop than before."""
        if self._loop is not loop:
            self._loop, self._timer, self._writing = loop, None, None
            self._waiters, self._not_before = [], 0.0

    def _is_early(self) -> bool:
        assert self._loop is not None
        return self._loop.time() < self._not_before

    def _plan(self) -> None:
        """Have the list written as soon as it may be."""
        if self._timer is None:
            assert self._loop is not None
            if self._writing is None and self._is_early():
                self._timer = self._loop.call_at(self._not_before, self._go_on)
            else:
                self._timer = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if self._writing is None:
            self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
            if not self._waiters:
                return
            self._begin(self._version())
        self._write()

    def _begin(self, version: int) -> None:
        self._writing = _Writing(self._parts(), version)

    def _write(self) -> bytes | RpcError | None:
        """Write one slice; return the list, or the error, when it is done."""
        writing, before = self._writing, perf_counter()
        assert writing is not None
        try:
            found = writing.go_on(before + SLICE, self._max_size)
        except BaseException:
            self._writing = None
            raise
        now = perf_counter()
        writing.seconds += now - before
        if found is None:
            self._plan()
            return None
        assert self._loop is not None
        self._writing = None
        if self._keeps:
            self._found, self._found_version = found, writing.version
        if writing.seconds > SHORT:
            self._not_before = self._loop.time() + PAUSES * writing.seconds
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result((writing.version, found))
        return found


class _Writing:
    """A list that is being written."""

    def __init__(self, parts: Iterator[bytes], version: int) -> None:
        self.version = version
        self.seconds = 0.0
        self._parts = parts
        self._done: list[bytes] = []
        self._size = 0

    def go_on(self, until: float, max_size: int) -> bytes | RpcError | None:
        """Write until a time (`perf_counter`), at least one part; return the list, or the error, when it is done."""
        for part in self._parts:
            self._done.append(part)
            self._size += len(part)
            if self._size > max_size:
                return envelope.oversize(self._size, max_size, side="server")
            if perf_counter() > until:
                return None
        return b"".join(self._done)


def reply_with(call_id: bytes, listed: bytes, max_size: int) -> Encoded | RpcError:
    """Write the reply with a list, to the request with this id (as JSON); return an error if it is too long."""
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % call_id
    size = len(head) + len(listed) + 1
    if size > max_size:
        return envelope.oversize(size, max_size, side="server")
    return head + listed + b"}" if size <= JOINED else MessageParts([head, listed, b"}"])
