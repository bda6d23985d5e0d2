"""Listening sockets, and accepted connections until their protocol takes over.

When the system has no more file descriptors nothing is accepted for a while. The servers of the event loops are not
used, because then asyncio's logs thousands of errors each second, uvloop's closes new connections silently or stops
listening, and neither lets handshakes be counted or ended.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..tls import handshake_failures
from .connection import format_address
from .open_connections import Arrival, OpenConnections

log = logging.getLogger("rpcstream.server")

#: Connections that the system queues while the loop is busy. With the common default of 100, some of 1,000 clients that
#: start together fail.
BACKLOG = 4096

#: Connections accepted in one turn of the loop: some milliseconds.
BURST = 64

#: Seconds without accepting when there are no more descriptors; and when some connections were just closed for that.
PAUSE, SHORT_PAUSE = 1.0, 0.05

#: Errors of `accept` that concern one connection only (accept(2), "Error handling").
OF_ONE_CONNECTION = frozenset(
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


class ConnectionSetup:
    """Sets up connections that were accepted at one address: the TLS handshake, then the protocol.

    Args:
        make_arrival: makes the first protocol of a connection.
        connections: is told of the connections.
        context: for TLS; None: no TLS.
        handshake_timeout: seconds; None: the default of the event loop (60 s).
    """

    def __init__(
        self,
        make_arrival: Callable[[], Arrival],
        connections: OpenConnections,
        context: ssl.SSLContext | None,
        handshake_timeout: float | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_arrival = make_arrival
        self.connections = connections
        self._tls: dict[str, Any] = {}
        if context is not None:
            self._tls = {"ssl": context, "ssl_handshake_timeout": handshake_timeout}
        #: Set up the connections that are not open yet, and have not failed.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """How many connections are being set up."""
        return len(self._tasks)

    def begin(self, conn: socket.socket, address: Any = None, *, is_over_limit: bool = False) -> None:
        """Begin to set up an accepted connection.

        Args:
            conn: its socket, which is closed if that fails.
            address: of its peer; None: the system is asked for it.
            is_over_limit: there is no room for it.
        """
        conn.setblocking(False)
        arrival = self._make_arrival()
        arrival.is_over_limit = is_over_limit
        if self._tls:
            arrival.address = format_address(address or _peer_of(conn))
            if not self.connections.handshake_begins(arrival):
                conn.close()
                self.connections.on_closed()
                return
        task = arrival.task = self._loop.create_task(self._connected(conn, arrival))
        self._tasks.add(task)
        arrival.on_open = partial(self._tasks.discard, task)
        task.add_done_callback(partial(self._done, conn, arrival))

    def _done(self, conn: socket.socket, arrival: Arrival, task: asyncio.Task[None]) -> None:
        if task in self._tasks:  # it was never open: cancelled, perhaps before it began, or failed
            self._tasks.discard(task)
            conn.close()
            self.connections.handshake_failed(arrival)

    async def wait(self) -> None:
        """Wait until each accepted connection has its protocol, or has failed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def serve(self, sock: socket.socket) -> asyncio.Server:
        """Accept with a server of the event loop, where it cannot watch a socket (Windows)."""
        return await self._loop.create_server(self._make_arrival, sock=sock, backlog=BACKLOG, **self._tls)

    async def _connected(self, conn: socket.socket, arrival: Arrival) -> None:
        failures: list[ssl.SSLError] = []
        if self._tls:
            handshake_failures.set(failures)  # in this task's own context
        try:
            await self._loop.connect_accepted_socket(lambda: arrival, conn, **self._tls)
        except OSError as error:  # errors of TLS among them: the peer is gone, or breaks the protocol
            log.debug("a connection from %s could not be set up: %s", arrival.address or "a peer", error)
            if self._tls:
                self._report(arrival, failures[0] if failures else error)
        except Exception:
            log.exception("a connection could not be set up")

    def _report(self, arrival: Arrival, error: OSError) -> None:
        """Report a failed handshake, in the words of OpenSSL, or of the event loop where it took too long."""
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return  # the peer has only looked whether the port is open, or has changed its mind
        reason = getattr(error, "reason", None)
        text = reason.lower().replace("_", " ") if isinstance(reason, str) else str(error)
        self.connections.handshake_refused(arrival, f"TLS failed: {text}")


def _peer_of(conn: socket.socket) -> Any:
    try:
        return conn.getpeername()
    except OSError:  # it is gone
        return ("", 0)


class ListeningSocket:
    """Accepts connections from one listening socket while it is told to.

    Args:
        sock: does not block; this object closes it.
        take: called with each connection and the address of its peer.
        make_room: called with the error when the system gives no connection; returns whether some were closed for it.
    """

    def __init__(
        self, sock: socket.socket, take: Callable[[socket.socket, Any], object], make_room: Callable[[OSError], bool]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._take = take
        self._make_room = make_room
        self._reads = False
        self._pause: asyncio.TimerHandle | None = None

    @property
    def is_reading(self) -> bool:
        """Whether connections are accepted as they come."""
        return self._reads and self._pause is None

    def reads(self, wanted: bool) -> None:
        """Accept connections from now on, or no more; then they wait in the system's queue."""
        self._reads = wanted
        if self._pause is not None:
            return
        if wanted:
            self._loop.add_reader(self._sock.fileno(), self.accept)
        else:
            self._loop.remove_reader(self._sock.fileno())

    def accept(self) -> None:
        """Accept some of the connections that wait."""
        for _ in range(BURST):
            try:
                conn, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OF_ONE_CONNECTION:
                    continue
                self._loop.remove_reader(self._sock.fileno())
                pause = SHORT_PAUSE if self._make_room(error) else PAUSE
                self._pause = self._loop.call_later(pause, self._resume)
                return
            self._take(conn, address)
            if not self._reads:
                return

    def _resume(self) -> None:
        self._pause = None
        self.reads(self._reads)

    def close(self) -> None:
        """Close the socket. Connections that wait in the system's queue are reset, and their clients not told why."""
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()


class Acceptor:
    """Accepts connections from one listening socket and sets them up, from `start` to `stop`.

    Args:
        sock: does not block; this object closes it.
        setup: sets the connections up.
        keeps_waiting: others go on listening at this socket, such as the next process: `stop` leaves those connections
            to them that wait in the system's queue.
    """

    def __init__(self, sock: socket.socket, setup: ConnectionSetup, *, keeps_waiting: bool = False) -> None:
        self._sock = sock
        self._listening = ListeningSocket(sock, setup.begin, setup.connections.make_room)
        self._keeps_waiting = keeps_waiting
        self._setup = setup
        #: Accepts in place of this object where the loop cannot watch a socket (Windows).
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        try:
            self._listening.reads(True)
        except NotImplementedError:
            self._server = await self._setup.serve(self._sock)

    def stop(self) -> None:
        """Stop accepting. What waits in the system's queue is set up (see `wait`), unless it is left to others."""
        if self._server is not None:
            self._server.close()
            self._sock.close()
        else:
            if self._listening.is_reading and not self._keeps_waiting:
                self._listening.accept()
            self._listening.close()

    async def wait(self) -> None:
        """Wait until each accepted connection has its protocol, or has failed."""
        await self._setup.wait()


# -- sockets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundAddress:
    """An address that is listened at.

    Attributes:
        sockets: bound to it, one for each address that its name has; connections wait there until they are accepted.
        address: in the form that clients take, with the port that the system chose.
        host: as it was given; None for a Unix socket.
        path, inode: the file of a Unix socket that is removed at the end; "" and 0 otherwise.
        is_shared: the sockets are others' as well, who go on listening when this one has been closed.
    """

    sockets: list[socket.socket]
    address: str
    host: str | None
    path: str = ""
    inode: int = 0
    is_shared: bool = False

    @property
    def addresses(self) -> list[str]:
        """Of all sockets, in the form that clients take."""
        return [format_address(sock.getsockname()) for sock in self.sockets]

    def remove_file(self) -> None:
        """Remove the file of a Unix socket."""
        if self.path:
            remove_own(self.path, self.inode)


async def listen_at(
    host: str | None = "",
    port: int = 0,
    unix: str | os.PathLike[str] | None = None,
    unix_mode: int | None = None,
    sockets: Iterable[socket.socket] = (),
) -> list[BoundAddress]:
    """Listen at the sockets, or else at the Unix socket, or else at the host and port. Accepts nothing yet.

    Args:
        host: "" and None for all addresses of this machine.
        port: 0 for one that is free.
        unix: the path of a Unix socket.
        unix_mode: the permissions of its file, from the moment it exists; None: by the umask.
        sockets: bound by the caller, who also closes them; the server listens on duplicates.

    Raises:
        OSError: the address is in use, or not one of this machine; the text names it.
        ValueError: one of the sockets is not bound, is a connection, is for datagrams, or is neither TCP nor Unix.
    """
    if given := list(sockets):
        return _listen_at_sockets(given)
    path = os.path.abspath(unix) if unix is not None else ""
    host = host or ""
    own: list[socket.socket] = []
    try:
        own = [bound_unix(path, unix_mode)] if path else await bound_tcp(host, port)
        for sock in own:
            sock.setblocking(False)
            sock.listen(BACKLOG)
        if path:
            return [BoundAddress(own, f"unix://{path}", None, path, os.stat(path).st_ino)]
        return [BoundAddress(own, format_address(own[0].getsockname()), host)]
    except OSError as error:
        for sock in own:
            sock.close()
        where = f"unix://{path}" if path else format_address((host, port))
        reason = os.strerror(error.errno) if error.errno and not isinstance(error, socket.gaierror) else error
        raise OSError(error.errno, f"cannot listen at {where}: {reason}") from error


def _listen_at_sockets(sockets: list[socket.socket]) -> list[BoundAddress]:
    bound: list[BoundAddress] = []
    try:
        for sock in sockets:
            copy = _duplicated(sock)
            name = copy.getsockname()
            host = name[0] if isinstance(name, tuple) else None
            bound.append(BoundAddress([copy], format_address(name), host, is_shared=True))
            copy.setblocking(False)
            if not _is_listening(copy):
                copy.listen(BACKLOG)
    except BaseException:
        for each in bound:
            each.sockets[0].close()
        raise
    return bound


def _duplicated(sock: socket.socket) -> socket.socket:
    families = (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_UNIX", None))
    name = sock.getsockname()
    is_bound = bool(name[1] if isinstance(name, tuple) else name)
    if sock.family in families and sock.type == socket.SOCK_STREAM and is_bound:
        try:
            sock.getpeername()
        except OSError:  # it is no connection
            return sock.dup()
    raise ValueError(
        "sockets= takes sockets of TCP and Unix stream sockets that are bound, not connections "
        f"(with systemd: Accept=no), got {sock!r}"
    )


def _is_listening(sock: socket.socket) -> bool:
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except (OSError, AttributeError):  # the system cannot tell
        return False


async def bound_tcp(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at all addresses of a host ("" for all of this machine).

    Raises:
        OSError: one of the addresses cannot be bound.
    """
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, _, _, _, address in await _addresses(host, port):
            try:
                bound.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error
        if not bound:
            raise absent or OSError(errno.EADDRNOTAVAIL, "no such address")
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


async def _addresses(host: str, port: int) -> list[Any]:
    """The results of `getaddrinfo` without duplicates; only names need a thread."""
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    try:
        found = socket.getaddrinfo(host or None, port, type=kind, flags=flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind, flags=flags)
    return list(dict.fromkeys(found))


def bound_unix(path: str, mode: int | None) -> socket.socket:
    """A Unix socket whose file has these permissions from the beginning. The socket of a dead server is removed.

    Raises:
        OSError: another server uses the path, or it cannot be written.
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
    """Remove a socket file that no server listens at. OSError (address in use) if one does."""
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
    """Remove the file of this server's socket, unless another server has replaced it."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)
