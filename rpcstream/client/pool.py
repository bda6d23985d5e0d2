"""The connections of one async client: made when they are needed, kept open, replaced after they were lost.

Owns which connection takes a call, the making of connections (shared by all calls that wait for it), and reconnecting.
Of calls it knows only how many wait on which connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakSet

from ..backoff import Backoff
from ..errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    MethodNotFound,
    NotAuthenticated,
    RpcError,
    Unread,
    error_from_wire,
)
from ..peer.deadline import INFINITE, free_context
from ..peer.interfaces import Channel
from ..peer.marshal import NOT_GIVEN, Call, Marshaller
from ..peer.remote import Peer
from ..peer.write_gate import WriteGate
from ..text import get_logger
from ..transports.connection import ASKS_FOR_CERTIFICATE, REFUSES_CERTIFICATE
from .address import check_lasting
from .connect import join
from .connection import ClientConnection, GetDispatcher, Keepalive
from .faults import failure, is_permanent_failure
from .options import Settings
from .retry import WAITING, Unsent, is_permanent, retrieve_exception
from .slots import Fault, Slot, choose_slot

log = get_logger("rpcstream.client")

CLOSED = "the client was closed"

#: Seconds that a closing client gives the server to read what was sent.
CLOSE_TIME = 2.0

#: Bytes sent in one turn of the event loop, after which it must run, so that they are written.
WRITE_MAX = 256 * 1024

#: Turns of the event loop after which it has read what the socket held, and written what was sent.
TURNS = 5

#: Seconds after which a connection counts as a good one: the next pause before connecting is a short one again.
STABLE = 0.5

#: Seconds between two looks at a first attempt to connect that takes longer than its call waits.
CHECK = 0.05

#: Connections that the server is leaving and that are kept until it closes them.
LEAVING_MAX = 4

#: Called with a new connection, before any call is sent on it.
Greeting = Callable[[ClientConnection], Awaitable[object]]


class ConnectionPool:
    """Gives each call its connection.

    Args:
        settings: of the client.
        marshaller: of the client.
        get_dispatcher: gives the dispatcher of the methods that the server may call; None while there are none.

    Attributes:
        address: of the server, for errors.
        is_closed: the client was closed.
        lost: how many connections were lost so far.
        greetings: run on each new connection, in this order; if one fails, so does connecting.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, get_dispatcher: GetDispatcher) -> None:
        self.address = str(settings.address)
        self.is_closed = self._is_leaving = False
        self.lost = 0
        self.greetings: list[Greeting] = []
        address = settings.address
        if settings.token is not None and not (address.is_http or address.is_websocket or address.is_nats):
            self.greetings.append(self._authenticate)
        #: Where the next greeting of the user goes: after authentication, before the registration and subscriptions.
        self._user_greetings_end = len(self.greetings)
        self._settings = settings
        self._marshaller = marshaller
        self._get_dispatcher = get_dispatcher
        self._slots = [Slot() for _ in range(settings.pool or 1)]
        self._only = self._slots[0] if len(self._slots) == 1 else None
        #: All connections whose sockets may be open: also those being greeted, and those that are closing.
        self._connections: WeakSet[ClientConnection] = WeakSet()
        self._write_max = min(WRITE_MAX, settings.limits.write_buffer)
        self._state = "idle"
        #: Why the last attempt to connect failed, while the pool goes on trying.
        self._failure: str | None = None
        #: The permanent fault that was logged last, so that it is not logged for each attempt.
        self._logged_fault: str | None = None
        #: Futures of `wait_closed`: done when a connection is lost, and when the client is closed.
        self._changes: set[asyncio.Future[None]] = set()
        self._last_lost: Channel | None = None

    @property
    def state(self) -> str:
        """The state of the first connection, see `BaseClient.state`."""
        return self._state

    def ready(self, loop: asyncio.AbstractEventLoop) -> ClientConnection | None:
        """A connection on which a call can be sent at once; None if the call has to wait for one (`get`)."""
        slot = self._only or choose_slot(self._slots)
        connection = slot.connection
        if connection is None or connection.loop is not loop:
            return None
        session = connection.session
        if not session.is_open or self._is_full(session.write_gate) or connection.has_unread():
            return None
        return connection

    async def get(self, method: str, deadline: float, until: float | None = NOT_GIVEN) -> ClientConnection:
        """Wait for a connection on which a call can be sent.

        Args:
            method: the method that is called, for errors.
            deadline: loop time, seconds; may be infinite.
            until: so long (loop time, seconds) a server that is not there is waited for. None: not at all; or with
                `reconnect` until the deadline. By default for the seconds of the option `wait_for`.

        Raises:
            ConnectFailed, CallTimeout, Unsent: there is none.
            NotAuthenticated, NotPermitted, ServerBusy: the server refused the connection.
            RuntimeError: the client is closed.
        """
        loop = asyncio.get_running_loop()
        if until is NOT_GIVEN:
            seconds = self._settings.wait_for
            until = None if seconds is None else loop.time() + seconds
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                while True:
                    if self.is_closed:
                        raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
                    slot = self._only or choose_slot(self._slots)
                    connection = await self._open(slot, loop, until)
                    if not connection.is_open:
                        await self._wait_for_another(slot, connection, until)
                        continue
                    await self._catch_up(connection)
                    if connection.is_open:
                        return connection
        except ConnectFailed as error:
            # Calls that waited for the same attempt share its error; each gets one that names its own method.
            lasts = error.is_permanent
            raise ConnectFailed(error.reason, method=method, address=self.address, is_permanent=lasts) from error
        except RpcError as error:
            own = error_from_wire(error.to_wire(), method=method, address=self.address)
            own.advice = error.advice
            raise own from None
        except (Unsent, Unread) as error:
            raise type(error)(error.reason, method=method, address=self.address) from None
        except TimeoutError:
            reason = "no connection in time" + (f"; {self._failure}" if self._failure is not None else "")
            raise CallTimeout(reason, method=method, address=self.address) from None

    async def _wait_for_another(self, slot: Slot, connection: ClientConnection, until: float | None) -> None:
        """Pause before another attempt, after a connection was closed at once.

        Raises:
            Unread, Unsent: there is to be no other attempt.
        """
        if self._settings.reconnect is not None:
            return
        if until is not None and (left := until - connection.loop.time()) > 0:  # it may be stopping, or starting
            await asyncio.sleep(min(WAITING.pause(slot.failures), left))
            return
        if connection.session.peer_is_leaving:
            raise Unread("the server reads no more requests")
        reason = connection.reason() or "the peer closed the connection at once"
        raise Unsent(connection.session.pending.explained(reason))

    def greet(self, hello: Callable[[Peer], Awaitable[object]]) -> None:
        """Run a user's function on each new connection: after authentication, before anything else."""

        async def greet(connection: ClientConnection) -> None:
            await hello(Peer(connection.session))

        self.greetings.insert(self._user_greetings_end, greet)
        self._user_greetings_end += 1

    async def wait_closed(self) -> None:
        """Wait until the client is closed, see `BaseClient.wait_closed`."""
        check_lasting(self._settings.address, "wait_closed")
        loop = asyncio.get_running_loop()
        while not self.is_closed:
            if self._settings.reconnect is None and not (self.open_connections or any(s.leaving for s in self._slots)):
                channel = self._last_lost
                reason = "there is no connection" if channel is None else channel.reason or "the peer closed it"
                raise ConnectionLost(reason, address=self.address)
            changed = loop.create_future()
            self._changes.add(changed)
            try:
                await changed
            finally:
                self._changes.discard(changed)

    def begin(self) -> None:
        """Start connecting, although nothing is to be sent yet."""
        for slot in self._slots:
            self._begin(slot, asyncio.get_running_loop())

    @property
    def open_connections(self) -> list[ClientConnection]:
        """The connections that are open now."""
        return [slot.connection for slot in self._slots if slot.connection is not None and slot.connection.is_open]

    @property
    def dropped(self) -> int:
        """Replies on the present connections that belonged to no waiting call."""
        return sum(slot.connection.session.pending.dropped for slot in self._slots if slot.connection is not None)

    async def leave(self, reason: str) -> None:
        """Say on each connection which request was read last; wait until those that were are answered, and it is over.

        Lost connections are not replaced any more, unless a call wants one.
        """
        self._is_leaving = True
        leaving = [each for each in self._connections if each.session.channel is not None]
        for connection in leaving:
            connection.session.go_away(reason)
        await asyncio.gather(*(connection.wait_lost() for connection in leaving))

    def methods_at_work(self) -> set[str]:
        """The names of the methods that run for the server."""
        return {name for connection in self._connections for name in connection.session.running.method_names()}

    def refuse_waiting(self, until: float) -> bool:
        """Answer the requests of the server that wait, as `Session.refuse_waiting`; returns whether there were any."""
        return sum(connection.session.refuse_waiting(until) for connection in list(self._connections)) > 0

    async def close(self) -> None:
        """Close all connections; waiting calls fail."""
        self.is_closed = True
        self._report_change()
        loop = asyncio.get_running_loop()
        closing = []
        for slot in self._slots:
            slot.forget_fault()
            if slot.connecting is not None and slot.connecting.get_loop() is loop:
                slot.connecting.cancel()
                await asyncio.wait([slot.connecting])
        for connection in list(self._connections):
            if connection.loop is loop:
                if connection.session.channel is not None:
                    connection.close(CLOSED)
                closing.append(connection.wait_closed(CLOSE_TIME))
        await asyncio.gather(*closing)
        self._set_state("closed")

    def _is_full(self, write_gate: WriteGate) -> bool:
        """Tell whether so much waits to be written that a call waits before it is sent."""
        return write_gate.stalled or write_gate.unsent > self._write_max

    async def _catch_up(self, connection: ClientConnection) -> None:
        """Wait until the event loop has read what arrived unseen, and written most of what was sent.

        The connection may turn out to be closed.
        """
        for _ in range(TURNS):
            if not (connection.is_open and connection.has_unread()):
                break
            await asyncio.sleep(0)
        if connection.is_open and connection.refresh is not None and connection.has_unread():
            await connection.refresh()
        if connection.is_open and self._is_full(connection.session.write_gate):
            await connection.session.write_gate.wait()

    # -- making connections -----------------------------------------------------------------------------------------

    async def _open(self, slot: Slot, loop: asyncio.AbstractEventLoop, until: float | None) -> ClientConnection:
        """The connection of a slot, which a call waits for until a loop time; see `get`."""
        if until is None:
            return await self._attempt(slot, loop)
        if self._settings.reconnect is None:
            return await self._attempt_again(slot, loop, until)
        slot.hurry(until)
        try:
            async with asyncio.timeout_at(until):
                return await self._attempt(slot, loop)
        except TimeoutError:
            pass
        while not slot.failures and slot.connecting is not None:  # the first attempt is never cut short
            await asyncio.wait([slot.connecting], timeout=CHECK)
        if slot.connection is not None and slot.is_open:
            return slot.connection
        reason = f"no connection in the time to wait for one (wait_for); {self._failure}"
        raise ConnectFailed(reason, address=self.address)

    async def _attempt_again(self, slot: Slot, loop: asyncio.AbstractEventLoop, until: float) -> ClientConnection:
        """Connect, and try again until a loop time if that fails; all calls that wait share the attempts."""
        while True:
            try:
                return await self._attempt(slot, loop)
            except ConnectFailed as error:
                left = until - loop.time()
                if error.is_permanent or left <= 0 or self.is_closed:
                    raise
            while left > 0 and (pause := slot.next_attempt - loop.time()) > 0:
                await asyncio.sleep(min(pause, left))
                left = until - loop.time()

    async def _attempt(self, slot: Slot, loop: asyncio.AbstractEventLoop) -> ClientConnection:
        """The connection of a slot; made once for all calls that wait for it."""
        connection = slot.connection
        if connection is not None and connection.is_open and connection.loop is loop:
            return connection
        if slot.fault is not None and slot.fault.loop is loop:
            raise slot.fault.error
        try:
            # A call that is cancelled must not cancel the attempt, which others may wait for.
            return await asyncio.shield(self._begin(slot, loop))
        except asyncio.CancelledError:
            if self.is_closed:
                raise ConnectFailed(CLOSED, address=self.address) from None
            raise

    def _begin(self, slot: Slot, loop: asyncio.AbstractEventLoop) -> asyncio.Task[ClientConnection]:
        """Start making the connection of a slot, unless that is under way."""
        if slot.connecting is None or slot.connecting.get_loop() is not loop:
            slot.forget_fault()
            # In a context without the deadline of the call that wants it first: others use the connection, too.
            slot.connecting = loop.create_task(self._connect(slot), context=free_context())
            slot.connecting.add_done_callback(retrieve_exception)
        return slot.connecting

    async def _connect(self, slot: Slot) -> ClientConnection:
        """Make the connection of a slot; with `reconnect` again and again until there is one."""
        backoff = self._settings.reconnect
        try:
            while True:
                if slot.failures and backoff is not None:
                    self._set_state("waiting", slot)
                    await slot.rest(backoff.pause(slot.failures), backoff.first)
                self._set_state("connecting", slot)
                try:
                    slot.connection = connection = await self._make()
                    self._failure = self._logged_fault = None
                    break
                except (ConnectFailed, RpcError) as error:
                    if backoff is None:
                        slot.failures += 1
                        slot.next_attempt = asyncio.get_running_loop().time() + WAITING.pause(slot.failures)
                        self._set_state("idle", slot)
                        raise
                    if is_permanent(error):
                        self._suspend(slot, error, backoff)
                        raise
                    slot.failures += 1
                    self._failure = error.reason if isinstance(error, ConnectFailed) else str(error)
                    log.info("%s; trying again", error)
        finally:
            slot.connecting = None
        slot.since = connection.loop.time()
        self._set_state("connected", slot)
        channel = connection.session.channel
        if connection.is_open:
            connection.session.set_end_callback(lambda: self._was_lost(slot, connection, channel))
        else:
            self._was_lost(slot, connection, channel)
        return connection

    def _suspend(self, slot: Slot, fault: ConnectFailed | RpcError, backoff: Backoff) -> None:
        """Make no more attempts for a while, since the next one would fail as well; calls fail at once meanwhile."""
        pause, loop = backoff.longest_pause, asyncio.get_running_loop()
        timer = loop.call_later(pause, self._begin, slot, loop, context=free_context())
        slot.failures, slot.fault = 0, Fault(fault, loop, timer)
        self._set_state("waiting", slot)
        text = str(fault)
        if text != self._logged_fault:
            self._logged_fault = text
            log.warning(
                "no connection to %s: %s. Calls fail with this error; the next attempt is made in %.0f s",
                self.address,
                text,
                pause,
            )

    async def _make(self) -> ClientConnection:
        """A new connection, greeted.

        Raises:
            ConnectFailed: no connection could be made, or a greeting failed.
            NotAuthenticated, NotPermitted, ServerBusy: the server refused the connection, or its token.
        """
        limit = self._settings.connect_timeout
        connection = ClientConnection(self._settings, self._marshaller, self._get_dispatcher)
        reason = "connecting failed"
        is_joined = False
        try:
            async with asyncio.timeout(limit):
                await join(connection, self._settings)
                is_joined = True
                self._connections.add(connection)
                for greet in self.greetings:
                    await greet(connection)
                if self._settings.keepalive is not None and connection.is_open:
                    Keepalive(connection, self._marshaller, self._settings.keepalive)
        except ConnectFailed:
            connection.abort(reason)
            raise
        except OSError as error:
            fault = self._certificate_fault(connection.reason())
            if connection.session.peer_is_leaving:
                connection.session.close_when_idle()  # calls that came before the server said so are answered
                connection.probe_until_closed()
            else:
                connection.abort(reason)
            if fault is not None:
                raise fault from error
            why, lasts = failure(error, limit, self._settings.address), is_permanent_failure(error)
            raise ConnectFailed(why, address=self.address, is_permanent=lasts) from error
        except RpcError as error:
            connection.abort(reason)
            if isinstance(error, NotAuthenticated) or not is_joined:
                error.method = error.address = None  # the calls that wait name their own method
                raise
            reason = f"the server refused the token, or a call of on_connect: {error}"
            raise ConnectFailed(reason, address=self.address) from error
        except Exception as error:
            connection.abort(reason)
            log.exception("a connection to %s could not be made", self.address)
            raise ConnectFailed(f"could not connect: {error!r}", address=self.address) from error
        except BaseException:
            connection.abort("connecting was cancelled")
            raise
        return connection

    def _was_lost(self, slot: Slot, connection: ClientConnection, channel: Channel | None) -> None:
        if self.is_closed or slot.connection is not connection:
            return
        self._last_lost = channel
        self.lost += 1
        if connection.session.peer_is_leaving:
            self._let_go(slot, connection)
        self._report_change()
        connection.probe_until_closed()
        # A connection that was lost soon counts as a failed attempt, unless it was of use, or the server has said that
        # it stops.
        session = connection.session
        is_good = session.peer_is_leaving or session.was_asked or connection.loop.time() - slot.since > STABLE
        slot.failures = 1 if is_good else slot.failures + 1
        if is_good:
            slot.lost_good = connection.loop.time()
        backoff = self._settings.reconnect
        if backoff is None or self._is_leaving or connection.loop.is_closed():
            self._set_state("idle", slot)
            return
        fault = self._certificate_fault(None if channel is None else channel.reason)
        if fault is None:
            self._begin(slot, connection.loop)
        else:
            self._suspend(slot, fault, backoff)

    def _certificate_fault(self, reason: str | None) -> ConnectFailed | None:
        """The error where the server has ended a connection since it does not take this client's certificate."""
        if reason is None or not reason.startswith((ASKS_FOR_CERTIFICATE, REFUSES_CERTIFICATE)):
            return None
        return ConnectFailed(f"could not connect: {reason}", address=self.address, is_permanent=True)

    def _let_go(self, slot: Slot, connection: ClientConnection) -> None:
        """Keep a connection that the server is leaving, for what it has read and for its own calls, until it ends.

        Of those that a server leaves and does not close few are kept.
        """

        def lost() -> None:
            if connection in slot.leaving:
                slot.leaving.remove(connection)
            self._report_change()

        slot.leaving.append(connection)
        connection.session.add_lost_callback(lost)
        if len(slot.leaving) > LEAVING_MAX:
            slot.leaving[0].abort("the server has left, and does not close the connection")

    def _report_change(self) -> None:
        for changed in self._changes:
            if not (changed.done() or changed.get_loop().is_closed()):
                changed.set_result(None)

    def _set_state(self, state: str, slot: Slot | None = None) -> None:
        if (slot is None or slot is self._slots[0]) and state != self._state:
            self._state = state
            if self._settings.on_state is not None:
                try:
                    self._settings.on_state(state)
                except Exception:
                    log.exception("on_state of a client failed")

    async def _authenticate(self, connection: ClientConnection) -> None:
        """Send the token, before anything else. A server that does not know the method needs no token."""
        call = Call(self._marshaller, "rpc.authenticate", {"token": self._settings.token}, NOT_GIVEN, NOT_GIVEN)
        try:
            await connection.calls.ask(call, INFINITE)
        except MethodNotFound:
            pass
