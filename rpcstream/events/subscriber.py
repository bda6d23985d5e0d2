"""A connection that has subscribed: to what, what it is not to be sent of that, and what waits for it.

Knows neither the other subscribers nor how anything is sent. For whoever has the lock of the topics.
"""

from __future__ import annotations

from itertools import islice

from ..peer.state import ConversationState
from .patterns import PatternTable, compiled, is_pattern, matches, overlaps
from .queue import EVENT_COST, EventQueue, Waiting

#: Subscriptions of a connection that may take over what waits when another one ends. A program has fewer that overlap;
#: with a thousand events that wait it is a few milliseconds.
HEIRS_MAX = 16

#: An event that waits: its topic, and its message.
Event = Waiting


class Subscriber:
    """The subscriptions of one connection.

    Attributes:
        topics: that it has subscribed to, and patterns; with the patterns of what is denied of each.
        patterns: those of them that are patterns; None as long as there are none.
        weight: topics that it has subscribed to, and levels of patterns.
        queue: what waits, under the names of the subscriptions.
        is_due: something waits, and will be looked at: soon, or when the connection takes something again.
    """

    __slots__ = ("is_due", "patterns", "queue", "session", "topics", "weight")

    def __init__(self, session: ConversationState, queue: EventQueue[Event]) -> None:
        self.session = session
        self.queue = queue
        self.topics: dict[str, tuple[str, ...]] = {}
        self.patterns: PatternTable[None] | None = None
        self.weight = 0
        self.is_due = False

    def enter(self, topic: str, denied: tuple[str, ...]) -> None:
        """One more topic or pattern."""
        self.topics[topic] = denied
        self.weight += weight_of(topic)
        if is_pattern(topic):
            if self.patterns is None:
                self.patterns = PatternTable()
            self.patterns.add(topic, None)

    def leave(self, topic: str) -> None:
        """One less."""
        del self.topics[topic]
        self.weight -= weight_of(topic)
        if is_pattern(topic) and self.patterns is not None:
            self.patterns.remove(topic, None)

    @property
    def steps(self) -> int:
        """What its patterns cost a search at most; see `PatternTable`."""
        return self.patterns.steps if self.patterns is not None else 0

    def takes(self, topic: str, pattern: str) -> bool:
        """Is the topic, which the pattern matches, not denied to the subscription to that?"""
        denied = self.topics[pattern]
        return not (denied and any(matches(each, topic) for each in denied))

    def put_last_values(self, name: str, events: list[Event], most: int) -> int:
        """Let last values wait for a subscription, the newest of them that there is room for; how many these are.

        They push nothing out, and nobody is disconnected for them.

        Args:
            events: the newest first.
            most: so many at most.
        """
        if self.queue.has_overflowed:
            return 0
        room = self.queue.room
        chosen: list[Event] = []
        for event in events[: max(0, most)]:
            room -= size_of(event)
            if room < 0 and (chosen or len(self.queue)):
                break
            chosen.append(event)
        for event in reversed(chosen):
            self.queue.put(name, event, size_of(event))
        return len(chosen)

    def hand_on(self, ended: str) -> int:
        """A subscription has ended: what waits of it is for another one that matches; how many events are for none."""
        if not self.queue:
            return 0
        names = list(islice((each for each in self.topics if overlaps(each, ended)), HEIRS_MAX))
        if not names:
            return self.queue.forget(ended)
        heirs = [(name, compiled(name).fullmatch) for name in names]

        def choose(event: Event) -> str | None:
            topic = event.topic
            return next((name for name, fits in heirs if fits(topic) and self.takes(topic, name)), None)

        return self.queue.move(ended, choose)


def size_of(event: Event) -> int:
    """Bytes that an event takes in a queue."""
    return len(event) + EVENT_COST


def weight_of(topic: str) -> int:
    """What a subscription counts for in `max_subscriptions_total`: its memory goes by its levels if it is a pattern."""
    return topic.count(".") + 1 if is_pattern(topic) else 1
