"""The deadline that calls made inside a handler inherit: nobody waits for them longer than for the handler.

Owns one context variable, and the clock of what is in it: `time.monotonic`, so that a deadline means the same in every
thread and every event loop.
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
    """The time that deadlines are held against (s)."""
    return clock()


def free_context() -> Context:
    """The present context without its deadline: for what serves many calls and happens to begin in one of them."""
    context = copy_context()
    context.run(_deadline.set, INFINITE)
    return context


def inherit(seconds: float) -> None:
    """What runs in this context from now on has `seconds` left, or less if it had less before."""
    _deadline.set(min(_deadline.get(), clock() + seconds))


def time_left(seconds: float | None) -> float | None:
    """The time (s) that a call made here may take: what was asked for, or what is left to the handler if that is less.

    None is "no limit".
    """
    deadline = _deadline.get()
    if deadline == INFINITE:
        return seconds
    left = max(deadline - clock(), 0.0)
    return left if seconds is None else min(seconds, left)
