"""When a connection has taken too long: a message that does not end, replies nobody reads, nothing at all.

Owns the time limits of one connection. Pure: whoever watches says what the time is, every now and then, so a message
costs no timer and no clock.
"""

from __future__ import annotations

from ..limits import Limits


class Timeouts:
    """Remembers since when a connection has been in the state that a time limit is for.

    The transport sets the flags as things happen; `overdue` is called now and then and looks at them. A limit is
    therefore enforced with the precision of those calls, never too early.
    """

    __slots__ = ("_limits", "_since", "_state", "_unread", "completed", "heard", "received")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._state = "idle"
        self._since = now
        self._unread = 0
        #: Bytes were received, though no whole message, or something was sent since the last look.
        self.heard = False
        #: A whole message was received since the last look.
        self.completed = False
        #: Bytes were received, though no whole message, since `has_received` was asked last.
        self.received = False

    def has_received(self) -> bool:
        """Have bytes come since this was asked last? For an end that does not ask `overdue`, which forgets it too."""
        has_received = self.completed or self.received
        self.completed = self.received = False
        return has_received

    def overdue(self, now: float, *, partial: bool, unread: int, busy: bool) -> str | None:
        """The reason to close the connection, or None.

        Args:
            now: seconds, of any monotonic clock.
            partial: a message has begun and its end has not come.
            unread: bytes that wait to be read by the peer while it is not being listened to; 0 when it reads.
            busy: a handler works for the connection.
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


def interval(limits: Limits) -> float | None:
    """Seconds between two looks: a quarter of the shortest time limit, but no more often than 20 times a second."""
    times = [limits.idle_timeout, limits.message_timeout, limits.write_timeout]
    shortest = min((time for time in times if time is not None), default=None)
    return None if shortest is None else min(max(shortest / 4, 0.05), 5.0)
