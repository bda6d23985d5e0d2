"""The open connections of a server: their number, their time limits, and which are closed to make room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..errors import ServerBusy
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.ledger import ServerLedger
from .connection import Connection, SocketConnection, interval

log = logging.getLogger("rpcstream.server")

#: Connections over `max_connections` that are told so; more than that at a time are closed without an answer.
MAX_REFUSED = 100

#: Connections without authentication that are closed, the oldest first, when there are no more descriptors.
GIVE_WAY = 16


class OpenConnections:
    """The open connections of a server, TLS handshakes among them.

    Args:
        limits: `max_connections` and the time limits are enforced here.
        has_authentication: a connection whose peer is not authenticated gives way to others.
        patience: seconds that a connection has to show what it speaks; None: no limit.
        on_empty: called when the last connection is gone.

    Attributes:
        on_closed: called after each connection that is lost.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        counters: Counters,
        has_authentication: bool,
        patience: float | None,
        on_empty: Callable[[], object],
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._has_authentication = has_authentication
        self._on_empty = on_empty
        #: Seconds between two checks of the time limits; None: there are none.
        self._interval = interval(limits, patience)
        self.on_closed: Callable[[], object] = lambda: None
        self._connections: set[Connection] = set()
        #: Those of them that count in a limit of their own, and not in `max_connections`.
        self._apart: set[Connection] = set()
        #: Those whose peers were not authenticated when this was looked at last, the oldest first, with their hosts.
        self._strangers: dict[Connection, str] = {}
        self._log = LimitedLog(log)
        self._shortages = LimitedLog(log, each=1)
        self._timer: asyncio.TimerHandle | None = None
        self._is_draining = False
        #: Why all connections are closed; None while they are not.
        self._abort_reason: str | None = None

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def apart(self) -> int:
        """How many connections do not count in `max_connections`."""
        return len(self._apart)

    def all(self) -> frozenset[Connection]:
        """The open connections, handshakes among them."""
        return frozenset(self._connections)

    # -- connections come and go ------------------------------------------------------------------------------------

    def handshake_begins(self, arrival: Connection) -> bool:
        """Count the TLS handshake of a connection like a connection; returns whether it may begin.

        One too many is refused when its handshake is done, unless there are many.
        """
        self._add(arrival)
        if self._has_room(arrival):
            arrival.is_over_limit = False
        elif self._places_taken > self._limits.max_connections + MAX_REFUSED:
            self._counters.connections_refused += 1
            self._discard(arrival)
            return False
        self._strangers[arrival] = host_of(arrival)
        return True

    def handshake_failed(self, arrival: Connection) -> None:
        """A connection has ended before its protocol took over."""
        self._discard(arrival)
        self._check_empty()
        self.on_closed()

    def handshake_refused(self, connection: Connection, reason: str) -> None:
        """Count and log a handshake, of TLS or WebSocket, that has failed."""
        self._counters.handshakes_refused += 1
        self._log.warning(host_of(connection), "refused a handshake of %s: %s", connection.address, reason)

    def opened(self, connection: Connection, *, is_apart: bool = False) -> None:
        """Add a connection; refuse it where there is no room.

        Args:
            connection: the new one. If it is over the limit of several processes together, it takes the place of one
                here that has not been authenticated, or is refused.
            is_apart: it does not count in `max_connections`, because it counts in another limit.
        """
        self._strangers.pop(connection, None)  # where it was during its handshake
        self._counters.connections_total += 1
        self._counters.connections += 1
        self._add(connection)
        if is_apart:
            self._apart.add(connection)
        if self._abort_reason is not None:
            connection.abort(self._abort_reason)
        elif self._is_draining:
            connection.drain()
        elif is_apart:
            return
        elif self._has_room(connection):
            if self._has_authentication:
                self._strangers[connection] = host_of(connection)
        else:
            self._refuse(connection)

    def replaced(self, before: Connection, connection: Connection) -> None:
        """The protocol of a connection is detected, or changed: another object stands for it now."""
        if self._strangers.pop(before, None) is not None:
            self._strangers[connection] = host_of(connection)  # perhaps known only now, from a proxy
        self._connections.discard(before)
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is lost."""
        self._counters.connections -= 1
        self._discard(connection)
        if connection.over_limit:
            self._counters.closed_for_limits += 1
            host = host_of(connection)
            self._log.warning(host, "closed the connection from %s: %s", connection.address, connection.reason)
        self._check_empty()
        self.on_closed()

    def make_room(self, error: OSError, *, is_lost: bool = False) -> bool:
        """Close some connections, because the system gives no more for want of descriptors or memory.

        Args:
            error: of the system.
            is_lost: the connection that there was no room for is closed; otherwise it waits.

        Returns:
            Whether some were closed.
        """
        self._counters.accept_pauses += 1
        what = "a connection was closed" if is_lost else "cannot accept connections at present"
        text = f"{what}: %s. Open connections are served. Is `ulimit -n` too low?"
        self._shortages.warning(None, text, error.strerror or error)
        return sum(self._give_way("there are no more descriptors") for _ in range(GIVE_WAY)) > 0

    def drain(self) -> None:
        """Take no more requests on any connection, later ones among them; what is in flight goes on."""
        self._is_draining = True
        for connection in list(self._connections):
            connection.drain()
            connection.probe()

    def abort(self, reason: str) -> None:
        """Close every connection at once, later ones among them."""
        self._abort_reason = reason
        for connection in list(self._connections):
            connection.abort(reason)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- room -------------------------------------------------------------------------------------------------------

    def _add(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._timer is None:
            self.check_timeouts()

    def _discard(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._apart.discard(connection)
        self._strangers.pop(connection, None)

    @property
    def _places_taken(self) -> int:
        return len(self._connections) - len(self._apart)

    def _check_empty(self) -> None:
        if not self._connections:
            self._on_empty()

    def _has_room(self, newcomer: Connection) -> bool:
        """Whether there is room for the connection that was added last, perhaps since another one gave way to it."""
        if not newcomer.is_over_limit and self._places_taken <= self._limits.max_connections:
            return True
        return self._give_way("all places are taken", newcomer)

    def _give_way(self, why: str, newcomer: Connection | None = None) -> bool:
        """Close the oldest connection whose peer is not authenticated; returns whether there was one.

        One from the host of the newcomer goes first, so that a host displaces its own.
        """
        for each in [each for each in self._strangers if each.is_known]:
            del self._strangers[each]
        host = host_of(newcomer) if newcomer is not None else None
        own = (each for each, of in self._strangers.items() if of == host)
        connection = next(own, None) or next(iter(self._strangers), None)
        if connection is None:
            return False
        del self._strangers[connection]
        connection.over_limit = True
        connection.abort(f"it has not shown who it is, and {why}")
        return True

    def _refuse(self, connection: Connection) -> None:
        self._counters.connections_refused += 1
        limit = self._limits.max_connections
        if self._places_taken > limit + MAX_REFUSED:
            connection.abort(f"{limit} connections are open (max_connections)")
            return
        kind = "refused a connection from %s: %d are open (max_connections)"
        self._log.warning(host_of(connection), kind, connection.address, limit)
        connection.refuse(ServerBusy(f"Server busy: {limit} connections are open", {"limit": limit}))

    # -- time -------------------------------------------------------------------------------------------------------

    def check_timeouts(self) -> None:
        """Check the time limits of every connection, and again now and then for as long as any is open."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.check(now)
        pause = self._interval if self._connections else None
        self._timer = None if pause is None else loop.call_later(pause, self.check_timeouts)


class Arrival(SocketConnection):
    """An accepted connection until its protocol has taken over; not open during a TLS handshake.

    Attributes:
        on_open: called when it is open, before it counts as a connection.
        task: sets it up.
    """

    def __init__(self, limits: Limits, ledger: ServerLedger, connections: OpenConnections) -> None:
        super().__init__(limits, ledger)
        self.on_open: Callable[[], object] = lambda: None
        self.task: asyncio.Task[None] | None = None
        self._connections = connections

    @property
    def carrier(self) -> str:
        """Not counted as any kind of connection."""
        return "unknown"

    @property
    def is_partial(self) -> bool:
        return False

    def _opened(self) -> None:
        self.on_open()
        self._connections.opened(self)

    def _become(self, known: SocketConnection) -> None:
        """Go on with this protocol."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        known.opened, known.address, known.is_over_limit = self.opened, self.address, self.is_over_limit
        transport.set_protocol(known)
        self._connections.replaced(self, known)
        known.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.closed(self)

    def drain(self) -> None:
        self.abort("the server is about to stop")

    def abort(self, reason: str) -> None:
        if self._transport is None and self.task is not None:  # its handshake goes on
            self.reason = reason
            self.task.cancel()
        else:
            super().abort(reason)


def host_of(connection: Connection) -> str:
    """The address of a connection's peer without the port."""
    host, _, port = connection.address.rpartition(":")
    return host if port.isdigit() else connection.address
