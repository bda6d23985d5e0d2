"""Plain sockets: connecting one for the sync client, waiting until one is ready, why connecting failed.

Owns the difference between systems that have `poll` and those that have not (Windows). Knows nothing of messages.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable

from ..errors import ConnectFailed
from .address import Address

#: Waits up to so many milliseconds; true if the socket is ready (or in error, which the next operation shows).
Wait = Callable[[int], object]

#: The longest single wait (s); `poll` counts milliseconds in 32 bits.
LONGEST = 24 * 3600.0


#: Alerts of TLS after which another attempt may succeed.
_PASSING_ALERTS = frozenset(("INTERNAL_ERROR", "USER_CANCELLED"))

#: How TLS says that the other end does not speak it.
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL"))


def dial(address: Address, seconds: float | None, method: str) -> socket.socket:
    """Connect to a TCP or Unix address, and block until that is done.

    Args:
        address: of the server.
        seconds: that this may take for each IP address of the host; None for no limit.
        method: to be called next, for errors.

    Raises:
        ConnectFailed: the server cannot be reached.
        TimeoutError: the time is over.
    """
    try:
        if address.kind == "unix":
            return _dial_unix(address.path, seconds)
        sock = socket.create_connection((address.host, address.port), timeout=seconds)
    except OSError as error:
        if is_own_timeout(error):
            raise
        raise ConnectFailed(failure(error, seconds), method=method, address=str(address)) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def failure(error: OSError, seconds: float | None) -> str:
    """Describe why connecting failed; `seconds` is the time it was given."""
    if is_own_timeout(error) and seconds is not None:
        return f"could not connect within {seconds:g} s"
    refusal = getattr(error, "verify_message", None)
    if refusal is not None:
        return f"could not connect: the server's certificate is not to be trusted: {refusal}"
    if getattr(error, "library", None) == "SSL":  # whose numbers are others than those of the system
        what = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        return f"could not connect: TLS failed: {what}"
    if not str(error) and isinstance(error, ConnectionResetError):
        return "could not connect: the server closed the connection in the handshake of TLS"
    known = error.errno in errno.errorcode and not isinstance(error, socket.gaierror)
    reason = os.strerror(error.errno) if known and error.errno is not None else error.strerror
    return f"could not connect: {reason or error or type(error).__name__}"


def is_permanent_failure(error: BaseException) -> bool:
    """Tell whether connecting failed for a reason that another attempt does not change: certificates, no TLS at all."""
    if isinstance(error, ConnectFailed):
        return error.is_permanent
    if getattr(error, "verify_message", None) is not None:
        return True
    reason = str(getattr(error, "reason", None) or "")
    _, is_alert, alert = reason.partition("_ALERT_")
    return reason in _NO_TLS or (bool(is_alert) and alert not in _PASSING_ALERTS)


def is_own_timeout(error: OSError) -> bool:
    """Tell whether the time-out of the socket object passed, and not one of the system (which has an errno)."""
    return isinstance(error, TimeoutError) and error.errno is None


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
