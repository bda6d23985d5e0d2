"""Members of a request that say how it is to be carried out: `timeout` and `stream`.

Owns how they are checked and combined with the limits of the method. Knows nothing of how a call is carried out.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from ..errors import DeadlineExceeded, InvalidRequest


class TimeLimit(NamedTuple):
    """The seconds that a call may take, and the loop time (s) when they are over."""

    seconds: float
    ends: float

    @classmethod
    def of(cls, seconds: float | None, loop: asyncio.AbstractEventLoop) -> TimeLimit | None:
        """The limit of a call that begins now; None where there is none."""
        return None if seconds is None else cls(seconds, loop.time() + seconds)


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


def credit_of(message: dict[str, Any]) -> int | None:
    """The items that the caller permits at first; None if it wants no stream.

    Raises:
        InvalidRequest: the member is no number of items, or the id could not be named by items and credit.
    """
    credit = message.get("stream")
    if credit is not None and type(message.get("id")) not in (int, str, type(None)):
        raise InvalidRequest(data={"reason": "the id of a stream must be a string or an integer of 64 bits"})
    if credit is not None and (type(credit) is not int or credit < 0):
        raise InvalidRequest(data={"reason": "the member 'stream' must be a number of items, not negative"})
    return credit
