"""A transport that hands long messages to another transport in parts.

TLS encrypts everything it gets into its own buffers at once, and asyncio without TLS (Python 3.11, Windows) copies what
the system does not take. So a message for many slow readers would be in memory once for each reader. Here, references
to the message wait.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast

#: Bytes that are handed over at a time. The transport has this once encrypted in its socket's buffer and once waiting
#: for that: 1,000 connections that stall hold 512 MiB at most. Larger shares were not faster on loopback.
SHARE = 256 * 1024

#: Bytes that are handed over in one turn of the loop: encrypting them takes less than a millisecond.
TURN = 4 * SHARE

#: Bytes up to which a piece is copied to those that wait: less than an object of its own would need besides.
COPY_MAX = 4 * 1024

#: Seconds that the other end of TLS has to end the connection, once all that was sent has arrived.
GOODBYE = 2.0


class Writer(Protocol):
    """A protocol that writes to a `PacedTransport`."""

    def set_full(self, is_full: bool) -> None:
        """The peer leaves more unread than it should (True), or has read enough of it (False)."""


def is_copying(transport: asyncio.BaseTransport) -> bool:
    """Whether this transport copies all that it is given."""
    if transport.get_extra_info("ssl_object") is not None:
        return True
    copies = sys.version_info < (3, 12) or sys.platform == "win32"
    return copies and isinstance(transport, asyncio.Transport) and transport.get_extra_info("socket") is not None


class PacedTransport:
    """A transport that is used in place of one that copies.

    The protocol forwards `pause_writing` and `resume_writing` of that transport to `pause` and `resume` here, and
    `connection_lost` to `lost`; in their place it gets `set_full`.

    Args:
        transport: the one that copies.
        writer: the protocol.
    """

    def __init__(self, transport: asyncio.Transport, writer: Writer) -> None:
        #: The protocol that writes here; another one, when the connection goes on with that.
        self.writer = writer
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Any] = deque()
        self._size = 0
        self._high, self._low = 4 * SHARE, SHARE
        #: The transport takes no more; `set_full(True)` was called; `close` or `write_eof` was called.
        self._is_blocked = self._is_full = self._is_closing = self._ends = False
        self._turn: asyncio.Handle | None = None
        self._goodbye: asyncio.TimerHandle | None = None

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._waiting or self._is_blocked or len(data) > SHARE:
            self._queue((data,))
        elif not self._is_closing:
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        pieces = list(list_of_data)
        if self._waiting or self._is_blocked or sum(map(len, pieces)) > SHARE:
            self._queue(pieces)
        elif not self._is_closing:
            self._transport.write(b"".join(pieces))

    def set_write_buffer_limits(self, high: int) -> None:
        """Set when `set_full` is called, in bytes of all that waits; less than two shares are in the transport."""
        self._high, self._low = high, high // 4
        self._transport.set_write_buffer_limits(high=min(SHARE // 2, high))

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def _queue(self, pieces: Iterable[Any]) -> None:
        if self._is_closing:
            return
        waiting = self._waiting
        for piece in pieces:
            if not piece:
                continue
            self._size += len(piece)
            if len(piece) > COPY_MAX:
                waiting.append(piece)
            elif waiting and type(waiting[-1]) is bytearray and len(waiting[-1]) < SHARE:
                waiting[-1] += piece
            else:
                waiting.append(bytearray(piece))
        if self._turn is None:
            self._feed()
        else:
            self._tell()

    def _feed(self) -> None:
        """Hand over what the transport takes, at most `TURN` bytes, in shares."""
        self._turn = None
        transport, waiting = self._transport, self._waiting
        left = TURN
        while waiting and not self._is_blocked:
            if transport.is_closing():
                self._drop()
            elif left <= 0:
                self._turn = self._loop.call_soon(self._feed)
                break
            else:
                share = waiting.popleft()
                if len(share) > SHARE:
                    view = memoryview(share)
                    waiting.appendleft(view[SHARE:])
                    share = view[:SHARE]
                self._size -= len(share)
                left -= len(share)
                transport.write(share)
        if not waiting:
            self._finish()
        self._tell()

    def _tell(self) -> None:
        """Call `set_full` if more waits than should, or does not any more."""
        size = self.get_write_buffer_size()
        if not self._is_full:
            if size > 0 and size >= self._high:
                self._is_full = True
                self.writer.set_full(True)
        elif size <= self._low or not (self._waiting or self._is_blocked):  # else `resume` or a turn comes
            self._is_full = False
            self.writer.set_full(False)

    # -- callbacks of the transport, through its protocol --------------------------------------------------------------

    def pause(self) -> None:
        self._is_blocked = True
        self._tell()

    def resume(self) -> None:
        self._is_blocked = False
        if self._turn is None:
            self._feed()

    def lost(self) -> None:
        """The connection is lost."""
        self._drop()
        if self._goodbye is not None:
            self._goodbye.cancel()

    def at_eof(self) -> bool:
        """The peer sends nothing more; to be called last in `eof_received`.

        TLS drops all that is written later. So what waits is handed over now, unless that is more than may wait unread
        (then the peer, which has not read it, sees that it does not get the whole).

        Returns:
            Whether, without TLS, bytes still wait, so that the transport must not close by itself.
        """
        if not self._waiting or self._transport.is_closing():
            return False
        if self._transport.get_extra_info("ssl_object") is None:
            return True
        if self._size <= self._high:
            left = b"".join(self._waiting)
            self._drop()
            self._transport.write(left)
        return False

    def _drop(self) -> None:
        self._waiting.clear()
        self._size = 0
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Close once what waits has been handed over."""
        if not self._is_closing:
            self._is_closing = True
            if not self._waiting:
                self._finish()

    def abort(self) -> None:
        self._is_closing = True
        self._drop()
        self._transport.abort()

    def write_eof(self) -> None:
        self._ends = True
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        """Do what was to be done once nothing waits any more: end, or close."""
        if self._transport.is_closing():
            return
        if self._ends:
            self._ends = False
            self._transport.write_eof()
        if self._is_closing:
            self._transport.close()
            if self._transport.get_extra_info("ssl_object") is not None:
                self._goodbye = self._loop.call_later(GOODBYE, self._cut)

    def _cut(self) -> None:
        """Close at once if the peer has read everything, but has not ended the connection."""
        if undelivered(cast(asyncio.Transport, self)):
            self._goodbye = self._loop.call_later(GOODBYE, self._cut)
        else:
            self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        """Everything else is as of the transport."""
        return getattr(self._transport, name)


def undelivered(transport: asyncio.Transport) -> int:
    """Bytes that were written and have not arrived at the peer's system, as far as this system knows.

    What was written to a Unix socket has arrived, whether or not the peer has read it: it may still do so later.
    """
    unsent = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if unsent or sock is None or sock.family == getattr(socket, "AF_UNIX", None):
        return unsent
    try:
        import fcntl
        import termios

        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4), sys.byteorder)
    except (ImportError, OSError, AttributeError):  # not Linux, or the socket is closed
        return unsent
