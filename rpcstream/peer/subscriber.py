"""A connection that has subscribed: to what, what it is not to be sent of that, and what waits for it.

Knows neither the other subscribers nor how anything is sent. For whoever has the lock of the topics.
"""

from __future__ import annotations

from itertools import islice

from ..wire.pieces import Written
from .event_queue import EventQueue
from .patterns import compiled, matches, overlaps
from .session import Session

#: Subscriptions of a connection that may take over what waits when another one ends. A program has fewer that overlap;
#: with a thousand events that wait it is a few milliseconds.
HEIRS_MAX = 16

#: An event that waits: its topic, and its message.
Event = tuple[str, Written]


class Subscriber:
    """The subscriptions of one connection.

    Attributes:
        topics: that it has subscribed to, and patterns; with the patterns of what is denied of each.
        queue: what waits, under the names of the subscriptions.
        is_due: something waits, and will be looked at: soon, or when the connection takes something again.
    """

    __slots__ = ("is_due", "queue", "session", "topics")

    def __init__(self, session: Session, queue: EventQueue[Event]) -> None:
        self.session = session
        self.queue = queue
        self.topics: dict[str, tuple[str, ...]] = {}
        self.is_due = False

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
            room -= len(event[1])
            if room < 0 and (chosen or len(self.queue)):
                break
            chosen.append(event)
        for event in reversed(chosen):
            self.queue.put(name, event, len(event[1]))
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
            topic = event[0]
            return next((name for name, fits in heirs if fits(topic) and self.takes(topic, name)), None)

        return self.queue.move(ended, choose)
