"""Two asyncio transports joined in memory, for tests: protocols talk as over a socket, without a port.

Owns what a socket does between them: order, delivery in a later turn of the loop, flow control, closing and aborting.
Knows nothing of messages.
"""

# ruff: noqa: SLF001  (each end looks into the other)

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Any

#: Bytes that are handed over at a time, as from a socket.
READ_MAX = 256 * 1024


class MemoryTransport(asyncio.Transport):
    """One end. What is written to it arrives at the protocol of the other end with the next turn of the loop."""

    def __init__(self, name: str) -> None:
        super().__init__({"peername": name})
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._protocol: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self._other: MemoryTransport | None = None
        self._unread = bytearray()
        self._high = 64 * 1024
        self._reading = True
        self._writing_paused = False
        self._closing = False
        self._got_eof = False

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing:
            return
        if self._other is None or self._other._closing:
            self._end(ConnectionResetError("the other end is closed"))
            return
        self._other._unread += data
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()
        self._other._soon(self._other._deliver)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return len(self._other._unread) if self._other is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._other is not None:
            self._other._got_eof = True
            self._other._soon(self._other._deliver)

    def _soon(self, function: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon(function, *args, context=self._context)

    # -- reading ----------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def _deliver(self) -> None:
        """Pass what was received to the protocol, then the end of the stream, as for a readable socket."""
        protocol, other = self._protocol, self._other
        if protocol is None or self._closing or not self._reading:
            return
        if self._unread:
            self._hand_over(protocol)
            if self._unread:
                self._soon(self._deliver)
            elif other is not None and other._writing_paused:
                other._writing_paused = False
                if other._protocol is not None:
                    other._protocol.resume_writing()
        if self._got_eof and not self._unread and self._reading:
            self._got_eof = False
            if not protocol.eof_received():
                self.close()

    def _hand_over(self, protocol: asyncio.Protocol | asyncio.BufferedProtocol) -> None:
        """Pass on as many bytes as one read of a socket gives."""
        if isinstance(protocol, asyncio.BufferedProtocol):
            target = memoryview(protocol.get_buffer(-1))[:READ_MAX]
            size = min(len(target), len(self._unread))
            target[:size] = self._unread[:size]
            del self._unread[:size]
            protocol.buffer_updated(size)
        else:
            data = bytes(self._unread[:READ_MAX])
            del self._unread[:READ_MAX]
            protocol.data_received(data)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # -- ending -----------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        if self._other is not None:
            self._other._unread.clear()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            if self._other is not None:
                self._other._got_eof = True
                self._other._soon(self._other._deliver)
            self._soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        other, self._other = self._other, None
        if other is not None and not other._closing:
            # This end reads nothing more: what the other end writes, or has waiting, is dropped.
            other._other = None
            if other._writing_paused:
                other._end(ConnectionResetError("the other end is closed"))
        if protocol is not None:
            protocol.connection_lost(error)


def join(left: asyncio.Protocol, right: asyncio.Protocol) -> None:
    """Connect two protocols, as if one had connected to the other."""
    left_end, right_end = MemoryTransport("memory"), MemoryTransport("memory")
    left_end._other, right_end._other = right_end, left_end
    left_end._protocol, right_end._protocol = left, right
    left.connection_made(left_end)
    right.connection_made(right_end)
