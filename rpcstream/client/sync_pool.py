"""The blocking connections of one sync client: each is lent to one thread at a time, for one call.

Another one is made while all others are in use, up to the option `pool`; then threads wait. A child process that was
forked leaves the connections to its parent and makes its own.

The common case, a connection that is free, takes no lock: what `list.append` and `list.pop` do, they do at once.
"""

from __future__ import annotations

import os
from threading import TIMEOUT_MAX, Condition, get_ident
from weakref import WeakSet

from ..errors import CallTimeout, ConnectionLost
from ..peer.deadline import now
from ..peer.marshal import Marshaller
from .options import Settings
from .sync_connection import SyncConnection

#: Connections at most, where the option `pool` does not say: enough for a machine's usual threads.
DEFAULT_SIZE = 8

CLOSED = "the client was closed"


class SyncPool:
    """Lends connections to threads.

    Attributes:
        is_closed: the client was closed.
        is_retired: the client goes on with an event loop; nothing is lent any more.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.is_closed = False
        self.is_retired = False
        self.address = marshaller.address
        self._settings = settings
        self._marshaller = marshaller
        self._size = settings.pool or DEFAULT_SIZE
        #: Guards all below but `_free`; notified when a connection is free.
        self._changed = Condition()
        #: Threads that wait for that.
        self._waiting = 0
        #: The connections that are free, the one used last at the end: so one thread uses one connection.
        self._free: list[SyncConnection] = []
        #: All connections, free or lent. Held weakly: one that a thread could not give back, for it was interrupted
        #: just then, is closed by the garbage collector and makes room for another.
        self._connections: WeakSet[SyncConnection] = WeakSet()
        _all.add(self)

    @property
    def lost(self) -> int:
        """How many connections were lost so far; one that a thread could not give back is not counted."""
        with self._changed:
            return sum(connection.losses for connection in self._connections)

    @property
    def dropped(self) -> int:
        """Replies on the present connections that no call waited for."""
        with self._changed:
            return sum(connection.conversation.pending.dropped for connection in self._connections)

    @property
    def has_open(self) -> bool:
        """There is a connection that is not known to be lost."""
        with self._changed:
            return any(connection.conversation.lost is None for connection in self._connections)

    def take(self, method: str, deadline: float) -> SyncConnection | None:
        """Give this thread a connection of its own, until it hands it to `put`; None once the pool has retired.

        Args:
            method: for errors.
            deadline: monotonic seconds; may be infinite.

        Raises:
            CallTimeout: none was free in time.
            ConnectionLost: the client was closed while the thread waited.
            RuntimeError: the client is closed; or the thread runs an `on_progress`, and waited for itself.
        """
        try:
            return self._free.pop()
        except IndexError:
            return self._wait_for_one(method, deadline)

    def put(self, connection: SyncConnection) -> None:
        """Give a connection back."""
        if connection.conversation.lost is not None:
            connection.close()
        self._free.append(connection)
        if self._waiting or self.is_retired:
            with self._changed:
                if self.is_retired:
                    self._close_free()
                self._changed.notify()

    def retire(self) -> None:
        """Lend nothing any more: each connection is closed as soon as it is free. Calls under way still end there."""
        with self._changed:
            self.is_retired = True
            self._close_free()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections; the calls that wait on them fail."""
        self.is_closed = True
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            connection.abort(CLOSED)
        self.retire()

    def _close_free(self) -> None:
        while self._free:
            try:
                connection = self._free.pop()
            except IndexError:  # another thread has it
                return
            connection.close()
            self._connections.discard(connection)

    def _wait_for_one(self, method: str, deadline: float) -> SyncConnection | None:
        with self._changed:
            if self.is_closed:
                raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
            while not self.is_retired:
                self._waiting += 1  # first, so that a thread that gives one back just now sees it
                try:
                    if self._free:
                        return self._free.pop()
                    if len(self._connections) < self._size:
                        connection = SyncConnection(self._settings, self._marshaller)
                        self._connections.add(connection)
                        return connection
                    self._wait(method, deadline)
                except IndexError:  # another thread took it
                    continue
                except BaseException:
                    self._changed.notify()  # this thread may have been woken, and leaves
                    raise
                finally:
                    self._waiting -= 1
            if self.is_closed:
                raise ConnectionLost(CLOSED, method=method, address=self.address)
            return None

    def _wait(self, method: str, deadline: float) -> None:
        """Wait until a connection is free (the lock is held)."""
        if any(connection.conversation.reporting == get_ident() for connection in self._connections):
            raise RuntimeError(
                f"{method!r} was called in on_progress, while all {self._size} connections are in use: it would wait "
                f"for the call whose progress it is told"
            )
        left = deadline - now()
        if left <= 0:
            reason = f"no connection was free in time: all {self._size} (pool={self._size}) were in use"
            raise CallTimeout(reason, method=method, address=self.address)
        self._changed.wait(min(left, TIMEOUT_MAX))

    def leave_to_parent(self) -> None:
        """Forget all connections, in a process that was just forked from the one that made them."""
        connections = list(self._connections)
        self._changed, self._waiting = Condition(), 0
        self._free, self._connections = [], WeakSet()
        for connection in connections:
            connection.close()


_all: WeakSet[SyncPool] = WeakSet()


def _after_fork() -> None:
    for pool in list(_all):
        pool.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
