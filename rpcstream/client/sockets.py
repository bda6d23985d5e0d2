"""Plain sockets: connecting one for the sync client, and waiting until one is ready.

Owns the difference between systems that have `poll` and those that have not (Windows). Knows nothing of messages.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from ..errors import ConnectFailed
from .address import Address

#: Waits up to so many milliseconds; true if the socket is ready (or in error, which the next operation shows).
Wait = Callable[[int], object]

#: The longest single wait (s); `poll` counts milliseconds in 32 bits.
LONGEST = 24 * 3600.0


def dial(address: Address, seconds: float | None, method: str) -> socket.socket:
    """Connect to a TCP or Unix address, and block until that is done.

    Args:
        address: of the server.
        seconds: that this may take for each IP address of the host (of several servers: for all but the last); None for
            no limit.
        method: to be called next, for errors.

    Raises:
        ConnectFailed: the server cannot be reached.
        TimeoutError: the time is over.
    """
    try:
        if address.kind == "unix":
            return _dial_unix(address.path, seconds)
        sock = _dial_tcp(address, seconds)
    except OSError as error:
        from .faults import failure, is_own_timeout

        if is_own_timeout(error):
            raise
        raise ConnectFailed(failure(error, seconds, address), method=method, address=str(address)) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _dial_tcp(address: Address, seconds: float | None) -> socket.socket:
    """Connect to the first server of an address that can be reached, each with its share of the time."""
    if not address.others:
        return socket.create_connection((address.host, address.port), timeout=seconds)
    *first, last = address.in_turn
    share = None if seconds is None else seconds / (len(first) + 1)
    for each in first:
        try:
            sock = socket.create_connection((each.host, each.port), timeout=share)
        except OSError:
            continue
        sock.settimeout(seconds)
        return sock
    return socket.create_connection((last.host, last.port), timeout=seconds)


def _dial_unix(path: str, seconds: float | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def milliseconds(seconds: float) -> int:
    """Give seconds in the unit of a `Wait`, rounded up: a wait of 0 does not sleep, and would be repeated in a loop."""
    return int(min(seconds, LONGEST) * 1000) + 1


def waiter(sock: socket.socket, *, read: bool = False, write: bool = False) -> Wait:
    """Make a function that waits until the socket is ready; one thread at a time may call it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock.fileno(), (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        return poll.poll

    def wait(timeout: int) -> object:
        ready = select.select([sock] if read else [], [sock] if write else [], [sock], timeout / 1000)
        return ready[0] or ready[1] or ready[2]

    return wait
