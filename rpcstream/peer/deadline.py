"""How long a call may take: the member `timeout` of a request, and the deadline that calls made in a handler inherit.

The clock is `time.monotonic`, so that a deadline means the same in every thread and every event loop. Imports no
asyncio, which plain calls of the sync client do without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DeadlineExceeded, InvalidRequest

if TYPE_CHECKING:
    import asyncio

INFINITE = float("inf")

#: The clock; `rpcstream.testing` puts a fake one here while a loop with fake time runs.
clock: Callable[[], float] = monotonic

_deadline: ContextVar[float] = ContextVar("rpcstream_deadline", default=INFINITE)

#: The deadline of the handler that this code runs for (monotonic seconds); infinite outside of one.
inherited = _deadline.get


def now() -> float:
    """The time by the clock of deadlines (s)."""
    return clock()


def free_context() -> Context:
    """A copy of the current context without its deadline: for work that serves many calls and begins in one of them."""
    context = copy_context()
    context.run(_deadline.set, INFINITE)
    return context


def inherit(seconds: float) -> None:
    """Give what runs in this context `seconds` from now on, or what it had before if that is less."""
    _deadline.set(min(_deadline.get(), clock() + seconds))


def forget() -> None:
    """Give what runs in this context all the time it wants: the call that it began in is over."""
    _deadline.set(INFINITE)


def time_left(seconds: float | None) -> float | None:
    """The time that a call made here may take: what is asked for, or what is left to the handler if that is less.

    Args:
        seconds: asked for; None: no limit.

    Returns:
        Seconds; None for no limit.
    """
    deadline = _deadline.get()
    if deadline == INFINITE:
        return seconds
    left = max(deadline - clock(), 0.0)
    return left if seconds is None else min(seconds, left)


def deadline_in(seconds: float | None) -> float:
    """The time by the clock (s) when a call that is made here and may take so many seconds is over; may be infinite."""
    left = time_left(seconds)
    return INFINITE if left is None else clock() + left


# -- the time of a request --------------------------------------------------------------------------------------------


class TimeLimit(NamedTuple):
    """The seconds that a call may take, and the loop time (s) when they are over."""

    seconds: float
    ends: float

    @classmethod
    def of(cls, seconds: float | None, loop: asyncio.AbstractEventLoop) -> TimeLimit | None:
        """The limit of a call that begins now; None where there is none."""
        return None if seconds is None else cls(seconds, loop.time() + seconds)

    def begin(self, method: str, now: float) -> None:
        """Give what runs in this context the time that is left at this loop time. Raises DeadlineExceeded for none."""
        left = self.ends - now
        if left <= 0:  # a member of a batch that waited for others
            raise self.error(method)
        inherit(left)

    def error(self, method: str) -> DeadlineExceeded:
        """The error for a call of this method that is over its time."""
        return DeadlineExceeded(data={"method": method, "timeout": self.seconds})


def timeout_of(name: str, most: float | None, message: dict[str, Any], waited: float) -> float | None:
    """The seconds that a call may take: its method's, or the caller's if these are fewer; None for no limit.

    Args:
        name: the method, for the error.
        most: the seconds that the method allows; None: any number.
        message: the request.
        waited: seconds that the request has waited here, which count for the caller's time-out.

    Raises:
        DeadlineExceeded: the caller's time is over already; the call is not begun.
        InvalidRequest: the member is no number of seconds.
    """
    asked = message.get("timeout")
    if asked is None:
        return most
    if not isinstance(asked, int | float) or isinstance(asked, bool) or asked < 0:
        raise InvalidRequest(data={"reason": "the member 'timeout' must be a number of seconds, not negative"})
    left = asked if most is None else min(asked, most + waited)
    if left <= waited:
        raise DeadlineExceeded(data={"method": name, "timeout": asked})
    return left - waited
