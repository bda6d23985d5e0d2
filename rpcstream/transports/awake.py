"""Polls for the next message before sleeping, at both ends of a connection that shares memory.

Putting a processor to sleep and waking it takes as long as a call with an array in shared memory. An end stops polling
when that does not help: handlers take longer, calls are rare, or other programs need the processor.

A module of its own, since the blocking client does not import asyncio.
"""

from __future__ import annotations

from time import monotonic, thread_time

#: Seconds for which an end polls.
POLL = 0.0002

#: After this many unsuccessful polls in a row, an end does not poll for this many seconds.
_PAUSE, _MISSES = 0.1, 3


class Watch:
    """Decides for one end of a connection whether it polls. Uses the real clock: a test may stop that of its loop.

    Attributes:
        is_on: this end is polling.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._begun = self._used = self._next = 0.0
        self._misses = 0

    def begin(self) -> bool:
        """Start polling, or start again because a message has arrived. Returns False while polling does not help."""
        self._begun, self._used = monotonic(), thread_time()
        if self.is_on:
            self._misses = 0
        self.is_on = self.is_on or self._begun >= self._next
        return self.is_on

    def goes_on(self) -> bool:
        """Whether to poll once more; if not, the poll was unsuccessful."""
        now = monotonic()
        if now - self._begun < POLL:
            return True
        self.is_on = False
        self._misses += 1
        # This thread had the processor for less than half of the time, so other programs need it.
        is_crowded = thread_time() - self._used < (now - self._begun) / 2
        if is_crowded or self._misses >= _MISSES:
            self._next = now + _PAUSE
        return False

    def found(self) -> None:
        """Stop polling: a message has arrived. If that took too long, the poll was unsuccessful all the same."""
        if self.goes_on():
            self.is_on, self._misses = False, 0
