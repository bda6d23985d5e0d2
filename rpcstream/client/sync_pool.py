"""The blocking connections of one sync client: each is lent to one thread at a time, for one call.

Owns how many there are: another one is made only while all others are in use, up to the option `pool`; then threads
wait in line. Owns as well what a fork means: a child process leaves the connections to its parent and makes its own.
Knows nothing of calls but their method's name, for errors.

The common case, a connection that is free, takes no lock: what `list.append` and `list.pop` do, they do at once. The
lock guards the line and the number of connections.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections import deque
from threading import TIMEOUT_MAX, get_ident
from time import monotonic
from weakref import WeakSet

from ..errors import CallTimeout, ConnectFailed, ConnectionLost
from ..peer.deadline import INFINITE
from ..peer.marshal import Marshaller
from .options import Settings
from .retry import Unsent
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
        self._lock = allocate_lock()
        #: The connections that are free, the one used last at the end: so one thread uses one connection.
        self._free: list[SyncConnection] = []
        #: Threads that wait, the first one first. While there are any, no connection is free.
        self._line: deque[_Turn] = deque()
        #: All that are open, free or lent. Held weakly: one that a thread could not give back, for it was interrupted
        #: just then, is closed by the garbage collector and makes room for another.
        self._connections: WeakSet[SyncConnection] = WeakSet()
        #: The threads that make one now; weakly for the same reason.
        self._connecting: WeakSet[_Turn] = WeakSet()
        _all.add(self)

    @property
    def dropped(self) -> int:
        """Replies on the present connections that no call waited for."""
        with self._lock:
            return sum(connection.pending.dropped for connection in self._connections)

    @property
    def has_open(self) -> bool:
        """There is a connection that is not known to be lost."""
        with self._lock:
            return any(connection.lost is None for connection in self._connections)

    def take(self, method: str, deadline: float) -> SyncConnection:
        """Give this thread a connection of its own, until it hands it to `put`.

        Args:
            method: for errors.
            deadline: monotonic seconds; may be infinite.

        Raises:
            ConnectFailed, CallTimeout: there is none.
            ConnectionLost: the client was closed while the thread waited.
            Unsent: the pool has retired.
            RuntimeError: the client is closed; or the thread runs an `on_progress`, and waited for itself.
        """
        try:
            return self._free.pop()
        except IndexError:
            return self._take_or_make(method, deadline)

    def put(self, connection: SyncConnection) -> None:
        """Give a connection back."""
        if connection.lost is not None:
            with self._lock:
                self._drop(connection)
                self.lost += 1
            return
        self._free.append(connection)
        if self._line or self.is_retired:
            self._sort()

    def _sort(self) -> None:
        """Hand free connections on to the threads in line; close them if the pool has retired."""
        with self._lock:
            for _ in range(len(self._free)):
                try:
                    connection = self._free.pop(0)
                except IndexError:  # another thread has it
                    return
                if self.is_retired:
                    self._drop(connection)
                else:
                    self._hand_on(connection)

    def _drop(self, connection: SyncConnection) -> None:
        """Close a connection, which makes room for another one (the lock is held)."""
        connection.close(RETIRED)
        self._connections.discard(connection)
        self._hand_on(None)

    def retire(self) -> None:
        """Lend nothing any more: each connection is closed as soon as it is free."""
        with self._lock:
            self.is_retired = True
            while self._line:
                self._line.popleft().give(None)
        self._sort()

    def close(self) -> None:
        """Close all connections; the calls that wait on them fail."""
        self.is_closed = True
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.abort(CLOSED)
        self.retire()

    # -- behind a lock ------------------------------------------------------------------------------------------

    def _take_or_make(self, method: str, deadline: float) -> SyncConnection:
        with self._lock:
            if self.is_closed:
                raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
            if self.is_retired:
                raise Unsent(RETIRED, method=method, address=self.address)
            connection = self._pop_free()
            if connection is not None:
                return connection
            turn = _Turn()
            must_wait = len(self._connections) + len(self._connecting) >= self._size
            if must_wait:
                self._check_may_wait(method)
                self._line.append(turn)
                connection = self._pop_free()  # given back just now by a thread that has not seen the line
                if connection is not None:
                    self._line.pop()
                    return connection
            else:
                self._connecting.add(turn)
        if must_wait:
            connection = self._wait(turn, method, deadline)
        return self._make(turn, method, deadline) if connection is None else connection

    def _pop_free(self) -> SyncConnection | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _wait(self, turn: _Turn, method: str, deadline: float) -> SyncConnection | None:
        """Wait in line; gives a connection, or None if there is room for a new one now."""
        left = min(deadline - monotonic(), TIMEOUT_MAX)
        is_given = False
        try:
            is_given = left > 0 and turn.given.acquire(timeout=left)
        finally:
            if not is_given:
                self._leave_line(turn)
        if not is_given:
            reason = f"no connection was free in time: all {self._size} (pool={self._size}) were in use"
            raise CallTimeout(reason, method=method, address=self.address)
        if turn.connection is None and self.is_retired:
            kind = ConnectionLost if self.is_closed else Unsent
            raise kind(CLOSED if self.is_closed else RETIRED, method=method, address=self.address)
        return turn.connection

    def _leave_line(self, turn: _Turn) -> None:
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
            else:  # its time came just now
                self._connecting.discard(turn)
                self._hand_on(turn.connection)

    def _hand_on(self, connection: SyncConnection | None) -> None:
        """Give a connection, or the room for a new one, to the first thread in line (the lock is held)."""
        if self._line:
            turn = self._line.popleft()
            if connection is None:
                self._connecting.add(turn)
            turn.give(connection)
        elif connection is not None:
            self._free.append(connection)

    def _check_may_wait(self, method: str) -> None:
        """Raises RuntimeError where the thread would wait for a connection that it has itself."""
        if any(connection.reporting == get_ident() for connection in self._connections):
            raise RuntimeError(
                f"{method!r} was called in on_progress, while all {self._size} connections are in use: it would wait "
                f"for the call whose progress it is told"
            )

    def _make(self, turn: _Turn, method: str, deadline: float) -> SyncConnection:
        try:
            connection = self._connect(method, deadline)
        except BaseException:
            with self._lock:
                self._connecting.discard(turn)
                self._hand_on(None)
            raise
        with self._lock:
            self._connecting.discard(turn)
            self._connections.add(connection)
        if self.is_closed:
            connection.abort(CLOSED)
        return connection

    def _connect(self, method: str, deadline: float) -> SyncConnection:
        limit = self._settings.connect_timeout
        left = deadline - monotonic()
        if left <= 0:
            raise self._no_connection(method)
        seconds = left if limit is None else min(limit, left)
        try:
            sock = dial(self._settings.address, None if seconds == INFINITE else seconds, method)
        except TimeoutError as error:
            if seconds == left:
                raise self._no_connection(method) from error
            from .faults import failure

            reason = failure(error, limit, self._settings.address)
            raise ConnectFailed(reason, method=method, address=self.address) from error
        return SyncConnection(sock, self._settings, self._marshaller)

    def _no_connection(self, method: str) -> CallTimeout:
        return CallTimeout("no connection in time", method=method, address=self.address)

    def leave_to_parent(self) -> None:
        """Forget all connections, in a process that was just forked from the one that made them."""
        self._lock = allocate_lock()
        connections = list(self._connections)
        self._free, self._line, self._connections, self._connecting = [], deque(), WeakSet(), WeakSet()
        for connection in connections:
            connection.abandon()


class _Turn:
    """A thread that waits for a connection in line, or makes one.

    Attributes:
        connection: what it was given; None where it may make one.
        given: locked until then.
    """

    __slots__ = ("__weakref__", "connection", "given")

    def __init__(self) -> None:
        self.connection: SyncConnection | None = None
        self.given = allocate_lock()
        self.given.acquire()

    def give(self, connection: SyncConnection | None) -> None:
        self.connection = connection
        self.given.release()


_all: WeakSet[SyncPool] = WeakSet()


def _after_fork() -> None:
    for pool in list(_all):
        pool.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
