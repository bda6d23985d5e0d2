"""The retained values of topics, for later subscribers."""

from __future__ import annotations

from ..errors import ServerBusy
from ..limits import MIB
from ..wire.buffers import Encoded, size_as_text
from .patterns import is_pattern, matches

#: Bytes of all retained events of a server together, as text. As much as one message may have, so that the largest can
#: be retained, and little beside the other memory of a server.
MAX_RETAINED_SIZE = 64 * MIB


class Retained:
    """The last message of each topic that retains one, in the order in which they were published.

    For one thread at a time.

    Args:
        max_topics: topics that may have one.

    Attributes:
        messages: the messages by topic, the oldest first; changed here only.
    """

    def __init__(self, max_topics: int) -> None:
        self._max_topics = max_topics
        self._size = 0
        self.messages: dict[str, Encoded] = {}

    def keep(self, topic: str, message: Encoded) -> None:
        """Keep the last message of a topic, in place of the one before.

        Raises:
            ServerBusy: there is no room for it; nothing has changed.
        """
        before = self.messages.get(topic)
        size = self._size + size_as_text(message) - (0 if before is None else size_as_text(before))
        for counted, limit, what in (
            (len(self.messages) + (before is None), self._max_topics, "topics with a last value (max_retained)"),
            (size, MAX_RETAINED_SIZE, "bytes of last values"),
        ):
            if counted > limit:
                raise ServerBusy(f"Server busy: {limit} {what} are allowed", {"limit": limit})
        self.messages.pop(topic, None)
        self.messages[topic] = message
        self._size = size

    def forget(self, topic: str) -> bool:
        """Remove the last message of a topic; return False if there was none."""
        message = self.messages.pop(topic, None)
        if message is not None:
            self._size -= size_as_text(message)
        return message is not None

    def newest(self, pattern: str, denied: tuple[str, ...] = ()) -> list[tuple[str, Encoded]]:
        """Return topics that the pattern matches and no denied pattern does, with their messages; the newest first."""
        known = reversed(self.messages) if is_pattern(pattern) else [pattern] if pattern in self.messages else []
        topics = [topic for topic in known if matches(pattern, topic)]
        for each in denied:
            topics = [topic for topic in topics if not matches(each, topic)]
        return [(topic, self.messages[topic]) for topic in topics]
