"""What a direct connection takes for its session.

Owns nothing: what the connection asks of its session is that of the NATS channel; what comes by it goes another way.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..peer.session import Session
from ..wire.buffers import Encoded
from ..wire.messages import Message


class Way(Protocol):
    """Where the messages of a direct connection go."""

    def receive(self, messages: list[Message]) -> None:
        """Take what has come with one read."""

    def blocked(self, is_full: bool) -> None:
        """The other end reads nothing, or reads again."""

    def close(self) -> None:
        """The other end sends nothing more."""


class DirectSession:
    """Stands in place of the session of a direct connection: what comes is for that of the NATS channel."""

    def __init__(self, way: Way, session: Session) -> None:
        self._way = way
        self._session = session
        self.takes_binary, self.sends_binary, self.offers_binary = session.takes_binary, session.sends_binary, False
        self.shares_memory, self.shared = False, None
        self.is_lines = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def connected(self, channel: Any, **options: Any) -> None:
        """The session has its channel."""

    def receive(self, messages: list[Message]) -> None:
        """As `Session.receive`."""
        self._way.receive(messages)

    def blocked(self, blocked: bool) -> None:
        """As `Session.blocked`."""
        self._way.blocked(blocked)

    def send(self, message: Encoded) -> None:
        """What the connection would say of bytes that cannot be read: it is closed in any case."""

    def end(self, make_error: Any) -> None:
        """As `Session.end`: the connection is of no use in one direction."""
        self._way.close()

    def lost(self, make_error: Any) -> None:
        """The way is told by `on_close`."""

    def go_away(self, reason: str) -> None:
        """As `Session.go_away`."""
