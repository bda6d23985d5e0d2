"""The connections of one async client: made when they are needed, kept, made anew when they were lost.

Owns the pool and the making of connections, which calls that come meanwhile share. Knows nothing of calls but how many
wait where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakSet

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, MethodNotFound, RpcError
from ..peer.deadline import INFINITE, free_context
from ..peer.interfaces import Channel
from ..peer.marshal import NOT_GIVEN, Call, Marshaller
from ..peer.remote import Peer
from ..peer.stream_table import StreamTable
from ..text import get_logger
from .address import check_lasting
from .connect import join
from .connection import ClientConnection, Methods
from .dial import failure
from .keepalive import Keepalive
from .options import Settings
from .retry import Unsent, retrieve_exception

log = get_logger("rpcstream.client")

CLOSED = "the client was closed"

#: Seconds that a closing client leaves to the server to take what was sent.
CLOSE_TIME = 2.0

#: Bytes that are sent in one turn of the loop before it must go round, so that they are written.
WRITE_MAX = 256 * 1024

#: Turns of the loop after which what the socket held has been read, and what was sent is written.
TURNS = 5

#: A connection that has lasted so long (s) was a good one: the next pause before connecting is a short one again.
STABLE = 5.0

#: Called with a connection that has just been made, before any call is sent on it.
Greeting = Callable[[ClientConnection], Awaitable[object]]


class Slot:
    """One place for a connection in the pool; the connection may be missing, or still being made."""

    __slots__ = ("connecting", "connection", "failures", "since")

    def __init__(self) -> None:
        self.connection: ClientConnection | None = None
        #: The task that makes it.
        self.connecting: asyncio.Task[ClientConnection] | None = None
        #: Failed attempts since the last good connection, with connections that were soon lost.
        self.failures = 0
        #: When the connection was made (loop time).
        self.since = 0.0

    @property
    def load(self) -> int:
        """Calls that wait for their answer on this connection."""
        return 0 if self.connection is None else len(self.connection.session.pending)

    @property
    def is_open(self) -> bool:
        """The connection is there and open."""
        return self.connection is not None and self.connection.is_open


def choose_slot(slots: Sequence[Slot]) -> Slot:
    """The slot with the fewest waiting calls, an open one first: another connection is made when all are busy."""
    return min(slots, key=lambda slot: (slot.load, not slot.is_open))


class ConnectionPool:
    """Gives a call its connection.

    Attributes:
        greetings: run on each new connection, in order; one that fails ends it.
        on_state: called with each new `state`.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, methods: Methods) -> None:
        self.address = str(settings.address)
        self.is_closed = False
        self.greetings: list[Greeting] = []
        address = settings.address
        if settings.token is not None and not (address.is_http or address.is_websocket):
            self.greetings.append(self._authenticate)
        #: Behind these, and before what is registered and subscribed to again, comes what users say first.
        self._introductions = len(self.greetings)
        self._settings = settings
        self._marshaller = marshaller
        self._methods = methods
        self._slots = [Slot() for _ in range(settings.pool)]
        self._only = self._slots[0] if settings.pool == 1 else None
        #: All whose sockets may be open: those in the pool, those that are greeted, and those that have ended but for
        #: the server's goodbye, or for what it still asked of the client.
        self._connections: WeakSet[ClientConnection] = WeakSet()
        self._write_max = min(WRITE_MAX, settings.limits.write_buffer)
        self._state = "idle"
        #: Why the last attempt to connect failed, where more are made.
        self._failure: str | None = None
        #: Told when a connection is lost, and when the client is closed.
        self._waiting: set[asyncio.Future[None]] = set()
        self._last_lost: Channel | None = None

    @property
    def state(self) -> str:
        """What the first connection of the pool is like: "idle" (not wanted yet, or lost and not wanted since),
        "connecting", "connected", "waiting" (to connect again), "closed"."""
        return self._state

    def ready(self, loop: asyncio.AbstractEventLoop) -> ClientConnection | None:
        """A connection on which a call can be sent at once; None if something has to be waited for first."""
        slot = self._only or choose_slot(self._slots)
        connection = slot.connection
        if connection is None or connection.loop is not loop:
            return None
        session = connection.session
        if not session.is_open or self._is_full(session.flows) or connection.has_unread():
            return None
        return connection

    async def get(self, method: str, deadline: float) -> ClientConnection:
        """A connection that is open and takes calls.

        Args:
            method: for errors.
            deadline: loop time, seconds; may be infinite.

        Raises:
            ConnectFailed, CallTimeout, Unsent: there is none.
            RuntimeError: the client is closed.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                while True:
                    if self.is_closed:
                        raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
                    connection = await self._open(self._only or choose_slot(self._slots), loop)
                    if not connection.is_open:
                        if self._settings.reconnect is not None:
                            continue
                        reason = connection.reason() or "the peer closed the connection at once"
                        raise Unsent(connection.session.pending.explained(reason))
                    for _ in range(TURNS):
                        if not (connection.is_open and connection.has_unread()):
                            break
                        await asyncio.sleep(0)
                    if connection.is_open and connection.renew is not None and connection.has_unread():
                        await connection.renew()
                    if connection.is_open and self._is_full(connection.session.flows):
                        await connection.session.flows.flowing()
                    if connection.is_open:
                        return connection
        except ConnectFailed as error:
            # Calls that share the attempt share its error; each is told of its own method.
            raise ConnectFailed(error.reason, method=method, address=self.address) from error
        except Unsent as error:
            raise Unsent(error.reason, method=method, address=self.address) from None
        except TimeoutError:
            reason = "no connection in time" + (f"; {self._failure}" if self._failure is not None else "")
            raise CallTimeout(reason, method=method, address=self.address) from None

    def greet(self, hello: Callable[[Peer], Awaitable[object]]) -> None:
        """Run a user's function on each new connection, before what the server may take only from those it knows."""
        self.greetings.insert(self._introductions, greeting(hello))
        self._introductions += 1

    async def wait_closed(self) -> None:
        """Wait until the client is closed, as a program does that only offers.

        Raises:
            RuntimeError: the client calls over HTTP, which has no connection that lasts.
            ConnectionLost: there is no connection any more, and the client does not `reconnect`.
        """
        check_lasting(self._settings.address, "wait_closed")
        loop = asyncio.get_running_loop()
        while not self.is_closed:
            if self._settings.reconnect is None and not self.open_connections:
                channel = self._last_lost
                reason = "there is no connection" if channel is None else channel.reason or "the peer closed it"
                raise ConnectionLost(reason, address=self.address)
            changed = loop.create_future()
            self._waiting.add(changed)
            try:
                await changed
            finally:
                self._waiting.discard(changed)

    def begin(self) -> None:
        """Connect although nothing is to be sent yet."""
        for slot in self._slots:
            self._begin(slot, asyncio.get_running_loop())

    @property
    def open_connections(self) -> list[ClientConnection]:
        """The connections that stand now."""
        return [slot.connection for slot in self._slots if slot.connection is not None and slot.connection.is_open]

    @property
    def dropped(self) -> int:
        """Replies on the present connections that nobody waited for."""
        return sum(slot.connection.session.pending.dropped for slot in self._slots if slot.connection is not None)

    async def close(self) -> None:
        """End all; what waits fails."""
        self.is_closed = True
        self._tell_waiting()
        loop = asyncio.get_running_loop()
        closing = []
        for slot in self._slots:
            if slot.connecting is not None and slot.connecting.get_loop() is loop:
                slot.connecting.cancel()
                await asyncio.wait([slot.connecting])
        for connection in list(self._connections):
            if connection.loop is loop:
                if connection.session.channel is not None:
                    connection.close(CLOSED)
                closing.append(connection.gone(CLOSE_TIME))
        await asyncio.gather(*closing)
        self._set_state("closed")

    def _is_full(self, flows: StreamTable) -> bool:
        """Is a call to wait before it is sent?"""
        return flows.stalled or flows.unsent > self._write_max

    # -- making connections -----------------------------------------------------------------------------------------

    async def _open(self, slot: Slot, loop: asyncio.AbstractEventLoop) -> ClientConnection:
        """The connection of a slot, made once for all who want it at the same time."""
        connection = slot.connection
        if connection is not None and connection.is_open and connection.loop is loop:
            return connection
        # Whoever gives up does not take the connection from the others.
        try:
            return await asyncio.shield(self._begin(slot, loop))
        except asyncio.CancelledError:
            if self.is_closed:
                raise ConnectFailed(CLOSED, address=self.address) from None
            raise

    def _begin(self, slot: Slot, loop: asyncio.AbstractEventLoop) -> asyncio.Task[ClientConnection]:
        if slot.connecting is None or slot.connecting.get_loop() is not loop:
            # It is not only for the call that wants it first, which may have a deadline.
            slot.connecting = loop.create_task(self._connect(slot), context=free_context())
            slot.connecting.add_done_callback(retrieve_exception)
        return slot.connecting

    async def _connect(self, slot: Slot) -> ClientConnection:
        """Make the connection of a place; again and again, if the client is to reconnect."""
        backoff = self._settings.reconnect
        try:
            while True:
                if slot.failures and backoff is not None:
                    self._set_state("waiting", slot)
                    await asyncio.sleep(backoff.pause(slot.failures))
                self._set_state("connecting", slot)
                try:
                    slot.connection = connection = await self._connected()
                    self._failure = None
                    break
                except ConnectFailed as error:
                    if backoff is None:
                        self._set_state("idle", slot)
                        raise
                    slot.failures += 1
                    self._failure = error.reason
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

    async def _connected(self) -> ClientConnection:
        """A new connection, greeted.

        Raises:
            ConnectFailed: nobody is there, or a greeting failed.
        """
        limit = self._settings.connect_timeout
        connection = ClientConnection(self._settings, self._marshaller, self._methods)
        try:
            async with asyncio.timeout(limit):
                await join(connection, self._settings)
                self._connections.add(connection)
                for greet in self.greetings:
                    await greet(connection)
                if self._settings.keepalive is not None and connection.is_open:
                    Keepalive(connection, self._marshaller, self._settings.keepalive)
        except ConnectFailed:
            connection.lose("the connection could not be made whole")
            raise
        except OSError as error:
            connection.lose("the connection could not be made whole")
            raise ConnectFailed(failure(error, limit), address=self.address) from error
        except RpcError as error:
            connection.lose("the server refused what was said first")
            raise ConnectFailed(f"the server refused what was said first: {error}", address=self.address) from error
        except Exception as error:
            connection.lose("the connection could not be made whole")
            log.exception("a connection to %s could not be made", self.address)
            raise ConnectFailed(f"could not connect: {error!r}", address=self.address) from error
        except BaseException:
            connection.lose("the connection was given up while it was made")
            raise
        return connection

    def _was_lost(self, slot: Slot, connection: ClientConnection, channel: Channel | None) -> None:
        if self.is_closed or slot.connection is not connection:
            return
        self._last_lost = channel
        self._tell_waiting()
        connection.see_off()
        # One that was lost at once is like one that could not be made.
        slot.failures = 1 if connection.loop.time() - slot.since > STABLE else slot.failures + 1
        if self._settings.reconnect is None or connection.loop.is_closed():
            self._set_state("idle", slot)
        else:
            self._begin(slot, connection.loop)

    def _tell_waiting(self) -> None:
        for changed in self._waiting:
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
        """Say the token, before anything else. A server that knows no tokens wants none."""
        call = Call(self._marshaller, "rpc.authenticate", {"token": self._settings.token}, NOT_GIVEN, NOT_GIVEN)
        try:
            await connection.calls.ask(call, INFINITE)
        except MethodNotFound:
            pass


def greeting(hello: Callable[[Peer], Awaitable[object]]) -> Greeting:
    """A user's function as a greeting."""

    async def greet(connection: ClientConnection) -> None:
        await hello(Peer(connection.session))

    return greet
