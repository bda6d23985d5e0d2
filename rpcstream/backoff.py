"""Pauses between failed attempts, each longer than the one before."""

from __future__ import annotations

from collections.abc import Callable

#: Failures after which the pause is the longest in any case.
MANY = 64


def _random() -> float:
    import random  # takes milliseconds, which a plain call from the command line does without

    return random.random()


class Backoff:
    """Pauses between attempts to connect, each longer than the one before. Times are in seconds.

    Each pause is random, between half of its length and the full length, so that clients that lost the same server do
    not all reconnect at the same time.

    Args:
        first: the pause after the first failure.
        longest: the longest pause.
        factor: how many times longer each pause is than the one before.
        random: returns a number from 0 to 1; tests may replace it.
    """

    def __init__(
        self, *, first: float = 0.1, longest: float = 30.0, factor: float = 2.0, random: Callable[[], float] = _random
    ) -> None:
        if not 0 < first <= longest or factor < 1:
            given = f"{first!r}, {longest!r} and {factor!r}"
            raise ValueError(f"a Backoff needs 0 < first <= longest and factor >= 1, got {given}")
        self.first, self.longest, self.factor = first, longest, factor
        self.random = random

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures, from 1; after `MANY`, the longest pause."""
        # The exponent is bounded: after some hours of failures the power would not fit a float.
        whole = min(self.first * self.factor ** (failures - 1), self.longest) if failures < MANY else self.longest
        return whole * (0.5 + 0.5 * self.random())
