"""Events that wait for somebody who is slower than they come: in order, bounded, with a policy for when it is too much.

Owns what is kept and what is dropped, and counts that. Knows neither connections nor what an event is: a server has one
of these for each subscriber, a client one for each reader. What is called a topic here is any name by which events are
bounded and forgotten: at a server that of the subscription, which may be a pattern. Pure; for one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, Literal, TypeVar, get_args

#: What is dropped when the queue is full: the oldest event; the one that comes; or the subscriber, with all of it.
Policy = Literal["drop_oldest", "drop_newest", "disconnect"]

E = TypeVar("E")


class EventQueue(Generic[E]):
    """What waits, over all topics, in the order in which it came.

    One topic cannot crowd out the others by its number of events, only by their size.

    Args:
        max_events: of one topic that may wait.
        max_bytes: that the events of all topics may have together; a single one may have more.

    Attributes:
        size: bytes of the events that wait.
        dropped: events that there was no room for.
        has_overflowed: it was full, and the policy is "disconnect". Nothing is kept from then on.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    __slots__ = (
        "_events",
        "_last",
        "_max_bytes",
        "_max_events",
        "_numbers",
        "_policy",
        "dropped",
        "has_overflowed",
        "size",
    )

    def __init__(self, max_events: int, max_bytes: int, policy: Policy) -> None:
        check(max_events, policy)
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._policy = policy
        #: Topic, event and size by a number that counts up; an ordinary dict is slow to give its first.
        self._events: OrderedDict[int, tuple[str, E, int]] = OrderedDict()
        #: The numbers of the events of each topic that has any.
        self._numbers: dict[str, deque[int]] = {}
        self._last = 0
        self.size = 0
        self.dropped = 0
        self.has_overflowed = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def room(self) -> int:
        """Bytes that more events may have; negative, if a single large one waits."""
        return self._max_bytes - self.size

    def put(self, topic: str, event: E, size: int) -> bool:
        """Keep an event of so many bytes; false if it was dropped."""
        numbers = self._numbers.get(topic)
        crowded = numbers is not None and len(numbers) >= self._max_events
        too_large = self.size + size > self._max_bytes and bool(self._events)
        if crowded or too_large or self.has_overflowed:
            if self._policy != "drop_oldest":
                self.dropped += 1
                self.has_overflowed = self._policy == "disconnect"
                return False
            if crowded and numbers is not None:
                self._drop(numbers[0])
            while self._events and self.size + size > self._max_bytes:
                self._drop(next(iter(self._events)))
        self._last += 1
        self._events[self._last] = topic, event, size
        self._numbers.setdefault(topic, deque()).append(self._last)
        self.size += size
        return True

    def take(self) -> E:
        """The oldest event. IndexError if there is none."""
        if not self._events:
            raise IndexError("no event waits")
        return self._remove(next(iter(self._events)))

    def take_some(self, size: int) -> list[E]:
        """The oldest events until they have `size` bytes together; at least one, if there is any."""
        events: list[E] = []
        rest = self.size - size
        while self._events and (self.size > rest or not events):
            events.append(self._remove(next(iter(self._events))))
        return events

    def forget(self, topic: str) -> int:
        """Nobody wants what waits of a topic; how many events that was."""
        numbers = list(self._numbers.get(topic, ()))
        for number in numbers:
            self._remove(number)
        return len(numbers)

    def move(self, topic: str, choose: Callable[[E], str | None]) -> int:
        """Let what waits of a topic wait as of others, each event at its place; how many were forgotten instead.

        Others may have more than `max_events` then, and are dropped from like those that are full.

        Args:
            choose: gives the other topic of an event, or None: nobody wants it.
        """
        count = 0
        moved: set[str] = set()
        for number in self._numbers.pop(topic, ()):
            _, event, size = self._events[number]
            other = choose(event)
            if other is None:
                del self._events[number]
                self.size -= size
                count += 1
            else:
                self._events[number] = other, event, size
                self._numbers.setdefault(other, deque()).append(number)
                moved.add(other)
        for other in moved:
            self._numbers[other] = deque(sorted(self._numbers[other]))
        return count

    def clear(self) -> int:
        """Nobody wants what waits; how many events that was."""
        count = len(self._events)
        self._events.clear()
        self._numbers.clear()
        self.size = 0
        return count

    def _drop(self, number: int) -> None:
        self._remove(number)
        self.dropped += 1

    def _remove(self, number: int) -> E:
        """Take an event out; it is the oldest of its topic."""
        topic, event, size = self._events.pop(number)
        numbers = self._numbers[topic]
        numbers.popleft()
        if not numbers:
            del self._numbers[topic]
        self.size -= size
        return event


def check(max_events: int, policy: str) -> None:
    """Raises ValueError unless a queue can be made of these."""
    if max_events < 1:
        raise ValueError(f"a queue of events must have room for at least 1, got {max_events!r}")
    if policy not in get_args(Policy):
        raise ValueError(f"the policy must be one of {', '.join(get_args(Policy))}; got {policy!r}")
