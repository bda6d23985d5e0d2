"""The last values of topics, for later subscribers.

Owns the messages that are kept, and the limits of their number and bytes. Knows no subscribers. For one thread at a
time.
"""

from __future__ import annotations

from ..errors import ServerBusy
from ..wire.buffers import Encoded, size_as_text
from .patterns import compiled, is_pattern


class Retained:
    """The last message of each topic that has one, in the order in which they were published.

    Args:
        max_topics: topics that may have one.
        max_bytes: bytes that all the messages may have together, as text.
    """

    def __init__(self, max_topics: int, max_bytes: int) -> None:
        self._max_topics = max_topics
        self._max_bytes = max_bytes
        self._messages: dict[str, Encoded] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def keep(self, topic: str, message: Encoded) -> None:
        """Keep the last message of a topic, in place of the one before.

        Raises:
            ServerBusy: there is no room for it; nothing has changed.
        """
        before = self._messages.get(topic)
        if before is None and len(self._messages) >= self._max_topics:
            limit = self._max_topics
            raise ServerBusy(
                f"Server busy: {limit} topics have a last value, no more may (max_retained)", {"limit": limit}
            )
        size = self._size + size_as_text(message) - (0 if before is None else size_as_text(before))
        if size > self._max_bytes:
            limit = self._max_bytes
            text = f"Server busy: the last values would take {size} bytes, {limit} are allowed (max_retained_size)"
            raise ServerBusy(text, {"limit": limit, "size": size})
        self._messages.pop(topic, None)
        self._messages[topic] = message
        self._size = size

    def get(self, topic: str) -> Encoded | None:
        """Return the last message of a topic; None if there is none."""
        return self._messages.get(topic)

    def forget(self, topic: str) -> bool:
        """Remove the last message of a topic; return False if there was none."""
        message = self._messages.pop(topic, None)
        if message is not None:
            self._size -= size_as_text(message)
        return message is not None

    def newest(self, pattern: str, denied: tuple[str, ...] = ()) -> list[tuple[str, Encoded]]:
        """Return topics that the pattern matches and no denied pattern does, with their messages; the newest first."""
        if not self._messages:
            return []
        if is_pattern(pattern):
            fits = compiled(pattern).fullmatch
            topics = [topic for topic in self._messages if fits(topic)]
        else:
            topics = [pattern] if pattern in self._messages else []
        for each in denied:
            bars = compiled(each).fullmatch
            topics = [topic for topic in topics if not bars(topic)]
        return [(topic, self._messages[topic]) for topic in reversed(topics)]
