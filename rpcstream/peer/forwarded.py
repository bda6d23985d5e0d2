"""Calls that are answered here and carried out by somebody else.

Owns what such a call is to the session that it came on.
"""

from __future__ import annotations

from typing import Any


class ForwardedCall:
    """A call that is carried out by somebody else, with no task here.

    Whoever makes one says when it is over (`Session.finish`).

    Attributes:
        call_id: of the request that it answers.
    """

    __slots__ = ("call_id",)

    def __init__(self, call_id: Any) -> None:
        self.call_id = call_id

    def cancel(self) -> None:
        """Nobody waits any more."""
        raise NotImplementedError
