"""What a server's topics know of other servers that share its events; NATS is the way to them.

Owns the interface alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from ..wire.buffers import Encoded
from .relay import Keep


class SharedTopics(Protocol):
    """The topics of one process, whose events are shared. To be used under their lock, but for the names."""

    @property
    def group(self) -> str:
        """The id of the server that this process is one of several of; empty where it is the only one."""

    def own_names(self) -> list[str]:
        """All topics and patterns with subscribers of this process."""

    def has_subscribers(self, name: str) -> bool:
        """Whether a topic or pattern, taken by its name, has subscribers of this process."""

    def receive(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        """Send an event of another server to the subscribers of this process."""

    def last_value(self, topic: str) -> Encoded | None:
        """The message with the last value of a topic."""

    def count_dropped(self, count: int) -> None:
        """Count events for which the way was too slow."""


class EventSharing(Protocol):
    """Publishes the events of one process to other servers, and receives theirs for its subscribers.

    All but `settled` is called under the lock of the topics; `publish` in any thread.
    """

    def join(self, topics: SharedTopics, lock: threading.Lock, retained: Iterable[str]) -> None:
        """Share the events of these topics.

        Args:
            topics: get the events of others, by `receive`.
            lock: guards them.
            retained: topics that have a last value already.
        """

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> bool:
        """Publish an event; whether this way tells the other processes of this server of it as well.

        Args:
            topic: of the event.
            message: None: there is nothing to send.
            keep: what becomes of the last value.
        """

    def changed(self, name: str) -> None:
        """A topic or pattern may have got its first subscriber, or lost its last one; in the event loop."""

    async def settled(self) -> None:
        """Wait until events of all that has subscribers come, for a time."""
