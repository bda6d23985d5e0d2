"""The state of one blocking connection: who waits on it, who reads, whether it is over, and how it ends.

Owns the end of the socket and what every call is told of it. Sends and reads nothing.

Locks: `state` guards the table, the role and the end of the connection; it is held for moments and innermost.
`_sending` is held while a message is written; who holds `state` may try to take it, and not wait for it.
"""

from __future__ import annotations

import socket
from _thread import allocate_lock
from collections.abc import Callable

from ..errors import CallTimeout, ConnectionLost
from ..peer.pending import PendingCalls
from .retry import Unsent
from .role import ReaderRole


class ConnectionState:
    """What a connection is made of, besides its bytes.

    Args:
        sock: connected; from here on it belongs to this object.
        address: for errors.

    Attributes:
        lost: why the connection is over; None while it is not.
        afterwards: run, with no lock held, when what was read has been handled; appended to while `state` is held.
    """

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.address = address
        self.pending = PendingCalls()
        self.state = allocate_lock()
        self.role = ReaderRole(self.state)
        self.lost: str | None = None
        self.afterwards: list[Callable[[], None]] = []
        self._socket = sock
        self._sending = allocate_lock()
        self._was_used = False
        #: It ended because it was not wanted any more: nothing that was sent on it came to nothing.
        self._has_retired = False

    def close(self, reason: str) -> None:
        """End the connection; every call that waits fails with the reason."""
        self._lose(reason)
        self._close_if_left()

    def retire(self) -> None:
        """End the connection as soon as no call waits on it. What comes too late is told that it is Unsent."""
        with self.state:
            before = self.role.background
            self.role.background = lambda: (before is not None and before()) or self._retires()
            self.role.taken = self.role.taken or self.role.background()
        if self.lost is not None:
            self._close_if_left()

    def abandon(self) -> None:
        """Forget the connection in a process that was forked; it goes on in the one that made it."""
        self.lost = "the connection belongs to the process that this one was forked from"
        self._socket.close()

    def _retires(self) -> bool:
        """Asked when nobody wants the reader role (the lock is held): the last one to leave turns off the light."""
        if not self.pending and self.lost is None and self._sending.acquire(False):
            self._has_retired = True
            self._lose_held("the connection is not used any more")
            self._sending.release()
        return False

    def _lose(self, reason: str) -> None:
        """The connection is over: everything that waits fails, at once."""
        with self.state:
            self._lose_held(reason)
        self._run_afterwards()

    def _lose_held(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = self.pending.explained(reason)
        self.pending.fail_all(self._loss)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for the socket
        except OSError:
            pass

    def _run_afterwards(self) -> None:
        with self.state:
            functions, self.afterwards = self.afterwards, []
        for function in functions:
            function()

    def _close_if_left(self) -> None:
        """Close the socket of a lost connection, unless a thread still uses it; then that one will, when it leaves."""
        while self._sending.acquire(False):
            try:
                with self.state:
                    is_left = not self.role.taken
                    if is_left:
                        self._socket.close()
            finally:
                self._sending.release()
            # A reader that has left since that look could not close it, for the lock was held.
            if is_left or self.role.taken:
                break

    def _loss(self, method: str) -> ConnectionLost:
        kind = Unsent if self._has_retired else ConnectionLost
        return kind(self.lost or "the connection is over", method=method, address=self.address)

    def _unsent(self, method: str) -> ConnectionLost:
        """Nothing of the call was sent. A connection that was never good for anything is not worth another attempt."""
        kind = Unsent if self._was_used or self._has_retired else ConnectionLost
        return kind(self.lost or "the connection is over", method=method, address=self.address)

    def _unsent_in_time(self, method: str) -> CallTimeout:
        return CallTimeout("the server did not take the call in time", method=method, address=self.address)
