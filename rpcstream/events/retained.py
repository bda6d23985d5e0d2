"""The last values of topics, for those who subscribe later.

Owns the messages that are kept, and the bounds of what they may take together. Knows nobody whom they are sent to. For
one thread at a time.
"""

from __future__ import annotations

from ..errors import ServerBusy
from ..wire.buffers import Encoded
from .patterns import compiled, is_pattern


class Retained:
    """One message for each of some topics: in the order in which they were published last.

    Args:
        max_topics: that may have one.
        max_bytes: that all the messages may have together.
    """

    def __init__(self, max_topics: int, max_bytes: int) -> None:
        self._max_topics = max_topics
        self._max_bytes = max_bytes
        self._messages: dict[str, Encoded] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def keep(self, topic: str, message: Encoded) -> None:
        """Let this be the last message of the topic, in the place of the one before.

        Raises:
            ServerBusy: there is no room for it; all is as it was.
        """
        before = self._messages.get(topic)
        if before is None and len(self._messages) >= self._max_topics:
            limit = self._max_topics
            raise ServerBusy(f"Server busy: {limit} topics have a last value that is kept", {"limit": limit})
        size = self._size + len(message) - (0 if before is None else len(before))
        if size > self._max_bytes:
            limit = self._max_bytes
            text = f"Server busy: the last values that are kept would be {size} bytes, and {limit} are allowed"
            raise ServerBusy(text, {"limit": limit, "size": size})
        self._messages.pop(topic, None)
        self._messages[topic] = message
        self._size = size

    def forget(self, topic: str) -> bool:
        """Keep nothing of the topic; false if nothing was kept."""
        message = self._messages.pop(topic, None)
        if message is not None:
            self._size -= len(message)
        return message is not None

    def newest(self, pattern: str, denied: tuple[str, ...] = ()) -> list[tuple[str, Encoded]]:
        """The topics that the pattern matches and none of the denied ones does, with their messages; those that were
        published last come first."""
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
