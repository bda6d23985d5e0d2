"""Accepting: sockets that listen, and connections until their protocol has them.

Owns taking connections from the system, TLS handshakes that are not done, and what happens when the system gives no
more file descriptors: nothing is accepted for a while, newcomers wait in the system's queue, and one line is logged now
and then. The servers of the event loops are not used: asyncio's then logs thousands of errors each second; uvloop's
closes newcomers without a word, or, where the whole system has run out, stops listening for good; and neither lets
handshakes be counted or ended. Knows neither messages nor how many connections there may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable
from typing import Any

from ..errors import RpcError
from .connection import format_address

log = logging.getLogger("rpcstream.server")

#: Connections that the system keeps for us while the loop is busy. The common default of 100 is met by a test with
#: 1,000 clients that start together.
BACKLOG = 4096

#: Connections that are taken in one turn of the loop: some milliseconds.
BURST = 64

#: Seconds without accepting when there are no more descriptors; and when some of those in use were just given up.
PAUSE, SHORT_PAUSE = 1.0, 0.05

#: What `accept` fails with that is about one connection only (accept(2), "Error handling").
_OF_ONE = frozenset(
    (
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
    )
)


class Handshake:
    """A connection whose TLS handshake is not done; a `Connection` of the listener.

    Attributes:
        task: carries it out.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.reason: str | None = None
        self.over_limit = False
        self.opened = asyncio.get_running_loop().time()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_known(self) -> bool:
        return False

    def refuse(self, error: RpcError) -> None:
        """There is no way to say why."""
        self.abort(error.message)

    def drain(self) -> None:
        self.abort("the server is about to stop")

    def probe(self) -> None:
        pass

    def check(self, now: float) -> str | None:
        """The event loop ends a handshake in its time."""
        return None

    def abort(self, reason: str) -> None:
        self.reason = reason
        if self.task is not None:
            self.task.cancel()


class Acceptor:
    """Takes connections from one listening socket, from `start` to `stop`.

    Args:
        make_protocol: makes the protocol of a connection, given the handshake that it comes out of (without TLS: None).
        context: for TLS.
        handshake_timeout: seconds; None: as long as the event loop has it (60 s).
        on_handshake: called when a handshake is about to begin; gives whether it may.
        on_handshake_over: called when it has failed, or its protocol has been made.
        on_shortage: called when the system gives no connection for want of descriptors or memory. Gives whether some of
            those that are open were ended for that.
    """

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[Handshake | None], asyncio.Protocol],
        *,
        context: ssl.SSLContext | None,
        handshake_timeout: float | None,
        on_handshake: Callable[[Handshake], bool],
        on_handshake_over: Callable[[Handshake], None],
        on_shortage: Callable[[OSError], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._make_protocol = make_protocol
        self._tls: dict[str, Any] = {}
        if context is not None:
            self._tls = {"ssl": context, "ssl_handshake_timeout": handshake_timeout}
        self._on_handshake = on_handshake
        self._on_handshake_over = on_handshake_over
        self._on_shortage = on_shortage
        self._pause: asyncio.TimerHandle | None = None
        #: Those that become connections at the moment; the event loop does not keep them.
        self._tasks: set[asyncio.Task[None]] = set()
        #: Where the loop cannot watch a socket (Windows) it accepts itself.
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(BACKLOG)
        try:
            self._loop.add_reader(self._sock.fileno(), self._accept)
        except NotImplementedError:
            self._server = await self._loop.create_server(
                lambda: self._make_protocol(None), sock=self._sock, backlog=BACKLOG, **self._tls
            )

    def stop(self) -> None:
        """Accept no more. What was accepted already becomes a connection still; see `wait`."""
        if self._pause is not None:
            self._pause.cancel()
        if self._server is not None:
            self._server.close()
        elif self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    async def wait(self) -> None:
        """Wait until nothing that was accepted is on its way to its protocol, or to its end."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(BURST):
            try:
                conn, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OF_ONE:
                    continue
                self._loop.remove_reader(self._sock.fileno())
                pause = SHORT_PAUSE if self._on_shortage(error) else PAUSE
                self._pause = self._loop.call_later(pause, self._go_on)
                return
            conn.setblocking(False)
            handshake = Handshake(format_address(address)) if self._tls else None
            if handshake is not None and not self._on_handshake(handshake):
                conn.close()
                continue
            self._connect(conn, handshake)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _connect(self, conn: socket.socket, handshake: Handshake | None) -> None:
        """Let the connection have its protocol, soon or after its handshake."""
        task = self._loop.create_task(self._connected(conn, handshake))
        self._tasks.add(task)
        if handshake is not None:
            handshake.task = task

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                conn.close()
            if handshake is not None:
                self._on_handshake_over(handshake)

        task.add_done_callback(done)

    async def _connected(self, conn: socket.socket, handshake: Handshake | None) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_protocol(handshake), conn, **self._tls)
        except OSError as error:  # with those of TLS: the peer is gone, or does not do as it should
            peer = handshake.address if handshake is not None else "a peer"
            log.debug("a connection from %s did not come about: %s", peer, error)
            conn.close()
        except Exception:
            log.exception("a connection could not be set up")
            conn.close()


# -- sockets ----------------------------------------------------------------------------------------------------------


async def bound_tcp(host: str, port: int) -> list[socket.socket]:
    """Sockets at all addresses of a host, "" for every address of this machine; not listening yet.

    Raises:
        OSError: one of them cannot be had.
    """
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, kind, protocol, _, address in await _addresses(host, port):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:  # the system has no such addresses
                absent = error
                continue
            bound.append(sock)
            if os.name == "posix":  # so that a restart finds the port free; elsewhere it means something else
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                absent = error
                bound.pop().close()
        if not bound:
            raise absent or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


async def _addresses(host: str, port: int) -> list[Any]:
    """What `getaddrinfo` gives, each once; in a thread where a name must be looked up."""
    how: dict[str, Any] = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, **how)
    return list(dict.fromkeys(found))


def bound_unix(path: str, mode: int | None) -> socket.socket:
    """A Unix socket with a file that has these permissions, and never had others. What a dead server left is removed.

    Raises:
        OSError: the path is in use, or cannot be written.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode) if mode is not None else None
    try:
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    finally:
        if before is not None:
            os.umask(before)
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket that a dead server left behind; one that answers stays, and the bind will fail."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            os.unlink(path)
            return
        except OSError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def remove_own(path: str, inode: int) -> None:
    """Remove our socket's file, unless another server has put its own there meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)
