"""Connections to a peer on the same machine: wide socket buffers for large payloads, and whose process it is.

Knows neither messages nor who uses the socket.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

#: Bytes of each buffer of a socket: with the default ones a payload of 16 MiB takes a third longer.
BUFFER_SIZE = 1024 * 1024

#: pid, uid and gid of the other end, as the system gives them.
_PEER = struct.Struct("3i")


def is_local(sock: Any) -> bool:
    """Whether the other end of a connected socket is certainly on this machine."""
    try:
        if sock.family == getattr(socket, "AF_UNIX", None):
            return True
        host = str(sock.getpeername()[0])
    except OSError:  # it is not connected any more
        return False
    return host.startswith("127.") or host in ("::1", "::ffff:127.0.0.1")


def is_same_user(sock: Any) -> bool:
    """Whether the other end of a connected Unix socket is certainly a process of the same user (Linux)."""
    if sock.family != getattr(socket, "AF_UNIX", None) or not hasattr(socket, "SO_PEERCRED"):
        return False
    try:
        _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:  # it is not connected any more
        return False
    return bool(uid == os.geteuid())


def widen_buffers(sock: Any) -> None:
    """Enlarge the buffers of a socket if its peer is on this machine; in a network the system sizes them better.

    The system may grant less than that, and grants no less than it has granted before.
    """
    if not is_local(sock):
        return
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        try:
            if sock.getsockopt(socket.SOL_SOCKET, option) < BUFFER_SIZE:
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_SIZE)
        except OSError:
            return
