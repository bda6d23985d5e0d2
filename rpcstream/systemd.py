"""Socket activation and notifications of systemd, without its library.

See sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3). Each environment variable is removed when it is read, so
that programs which this one starts do not take themselves for the service.

    from rpcstream.systemd import Notifier, take_sockets

    server.run(sockets=take_sockets(), port=8545)  # tells systemd by itself when it is ready

    notifier = Notifier.take()                     # in an event loop of your own, with `server.start`
    notifier.ready("serving")
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from typing import Self

from .text import get_logger, visible

log = get_logger("rpcstream.server")

#: The first descriptor that is passed.
FIRST = 3

#: Seconds for which a message waits for room at systemd's socket. Those of the watchdog do not wait.
PATIENCE = 1.0


def take_sockets(first: int = FIRST) -> list[socket.socket]:
    """The listening sockets that systemd has passed to this process, in its order; once, and then none.

    They are for `sockets=` of `Server.run` and its kind.

    Args:
        first: the first descriptor.

    Raises:
        OSError: a descriptor that is announced is not open, or no socket that listens.
    """
    pid, count, _ = (os.environ.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    sockets = []
    for number in range(first, first + int(count)) if pid == str(os.getpid()) else ():
        try:
            os.set_inheritable(number, False)
            sockets.append(sock := socket.socket(fileno=number))
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OSError(errno.EINVAL, "it does not listen")
        except OSError as error:
            raise OSError(error.errno, f"descriptor {number} from systemd: {error.strerror or error}") from None
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
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def take(cls) -> Self:
        """The notifier of `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`, which are removed."""
        keys = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        address, micros, pid = (os.environ.pop(key, "") for key in keys)
        return cls(address, int(micros) / 1e6 if micros and pid in ("", str(os.getpid())) else None)

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
        with contextlib.suppress(OSError):  # where there is no room, others of it wait there
            self._send("WATCHDOG=1", 0)
        self._timer = asyncio.get_running_loop().call_later(self.interval, self.watch)

    def close(self) -> None:
        """End the signs of life."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _tell(self, state: str, status: str) -> None:
        try:
            self._send(f"{state}\nSTATUS={visible(status)}" if status else state, PATIENCE)
        except OSError as error:
            log.warning("systemd could not be notified: %s", error)

    def _send(self, message: str, patience: float) -> None:
        if self._address:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(patience)
                sock.sendto(message.encode(), self._address)
