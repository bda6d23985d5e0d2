"""Looking for the next message for a moment before sleeping, at both ends of a connection that shares memory.

For a processor to fall asleep and to wake up takes as long as a call whose array goes by shared memory. Where looking
does not pay, an end sleeps at once: handlers take longer, calls are rare, or other programs need the processor.
"""

from __future__ import annotations

from time import monotonic, thread_time

#: Seconds for which an end looks for the next message.
LOOK = 0.0002

#: Seconds for which an end sleeps at once, after so many looks in vain.
_PAUSE, _MISSES = 0.1, 3


class Watch:
    """The looks of one end of a connection, one at a time. By the real clock: that of a loop in tests may stand still.

    Attributes:
        is_on: a look is under way.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._begun = self._used = self._next = 0.0
        self._misses = 0

    def begin(self) -> bool:
        """Begin to look, or begin again since something has come. False: looking did not pay a moment ago."""
        self._begun, self._used = monotonic(), thread_time()
        if self.is_on:
            self._misses = 0
        self.is_on = self.is_on or self._begun >= self._next
        return self.is_on

    def goes_on(self) -> bool:
        """Whether to look once more."""
        now = monotonic()
        if now - self._begun < LOOK:
            return True
        self.is_on = False
        self._misses += 1
        # Others need the processor: this thread had it for less than half of the time.
        is_crowded = thread_time() - self._used < (now - self._begun) / 2
        if is_crowded or self._misses >= _MISSES:
            self._next = now + _PAUSE
        return False

    def found(self) -> None:
        """End the look: a message has come."""
        if self.goes_on():
            self.is_on, self._misses = False, 0
