"""The connections of one sync client: made when they are needed, kept, made anew when they were lost.

Owns the pool, the making of connections, and what a fork means: a child process leaves the connections to its parent
and makes its own. Knows nothing of calls but how many wait where.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from threading import TIMEOUT_MAX
from time import monotonic
from weakref import WeakSet

from ..errors import CallTimeout, ConnectFailed
from ..peer.deadline import INFINITE
from .dial import dial, failure
from .options import Settings
from .sync_connection import SyncConnection

CLOSED = "the client was closed"


class SyncPool:
    """Gives a call its connection."""

    def __init__(self, settings: Settings) -> None:
        self.address = str(settings.address)
        self.is_closed = False
        self._is_retired = False
        self._settings = settings
        self._places = [_Place() for _ in range(settings.pool)]
        #: The only connection, where the pool has but one: for calls, which then need not ask for it.
        self.only: SyncConnection | None = None
        _all.add(self)

    def get(self, method: str, deadline: float) -> SyncConnection:
        """A connection that is not known to be lost; made if there is none.

        Args:
            method: for errors.
            deadline: monotonic seconds; may be infinite.

        Raises:
            ConnectFailed, CallTimeout: there is none.
            RuntimeError: the client is closed.
        """
        if self.is_closed:
            raise RuntimeError(f"{method!r} was called on a closed client (of {self.address})")
        place = self._places[0] if len(self._places) == 1 else min(self._places, key=_busyness)
        seen = place.connection
        if seen is not None and seen.lost is None:
            return seen
        left = min(deadline - monotonic(), TIMEOUT_MAX)
        if left <= 0 or not place.lock.acquire(timeout=left):
            raise self._timed_out(method)
        try:
            # Another thread may have been here first.
            if place.connection is None or place.connection is seen or place.connection.lost is not None:
                place.connection = self._connect(method, deadline)
                if len(self._places) == 1 and not (self.is_closed or self._is_retired):
                    self.only = place.connection
            return place.connection
        finally:
            place.lock.release()

    @property
    def dropped(self) -> int:
        """Replies on the present connections that nobody waited for."""
        return sum(place.connection.pending.dropped for place in self._places if place.connection is not None)

    @property
    def has_open(self) -> bool:
        """One is not known to be lost."""
        return any(place.is_open for place in self._places)

    def retire(self) -> None:
        """No call is to be made here any more: each connection ends when no call waits on it.

        Calls that come all the same, being on their way already, find it lost and are Unsent.
        """
        self._is_retired = True
        self.only = None
        for place in self._places:
            if place.connection is not None:
                place.connection.retire()

    def close(self) -> None:
        """End all; what waits fails."""
        self.is_closed = True
        self.only = None
        for place in self._places:
            if place.connection is not None:
                place.connection.close(CLOSED)

    def _connect(self, method: str, deadline: float) -> SyncConnection:
        limit = self._settings.connect_timeout
        left = deadline - monotonic()
        if left <= 0:
            raise self._timed_out(method)
        seconds = left if limit is None else min(limit, left)
        try:
            sock = dial(self._settings.address, None if seconds == INFINITE else seconds, method)
        except TimeoutError as error:
            if seconds == left:
                raise self._timed_out(method) from error
            raise ConnectFailed(failure(error, limit), method=method, address=self.address) from error
        connection = SyncConnection(sock, self._settings)
        if self.is_closed:
            connection.close(CLOSED)
        elif self._is_retired:
            connection.retire()
        return connection

    def leave_to_parent(self) -> None:
        """This process has just been forked from the one that made the connections."""
        places, self.only = self._places, None
        self._places = [_Place() for _ in places]
        for place in places:
            if place.connection is not None:
                place.connection.abandon()

    def _timed_out(self, method: str) -> CallTimeout:
        return CallTimeout("no connection in time", method=method, address=self.address)


class _Place:
    """A place in the pool; `lock` is held while a connection for it is made."""

    __slots__ = ("connection", "lock")

    def __init__(self) -> None:
        self.connection: SyncConnection | None = None
        self.lock = allocate_lock()

    @property
    def load(self) -> int:
        return 0 if self.connection is None else len(self.connection.pending)

    @property
    def is_open(self) -> bool:
        return self.connection is not None and self.connection.lost is None


_all: WeakSet[SyncPool] = WeakSet()

#: How many forks lie between the process that imported this module and the present one.
_forks = [0]


def generation() -> int:
    """A number that is another one in a child process than it was in its parent."""
    return _forks[0]


def _after_fork() -> None:
    _forks[0] += 1
    for connections in list(_all):
        connections.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _busyness(place: _Place) -> tuple[int, bool]:
    """The key by which a place is chosen: the one with the fewest calls, an open one first."""
    return place.load, not place.is_open
