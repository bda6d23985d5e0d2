"""Listening: sockets in, connections out, all of them under one watch.

Owns the set of open connections, how many there may be and which give way to others, and the clock that their time
limits are held against. What a connection talks is the protocol's matter, which the door finds out; who answers is the
session's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

from ..auth.authenticator import Authenticator
from ..errors import ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.memory import MessageMemory
from ..peer.session import Session
from ..tls import Certificates
from ..wire.http_messages import Request
from .accept import Acceptor, Handshake, bound_tcp, bound_unix, remove_own
from .access import AccessRules
from .connection import format_address
from .detect import ProtocolDetector
from .http import HttpConnection
from .http_router import CallPaths, HttpRouter, Routes
from .interfaces import Connection
from .message_connection import Trace
from .strangers import UnauthenticatedConnections, host_of
from .stream import LineStream
from .timeouts import interval
from .websocket import WebSocketStream

log = logging.getLogger("rpcstream.server")

#: Connections over `max_connections` that are told so; more than that at a time are closed without a word.
MAX_REFUSED = 100

#: Connections that have not shown who they are and are closed, the oldest first, when there are no more descriptors.
GIVE_WAY = 16

#: Seconds between two looks at the certificate's files.
RENEWAL = 1.0


class Listener:
    """Accepts connections; makes a session for each.

    Args:
        make_session: called with what is to be told when the session is over.
        limits: `max_connections` and the time limits are enforced here.
        delimiter, trace: for each connection; see `LineStream`.
        certificates: for TLS; without, connections are in the clear.
        access, routes, authenticator, paths: for HTTP; see `HttpConnection`.
        patience: seconds that a connection has to show what it speaks; None: no limit.
        memory: what the messages of all connections take.
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
        paths: CallPaths | None = None,
        patience: float | None = None,
        memory: MessageMemory | None = None,
    ) -> None:
        self._memory = memory
        self._certificates = certificates
        self._access = access or AccessRules()
        self._routes = routes
        self._authenticator = authenticator
        self._paths = paths
        self._patience = patience
        self._make_session = make_session
        self._limits = limits
        self._counters = counters
        self._delimiter = delimiter
        self._trace = trace
        self._acceptors: list[Acceptor] = []
        self._unix_paths: list[tuple[str, int]] = []
        self._streams: set[Connection] = set()
        self._strangers = UnauthenticatedConnections()
        self._log = LimitedLog(log)
        self._shortages = LimitedLog(log, each=1)
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
        path = os.path.abspath(unix) if unix is not None else ""
        access = self._access.at(None if path else host)
        router = HttpRouter(access, self._routes, self._make_websocket, self._paths)
        make_detector = partial(self._make_detector, router)
        address = f"unix://{path}" if path else format_address((host, port))
        try:
            sockets = [bound_unix(path, unix_mode)] if path else await bound_tcp(host or "", port)
            if path:
                self._unix_paths.append((path, os.stat(path).st_ino))
            name = sockets[0].getsockname()
            acceptors = [self._acceptor(sock, make_detector) for sock in sockets]
            try:
                for acceptor in acceptors:
                    await acceptor.start()
            except BaseException:
                for acceptor in acceptors:
                    acceptor.stop()
                raise
            self._acceptors += acceptors
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {address}: {error.strerror or error}") from error
        if self._renewal is None:
            self._renew()
        return address if path else format_address(name)

    def _acceptor(self, sock: socket.socket, make_detector: Callable[[Handshake | None], ProtocolDetector]) -> Acceptor:
        limits = self._limits
        times = [seconds for seconds in (limits.handshake_timeout, limits.message_timeout) if seconds is not None]
        if self._authenticator is not None and limits.auth_timeout is not None:
            times.append(limits.auth_timeout)
        return Acceptor(
            sock,
            make_detector,
            context=self._certificates.context if self._certificates is not None else None,
            handshake_timeout=min(times, default=None),
            on_handshake=self._handshake_begins,
            on_handshake_over=self._handshake_over,
            on_shortage=self._shortage,
        )

    @property
    def is_listening(self) -> bool:
        """There is an address at which callers may come."""
        return bool(self._acceptors)

    @property
    def connections(self) -> frozenset[Connection]:
        """All that are open, whatever they speak, handshakes among them."""
        return frozenset(self._streams)

    @property
    def sessions(self) -> set[Session]:
        """Those with a connection, and those whose handlers have not ended."""
        return self._sessions

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and take no more requests on open connections; what is in flight goes on."""
        self._stopped = True
        if self._renewal is not None:
            self._renewal.cancel()
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.stop()
        for path, inode in self._unix_paths:
            remove_own(path, inode)
        self._unix_paths.clear()
        for stream in list(self._streams):
            stream.drain()
            stream.probe()
        # What was accepted a moment ago becomes a connection in the next turns, and is closed then.
        for acceptor in acceptors:
            await acceptor.wait()

    async def closed(self) -> None:
        """Wait until no connection is open and no handler runs for one."""
        while self._sessions or self._streams:
            self._all_gone.clear()
            await self._all_gone.wait()

    def abort(self, reason: str) -> None:
        """Close every connection at once and cancel every handler; what still becomes a connection ends so, too."""
        self._aborted = reason
        for session in list(self._sessions):
            session.running.cancel_all()
        for stream in list(self._streams):
            stream.abort(reason)
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def make_stream(self) -> LineStream:
        """The protocol of one more connection that speaks the line stream, and its session."""
        return self._make_line(on_open=self._opened)

    def _make_detector(self, router: HttpRouter, handshake: Handshake | None) -> ProtocolDetector:
        return ProtocolDetector(
            limits=self._limits,
            make_line=self._make_line,
            make_http=partial(self._make_http, router),
            on_open=self._opened if handshake is None else partial(self._opened_after, handshake),
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

    def _make_http(self, router: HttpRouter) -> HttpConnection:
        return HttpConnection(
            self._new_session,
            limits=self._limits,
            router=router,
            on_close=self._closed,
            on_known=self._known,
            authenticator=self._authenticator,
            trace=self._trace,
            memory=self._memory,
        )

    def _make_websocket(self, request: Request) -> WebSocketStream:
        session = self._new_session()
        session.set_request(request.identity, request.headers)
        return WebSocketStream(
            session, limits=self._limits, client=False, trace=self._trace, on_close=self._conversation_closed
        )

    def _new_session(self) -> Session:
        session = self._make_session(self._session_gone)
        self._sessions.add(session)
        return session

    # -- connections come -------------------------------------------------------------------------------------------

    def _opened(self, stream: Connection) -> None:
        self._counters.connections_total += 1
        self._counters.connections += 1
        self._add(stream)
        if self._aborted is not None:
            stream.abort(self._aborted)
        elif self._stopped:
            stream.drain()
        elif self._has_room(stream):
            if self._authenticator is not None:
                self._strangers.add(stream)
        else:
            self._refuse(stream)

    def _opened_after(self, handshake: Handshake, stream: Connection) -> None:
        self._discard(handshake)
        self._opened(stream)

    def _handshake_begins(self, handshake: Handshake) -> bool:
        """Counts like a connection. One too many is told so when its handshake is done, unless there are many."""
        self._add(handshake)
        if not self._has_room(handshake) and len(self._streams) > self._limits.max_connections + MAX_REFUSED:
            self._counters.connections_refused += 1
            self._discard(handshake)
            return False
        self._strangers.add(handshake)
        return True

    def _handshake_over(self, handshake: Handshake) -> None:
        self._discard(handshake)
        self._say_if_gone()

    def _add(self, stream: Connection) -> None:
        self._streams.add(stream)
        if self._watcher is None:
            self._watch()

    def _discard(self, stream: Connection) -> None:
        self._streams.discard(stream)
        self._strangers.discard(stream)

    def _has_room(self, newcomer: Connection) -> bool:
        """Is there room for the connection that was added last? If not, a stranger gives way to it."""
        if len(self._streams) <= self._limits.max_connections:
            return True
        return self._give_way("all places are taken", newcomer)

    def _give_way(self, why: str, newcomer: Connection | None = None) -> bool:
        """End a connection that has not shown who it is; false if there is none."""
        stream = self._strangers.take(newcomer)
        if stream is None:
            return False
        stream.over_limit = True
        stream.abort(f"it has not shown who it is, and {why}")
        return True

    def _refuse(self, stream: Connection) -> None:
        self._counters.connections_refused += 1
        limit = self._limits.max_connections
        if len(self._streams) > limit + MAX_REFUSED:
            stream.abort(f"{limit} connections are open (max_connections)")
            return
        host = host_of(stream)
        self._log.warning(host, "refused a connection from %s: %d are open (max_connections)", stream.address, limit)
        stream.refuse(ServerBusy(f"Server busy: {limit} connections are open", {"limit": limit}))

    def _shortage(self, error: OSError) -> bool:
        """The system gives no connection for want of descriptors or memory; were some given up for that?"""
        self._shortages.warning(
            None,
            "no connection can be accepted for now: %s; those that are open are served (is `ulimit -n` too low?)",
            error.strerror or error,
        )
        return sum(self._give_way("there are no more descriptors") for _ in range(GIVE_WAY)) > 0

    def _known(self, door: Connection, stream: Connection) -> None:
        """It is known what is spoken on a connection."""
        if door in self._strangers:
            self._strangers.discard(door)
            self._strangers.add(stream)
        self._streams.discard(door)
        self._streams.add(stream)

    def _conversation_closed(self, stream: LineStream | WebSocketStream) -> None:
        self._counters.replies_dropped += stream.session.pending.dropped
        self._closed(stream)

    def _closed(self, stream: Connection) -> None:
        self._counters.connections -= 1
        self._discard(stream)
        if stream.over_limit:
            self._counters.closed_for_limits += 1
            host = host_of(stream)
            self._log.warning(host, "closed the connection from %s: %s", stream.address, stream.reason)
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
