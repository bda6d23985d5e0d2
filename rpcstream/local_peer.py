"""Sockets: waiting until one is ready, wide buffers for a peer on the same machine, and whose process that is."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

#: Bytes of each buffer of a socket: with the default ones a payload of 16 MiB takes a third longer.
BUFFER_SIZE = 1024 * 1024

#: Ways of avoiding congestion that let out bytes at a measured rate, however fast the other end takes them: between two
#: ends on one machine there is nothing to avoid, and an array of 1 MiB takes twice as long. And the one that every
#: system has and lets every program use, which does not.
PACED, UNPACED = b"bbr", b"reno"

#: pid, uid and gid of the other end, as the system gives them.
_PEER = struct.Struct("3i")


#: Waits up to so many milliseconds; true if the socket is ready (or in error, which the next operation shows).
Wait = Callable[[int], object]

#: The longest single wait (s); `poll` counts milliseconds in 32 bits.
LONGEST = 24 * 3600.0


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
    _, uid, _ = process_of(sock)
    return uid is not None and uid == os.geteuid()


def process_of(sock: Any) -> tuple[int | None, int | None, int | None]:
    """The pid, uid and gid of the process at the other end of a Unix socket when it connected (Linux); else None."""
    if sock is None or sock.family != getattr(socket, "AF_UNIX", None) or not hasattr(socket, "SO_PEERCRED"):
        return None, None, None
    try:
        pid, uid, gid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:  # it is not connected any more
        return None, None, None
    return pid, uid, gid


def widen_buffers(sock: Any) -> None:
    """Let large payloads through a socket fast if its peer is on this machine; in a network the system knows better.

    Its buffers are enlarged, and it is not paced. The system may grant less than that, and grants no less than it has
    granted before.
    """
    if not is_local(sock):
        return
    with contextlib.suppress(OSError):  # not permitted, or not connected any more
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            if sock.getsockopt(socket.SOL_SOCKET, option) < BUFFER_SIZE:
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_SIZE)
        # On a Unix socket, and on systems other than Linux, this fails.
        congestion = getattr(socket, "TCP_CONGESTION", 0)
        if sock.getsockopt(socket.IPPROTO_TCP, congestion, 16).startswith(PACED):
            sock.setsockopt(socket.IPPROTO_TCP, congestion, UNPACED)


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
