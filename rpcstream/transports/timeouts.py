"""Time limits of a connection: for an incomplete message, unread replies, and idleness.

Owns these limits for one connection. Pure: the time is passed in now and then, so that a message costs neither a timer
nor a look at the clock.
"""

from __future__ import annotations

from ..limits import Limits


class Timeouts:
    """Remembers since when a connection has been in a state that has a time limit.

    The connection sets the flags; `overdue` is called now and then and looks at them. So a limit is enforced with the
    precision of these calls, never too early.

    Attributes:
        heard: bytes were received without completing a message, or something was sent, since the last `overdue`.
        completed: a message was completed since the last `overdue`.
        received: bytes were received without completing a message since the last `has_received`.
    """

    __slots__ = ("_limits", "_since", "_state", "_unread", "completed", "heard", "received")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._state = "idle"
        self._since = now
        self._unread = 0
        self.heard = False
        self.completed = False
        self.received = False

    def has_received(self) -> bool:
        """Whether bytes were received since the last call. For an end that does not use `overdue`, which resets it."""
        has_received = self.completed or self.received
        self.completed = self.received = False
        return has_received

    def overdue(self, now: float, *, partial: bool, unread: int, busy: bool) -> str | None:
        """The reason to close the connection, if a limit is exceeded, else None.

        Args:
            now: seconds, of any monotonic clock.
            partial: part of a message has been received.
            unread: bytes that the peer leaves unread; 0 while it reads.
            busy: a handler runs for the connection.
        """
        limits = self._limits
        if unread:
            state, limit, moved = "unread", limits.write_timeout, unread < self._unread
        elif partial:
            state, limit, moved = "partial", limits.message_timeout, self.completed
        else:
            state, limit, moved = "idle", limits.idle_timeout, self.heard or self.completed or busy
        if moved or state != self._state:
            self._state, self._since = state, now
        self._unread, self.heard, self.completed = unread, False, False
        if limit is None or now - self._since < limit:
            return None
        return _REASONS[state].format(limit)


_REASONS = {
    "unread": "the peer did not read its replies for {:g} s (write_timeout)",
    "partial": "a message was not complete after {:g} s (message_timeout)",
    "idle": "nothing happened for {:g} s (idle_timeout)",
}


def interval(limits: Limits, patience: float | None) -> float | None:
    """Seconds between two checks: a quarter of the shortest time limit, from 0.05 to 5; None without limits."""
    times = [limits.idle_timeout, limits.message_timeout, limits.write_timeout, patience]
    shortest = min((time for time in times if time is not None), default=None)
    return None if shortest is None else min(max(shortest / 4, 0.05), 5.0)
