"""Listening: sockets in, connections out, all of them under one watch.

Owns the listening sockets, the set of open connections and the clock that their time limits are held against. What a
connection talks is the protocol's matter (today always the line stream), who answers is the session's.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable

from ..errors import ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..peer.session import Session
from .stream import LineStream, Trace, format_address
from .watch import interval

log = logging.getLogger("rpcstream.server")

#: Connections that the system keeps for us while the loop is busy. The common default of 100 is met by a test with
#: 1,000 clients that start together.
BACKLOG = 4096


class Listener:
    """Accepts connections; makes a session for each.

    Args:
        make_session: called with what is to be told when the session is over.
        limits: `max_connections` and the time limits are enforced here.
        delimiter, trace: for each connection; see `LineStream`.
    """

    def __init__(
        self,
        make_session: Callable[[Callable[[Session], None]], Session],
        *,
        limits: Limits,
        counters: Counters,
        delimiter: bytes = b"\n",
        trace: Trace | None = None,
    ) -> None:
        self._make_session = make_session
        self._limits = limits
        self._counters = counters
        self._delimiter = delimiter
        self._trace = trace
        self._servers: list[asyncio.Server] = []
        self._unix_paths: list[tuple[str, int]] = []
        self._streams: set[LineStream] = set()
        # Sessions outlive their connection while a handler still runs for them; nobody else holds those tasks.
        self._sessions: set[Session] = set()
        self._watcher: asyncio.TimerHandle | None = None
        self._stopped = False
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    async def listen(self, host: str | None, port: int, unix: str | os.PathLike[str] | None = None) -> str:
        """Listen; returns the address in the form that clients take.

        Raises:
            OSError: the address is in use, or not ours; the text names it.
        """
        loop = asyncio.get_running_loop()
        path = os.path.abspath(unix) if unix is not None else ""
        address = f"unix://{path}" if path else format_address((host, port))
        try:
            if path:
                _remove_stale(path)
                server = await loop.create_unix_server(self.make_stream, path, backlog=BACKLOG)
                self._unix_paths.append((path, os.stat(path).st_ino))
            else:
                # asyncio sets SO_REUSEADDR before the bind where that is safe, so a restart finds the port free.
                server = await loop.create_server(self.make_stream, host, port, backlog=BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {address}: {error.strerror or error}") from error
        self._servers.append(server)
        return address if path else format_address(server.sockets[0].getsockname())

    @property
    def sessions(self) -> set[Session]:
        """Those with a connection, and those whose handlers have not ended."""
        return self._sessions

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and take no more requests on open connections; what is in flight goes on."""
        self._stopped = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        for session in list(self._sessions):
            session.drain()
        for stream in list(self._streams):
            stream.probe()
        for path, inode in self._unix_paths:
            _remove_own(path, inode)
        self._unix_paths.clear()
        # Connections that were accepted a moment ago are still being made: let them, so that they are closed, too.
        for _ in range(3):
            await asyncio.sleep(0)

    async def closed(self) -> None:
        """Wait until no connection is open and no handler runs for one."""
        while self._sessions or self._streams:
            self._all_gone.clear()
            await self._all_gone.wait()

    def abort(self, reason: str) -> None:
        """Close every connection at once and cancel every handler."""
        for session in list(self._sessions):
            session.work.cancel_all()
        for stream in list(self._streams):
            stream.abort(reason)
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def make_stream(self) -> LineStream:
        """The protocol of one more connection, and its session."""
        session = self._make_session(self._session_gone)
        return LineStream(
            session,
            limits=self._limits,
            delimiter=self._delimiter,
            trace=self._trace,
            on_open=self._opened,
            on_close=self._closed,
        )

    def _opened(self, stream: LineStream) -> None:
        self._counters.connections_total += 1
        self._counters.connections += 1
        self._streams.add(stream)
        self._sessions.add(stream.session)
        if self._watcher is None:
            self._watch()
        if self._stopped:
            stream.session.drain()
        elif len(self._streams) > self._limits.max_connections:
            self._counters.connections_refused += 1
            limit = self._limits.max_connections
            log.warning("refused a connection from %s: %d are open (max_connections)", stream.address, limit)
            stream.refuse(ServerBusy(f"Server busy: {limit} connections are open", {"limit": limit}))

    def _closed(self, stream: LineStream) -> None:
        self._counters.connections -= 1
        self._counters.replies_dropped += stream.session.pending.dropped
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
