"""Waiting until a socket can be read or written, without changing its blocking mode.

The sockets of the sync client never block: a thread that sends and one that reads may wait for different times on the
same socket. Owns the difference between systems that have `poll` and those that have not (Windows).
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

#: Waits up to so many milliseconds; true if the socket is ready (or in error, which the next operation shows).
Wait = Callable[[int], object]

#: The longest single wait (s); `poll` counts milliseconds in 32 bits.
LONGEST = 24 * 3600.0


def milliseconds(seconds: float) -> int:
    """For a `Wait`: rounded up, so that a short rest is slept and not spun away."""
    return int(min(seconds, LONGEST) * 1000) + 1


def waiter(sock: socket.socket, *, read: bool = False, write: bool = False) -> Wait:
    """A function that waits for the socket; one thread at a time may call it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock.fileno(), (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        return poll.poll

    def wait(timeout: int) -> object:
        ready = select.select([sock] if read else [], [sock] if write else [], [sock], timeout / 1000)
        return ready[0] or ready[1] or ready[2]

    return wait
