"""The blocking connections of one sync client: each is lent to one thread at a time, for one call.

Another one is made only while all others are in use, up to the option `pool`; then threads wait. A child process that
was forked leaves the connections to its parent and makes its own.

The common case, a connection that is free, takes no lock: what `list.append` and `list.pop` do, they do at once.
"""

from __future__ import annotations

import os
from threading import TIMEOUT_MAX, Condition, get_ident
from weakref import WeakSet

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, MethodNotFound, RpcError
from ..peer.calls import Call
from ..peer.deadline import INFINITE, now
from ..peer.marshal import Marshaller
from .options import Settings
from .sockets import dial
from .sync_connection import SyncConnection

#: Connections at most, where the option `pool` does not say: enough for a machine's usual threads.
DEFAULT_SIZE = 8

CLOSED = "the client was closed"

#: Why the connections of a client end that goes on with an event loop.
RETIRED = "the connection is not used any more"


class SyncPool:
    """Lends connections to threads.

    Attributes:
        is_closed: the client was closed.
        is_retired: the client goes on with an event loop; nothing is lent any more.
        lost: how many connections were found to be lost so far.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller) -> None:
        self.is_closed = False
        self.is_retired = False
        self.lost = 0
        self.address = marshaller.address
        self._settings = settings
        self._marshaller = marshaller
        self._size = settings.pool or DEFAULT_SIZE
        #: Guards all below but `_free`; notified when a connection is free, or there is room for a new one.
        self._changed = Condition()
        #: Threads that wait for that.
        self._waiting = 0
        #: The connections that are free, the one used last at the end: so one thread uses one connection.
        self._free: list[SyncConnection] = []
        #: All that are open, free or lent. Held weakly: one that a thread could not give back, for it was interrupted
        #: just then, is closed by the garbage collector and makes room for another.
        self._connections: WeakSet[SyncConnection] = WeakSet()
        #: How many are being made now.
        self._making = 0
        _all.add(self)

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
            ConnectFailed, CallTimeout: there is none.
            NotAuthenticated: the server does not take the token.
            ConnectionLost: the client was closed while the thread waited.
            RuntimeError: the client is closed; or the thread runs an `on_progress`, and waited for itself.
        """
        try:
            return self._free.pop()
        except IndexError:
            return self._take_or_make(method, deadline)

    def put(self, connection: SyncConnection) -> None:
        """Give a connection back."""
        is_lost = connection.conversation.lost is not None
        if not is_lost:
            self._free.append(connection)
        if is_lost or self._waiting or self.is_retired:
            with self._changed:
                self.lost += is_lost
                if is_lost:
                    connection.close(RETIRED)
                    self._connections.discard(connection)
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
            connection.close(RETIRED)
            self._connections.discard(connection)

    def _take_or_make(self, method: str, deadline: float) -> SyncConnection | None:
        has_waited = False
        with self._changed:
            if self.is_closed:
                raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
            while not self.is_retired:
                self._waiting += 1  # first, so that a thread that gives one back just now sees it
                try:
                    if self._free:
                        return self._free.pop()
                    if len(self._connections) + self._making < self._size:
                        self._making += 1
                        break
                    self._wait(method, deadline)
                    has_waited = True
                except IndexError:  # another thread took it
                    continue
                except BaseException:
                    self._changed.notify()  # this thread may have been woken, and leaves
                    raise
                finally:
                    self._waiting -= 1
            else:
                if has_waited and self.is_closed:
                    raise ConnectionLost(CLOSED, method=method, address=self.address)
                return None
        try:
            connection = self._connect(method, deadline)
            with self._changed:
                self._connections.add(connection)
        finally:
            with self._changed:
                self._making -= 1
                self._changed.notify()
        if self.is_closed:
            connection.abort(CLOSED)
        return connection

    def _wait(self, method: str, deadline: float) -> None:
        """Wait until a connection is free, or there is room for a new one (the lock is held)."""
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

    def _connect(self, method: str, deadline: float) -> SyncConnection:
        limit = self._settings.connect_timeout
        ends = min(deadline, INFINITE if limit is None else now() + limit)
        connection = None
        try:
            if deadline <= now():
                raise TimeoutError
            seconds = None if ends == INFINITE else ends - now()
            connection = SyncConnection(dial(self._settings, seconds), self._settings, self._marshaller)
            if self._settings.token is not None:
                self._log_in(connection, ends)
            return connection
        except BaseException as error:
            if connection is not None:
                connection.close("the client gave up while it connected")
            if isinstance(error, RpcError):
                error.method = method
            if not isinstance(error, OSError):
                raise
            from .faults import failure, is_own_timeout, is_permanent_failure

            if is_own_timeout(error) and ends == deadline:
                raise CallTimeout("no connection in time", method=method, address=self.address) from error
            why, lasts = failure(error, limit, self._settings.address), is_permanent_failure(error)
            raise ConnectFailed(why, method=method, address=self.address, is_permanent=lasts) from error

    def _log_in(self, connection: SyncConnection, deadline: float) -> None:
        """Send the token, before anything else. A server that does not know the method needs no token."""
        call = Call(self._marshaller, "rpc.authenticate", {"token": self._settings.token})
        got = connection.exchange(call, deadline)
        try:
            call.outcome(got.reply, got.line)
        except MethodNotFound:
            pass
        connection.was_used = False  # for calls

    def leave_to_parent(self) -> None:
        """Forget all connections, in a process that was just forked from the one that made them."""
        connections = list(self._connections)
        self._changed, self._waiting, self._making = Condition(), 0, 0
        self._free, self._connections = [], WeakSet()
        for connection in connections:
            connection.abandon()


_all: WeakSet[SyncPool] = WeakSet()


def _after_fork() -> None:
    for pool in list(_all):
        pool.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
