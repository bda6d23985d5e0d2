"""One connection of the async client, its keep-alive, and its place in the pool, which makes it again after a loss.

`connect` opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..backoff import MANY, Backoff
from ..errors import ConnectFailed, ConnectionLost, RpcError
from ..local_peer import Wait
from ..peer.calls import Call
from ..peer.deadline import INFINITE, free_context
from ..peer.ledger import ServerLedger
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.session import Session
from ..text import get_logger
from ..transports.connection import ASKS_FOR_CERTIFICATE, REFUSES_CERTIFICATE
from .address import Address
from .attempts import is_permanent
from .conversation import Callbacks, ClientDispatcher
from .faults import silence
from .options import Settings

if TYPE_CHECKING:
    from ..nats.client_events import ClientEvents

log = get_logger("rpcstream.client")

#: Seconds between two checks whether a server that has stopped sending still reads.
PROBE_INTERVAL = 2.0

#: Seconds in which the requests of the server that wait are refused when the connection is closed.
REFUSING = 0.25

#: Seconds after which a connection counts as a good one: the next pause before connecting is a short one again.
STABLE = 0.5


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
        self.calls.fail_all(reason)
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


def certificate_fault(reason: str | None, address: str) -> ConnectFailed | None:
    """The error where the server has ended a connection since it does not take this client's certificate."""
    if reason is None or not reason.startswith((ASKS_FOR_CERTIFICATE, REFUSES_CERTIFICATE)):
        return None
    return ConnectFailed(f"could not connect: {reason}", address=address, is_permanent=True)


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception as seen: no warning is logged when all that waited for it have given up."""
    if not future.cancelled():
        future.exception()


def _outgoing_calls(session: Session, marshaller: Marshaller, settings: Settings) -> OutgoingCalls:
    calls = OutgoingCalls(session, marshaller)
    if settings.tracing is not None:
        from ..peer.tracing import CallTracing

        calls.tracing = CallTracing(settings.tracing, settings.address.span_attributes)
    return calls


def keep_alive(connection: ClientConnection, seconds: float, *, is_silent: bool = False) -> None:
    """Close a connection whose server has disappeared.

    Checks at every half of the time. After half of the time without a byte the server is sent a ping (`rpc.ping`);
    after another silent half the connection is closed, and waiting calls fail with ConnectionLost. Every byte counts,
    also a part of a long message.

    Args:
        connection: the connection, open.
        seconds: a silent server is given up after this time, or up to half of it later.
        is_silent: no byte came in the last half of the time, and the server was sent a ping.
    """
    due = connection.loop.time() + seconds / 2
    connection.loop.call_at(due, _check_alive, connection, seconds, due, is_silent)


def _check_alive(connection: ClientConnection, seconds: float, due: float, is_silent: bool) -> None:
    """Make the check of `keep_alive` that is due, and have the next one made."""
    if not connection.is_open:
        return
    # Unread bytes count, too.
    if connection.channel.has_received() or (connection.poll is not None and connection.poll(0)):
        is_silent = False
    elif not is_silent:
        is_silent = True
        # Even the bytes of an error prove that the server is alive.
        ping = connection.calls.start(Call(connection.calls.marshaller, "rpc.ping"), INFINITE)
        ping.future.add_done_callback(retrieve_exception)
    elif connection.loop.time() - due < seconds / 4:  # a check that runs late proves nothing: the loop was blocked
        connection.abort(f"the server sent nothing for {seconds:g} s, not even a reply to a ping (keepalive)")
        return
    keep_alive(connection, seconds, is_silent=is_silent)


class Slot:
    """One place for a connection in the pool; the connection may be missing, or still being made.

    Args:
        name: of the server, or servers, for errors and logs.
        reconnect: the pauses of a connection that is kept open; None: the connection is made when a call needs it.
        make: makes and greets a connection to this server; None: to the first one that can be reached.
        set_state: is told each new state of this slot.
        was_lost: is told of each connection that was lost.
        address: the only server that it connects to; None for the first one that can be reached.

    Attributes:
        connecting: the task of the present attempt to connect, which begins with the pause before it.
        error: why the last attempt failed; None after a good one.
    """

    def __init__(
        self,
        name: str,
        reconnect: Backoff | None,
        make: Callable[[Slot], Coroutine[Any, Any, ClientConnection]],
        set_state: Callable[[str, Slot], object],
        was_lost: Callable[[ClientConnection], object],
        address: Address | None = None,
    ) -> None:
        self.address = address
        self.reconnect = reconnect
        self.connection: ClientConnection | None = None
        self.connecting: asyncio.Task[ClientConnection] | None = None
        self.error: ConnectFailed | RpcError | None = None
        self._name = name
        self._make = make
        self._set_state = set_state
        self._was_lost = was_lost
        #: Attempts since the last good connection that failed, or whose connection was soon lost.
        self._failures = 0
        #: When the connection was made (loop time).
        self._since = 0.0
        #: Ends the pause before the next attempt.
        self._hurried: asyncio.Future[None] | None = None

    @property
    def load(self) -> int:
        """Calls that wait for their reply on this connection."""
        return 0 if self.connection is None else len(self.connection.session.pending)

    @property
    def is_open(self) -> bool:
        """The connection is there and open."""
        return self.connection is not None and self.connection.is_open

    async def open(self, loop: asyncio.AbstractEventLoop, *, once: bool) -> ClientConnection:
        """Wait for the connection, which is made if it is missing. It may have been lost again meanwhile.

        Args:
            loop: the running event loop.
            once: wait for one attempt, which begins now. Otherwise, with `reconnect`, wait until an attempt succeeds.

        Raises:
            ConnectFailed, NotAuthenticated, NotPermitted, ServerBusy: the attempt failed.
        """
        while True:
            connection = self.connection
            if connection is not None and connection.is_open and connection.loop is loop:
                return connection
            attempt = self.begin(loop)
            if self.reconnect is not None and self.error is not None and is_permanent(self.error):
                raise self.error
            if once:
                self._end_pause()
            await asyncio.wait([attempt])
            if attempt.cancelled():
                raise ConnectFailed("the client was closed", address=self._name)
            error = attempt.exception()
            if error is None:
                return attempt.result()
            if once or self.reconnect is None or not isinstance(error, Exception) or is_permanent(error):
                raise error

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[ClientConnection]:
        """Start an attempt to make the connection, unless one is under way; gives its task."""
        attempt = self.connecting
        if attempt is None or attempt.get_loop() is not loop:
            # In a context without the deadline of the call that wants it first: others use the connection, too.
            attempt = self.connecting = loop.create_task(self._connect(loop), context=free_context())
            attempt.add_done_callback(retrieve_exception)
        return attempt

    async def close(self) -> None:
        """Make no connection any more. The present one stays open."""
        self.reconnect = None
        if self.connecting is not None and self.connecting.get_loop() is asyncio.get_running_loop():
            self.connecting.cancel()
            await asyncio.wait([self.connecting])

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> ClientConnection:
        """Make the connection, after a pause if that has failed before."""
        try:
            await self._pause(loop)
            self._set_state("connecting", self)
            connection = await self._make(self)
        except (ConnectFailed, RpcError) as error:
            self._failed(error, loop)
            raise
        self.connecting = self.error = None
        self.connection, self._since = connection, loop.time()
        self._set_state("connected", self)
        lost = partial(self._lost, connection)
        if connection.is_open:
            connection.session.on_end = lost
        else:
            lost()
        return connection

    async def _pause(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pause before an attempt that follows a failed one, until a call wants it `once`.

        After a permanent fault the pause is a long one, and no call ends it: the next attempt would fail as well.
        """
        if self.reconnect is None or not self._failures:
            return
        self._set_state("waiting", self)
        seconds = self.reconnect.pause(MANY if self.error is not None and is_permanent(self.error) else self._failures)
        self._hurried = loop.create_future()
        await asyncio.wait([self._hurried], timeout=seconds)

    def _end_pause(self) -> None:
        if self._hurried is not None and not self._hurried.done():
            self._hurried.set_result(None)

    def _failed(self, error: ConnectFailed | RpcError, loop: asyncio.AbstractEventLoop) -> None:
        """Note why an attempt failed, and make the next one with `reconnect`."""
        if not is_permanent(error):
            log.info("%s", error)
        elif self.reconnect is not None and str(error) != str(self.error):
            advice = "Calls fail with this error; the next attempt is made in"
            log.warning("no connection to %s: %s. %s %.0f s", self._name, error, advice, self.reconnect.longest)
        self.error = error
        self._failures += 1
        self._again(loop)

    def _lost(self, connection: ClientConnection) -> None:
        """The connection is over: make it again with `reconnect`."""
        if self.connection is not connection:
            return
        self._was_lost(connection)
        # A connection that was lost soon counts as a failed attempt, unless it was of use, or the server has said that
        # it stops.
        session, now = connection.session, connection.loop.time()
        if session.peer_is_leaving or session.intake.last_id is not None or now - self._since > STABLE:
            self._failures = 0
        fault = certificate_fault(connection.reason, self._name)
        if fault is not None and self.reconnect is not None:
            self._failed(fault, connection.loop)
        else:
            self._failures += 1
            self._again(connection.loop)

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the next attempt with `reconnect`; otherwise the next call makes one, without a pause."""
        self.connecting = None
        if self.reconnect is None or loop.is_closed():
            self._set_state("idle", self)
        else:
            self.begin(loop)


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The slot with the fewest waiting calls, an open one first: another connection is made when all are busy.

    Where each slot has its own server, a call never waits for a server that is not there while another one is.
    """
    return min(slots, key=lambda slot: (slot.address is not None and not slot.is_open, slot.load, not slot.is_open))
