"""The deadline of a handler, which the calls made inside it inherit.

Owns one context variable, and its clock: `time.monotonic`, so that a deadline means the same in every thread and every
event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from time import monotonic

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
