"""Socket activation and notifications of systemd, without its library.

Owns the environment variables and the datagrams: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3). Each variable
is taken out of the environment when it is read, so that programs which this one starts do not take themselves for the
service. Knows no server.

    from rpcstream.systemd import Notifier, take_sockets

    server.run(sockets=take_sockets(), port=8545)  # tells systemd by itself when it is ready

    notifier = Notifier.take()                     # in an event loop of your own, with `server.start`
    notifier.ready("serving")
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Self

from .text import visible

log = logging.getLogger("rpcstream.server")

#: The first descriptor that is passed, and how many there may be: the usual limit of descriptors of a process.
FIRST, MOST = 3, 1024

#: Seconds for which a message waits for room at systemd's socket. Those of the watchdog do not wait.
PATIENCE = 1.0

#: Characters of a text for `systemctl status`.
MAX_STATUS = 500

#: The passed sockets that were not taken yet, with their names; None: the environment was not read yet.
_passed: list[tuple[str, socket.socket]] | None = None


def take_sockets(name: str | None = None) -> list[socket.socket]:
    """The listening sockets that systemd has passed to this process, in its order; each is given once.

    They are for `sockets=` of `Server.run` and its kind. What is set up to be passed (`ListenStream=` of a socket unit)
    must be a stream socket that listens: `Accept=no`, which is the default.

    Args:
        name: only sockets of this `FileDescriptorName=`; the others are left for another call. None: all.

    Raises:
        OSError: a descriptor that is announced is not open, no socket, or none that listens for connections.
    """
    global _passed
    if _passed is None:
        _passed = []  # so that an error is raised once
        _passed = read_sockets(os.environ)
    taken = [each for each in _passed if name is None or each[0] == name]
    _passed = [each for each in _passed if each not in taken]
    for known, sock in taken:
        if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            reason = "it does not listen for connections: ListenStream= and Accept=no are expected"
            raise OSError(errno.EINVAL, f"descriptor {sock.fileno()} ({visible(known)}) from systemd: {reason}")
    return [sock for _, sock in taken]


def read_sockets(environment: MutableMapping[str, str], first: int = FIRST) -> list[tuple[str, socket.socket]]:
    """The sockets that `LISTEN_FDS` announces, with their names; the variables are removed.

    Args:
        environment: of this process.
        first: the first descriptor.

    Raises:
        OSError: as `take_sockets`.
    """
    pid, count, names = (environment.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if not pid or not count:
        return []
    if pid != str(os.getpid()):
        if pid == str(getattr(os, "getppid", lambda: 0)()):
            log.warning("systemd has passed sockets to process %s, which has started this one: let it use exec", pid)
        return []
    if not count.isdecimal() or not 0 < int(count[:9]) <= MOST:
        raise OSError(errno.EINVAL, f"LISTEN_FDS is {count[:20]!r}: from 1 to {MOST} is expected")
    known = names.split(":") if names else []
    sockets = []
    for number in range(int(count)):
        name = known[number] if number < len(known) else "unknown"
        try:
            os.set_inheritable(first + number, False)
            sockets.append((name, socket.socket(fileno=first + number)))
        except OSError as error:
            reason = error.strerror or error
            raise OSError(
                error.errno, f"descriptor {first + number} ({visible(name)}) from systemd: {reason}"
            ) from None
    return sockets


class Notifier:
    """Tells systemd about the state of this process; does nothing where no service manager asks for that.

    What cannot be sent is logged, and the program goes on.

    Args:
        address: the path of systemd's datagram socket; "@" stands for the zero byte of an abstract one. "": none.
        watchdog: seconds within which systemd wants to hear of this process; None: it does not.

    Attributes:
        interval: seconds between two signs of life: half the time of the watchdog; None: none are wanted.
    """

    def __init__(self, address: str = "", watchdog: float | None = None) -> None:
        self.interval = None if watchdog is None or not address else watchdog / 2
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_failed = False
        if not address:
            return
        if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
            log.warning("systemd cannot be notified at %r: it is no path and no abstract socket", address)
            self.interval = None
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    @classmethod
    def take(cls, environment: MutableMapping[str, str] | None = None) -> Self:
        """The notifier of `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`, which are removed.

        Args:
            environment: None: that of this process.
        """
        variables = os.environ if environment is None else environment
        address, micros, pid = (variables.pop(key, "") for key in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        watchdog = None
        if micros and (not pid or pid == str(os.getpid())):
            if micros.isdecimal() and int(micros[:19]) > 0:
                watchdog = int(micros[:19]) / 1e6
            else:
                log.warning("WATCHDOG_USEC is %r: a number of microseconds is expected", micros[:20])
        return cls(address, watchdog)

    def ready(self, status: str = "") -> None:
        """The process serves, or serves again after `reloading`."""
        self._tell("READY=1", status)

    def reloading(self, status: str = "") -> None:
        """The configuration is being read again; `ready` must follow, also where that fails."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", status)

    def stopping(self, status: str = "") -> None:
        """The process has begun to end."""
        self._tell("STOPPING=1", status)

    def watch(self) -> None:
        """Give the watchdog its signs of life from the running event loop, until `close`.

        They end while the loop is blocked, so that systemd ends the process where it is for too long.
        """
        if self.interval is None:
            return
        self._send(b"WATCHDOG=1", 0)  # where there is no room, others of it wait there
        self._timer = asyncio.get_running_loop().call_later(self.interval, self.watch)

    def close(self) -> None:
        """End the signs of life, and close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _tell(self, state: str, status: str) -> None:
        text = f"{state}\nSTATUS={visible(status)[:MAX_STATUS]}" if status else state
        self._send(text.encode(), PATIENCE)

    def _send(self, message: bytes, patience: float) -> None:
        if self._socket is None:
            return
        self._socket.settimeout(patience)
        try:
            self._socket.sendto(message, self._address)
        except OSError as error:
            if not self._has_failed and not (patience == 0 and isinstance(error, BlockingIOError)):
                self._has_failed = True
                log.warning("systemd could not be notified: %s", error)
        else:
            self._has_failed = False
