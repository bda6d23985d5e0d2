"""Listening sockets, and the protocol and session of each connection that they accept.

Owns the addresses, the sessions that are not over, and what each connection is made of. How many connections there may
be is decided by `open_connections`; how they are accepted, by `accept`; what they speak, by `detect`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..auth.authenticator import Authenticator
from ..limits import Limits
from ..observe.counters import Counters
from ..peer.memory import MessageMemory
from ..peer.session import Session
from ..tls import Certificates
from ..wire.http_messages import Request
from .accept import Acceptor, Arrival, BoundAddress, ConnectionSetup, listen_at, listen_at_sockets
from .access import AccessRules
from .connection import Connection, SocketConnection
from .content_length import ContentLengthStream
from .detect import ProtocolDetector
from .http import HttpConnection
from .http_exchange import Endpoint, HttpExchange
from .http_router import CallPaths, HttpRouter, Routes
from .message_connection import MessageConnection, Trace
from .open_connections import OpenConnections
from .stream import LineStream
from .websocket import WebSocketStream

if TYPE_CHECKING:
    from .asgi import AsgiEndpoint
    from .asgi_websocket import AsgiWebSocket

log = logging.getLogger("rpcstream.server")

S = TypeVar("S", bound=Session)

#: Seconds between two checks of the certificate's files.
RENEWAL = 1.0

#: Seconds in which requests that wait are refused when a server stops; those that are left end with their connection.
REFUSING = 0.25


class ConnectionSource(Protocol):
    """Where accepted connections come from: a listening socket, or another process."""

    def stop(self) -> None:
        """Take no more connections. Those that wait are still set up; see `wait`."""

    async def wait(self) -> None:
        """Wait until each connection has its protocol, or has failed."""


def transport_of(connection: object) -> str:
    """What is spoken on a connection, or by the channel of a session.

    "http", "websocket", "nats"; for the line stream what carries it, "tcp", "tls", "unix" or "memory"; "unknown" for a
    connection that has sent nothing yet.
    """
    if isinstance(connection, LineStream):
        return connection.carrier
    if isinstance(connection, MessageConnection):
        return "websocket"
    if isinstance(connection, SocketConnection | HttpExchange):
        return "http"
    carrier: str = getattr(connection, "carrier", "unknown")  # of a channel without a socket
    return carrier


class Listener:
    """Listens at addresses; makes the protocol and the session of each connection.

    Args:
        make_session: makes a session; called with the function to call when the session is over.
        limits: of the connections and their number.
        delimiter, trace: for each connection; see `LineStream`.
        certificates: for TLS; None: connections are not encrypted.
        access, routes, paths, notification_status: for HTTP; see `HttpRouter`.
        authenticator: of the peers; None: they need not be authenticated.
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
        binary: bool = True,
        notification_status: int = 200,
    ) -> None:
        self._binary = binary
        self._notification_status = notification_status
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
        self._sources: list[ConnectionSource] = []
        self._setups: list[ConnectionSetup] = []
        self._bound: list[BoundAddress] = []
        #: Where it listens, in the form that clients take.
        self.addresses: list[str] = []
        #: What takes POST at paths of its own, by path; to be filled before it listens.
        self.endpoints: dict[str, Endpoint] = {}
        self._connections = OpenConnections(
            limits=limits,
            counters=counters,
            has_authentication=authenticator is not None,
            on_empty=self._check_gone,
        )
        # A session outlives its connection while a handler runs for it, and nothing else refers to it then.
        self._sessions: set[Session] = set()
        self._renewal: asyncio.TimerHandle | None = None
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
            host: name or address; None for all addresses of this machine.
            port: 0 for one that is free.
            unix: the path of a Unix socket, in place of host and port.
            unix_mode: the permissions of its file, from the moment it exists; None: by the umask.

        Raises:
            OSError: the address is in use, or not one of this machine; the text names it.
        """
        bound = await listen_at(host or "", port, unix, unix_mode)
        await self._accept_at([bound])
        return bound.address

    async def listen_at_sockets(self, sockets: Iterable[socket.socket]) -> str:
        """Listen at sockets of others, which stay theirs; returns the first address.

        Connections that wait to be accepted when this listener stops are left in the queue of their socket.

        Raises:
            ValueError, OSError: one of them cannot listen; see `accept.listen_at_sockets`.
        """
        bound = listen_at_sockets(sockets)
        await self._accept_at(bound)
        return bound[0].address

    async def _accept_at(self, bound: list[BoundAddress]) -> None:
        """Begin to accept connections; the descriptors are closed with this listener."""
        acceptors = []
        for each in bound:
            setup = self.setup(each.host)
            acceptors += [
                Acceptor(sock, setup, on_shortage=self.make_room, keeps_waiting=each.is_shared) for sock in each.sockets
            ]
        self._bound += bound
        try:
            for acceptor in acceptors:
                await acceptor.start()
        except BaseException:
            for acceptor in acceptors:
                acceptor.stop()
            raise
        self._sources += acceptors
        self.addresses += [address for each in bound for address in each.addresses]
        self._start_renewal()

    def take_from(self, source: ConnectionSource, addresses: Iterable[str]) -> None:
        """Take connections that another process accepts at these addresses, until `stop_accepting`.

        They are given to a `setup`.
        """
        self._sources.append(source)
        self.addresses += addresses
        self._start_renewal()

    def setup(self, host: str | None) -> ConnectionSetup:
        """Make what sets up connections that are accepted at a host.

        Args:
            host: whose name HTTP requests may then give; "" for all addresses, None for a Unix socket.
        """
        limits = self._limits
        access = self._access.at(host)
        router = self._make_router(access, self._make_websocket)
        times = [seconds for seconds in (limits.handshake_timeout, limits.message_timeout) if seconds is not None]
        if self._authenticator is not None and limits.auth_timeout is not None:
            times.append(limits.auth_timeout)
        setup = ConnectionSetup(
            lambda arrival: self._make_detector(router, setup, arrival),
            context=self._certificates.context if self._certificates is not None else None,
            handshake_timeout=min(times, default=None),
            on_handshake=self._connections.handshake_begins,
            on_handshake_over=self._connections.handshake_over,
            on_handshake_refused=self._connections.handshake_refused,
            on_failed=self._connections.setup_failed,
        )
        self._setups.append(setup)
        return setup

    def make_room(self, error: OSError) -> bool:
        """The system gives no connection for want of descriptors or memory; returns whether some were closed for it."""
        return self._connections.make_room(error)

    @property
    def open_count(self) -> int:
        """Connections that count in `max_connections`, those that are being set up among them."""
        return self._counters.connections - self._connections.apart + sum(setup.pending for setup in self._setups)

    def watch_closed(self, on_closed: Callable[[], object]) -> None:
        """Call a function after each connection that has been closed."""
        self._connections.on_closed = on_closed

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted at any address."""
        return bool(self._sources)

    @property
    def connections(self) -> frozenset[Connection]:
        """All open connections of any protocol, TLS handshakes among them."""
        return self._connections.all()

    @property
    def sessions(self) -> set[Session]:
        """Sessions that have a connection, or whose handlers still run."""
        return self._sessions

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and take no more requests on open connections; what is in flight goes on."""
        if self._renewal is not None:
            self._renewal.cancel()
        sources, self._sources = self._sources, []
        for source in sources:
            source.stop()
        for bound in self._bound:
            bound.remove_file()
        self._bound.clear()
        self.addresses.clear()
        self._connections.drain()
        # Connections that were accepted a moment ago are set up in the next turns, and closed then.
        for source in sources:
            await source.wait()

    async def closed(self) -> None:
        """Wait until no connection is open and no handler runs for one."""
        while self._sessions or self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def refuse_waiting(self) -> bool:
        """Answer the requests that wait for others to end: they are not begun. Returns whether there were any."""
        until = perf_counter() + REFUSING
        return sum(session.refuse_waiting(until) for session in list(self._sessions)) > 0

    def abort(self, reason: str) -> None:
        """Close every connection at once, later ones, too, and cancel every handler."""
        for session in list(self._sessions):
            session.running.cancel_all()
        self._connections.abort(reason)

    def make_asgi(self) -> AsgiEndpoint:
        """Make what serves the connections that an ASGI server accepts."""
        from .asgi import AsgiEndpoint  # not needed by servers that listen by themselves

        router = self._make_router(self._access, None)
        return AsgiEndpoint(
            self._new_session,
            limits=self._limits,
            router=router,
            authenticator=self._authenticator,
            trace=self._trace,
            memory=self._memory,
            connections=self._connections,
            on_close=self.message_connection_closed,
        )

    def make_stream(self) -> LineStream:
        """Make the protocol of one more connection with the line stream, and its session."""
        return self._make_line(on_open=self._connections.opened)

    def _make_detector(self, router: HttpRouter, setup: ConnectionSetup, arrival: Arrival) -> ProtocolDetector:
        def opened(connection: Connection) -> None:
            setup.arrived(arrival)
            self._connections.opened(connection, arrival)

        return ProtocolDetector(
            limits=self._limits,
            make_line=self._make_line,
            make_headed=self._make_headed,
            make_http=partial(self._make_http, router),
            on_open=opened,
            on_close=self._connections.closed,
            on_known=self._connections.replaced,
            on_refused=self._connections.handshake_refused,
            patience=self._patience,
        )

    def _make_line(self, on_open: Callable[[Connection], None] | None = None) -> LineStream:
        return LineStream(
            self._new_session(),
            limits=self._limits,
            delimiter=self._delimiter,
            trace=self._trace,
            on_open=on_open,
            on_close=self.message_connection_closed,
        )

    def _make_headed(self) -> ContentLengthStream:
        return ContentLengthStream(
            self._new_session(), limits=self._limits, trace=self._trace, on_close=self.message_connection_closed
        )

    def _make_http(self, router: HttpRouter) -> HttpConnection:
        return HttpConnection(
            self._new_session,
            limits=self._limits,
            router=router,
            on_close=self._connections.closed,
            on_known=self._connections.replaced,
            on_refused=self._connections.handshake_refused,
            authenticator=self._authenticator,
            trace=self._trace,
            memory=self._memory,
        )

    def _make_websocket(self, request: Request) -> WebSocketStream:
        session = self._new_session()
        session.set_request(request.identity, request.headers)
        return WebSocketStream(
            session, limits=self._limits, client=False, trace=self._trace, on_close=self.message_connection_closed
        )

    def _make_router(self, access: AccessRules, websocket: Callable[[Request], WebSocketStream] | None) -> HttpRouter:
        return HttpRouter(
            access,
            self._routes,
            websocket,
            self._paths,
            endpoints=self.endpoints,
            reads_frames=self._binary,
            notification_status=self._notification_status,
        )

    def _new_session(self) -> Session:
        return self.add_session(self._make_session)

    def add_session(self, make_session: Callable[[Callable[[Session], None]], S]) -> S:
        """Make a session that this listener waits for at its end.

        Args:
            make_session: makes it; called with the function to call when it is over.
        """
        session = make_session(self._session_gone)
        self._sessions.add(session)
        return session

    def connection_opened(self, connection: Connection) -> None:
        """A connection was opened that others have made."""
        self._connections.opened(connection)

    def caller_opened(self, caller: Connection) -> None:
        """A caller on NATS has come. It does not count in `max_connections`: `max_nats_callers` is for these."""
        self._connections.opened(caller, is_apart=True)

    def message_connection_closed(self, connection: LineStream | WebSocketStream | AsgiWebSocket) -> None:
        """A connection that carries one conversation is lost."""
        self._counters.replies_dropped += connection.session.pending.dropped
        self._connections.closed(connection)

    def _session_gone(self, session: Session) -> None:
        self._sessions.discard(session)
        self._check_gone()

    def _check_gone(self) -> None:
        if not self._connections and not self._sessions:
            self._all_gone.set()

    def reload_certificate(self) -> None:
        """Read the certificate again now, for the connections that come.

        Raises:
            OSError: its files cannot be read or do not fit together. The certificate before stays in use.
        """
        error = self._certificates.refresh(always=True) if self._certificates is not None else None
        if error is not None:
            raise error

    def _start_renewal(self) -> None:
        if self._renewal is None:
            self._renew()

    def _renew(self) -> None:
        """Read the certificate again if its files have changed; check that again later."""
        if self._certificates is None:
            return
        error = self._certificates.refresh()
        if error is not None:
            log.error("the certificate's files have changed and cannot be used, the one before stays in use: %s", error)
        self._renewal = asyncio.get_running_loop().call_later(RENEWAL, self._renew)
