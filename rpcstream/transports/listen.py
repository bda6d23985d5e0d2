"""Listening: sockets in, connections out, all of them under one watch.

Owns the listening sockets, the set of open connections and the clock that their time limits are held against. What a
connection talks is the protocol's matter, which the door finds out; who answers is the session's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..peer.identity import Authenticator
from ..peer.session import Session
from ..tls import Certificates
from ..wire.http import Request
from .access import AccessRules
from .connection import format_address
from .conversation import Trace
from .door import Door
from .http import HttpConnection
from .http_hooks import Routes
from .interfaces import Connection
from .stream import LineStream
from .watch import interval
from .websocket import WebSocketStream

log = logging.getLogger("rpcstream.server")

#: Connections that the system keeps for us while the loop is busy. The common default of 100 is met by a test with
#: 1,000 clients that start together.
BACKLOG = 4096

#: Seconds between two looks at the certificate's files.
RENEWAL = 1.0


class Listener:
    """Accepts connections; makes a session for each.

    Args:
        make_session: called with what is to be told when the session is over.
        limits: `max_connections` and the time limits are enforced here.
        delimiter, trace: for each connection; see `LineStream`.
        certificates: for TLS; without, connections are in the clear.
        access, routes, authenticator: for HTTP; see `HttpConnection`.
        patience: seconds that a connection has to show what it speaks; None: no limit.
    """

    def __init__(
        self,
        make_session: Callable[[Callable[[Session], None]], Session],
        *,
        limits: Limits,
        counters: Counters,
        delimiter: bytes = b"\n",
        trace: Trace | None = None,
        certificates: Certificates | None = None,
        access: AccessRules | None = None,
        routes: Routes | None = None,
        authenticator: Authenticator | None = None,
        patience: float | None = None,
    ) -> None:
        self._certificates = certificates
        self._access = access or AccessRules()
        self._routes = routes
        self._authenticator = authenticator
        self._patience = patience
        self._make_session = make_session
        self._limits = limits
        self._counters = counters
        self._delimiter = delimiter
        self._trace = trace
        self._servers: list[asyncio.Server] = []
        self._unix_paths: list[tuple[str, int]] = []
        self._streams: set[Connection] = set()
        # Sessions outlive their connection while a handler still runs for them; nobody else holds those tasks.
        self._sessions: set[Session] = set()
        self._watcher: asyncio.TimerHandle | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._stopped = False
        self._aborted: str | None = None
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    async def listen(
        self,
        host: str | None,
        port: int,
        unix: str | os.PathLike[str] | None = None,
        unix_mode: int | None = None,
    ) -> str:
        """Listen; returns the address in the form that clients take.

        Args:
            unix_mode: the permissions of the socket's file, from the moment it is there; by the umask where not given.

        Raises:
            OSError: the address is in use, or not ours; the text names it.
        """
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._certificates is not None:
            tls = {"ssl": self._certificates.context, "ssl_handshake_timeout": self._limits.message_timeout}
        path = os.path.abspath(unix) if unix is not None else ""
        make_door = partial(self._make_door, self._access.at(None if path else host))
        address = f"unix://{path}" if path else format_address((host, port))
        try:
            if path:
                _remove_stale(path)
                sock = _bound(path, unix_mode)
                server = await loop.create_unix_server(make_door, sock=sock, backlog=BACKLOG, **tls)
                self._unix_paths.append((path, os.stat(path).st_ino))
            else:
                # asyncio sets SO_REUSEADDR before the bind where that is safe, so a restart finds the port free.
                server = await loop.create_server(make_door, host, port, backlog=BACKLOG, **tls)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {address}: {error.strerror or error}") from error
        self._servers.append(server)
        if self._renewal is None:
            self._renew()
        return address if path else format_address(server.sockets[0].getsockname())

    @property
    def is_listening(self) -> bool:
        """There is an address at which callers may come."""
        return bool(self._servers)

    @property
    def sessions(self) -> set[Session]:
        """Those with a connection, and those whose handlers have not ended."""
        return self._sessions

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and take no more requests on open connections; what is in flight goes on."""
        self._stopped = True
        if self._renewal is not None:
            self._renewal.cancel()
        servers, self._servers = self._servers, []
        # What was accepted a moment ago is made with the loop's next turn. asyncio forgets it, with an open socket, if
        # the server is closed by then: so first nothing more is accepted.
        loop = asyncio.get_running_loop()
        try:
            for sock in [sock for server in servers for sock in server.sockets]:
                with contextlib.suppress(NotImplementedError):  # Windows accepts otherwise
                    loop.remove_reader(sock.fileno())
            for path, inode in self._unix_paths:
                _remove_own(path, inode)
            self._unix_paths.clear()
            for stream in list(self._streams):
                stream.drain()
                stream.probe()
            await asyncio.sleep(0)
        finally:
            for server in servers:
                server.close()
        # These connections tell that they are there another two turns later, and are closed, too.
        for _ in range(2):
            await asyncio.sleep(0)

    async def closed(self) -> None:
        """Wait until no connection is open and no handler runs for one."""
        while self._sessions or self._streams:
            self._all_gone.clear()
            await self._all_gone.wait()

    def abort(self, reason: str) -> None:
        """Close every connection at once and cancel every handler; what still becomes a connection ends so, too."""
        self._aborted = reason
        for session in list(self._sessions):
            session.work.cancel_all()
        for stream in list(self._streams):
            stream.abort(reason)
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def make_stream(self) -> LineStream:
        """The protocol of one more connection that speaks the line stream, and its session."""
        return self._make_line(on_open=self._opened)

    def _make_door(self, access: AccessRules) -> Door:
        return Door(
            limits=self._limits,
            make_line=self._make_line,
            make_http=partial(self._make_http, access),
            on_open=self._opened,
            on_close=self._closed,
            on_known=self._known,
            patience=self._patience,
        )

    def _make_line(self, on_open: Callable[[Connection], None] | None = None) -> LineStream:
        return LineStream(
            self._new_session(),
            limits=self._limits,
            delimiter=self._delimiter,
            trace=self._trace,
            on_open=on_open,
            on_close=self._conversation_closed,
        )

    def _make_http(self, access: AccessRules) -> HttpConnection:
        return HttpConnection(
            self._new_session,
            limits=self._limits,
            on_close=self._closed,
            on_known=self._known,
            access=access,
            routes=self._routes,
            authenticator=self._authenticator,
            websocket=self._make_websocket,
            trace=self._trace,
        )

    def _make_websocket(self, request: Request) -> WebSocketStream:
        session = self._new_session()
        session.identity, session.headers = request.identity, request.headers
        return WebSocketStream(
            session, limits=self._limits, client=False, trace=self._trace, on_close=self._conversation_closed
        )

    def _new_session(self) -> Session:
        session = self._make_session(self._session_gone)
        self._sessions.add(session)
        return session

    def _opened(self, stream: Connection) -> None:
        self._counters.connections_total += 1
        self._counters.connections += 1
        self._streams.add(stream)
        if self._watcher is None:
            self._watch()
        if self._aborted is not None:
            stream.abort(self._aborted)
        elif self._stopped:
            stream.drain()
        elif len(self._streams) > self._limits.max_connections:
            self._counters.connections_refused += 1
            limit = self._limits.max_connections
            log.warning("refused a connection from %s: %d are open (max_connections)", stream.address, limit)
            stream.refuse(ServerBusy(f"Server busy: {limit} connections are open", {"limit": limit}))

    def _known(self, door: Connection, stream: Connection) -> None:
        """It is known what is spoken on a connection."""
        self._streams.discard(door)
        self._streams.add(stream)

    def _conversation_closed(self, stream: LineStream | WebSocketStream) -> None:
        self._counters.replies_dropped += stream.session.pending.dropped
        self._closed(stream)

    def _closed(self, stream: Connection) -> None:
        self._counters.connections -= 1
        self._streams.discard(stream)
        if stream.over_limit:
            self._counters.closed_for_limits += 1
            log.warning("closed the connection from %s: %s", stream.address, stream.reason)
        self._say_if_gone()

    def _session_gone(self, session: Session) -> None:
        self._sessions.discard(session)
        self._say_if_gone()

    def _say_if_gone(self) -> None:
        if not self._streams and not self._sessions:
            self._all_gone.set()

    def _watch(self) -> None:
        """Hold every connection against its time limits, now and then for as long as any is open."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for stream in list(self._streams):
            stream.check(now)
        pause = interval(self._limits)
        self._watcher = loop.call_later(pause, self._watch) if pause is not None and self._streams else None

    def _renew(self) -> None:
        """Read the certificate anew when its files have changed."""
        if self._certificates is None:
            return
        error = self._certificates.refresh()
        if error is not None:
            log.error("the certificate has changed and cannot be used, the old one stays: %s", error)
        self._renewal = asyncio.get_running_loop().call_later(RENEWAL, self._renew)


def _bound(path: str, mode: int | None) -> socket.socket:
    """A Unix socket with a file that has these permissions, and never had others."""
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


def _remove_own(path: str, inode: int) -> None:
    """Remove our socket's file, unless another server has put its own there meanwhile."""
    try:
        if os.stat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        pass
