"""Long lists that callers ask a hub for: written in slices, once for all who wait, and kept until something changes.

Owns when such a list is written anew, and how much of the loop's time that may take. Does not know what is in one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from time import perf_counter

from ..errors import RpcError
from ..wire import envelope
from ..wire.buffers import Encoded, MessageParts

#: Seconds for which the loop writes at a list before others have their turn.
SLICE = 0.005

#: After a list was written, the next one begins so many times later as this one took: however often it changes and
#: whoever asks for it, a fifth of the loop's time is all that it costs.
PAUSES = 4

#: Seconds; what is written in less is written at once, without a pause.
SHORT = 0.0005

#: Bytes of a list up to which a reply with it is put together; a longer one is sent behind its head uncopied.
JOINED = 64 * 1024


class Listing:
    """One list.

    Args:
        parts: gives what is in it, as JSON, in pieces that are sent one behind the other. Runs through while what it
            reads changes: what is there all the time must be in it.
        version: a number that is higher for each change of what is in it. None: it changes all the time, and is
            written for each who asks, or once for all who have asked while the one before was written.
        max_size: bytes that it may have; asking for a longer one is answered with an error.
    """

    def __init__(
        self, parts: Callable[[], Iterator[bytes]], version: Callable[[], int] | None, *, max_size: int
    ) -> None:
        self._parts = parts
        self._version = itertools.count().__next__ if version is None else version
        self._keeps = version is not None
        self._max_size = max_size
        #: What was written last, or why it cannot be sent; and the version at which that was begun.
        self._found: bytes | RpcError | None = None
        self._found_version = -1
        self._writing: _Writing | None = None
        self._not_before = 0.0
        self._waiters: list[asyncio.Future[tuple[int, bytes | RpcError]]] = []
        self._timer: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask(self) -> int:
        """What `now` and `soon` are to be given, so that all that has changed by now is in the list."""
        return self._version()

    def now(self, version: int) -> bytes | RpcError | None:
        """The list, or the error for one that is too long; None if it must be waited for."""
        if self._found is not None and self._found_version >= version:
            return self._found
        self._enter(asyncio.get_running_loop())
        if self._writing is None and self._timer is None and not self._is_early():
            self._begin(version)
            return self._write()
        return None

    async def soon(self, version: int) -> bytes | RpcError:
        """The same, waited for."""
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
        """Keep no list that is not as things are."""
        self._found = None

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """In another loop than before, nothing of that goes on."""
        if self._loop is not loop:
            self._loop, self._timer, self._writing = loop, None, None
            self._waiters, self._not_before = [], 0.0

    def _is_early(self) -> bool:
        assert self._loop is not None
        return self._loop.time() < self._not_before

    def _plan(self) -> None:
        """See that the list is written, as soon as it may be."""
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
        """One slice; gives the list, or the error, when it is done."""
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
        """Write until a time (`perf_counter`), and at least one part; gives the list, or the error, when it is done."""
        for part in self._parts:
            self._done.append(part)
            self._size += len(part)
            if self._size > max_size:
                return envelope.oversize(self._size, max_size, side="server")
            if perf_counter() > until:
                return None
        return b"".join(self._done)


def reply_with(call_id: bytes, listed: bytes, max_size: int) -> Encoded | RpcError:
    """The reply with such a list, to the request with this id (as JSON); an error if that is too long."""
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % call_id
    size = len(head) + len(listed) + 1
    if size > max_size:
        return envelope.oversize(size, max_size, side="server")
    return head + listed + b"}" if size <= JOINED else MessageParts([head, listed, b"}"])
