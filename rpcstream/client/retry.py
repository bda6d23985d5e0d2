"""Rules for retrying calls and for reconnecting.

Owns which failed calls are made again and after which pause, and the pauses between attempts to connect. Knows no
connection and no clock: the time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import (
    CallCancelled,
    ConnectFailed,
    ConnectionLost,
    NotAuthenticated,
    NotPermitted,
    ProviderGone,
    RpcError,
    Unread,
)
from ..peer.deadline import INFINITE

if TYPE_CHECKING:  # which plain calls of the sync client do without
    import asyncio


def is_permanent(error: Exception) -> bool:
    """Tell whether connecting failed for a reason that another attempt does not change: the token, a certificate."""
    return isinstance(error, NotAuthenticated | NotPermitted) or (
        isinstance(error, ConnectFailed) and error.is_permanent
    )


class Unsent(ConnectionLost):
    """The connection ended before the call was sent on it; another connection may be tried at once."""

    executed = False


#: Errors after which a call may be repeated. A hub that lost the program that ran the call counts as a lost connection;
#: a call may be cancelled by a server that stops before it has begun it.
LOSSES = (ConnectFailed, ConnectionLost, ProviderGone, CallCancelled)

#: How often a call is repeated that the server has not begun, as it said, whatever the option `retries` is.
REPEATS = 5


def pause_before_retry(error: Exception, attempt: int, retries: int) -> float | None:
    """Seconds to wait before a call is made again; None if it is not.

    Args:
        error: how the call failed.
        attempt: how often it has been tried, from 1.
        retries: how often the caller allowed it to be repeated.
    """
    if was_not_begun(error):
        retries = max(retries, REPEATS)
    if attempt > retries or not isinstance(error, LOSSES) or (type(error) is CallCancelled and error.executed is None):
        return None
    # First at once, since most often the server was restarted and listens already; then twice as long each time.
    return 0.0 if attempt == 1 else min(0.05 * 2 ** (attempt - 2), 1.0)


#: Failures after which the pause is the longest in any case.
MANY = 64


def was_not_begun(error: BaseException) -> bool:
    """Tell whether the server is leaving, or a hub has lost the provider, and the call was not begun, as they say."""
    if isinstance(error, CallCancelled | ProviderGone):
        return isinstance(error.data, dict) and error.data.get("executed") is False
    return isinstance(error, Unread)


def _random() -> float:
    import random  # takes milliseconds, which a plain call from the command line does without

    return random.random()


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Pauses between attempts to connect, each longer than the one before. Times are in seconds.

    Each pause is random, between half of its length and all of it, so that clients that lost their server at the same
    time do not all come back at the same time.

    Attributes:
        first: the pause after the first failure.
        longest: no pause is longer than this.
        factor: by which a pause is longer than the one before.
        random: gives a number from 0 to 1; tests may replace it.
    """

    first: float = 0.1
    longest: float = 30.0
    factor: float = 2.0
    random: Callable[[], float] = _random

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest or self.factor < 1:
            raise ValueError(f"a back-off needs 0 < first <= longest and a factor of at least 1, got {self!r}")

    @property
    def longest_pause(self) -> float:
        """Seconds to wait after a failure that another attempt does not change."""
        return self.pause(MANY)

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures, from 1."""
        # The exponent is bounded: after some hours of failures the power would not fit a float.
        whole = self.longest
        if failures < MANY:
            whole = min(self.first * self.factor ** (failures - 1), self.longest)
        return whole * (0.5 + 0.5 * self.random())


def idempotent_methods(document: Any) -> frozenset[str]:
    """The names of the idempotent methods in a server's `rpc.discover` document."""
    methods = document.get("methods") if isinstance(document, dict) else None
    found = methods if isinstance(methods, list) else []
    return frozenset(
        method["name"]
        for method in found
        if isinstance(method, dict) and method.get("x-idempotent") is True and isinstance(method.get("name"), str)
    )


def check_idempotent(method: str, known: frozenset[str] | None, error: Exception) -> None:
    """Raise unless a lost call may be repeated: ConnectionLost with the reason, or the hub's ProviderGone.

    Args:
        method: its name.
        known: the server's idempotent methods; None if the server did not answer.
        error: how the call was lost.
    """
    if known is None or method not in known:
        if isinstance(error, ProviderGone):
            raise error
        why = "the method is not idempotent" if known is not None else "the server did not say what is idempotent"
        address = getattr(error, "address", None)
        raise ConnectionLost(f"the connection was lost, and {why}", method=method, address=address)


class CallRetries:
    """Decides which calls of an async client are made again, and when.

    Args:
        retries: how often a call may be repeated.
        retry: which calls may be: "all" or "idempotent".
        discover: starts an `rpc.discover` call, whose document says which methods are idempotent.
    """

    def __init__(self, retries: int, retry: str, discover: Callable[[], asyncio.Task[Any]]) -> None:
        self._retries = retries
        self._retry = retry
        self._discover = discover
        self._idempotent: frozenset[str] | None = None
        #: The discovery that is under way, shared by all calls that were lost together.
        self._discovery: asyncio.Task[Any] | None = None

    def pause(self, error: Exception, attempt: int, left: float) -> float | None:
        """Seconds until the call is made again; None if it is not.

        Args:
            error: how the call failed.
            attempt: how often it has been tried, from 1.
            left: seconds until its deadline.
        """
        pause = pause_before_retry(error, attempt, self._retries)
        return None if pause is None or pause >= left else pause

    async def check(self, method: str, error: Exception, deadline: float) -> None:
        """Raise ConnectionLost or ProviderGone unless the call may be repeated, by the client's `retry`."""
        if self._retry == "all" or method == "rpc.discover":
            return
        known = self._idempotent
        if known is None or isinstance(error, ProviderGone):  # what is registered at a hub changes
            known = await self._find_idempotent(deadline)
        check_idempotent(method, known, error)

    async def _find_idempotent(self, deadline: float) -> frozenset[str] | None:
        """Ask the server for its idempotent methods; None if it does not answer."""
        import asyncio

        discovery = self._discovery
        if discovery is None or discovery.done() or discovery.get_loop() is not asyncio.get_running_loop():
            discovery = self._discovery = self._discover()
            discovery.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                self._idempotent = idempotent_methods(await asyncio.shield(discovery))
        except (RpcError, OSError):  # with the errors of connections and time-outs
            return None
        return self._idempotent


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark a task's exception as seen: no warning is logged when all that waited for it have given up."""
    if not task.cancelled():
        task.exception()
