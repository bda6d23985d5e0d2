"""Where a server listens, and the protocol and session of each connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import orjson

from ..errors import InvalidRequest, RpcError
from ..peer.session import Session
from ..tls import Certificates
from ..wire.content_length import STARTS
from ..wire.envelope import error_reply
from ..wire.http_messages import Request
from .accept import Acceptor, BoundAddress, ConnectionSetup, listen_at
from .access import AccessRules, ProxyHeaderError, read_proxy_header
from .connection import SocketConnection
from .http import HttpConnection
from .http_router import ConnectionContext, Endpoint, HttpRouter, Routes
from .message_connection import MessageConnection
from .open_connections import Arrival, OpenConnections
from .stream import ContentLengthStream, LineStream

if TYPE_CHECKING:
    from .asgi import AsgiEndpoint

log = logging.getLogger("rpcstream.server")


#: Seconds that a connection which has sent nothing has for its first bytes, when it is refused, or the server stops:
#: what it sends first may be on its way, and says how to answer.
REFUSAL = 0.2

#: How HTTP begins. (All that a web page can send unasked begins so, too, so it is never taken for a line.)
METHODS = (b"POST ", b"GET ", b"HEAD ", b"OPTIONS ", b"PUT ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE ", b"PRI ")

#: Bytes from which on it is known how a connection begins.
KNOWN_FROM = max(map(len, (*METHODS, *STARTS)))

#: How TLS begins: a handshake record, and the version.
TLS_HANDSHAKE = b"\x16\x03"


#: The data of the error for a client that begins with TLS where there is none.
NO_TLS = {"reason": "this port is without TLS: connect with tcp://, http:// or ws://"}


class ProtocolDetector(Arrival):
    """A connection whose protocol is not known yet.

    Args:
        context: makes the protocols that may take over.
        router: for HTTP.
    """

    def __init__(self, context: ConnectionContext, router: HttpRouter) -> None:
        # This object is made when the connection is accepted, before the TLS handshake.
        super().__init__(context.limits, context.ledger, context.connections)
        self._context = context
        self._router = router
        #: First letters that may begin a method of HTTP, or a header.
        self._begun = b""
        #: A header of the PROXY protocol may come first.
        self._is_proxied = False
        self._refusal: RpcError | None = None
        self._drains = False

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._is_proxied = self._context.proxies.trusts(self.address)
        super()._opened()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        data = self._begun + data
        if self._is_proxied:
            size = self._read_proxy_header(data)
            if size is None:
                return
            data = data[size:]
        if data.startswith(TLS_HANDSHAKE):
            # A client reports what is no TLS as a wrong version; the text is for those who look at the bytes.
            self._context.connections.handshake_refused(self, "the client speaks TLS, this server does not")
            self._refuse_now(InvalidRequest(data=NO_TLS))
            return
        if data.startswith(METHODS):
            known: SocketConnection = HttpConnection(self._context, self._router)
        elif data.startswith(STARTS):
            known = self._context.make(ContentLengthStream)
        elif len(data) < KNOWN_FROM and any(start.startswith(data) for start in (*METHODS, *STARTS)):
            self._begun = data
            self._timeouts.heard = True
            return
        else:
            known = self._context.make_line()
        self._become(known)
        if self._refusal is not None:
            known.refuse(self._refusal)
        else:
            known.data_received(data)
            if self._drains:
                # With these bytes an HTTP connection may have gone on as a WebSocket.
                cast(SocketConnection, transport.get_protocol()).drain()

    def _read_proxy_header(self, data: bytes) -> int | None:
        """Take the address of the client from the proxy; gives the bytes of the header, None while more are needed."""
        try:
            found = read_proxy_header(data)
        except ProxyHeaderError as error:
            self._context.connections.handshake_refused(self, f"PROXY protocol: {error}")
            self.abort(str(error))
            return None
        if found is None:
            self._begun = data
            self._timeouts.heard = True
            return None
        self._is_proxied, self._begun = False, b""
        self.address = found[0] or self.address
        return found[1]

    def eof_received(self) -> bool:
        """The client sends nothing more: close. A few letters go to the line stream, which answers with an error."""
        if not self._begun or self._transport is None:
            return False
        known = self._context.make_line()
        self._become(known)
        known.data_received(self._begun)
        return bool(known.eof_received())

    # -- for the listener (Connection) ------------------------------------------------------------------------

    def check(self, now: float) -> str | None:
        """As `Connection.check`, also whether the client takes too long to show what it speaks."""
        patience = self._context.patience
        if patience is None or not self.is_open or now < self.opened + patience:
            return super().check(now)
        reason = f"not authenticated after {patience:g} s (auth_timeout)"
        self._close_for_limit(reason)
        return reason

    def refuse(self, error: RpcError) -> None:
        self._refusal = error
        self._loop.call_later(REFUSAL, self._refuse_now, error)

    def _refuse_now(self, error: RpcError) -> None:
        if self._transport is not None:
            self._transport.write(orjson.dumps(error_reply(None, error)) + b"\n")
            self._transport.close()

    def drain(self) -> None:
        """As `Connection.drain`: nothing was asked, so close, unless the first request comes now."""
        if self._transport is None:
            super().drain()
        elif not self._drains:
            self._drains = True
            self._loop.call_later(REFUSAL, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def is_partial(self) -> bool:
        """Whether the first letters have come."""
        return bool(self._begun)


S = TypeVar("S", bound=Session)
C = TypeVar("C", bound=MessageConnection)

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
    carrier: str = getattr(connection, "carrier", "unknown")
    return carrier


@dataclass(kw_only=True, eq=False, repr=False)
class Listener(ConnectionContext):
    """Listens at addresses; makes the protocol and the session of each connection."""

    #: Makes a session; called with the function to call when the session is over.
    make_session: Callable[[Callable[[Session], None]], Session]
    #: For each connection; see `LineStream`.
    delimiter: bytes = b"\n"
    #: For TLS; None: connections are not encrypted.
    certificates: Certificates | None = None
    #: For HTTP; see `HttpRouter`.
    access: AccessRules = field(default_factory=AccessRules)
    routes: Routes | None = None
    paths: tuple[str, ...] | None = None
    binary: bool = True
    notification_status: int = 200
    #: What takes POST at paths of its own, by path; to be filled before it listens.
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    #: Where it listens, in the form that clients take.
    addresses: list[str] = field(default_factory=list)
    #: Sessions that have a connection, or whose handlers still run: nothing else refers to those.
    sessions: set[Session] = field(default_factory=set)
    _sources: list[ConnectionSource] = field(default_factory=list)
    _stopped: list[ConnectionSource] = field(default_factory=list)
    _setups: list[ConnectionSetup] = field(default_factory=list)
    _bound: list[BoundAddress] = field(default_factory=list)
    _renewal: asyncio.TimerHandle | None = None
    _all_gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.connections = OpenConnections(
            limits=self.limits,
            counters=self.counters,
            has_authentication=self.authenticator is not None,
            patience=self.patience,
            on_empty=self._check_gone,
        )

    async def listen(self, **where: Any) -> list[BoundAddress]:
        """Listen, and accept connections; the descriptors are closed with this listener.

        Connections that wait to be accepted when it stops are left in the queue of sockets that others have bound.

        Args:
            where: the arguments of `listen_at`.

        Raises:
            OSError, ValueError: as `listen_at`.
        """
        bound = await listen_at(**where)
        acceptors = []
        for each in bound:
            setup = self.setup(each.host)
            acceptors += [Acceptor(sock, setup, keeps_waiting=each.is_shared) for sock in each.sockets]
        self._bound += bound
        try:
            for acceptor in acceptors:
                await acceptor.start()
        except BaseException:
            for acceptor in acceptors:
                acceptor.stop()
            raise
        self.take_from(*acceptors, addresses=[address for each in bound for address in each.addresses])
        return bound

    def take_from(self, *sources: ConnectionSource, addresses: Iterable[str]) -> None:
        """Take the connections that others accept at these addresses, until `stop_accepting`.

        They are given to a `setup`.
        """
        self._sources += sources
        self.addresses += addresses
        if self._renewal is None:
            self._renew()

    def setup(self, host: str | None) -> ConnectionSetup:
        """Make what sets up connections that are accepted at a host.

        Args:
            host: whose name HTTP requests may then give; "" for all addresses, None for a Unix socket.
        """
        limits = self.limits
        router = self._router(self.access.at(host))

        times = [seconds for seconds in (limits.auth_timeout, limits.message_timeout) if seconds is not None]
        certificates = None if self.certificates is None else self.certificates.context
        make_arrival = partial(ProtocolDetector, self, router)
        setup = ConnectionSetup(make_arrival, self.connections, certificates, min(times, default=None))
        self._setups.append(setup)
        return setup

    @property
    def open_count(self) -> int:
        """Connections that count in `max_connections`, those that are being set up among them."""
        return self.counters.connections - self.connections.apart + sum(setup.pending for setup in self._setups)

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted at any address."""
        return bool(self._sources)

    def stop_accepting(self) -> None:
        """Close the listening sockets, and take no more requests on open connections; what is in flight goes on."""
        if self._renewal is not None:
            self._renewal.cancel()
        self._stopped, self._sources = self._sources, []
        for source in self._stopped:
            source.stop()
        for bound in self._bound:
            bound.remove_file()
        self._bound.clear()
        self.addresses.clear()
        self.connections.drain()

    async def closed(self) -> None:
        """Wait until no connection is open and no handler runs for one, after `stop_accepting`."""
        # Connections that were accepted a moment ago are set up in the next turns, and closed then.
        for source in self._stopped:
            await source.wait()
        while self.sessions or len(self.connections):
            self._all_gone.clear()
            await self._all_gone.wait()

    def refuse_waiting(self) -> bool:
        """Answer the requests that wait for others to end: they are not begun. Returns whether there were any."""
        until = perf_counter() + REFUSING
        return sum(session.refuse_waiting(until) for session in list(self.sessions)) > 0

    def abort(self, reason: str) -> None:
        """Close every connection at once, later ones, too, and cancel every handler."""
        for session in list(self.sessions):
            session.running.cancel_all()
        self.connections.abort(reason)

    def make_asgi(self) -> AsgiEndpoint:
        """Make what serves the connections that an ASGI server accepts."""
        from .asgi import AsgiEndpoint

        return AsgiEndpoint(self, self._router(self.access))

    def make_stream(self) -> LineStream:
        """Make the protocol of one more connection with the line stream, and its session."""
        return self.make_line(address="memory", on_open=self.connections.opened)

    def make_line(self, **options: Any) -> LineStream:
        """As `ConnectionContext.make_line`."""
        return self.make(LineStream, delimiter=self.delimiter, **options)

    def make(self, kind: Callable[..., C], request: Request | None = None, **options: Any) -> C:
        """As `ConnectionContext.make`."""
        session = self.new_session()
        if request is not None:
            session.identity, session.headers = request.identity, request.headers
        return kind(session, trace=self.trace, on_close=self.message_connection_closed, **options)

    def _router(self, access: AccessRules) -> HttpRouter:
        """Make the router of HTTP requests, with these rules of access."""
        return HttpRouter(
            access,
            self.routes,
            self.paths,
            endpoints=self.endpoints,
            reads_frames=self.binary,
            notification_status=self.notification_status,
        )

    def new_session(self) -> Session:
        """As `ConnectionContext.new_session`."""
        return self.add_session(self.make_session)

    def add_session(self, make_session: Callable[[Callable[[Session], None]], S]) -> S:
        """Make a session that this listener waits for at its end.

        Args:
            make_session: makes it; called with the function to call when it is over.
        """
        session = make_session(self._session_gone)
        self.sessions.add(session)
        return session

    def message_connection_closed(self, connection: MessageConnection) -> None:
        """A connection that carries one conversation is lost."""
        self.counters.replies_dropped += connection.session.pending.dropped
        self.connections.closed(connection)

    def _session_gone(self, session: Session) -> None:
        self.sessions.discard(session)
        self._check_gone()

    def _check_gone(self) -> None:
        if not (self.sessions or len(self.connections)):
            self._all_gone.set()

    def reload_certificate(self) -> None:
        """Read the certificate again now, for the connections that come.

        Raises:
            OSError: its files cannot be read or do not fit together. The certificate before stays in use.
        """
        error = self.certificates.refresh(always=True) if self.certificates is not None else None
        if error is not None:
            raise error

    def _renew(self) -> None:
        """Read the certificate again if its files have changed; check that again later."""
        if self.certificates is None:
            return
        error = self.certificates.refresh()
        if error is not None:
            log.error("the certificate's files have changed and cannot be used, the one before stays in use: %s", error)
        self._renewal = asyncio.get_running_loop().call_later(RENEWAL, self._renew)
