"""Whether a call that failed is made again, when, and when a lost connection is made anew. Pure: knows no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ConnectFailed, ConnectionLost, ProviderGone


class Unsent(ConnectionLost):
    """The connection was over before the call was sent on it: another one may be tried at once."""


#: What a call may be repeated for. A hub that lost the program which carried it out is like a connection that was lost.
LOSSES = (ConnectFailed, ConnectionLost, ProviderGone)


def pause_before_retry(error: Exception, attempt: int, retries: int) -> float | None:
    """Seconds to wait before the call is tried again; None if it is not.

    Args:
        attempt: how often it has been tried, from 1.
        retries: how often the caller allowed it to be repeated.
    """
    if attempt > retries or not isinstance(error, LOSSES):
        return None
    # At once first: most often the server was started anew and listens already. Then twice as long each time.
    return 0.0 if attempt == 1 else min(0.05 * 2 ** (attempt - 2), 1.0)


def _random() -> float:
    import random  # takes milliseconds, which a plain call from the command line does without

    return random.random()


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long a client waits before it connects again, each time longer. Times are in seconds.

    Each pause is drawn between half of it and the whole, so that clients which lost their server at the same time do
    not come back at the same time.

    Attributes:
        first: after the first failure.
        longest: it does not grow beyond this.
        factor: from one failure to the next.
        random: gives a number from 0 to 1; another one for tests.
    """

    first: float = 0.1
    longest: float = 30.0
    factor: float = 2.0
    random: Callable[[], float] = _random

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest or self.factor < 1:
            raise ValueError(f"a back-off needs 0 < first <= longest and a factor of at least 1, got {self!r}")

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures, from 1."""
        # The power is bounded before it is taken: it would not fit a float after some hours.
        whole = self.longest
        if failures < 64:
            whole = min(self.first * self.factor ** (failures - 1), self.longest)
        return whole * (0.5 + 0.5 * self.random())


def idempotent_methods(document: Any) -> frozenset[str]:
    """The methods that may be called again, by what the server says of itself (`rpc.discover`)."""
    methods = document.get("methods") if isinstance(document, dict) else None
    found = methods if isinstance(methods, list) else []
    return frozenset(
        method["name"]
        for method in found
        if isinstance(method, dict) and method.get("x-idempotent") is True and isinstance(method.get("name"), str)
    )


def check_idempotent(method: str, known: frozenset[str] | None, error: Exception) -> None:
    """Raises unless a call that was lost may be repeated: ConnectionLost with the reason, or the hub's ProviderGone.

    Args:
        known: the methods that may be called again; None if the server did not tell.
        error: how the call was lost.
    """
    if known is None or method not in known:
        if isinstance(error, ProviderGone):
            raise error
        why = "the method is not idempotent" if known is not None else "the server did not say what is idempotent"
        address = getattr(error, "address", None)
        raise ConnectionLost(f"the connection was lost, and {why}", method=method, address=address)
