"""The connections of one async client: opened when needed, kept open, and replaced after a loss.

All calls that wait for a connection share the attempts to open it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, MethodNotFound, RpcError, Unread
from ..peer.calls import Call
from ..peer.deadline import INFINITE
from ..peer.intake import Phase
from ..peer.ledger import WriteGate
from ..peer.marshal import Marshaller
from ..peer.remote import Peer
from ..text import get_logger
from .address import check_lasting
from .attempts import Unsent
from .connect import connect_fault, join
from .connection import ClientConnection, Slot, choose_slot, keep_alive, retrieve_exception
from .conversation import Callbacks
from .options import Settings

log = get_logger("rpcstream.client")

#: Does what takes more than a call, and does it again where it fails, as for a call (`AsyncClient._persist`).
Persist = Callable[[str, Callable[[float, bool], Awaitable[Any]], float | None], Coroutine[Any, Any, Any]]

#: Called with a new connection, before any call is sent on it.
Greeting = Callable[[ClientConnection], Awaitable[object]]

CLOSED = "the client was closed"

#: Seconds that a closing client gives the server to read what was sent.
CLOSE_TIME = 2.0

#: Bytes sent in one turn of the event loop, after which it must run, so that they are written.
WRITE_MAX = 256 * 1024

#: Turns of the event loop after which it has read what the socket held, and written what was sent.
TURNS = 5

#: Connections that the server is leaving and that are kept until it closes them.
LEAVING_MAX = 4


class ConnectionPool:
    """Gives each call its connection.

    Args:
        callbacks: the methods that the server may call.

    Attributes:
        settings, marshaller: of the client.
        address: of the server, for errors.
        is_closed: the client was closed.
        lost: how many connections were lost so far.
        greetings: run on each new connection, in this order; if one fails, so does connecting.
        connections: those whose sockets may be open: also those being greeted, and those that are closing.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, callbacks: Callbacks) -> None:
        self.address = str(settings.address)
        self.is_closed = False
        self.lost = 0
        self.connections: WeakSet[ClientConnection] = WeakSet()
        self.greetings: list[Greeting] = []
        address = settings.address
        if settings.token is not None and not (address.is_http or address.is_websocket or address.is_nats):
            self.greetings.append(_authenticate)
        #: Where the next greeting of the user goes: after authentication, before the registration and subscriptions.
        self._user_greetings_end = len(self.greetings)
        self.settings = settings
        self.marshaller = marshaller
        self._callbacks = callbacks
        self._make_slot = partial(Slot, self.address, settings.reconnect, self._make, self._set_state, self._was_lost)
        count = 1 if address.is_http else settings.pool or 1  # over HTTP one session has all connections
        self._slots = [self._make_slot() for _ in range(count)]
        self._only = self._slots[0] if len(self._slots) == 1 else None
        self._write_max = min(WRITE_MAX, settings.limits.write_buffer)
        self._state = "idle"
        #: Futures of `wait_closed`: done when a connection is lost, and when the client is closed.
        self._changes: set[asyncio.Future[None]] = set()
        self._last_lost: ClientConnection | None = None

    def greet(self, hello: Callable[[Peer], Awaitable[object]]) -> None:
        """Run a user's function on each new connection: after authentication, before anything else."""
        self.greetings.insert(self._user_greetings_end, lambda connection: hello(Peer(connection.session)))
        self._user_greetings_end += 1

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

    async def get(self, method: str, deadline: float, *, once: bool = False) -> ClientConnection:
        """Wait for a connection on which a call can be sent.

        Args:
            method: the method that is called, for errors.
            deadline: loop time, seconds; may be infinite.
            once: wait for one attempt to connect, which begins now. Otherwise, with `reconnect`, until the deadline.

        Raises:
            ConnectFailed, CallTimeout, Unsent: there is none.
            NotAuthenticated, NotPermitted, ServerBusy: the server refused the connection.
            RuntimeError: the client is closed.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                while True:
                    if self.is_closed:
                        raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
                    slot = self._only or choose_slot(self._slots)
                    waits_for_any = slot.address is not None and not slot.is_open
                    opening = self._open_any(loop, once) if waits_for_any else slot.open(loop, once=once)
                    connection = await opening
                    if connection.is_open:
                        await self._catch_up(connection)
                    elif self.settings.reconnect is None:
                        raise self._closed_at_once(connection)
                    if connection.is_open:
                        return connection
        except (ConnectFailed, RpcError, ConnectionLost) as error:
            # Calls that waited for the same attempt share its error; each gets one that names its own method.
            own = copy(error)
            own.method, own.address = method, self.address
            raise own from error.__cause__
        except TimeoutError:
            last = self._slots[0].error
            why = "" if last is None else f"; {last.reason if isinstance(last, ConnectFailed) else last}"
            raise CallTimeout(f"no connection in time{why}", method=method, address=self.address) from None

    def _closed_at_once(self, connection: ClientConnection) -> ConnectionLost:
        """The error of a call whose connection was over as soon as it was made."""
        if connection.session.peer_is_leaving:
            return Unread("the server reads no more requests")
        reason = connection.reason or "the peer closed the connection at once"
        return Unsent(connection.session.pending.explained(reason))

    @property
    def is_spread(self) -> bool:
        """There is a connection to each of several servers."""
        return self._slots[0].address is not None

    async def others_connected(self, seconds: float) -> None:
        """Wait at most this many seconds until each slot has made its connection, or one attempt to make it."""
        loop = asyncio.get_running_loop()
        attempts = [slot.begin(loop) for slot in self._slots if not slot.is_open]
        if attempts:
            await asyncio.wait(attempts, timeout=seconds)

    async def wait_closed(self) -> None:
        """Wait until the client is closed, see `BaseClient.wait_closed`."""
        check_lasting(self.settings.address, "wait_closed")
        loop = asyncio.get_running_loop()
        while not self.is_closed:
            if self.settings.reconnect is None and not (self.open_connections or self._leaving):
                lost = self._last_lost
                reason = "there is no connection" if lost is None else lost.reason or "the peer closed it"
                raise ConnectionLost(reason, address=self.address)
            changed = loop.create_future()
            self._changes.add(changed)
            try:
                await changed
            finally:
                self._changes.discard(changed)

    def spread(self) -> None:
        """From now on, keep a connection to each server in the address. Without several servers this does nothing."""
        servers = self.settings.address.in_turn
        if len(servers) == 1 or self._slots[0].address is not None:
            return
        for slot in self._slots:
            if slot.connection is not None and slot.is_open:
                slot.address = slot.connection.server
        left = [each for each in servers if all(slot.address != each for slot in self._slots)]
        for slot in self._slots:
            if slot.address is None:
                slot.address = left.pop(0) if left else servers[0]
        self._slots += map(self._make_slot, left)
        self._only = None

    def begin(self) -> None:
        """Start connecting, although nothing is to be sent yet."""
        for slot in self._slots:
            slot.begin(asyncio.get_running_loop())

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
        for slot in self._slots:
            slot.reconnect = None
        leaving = [each for each in self.connections if each.session.channel is not None]
        for connection in leaving:
            connection.session.go_away(reason)
        await asyncio.gather(*(connection.wait_lost() for connection in leaving))

    def methods_at_work(self) -> set[str]:
        """The names of the methods that run for the server."""
        return {name for connection in self.connections for name in connection.session.running.method_names()}

    def refuse_waiting(self, until: float) -> bool:
        """Answer the requests of the server that wait; returns whether there were any."""
        return sum(connection.session.refuse_waiting(until) for connection in list(self.connections)) > 0

    async def close(self) -> None:
        """Close all connections; waiting calls fail."""
        self.is_closed = True
        self._report_change()
        loop = asyncio.get_running_loop()
        closing = []
        for slot in self._slots:
            await slot.close()
        for connection in list(self.connections):
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
        """Wait until the event loop has read what arrived, perhaps the end, and written most of what was sent."""
        for _ in range(TURNS):
            if not (connection.is_open and connection.has_unread()):
                break
            await asyncio.sleep(0)
        if connection.is_open and self._is_full(connection.session.write_gate):
            await connection.session.write_gate.wait()

    # -- making connections -----------------------------------------------------------------------------------------

    async def _open_any(self, loop: asyncio.AbstractEventLoop, once: bool) -> ClientConnection:
        """The first connection that can be made to any of several servers; the error of the last if none can be."""
        opening = [loop.create_task(slot.open(loop, once=once)) for slot in self._slots]
        failure: Exception | None = None
        try:
            for first in asyncio.as_completed(opening):
                try:
                    return await first
                except (ConnectFailed, RpcError) as error:
                    failure = error
        finally:
            for each in opening:
                each.add_done_callback(retrieve_exception)
                each.cancel()
        assert failure is not None
        raise failure

    async def _make(self, slot: Slot) -> ClientConnection:
        """Make a connection for a slot, and say on it what comes before all calls.

        Raises:
            ConnectFailed: no connection could be made, or a greeting failed.
            NotAuthenticated, NotPermitted, ServerBusy: the server refused the connection, or its token.
        """
        settings = self.settings if slot.address is None else replace(self.settings, address=slot.address)
        connection = ClientConnection(settings, self.marshaller, self._callbacks)
        try:
            async with asyncio.timeout(settings.connect_timeout):
                await join(connection, settings)
                self.connections.add(connection)
                for greet in self.greetings:
                    await greet(connection)
                if settings.keepalive is not None and connection.is_open:
                    keep_alive(connection, settings.keepalive)
        except Exception as error:
            fault = connect_fault(error, connection, is_joined=connection in self.connections)
            if connection.session.peer_is_leaving and isinstance(error, OSError):
                connection.session.drain(Phase.CLOSING)  # calls that came before the server said so are answered
                connection.probe_until_closed()
            else:
                connection.abort("connecting failed")
            if fault is error:
                raise
            raise fault from error
        except BaseException:
            connection.abort("connecting was cancelled")
            raise
        if slot.address in (None, connection.server):
            return connection
        connection.abort("this place is for another server since the attempt began (spread)")
        return await self._make(slot)

    def _was_lost(self, connection: ClientConnection) -> None:
        """Note that a connection is over."""
        if self.is_closed:
            return
        self._last_lost = connection
        self.lost += 1
        if connection.session.peer_is_leaving:
            self._let_go(connection)
        self._report_change()
        connection.probe_until_closed()

    def _let_go(self, connection: ClientConnection) -> None:
        """Keep a connection that the server is leaving, for what it has read and for its own calls, until it ends."""
        connection.session.on_lost.append(self._report_change)
        leaving = [each for each in self._leaving if each is not connection]
        if len(leaving) >= LEAVING_MAX:
            leaving[0].abort("the server has left, and does not close the connection")

    @property
    def _leaving(self) -> list[ClientConnection]:
        """The connections that the server is leaving, and has not closed yet."""
        return [each for each in self.connections if each.session.peer_is_leaving and each.session.channel is not None]

    def _report_change(self) -> None:
        for changed in self._changes:
            if not (changed.done() or changed.get_loop().is_closed()):
                changed.set_result(None)

    def _set_state(self, state: str, slot: Slot | None = None) -> None:
        if self.is_closed and slot is not None:
            return
        if (slot is None or slot is self._slots[0]) and state != self._state:
            self._state = state
            if self.settings.on_state is not None:
                try:
                    self.settings.on_state(state)
                except Exception:
                    log.exception("on_state of a client failed")


async def _authenticate(connection: ClientConnection) -> None:
    """Send the token, before anything else. A server that does not know the method needs no token."""
    marshaller, token = connection.calls.marshaller, connection.settings.token
    try:
        await connection.calls.ask(Call(marshaller, "rpc.authenticate", {"token": token}), INFINITE)
    except MethodNotFound:
        pass
