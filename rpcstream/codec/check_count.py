"""Counts the values of a message that Python checks one by one, which holds the event loop, and bounds them."""

from __future__ import annotations

from contextvars import ContextVar

from ..errors import MessageTooLarge


class CheckCount:
    """The count for one message.

    Args:
        limit: how many values there may be.
    """

    __slots__ = ("_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._left = self._limit = limit

    def take(self) -> None:
        """Count one more value. Raises MessageTooLarge."""
        self._left -= 1
        if self._left < 0:
            raise too_many_checked(self._limit)

    def again(self) -> None:
        """Begin anew: the message is checked once more."""
        self._left = self._limit


#: The count for the message that is being checked; None where there cannot be too many values.
counting: ContextVar[CheckCount | None] = ContextVar("counting", default=None)


def too_many_checked(limit: int) -> MessageTooLarge:
    """The error for a message over `max_checked_values`."""
    return MessageTooLarge(
        f"Message too large: it has more than {limit} values that are checked one by one (max_checked_values): send "
        "numbers as one array (ndarray), or fewer values in a call",
        {"values": limit + 1, "limit": limit},
    )
