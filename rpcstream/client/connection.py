"""One connection of the async client: its session, the calls made on it, its keep-alive, and how it is closed.

`connect` opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import ConnectionLost
from ..peer.calls import Call
from ..peer.deadline import INFINITE
from ..peer.ledger import ServerLedger
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.session import Session
from .callbacks import Callbacks, ClientDispatcher
from .faults import silence
from .options import Settings
from .sockets import Wait

if TYPE_CHECKING:
    from ..nats.client_events import ClientEvents

#: Seconds between two checks whether a server that has stopped sending still reads.
PROBE_INTERVAL = 2.0

#: Seconds in which the requests of the server that wait are refused when the connection is closed.
REFUSING = 0.25


class ClientConnection:
    """A connection to the server: being opened, open, or closed.

    `connect` sets those attributes that depend on the transport.

    Attributes:
        loop: its event loop.
        settings: of the client, with the address that it is made to.
        session: handles the messages on it.
        calls: the calls made on it.
        channel: the transport, also after its end; None before it is connected.
        poll: waits up to so many milliseconds until the socket is readable; None where the socket is not known.
        refresh: for HTTP: makes sure that there is an open connection, or ends the session.
        closed: done when the transport is closed, which may be later than the end of the session.
        server: the address it was made to, one of those in the client's address.
        events: of a service on NATS; None where the server itself sends events.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, callbacks: Callbacks) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self._callbacks = callbacks
        self.session = self.make_session()
        self.session.pending.when_silent = partial(silence, settings.address)
        self.use(_outgoing_calls(self.session, marshaller, settings))
        self.poll: Wait | None = None
        self.channel: Any = None
        self.refresh: Callable[[], Awaitable[object]] | None = None
        self._address = marshaller.address
        self._session_lost: asyncio.Future[None] = self.loop.create_future()
        self.closed: asyncio.Future[None] = self._session_lost
        self.server = settings.address
        self.events: ClientEvents | None = None
        self.session.on_lost.append(self._set_lost)

    def make_session(self, ledger: ServerLedger | None = None) -> Session:
        """Make a session with the server, or with one instance of a service.

        Args:
            ledger: of the first session, for a further one.
        """
        settings = self.settings

        def close(reason: str) -> None:
            session.abort(reason)

        dispatch = ClientDispatcher(settle=self._settle, close=close, callbacks=self._callbacks)
        session = Session(
            dispatch,
            codec=settings.codec,
            limits=settings.limits,
            side="client",
            on_slow=dispatch.report_slow,
            server_ledger=ledger or ServerLedger(settings.limits.max_held_total),
        )
        session.takes_binary, session.offers_binary = settings.binary, bool(settings.binary)
        return session

    def use(self, calls: OutgoingCalls) -> None:
        """Make the calls on this connection in this way, before the first of them."""
        self.calls = calls
        self.session.calls = calls

    @property
    def is_open(self) -> bool:
        """Calls can be made."""
        return self.session.is_open

    @property
    def reason(self) -> str | None:
        """Why the transport was closed; None if the peer just closed it."""
        return None if self.channel is None else self.channel.reason

    def has_unread(self) -> bool:
        """Tell whether the event loop has not yet read bytes, or the end, that arrived while no call waited.

        This happens when the loop was blocked, or did not run between two calls.
        """
        return self.poll is not None and not self.session.pending and bool(self.poll(0))

    def close(self, reason: str) -> None:
        """Fail the waiting calls, cancel them at the server, send what was written, then close.

        `wait_closed` waits for the end of that.
        """
        pending = self.session.pending
        self.calls.cancel([call_id for call_id, _ in pending.items()])
        pending.fail_all(lambda method: ConnectionLost(reason, method=method, address=self._address))
        self.session.running.abandon(lambda message: False)
        if self._callbacks:
            self.session.go_away(reason)
            self.session.refuse_waiting(perf_counter() + REFUSING)
        self.session.end(lambda method: ConnectionLost(reason, method=method, address=self._address))

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the connection is closed; after so many seconds close it without sending the rest."""
        await asyncio.wait([self._session_lost, self.closed], timeout=seconds)
        if not (self._session_lost.done() and self.closed.done()):
            self.channel.abort("the server did not take what was sent before the client was closed")
            await asyncio.wait([self._session_lost, self.closed])

    async def wait_lost(self) -> None:
        """Wait until the session has lost its transport."""
        await asyncio.wait([self._session_lost])

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self.session.abort(reason)

    def probe_until_closed(self) -> None:
        """Check again and again whether a server that sends nothing more still reads; if not, the connection is lost.

        Handlers that still run for the server are cancelled then.
        """
        channel = self.session.channel
        if channel is not None and not self.loop.is_closed():
            channel.probe()
            self.loop.call_later(PROBE_INTERVAL, self.probe_until_closed)

    def _set_lost(self) -> None:
        if not self._session_lost.done():
            self._session_lost.set_result(None)

    def _settle(self, reply: dict[str, object], line: bytes | bytearray) -> None:
        self.session.pending.settle(reply, line)


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception as seen: no warning is logged when all that waited for it have given up."""
    if not future.cancelled():
        future.exception()


def _outgoing_calls(session: Session, marshaller: Marshaller, settings: Settings) -> OutgoingCalls:
    calls = OutgoingCalls(session, marshaller)
    if settings.tracing is not None:
        from .tracing import ClientTracing

        calls.tracing = ClientTracing(settings.tracing, settings.address)
    return calls


class Keepalive:
    """Detects a server that has disappeared: watches one connection until it is lost, with one timer.

    Checks at every half of the time. After half of the time without a byte the server is sent a ping (`rpc.ping`);
    after another silent half the connection is closed, and waiting calls fail with ConnectionLost. Every byte counts,
    also a part of a long message.

    Args:
        connection: the connection, open.
        seconds: a silent server is given up after this time, or up to half of it later.
    """

    def __init__(self, connection: ClientConnection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._is_silent = False
        self._schedule()
        connection.session.on_lost.append(self._stop)

    def _check(self) -> None:
        connection = self._connection
        if not connection.is_open:
            return
        # Unread bytes count, too. A check that runs late proves nothing: the loop was blocked, not the server.
        if connection.channel.has_received() or (connection.poll is not None and connection.poll(0)):
            self._is_silent = False
        elif not self._is_silent:
            self._is_silent = True
            # Its bytes are what counts, also those of an error.
            ping = connection.calls.start(Call(connection.calls.marshaller, "rpc.ping"), INFINITE)
            ping.future.add_done_callback(retrieve_exception)
        elif connection.loop.time() - self._due < self._seconds / 4:
            connection.abort(f"the server sent nothing for {self._seconds:g} s, not even a reply to a ping (keepalive)")
            return
        self._schedule()

    def _schedule(self) -> None:
        self._due = self._connection.loop.time() + self._seconds / 2
        self._timer = self._connection.loop.call_at(self._due, self._check)

    def _stop(self) -> None:
        self._timer.cancel()
