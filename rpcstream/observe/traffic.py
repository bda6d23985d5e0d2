"""Bytes that connections have received and sent, as the system has counted them.

Linux counts them for each TCP connection (`TCP_INFO`, tcp(7)), so that counting takes no time of a call: the counters
are read when a connection ends, and when they are asked for those of the open ones. Other connections, such as Unix
sockets, are not counted; nor are other systems.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

#: Where `struct tcp_info` (linux/tcp.h, since Linux 4.19) has the bytes that were received, and from where on those
#: that were sent, and sent again.
_RECEIVED, _SENT, _SIZE = 128, 200, 216

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)


def bytes_of(sock: Any) -> tuple[int, int]:
    """The bytes that a socket has received and sent; zeros where the system does not say.

    Of TLS these are the encrypted ones. What was sent again, since it was lost on its way, counts once; the end of what
    the peer sends counts as one byte.
    """
    if _TCP_INFO is None or sock is None:
        return 0, 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except (OSError, ValueError):  # no TCP, or it is closed
        return 0, 0
    if len(info) < _SIZE:
        return 0, 0
    (received,) = struct.unpack_from("=Q", info, _RECEIVED)
    sent, again = struct.unpack_from("=QQ", info, _SENT)
    return received, sent - again


class Traffic:
    """Bytes of all connections of a server, those that have ended among them."""

    def __init__(self) -> None:
        self._received = self._sent = 0

    def add(self, sock: Any) -> None:
        """Add those of a connection that is about to be closed."""
        received, sent = bytes_of(sock)
        self._received += received
        self._sent += sent

    def total(self, sockets: Iterable[Any]) -> tuple[int, int]:
        """Bytes received and sent; `sockets` are those of the connections that are open."""
        received, sent = self._received, self._sent
        for sock in sockets:
            more_received, more_sent = bytes_of(sock)
            received += more_received
            sent += more_sent
        return received, sent
