"""Blocking sockets for the sync client: connecting one, perhaps with TLS, and waiting until one is ready."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .address import Address
from .options import Settings

if TYPE_CHECKING:
    import ssl

#: Waits up to so many milliseconds; true if the socket is ready (or in error, which the next operation shows).
Wait = Callable[[int], object]

#: The longest single wait (s); `poll` counts milliseconds in 32 bits.
LONGEST = 24 * 3600.0


def dial(settings: Settings, seconds: float | None) -> socket.socket:
    """Connect to a TCP, TLS or Unix address, and block until that is done.

    Args:
        settings: with the address.
        seconds: that this may take for each IP address of the host (of several servers: for all but the last); None for
            no limit.

    Raises:
        OSError: the server cannot be reached, or TLS failed; TimeoutError without errno: the time is over.
    """
    if settings.address.kind == "unix":
        return _dial_unix(settings.address.path, seconds)
    *first, last = settings.address.in_turn
    share = None if seconds is None else seconds / (len(first) + 1)
    for address in first:
        try:
            return _dial_tcp(address, settings.tls, share)
        except OSError:
            continue
    return _dial_tcp(last, settings.tls, seconds)


def _dial_tcp(address: Address, tls: ssl.SSLContext | None, seconds: float | None) -> socket.socket:
    # As bytes, where they say the same: for a text the codec of international names is imported, for 2 ms.
    name: Any = address.host.encode() if address.host.isascii() else address.host
    sock = socket.create_connection((name, address.port), timeout=seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tls is None:
        return sock
    try:
        return tls.wrap_socket(sock, server_hostname=address.host.partition("%")[0])
    except BaseException:
        sock.close()
        raise


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
