"""Who reads which events at a client, and what has come for each.

Owns the tables that events are given out by, and what waits for a reader. Knows no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from ..events.patterns import PatternTable, is_pattern
from ..events.queue import EventQueue

#: An event as it came: the params of its message, and the message.
Event = tuple[dict[str, Any], bytes | bytearray]


class LocalSubscriber:
    """What has come for one reader of a topic, or of a pattern of topics, and how that ends.

    Attributes:
        topic: or the pattern.
        has_begun: the server has confirmed the subscription once.
        reconnects: how often it was made again since then.
    """

    __slots__ = ("_error", "_wake", "has_begun", "has_ended", "queue", "reconnects", "topic")

    def __init__(self, topic: str, queue: EventQueue[Event]) -> None:
        self.topic = topic
        self.queue = queue
        self.has_begun = self.has_ended = False
        self.reconnects = 0
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        self.queue.put(self.topic, event, len(event[1]))
        self._wake.set()

    def end(self, error: Exception | None = None) -> None:
        """No more will come; the error is raised behind what waits. Only the first end counts."""
        if not self.has_ended:
            self.has_ended, self._error = True, error
            self._wake.set()

    async def get(self) -> Event:
        """The next event. StopAsyncIteration, or the error once, if there are no more."""
        while not self.queue:
            if self.has_ended:
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self.queue.take()


class LocalSubscribers(Mapping[str, list[LocalSubscriber]]):
    """The readers by what they read, topics and patterns; what nobody reads is not there."""

    def __init__(self) -> None:
        self._by_topic: dict[str, list[LocalSubscriber]] = {}
        self._patterns: PatternTable[str] = PatternTable()

    def __getitem__(self, topic: str) -> list[LocalSubscriber]:
        return self._by_topic[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_topic)

    def __len__(self) -> int:
        return len(self._by_topic)

    def add(self, reader: LocalSubscriber) -> None:
        """Enter a reader; once more is the same."""
        topic = reader.topic
        readers = self._by_topic.get(topic)
        if readers is None:
            readers = self._by_topic[topic] = []
            if is_pattern(topic):
                self._patterns.add(topic, topic)
        if reader not in readers:
            readers.append(reader)

    def remove(self, reader: LocalSubscriber) -> bool:
        """Take a reader out; was it there, and the last one of its topic?"""
        readers = self._by_topic.get(reader.topic, [])
        if reader not in readers:
            return False
        readers.remove(reader)
        if not readers:
            self.pop(reader.topic)
        return not readers

    def pop(self, topic: str) -> list[LocalSubscriber]:
        """Take all readers of a topic or pattern out."""
        readers = self._by_topic.pop(topic, None)
        if readers is None:
            return []
        if is_pattern(topic):
            self._patterns.remove(topic, topic)
        return readers

    def clear(self) -> None:
        """Take out everybody."""
        self._by_topic.clear()
        self._patterns = PatternTable()

    def of(self, topic: str) -> list[LocalSubscriber]:
        """Those whom an event of the topic is for, each once."""
        found = list(self._by_topic.get(topic, ()))
        for pattern in self._patterns.find(topic) if self._patterns else ():
            if pattern != topic:  # which is no topic, though somebody sends it as one
                found += self._by_topic[pattern]
        return found
