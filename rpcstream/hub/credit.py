"""Credit for the items of a stream that goes through the hub, on its way to whoever sends them.

Owns what waits of it: while the other end does not read, all that is given becomes one message.
"""

from __future__ import annotations

from typing import Any

from ..peer.flow_control import CREDIT_MAX
from ..peer.session import Session
from ..wire import envelope


class Credit:
    """What one sender of items is permitted.

    Args:
        session: of the sender.
        stream: how the sender knows the stream, as in `$/credit`.

    Attributes:
        is_over: the stream has ended; nothing is said any more.
    """

    __slots__ = ("_owed", "_session", "_stream", "is_over")

    def __init__(self, session: Session, stream: dict[str, Any]) -> None:
        self._session = session
        self._stream = stream
        self._owed = 0
        self.is_over = False

    def give(self, n: int, *, now: bool) -> None:
        """Permit `n` more items; now, or behind what waits for the sender."""
        waits = self._owed > 0
        self._owed = min(self._owed + n, CREDIT_MAX)
        if waits:
            return
        if now:
            self._say()
        else:
            self._session.flows.when_flowing(self._say)

    def _say(self) -> None:
        owed, self._owed = self._owed, 0
        if not self.is_over:
            self._session.send(envelope.credit(self._stream, owed))
